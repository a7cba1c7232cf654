"""Special functions composed of MLX's operations, as PyTensor's MLX backend has to compute them.

MLX lacks these functions, so that PyTensor evaluates series over whole arrays, with every branch
for every element (``pytensor/link/mlx/dispatch/scalar``, 1,651 lines). The functions here have the
same
structure: the same branches and about as many terms, in the dtype of the argument. Their
coefficients are fitted to SciPy's values; their accuracy does not matter, only their cost does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import mlx.core as mx
import numpy as np
import scipy.special

LANCZOS = 7.0  # the parameter g


@cache
def _fit(function: Callable[[np.ndarray], np.ndarray], low: float, high: float, terms: int):
    """Return Chebyshev coefficients of a function between two arguments."""
    series = np.polynomial.Chebyshev.interpolate(function, terms - 1, domain=[low, high])
    return tuple(series.coef)


@cache
def _lanczos() -> tuple[float, ...]:
    """Return the coefficients of Lanczos' sum with nine terms (SIAM J. Numer. Anal. 1, 1964)."""
    w = np.linspace(0, 40, 400)
    base = w + LANCZOS + 0.5
    wanted = np.exp(scipy.special.gammaln(w + 1) - (w + 0.5) * np.log(base) + base)
    columns = [np.ones_like(w), *(1 / (w + i) for i in range(1, 9))]
    matrix = np.stack(columns, axis=1) / wanted[:, None]
    return tuple(np.linalg.lstsq(matrix, math.sqrt(2 * math.pi) ** -1 * np.ones_like(w))[0])


def _number(x: mx.array) -> Callable[[float], mx.array]:
    return lambda value: mx.array(value, dtype=x.dtype)


def _exp(x: mx.array) -> mx.array:
    """exp, also accurate in float64, where mx.exp has the accuracy of float32."""
    return mx.power(_number(x)(math.e), x)


def _series(coefficients: Sequence[float], x: mx.array, low: float, high: float) -> mx.array:
    """A Chebyshev series by Clenshaw's recurrence, with the argument clamped to the interval."""
    number = _number(x)
    t = mx.minimum(mx.maximum(x, number(low)), number(high))
    t = (t - number((low + high) / 2)) * number(4 / (high - low))
    b0, b1 = number(coefficients[-1]), number(0.0)
    for c in coefficients[-2:0:-1]:
        b0, b1 = t * b0 - b1 + number(c), b0
    return number(0.5) * t * b0 - b1 + number(coefficients[0])


def _lgamma1p(w: mx.array) -> mx.array:
    """log(gamma(w + 1)) for w >= -1/2."""
    number = _number(w)
    coefficients = _lanczos()
    total = number(coefficients[0])
    for i, c in enumerate(coefficients[1:], start=1):
        total = total + number(c) / (w + number(float(i)))
    t = w + number(LANCZOS + 0.5)
    log_base = number(0.5 * math.log(2 * math.pi)) + (w + number(0.5)) * mx.log(t) - t
    return log_base + mx.log(total)


def lgamma(x: mx.array) -> mx.array:
    """Lanczos' sum and the reflection formula."""
    number = _number(x)
    half, one, pi = number(0.5), number(1.0), number(math.pi)
    reflect = x < half
    out = _lgamma1p(mx.where(reflect, one - x, x) - one)
    log_sine = mx.log(mx.abs(mx.sin(pi * (x - mx.floor(x)))))
    out = mx.where(reflect, mx.log(pi) - log_sine - out, out)
    return mx.where(mx.isinf(x), number(math.inf), out)


def gamma(x: mx.array) -> mx.array:
    """exp of Lanczos' sum, for either sign."""
    number = _number(x)
    zero, half, one, pi = (number(v) for v in (0.0, 0.5, 1.0, math.pi))

    def positive(z: mx.array) -> mx.array:
        up = z < half
        out = _exp(_lgamma1p(mx.where(up, z + one, z) - one))
        return mx.where(up, out / z, out)

    below = mx.where(x < zero, x, -one)
    tangent = mx.tan(half * pi * below)
    sine = number(2.0) * tangent / (one + tangent * tangent)
    out = mx.where(
        x > zero, positive(mx.where(x > zero, x, one)), pi / (sine * positive(one - below))
    )
    out = mx.where(x == zero, one / x, out)
    out = mx.where(mx.isinf(x) & (x > zero), number(math.inf), out)
    out = mx.where(mx.isnan(x), x, out)
    return mx.where((x < zero) & (x == mx.round(x)), zero / zero, out)


def digamma(x: mx.array) -> mx.array:
    """Recurrence, then the asymptotic series (DLMF 5.5.2 and 5.11.2), and reflection."""
    number = _number(x)
    shifts = 10 if x.dtype == mx.float64 else 6
    bernoulli = [1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12]
    bernoulli = bernoulli if x.dtype == mx.float64 else bernoulli[:3]
    one, pi = number(1.0), number(math.pi)
    reflect = x < number(0.0)
    y = mx.where(reflect, one - x, x)
    shift = one / y
    for i in range(1, shifts):
        shift = shift + one / (y + number(float(i)))
    y = y + number(float(shifts))
    r = one / (y * y)
    series = number(bernoulli[-1])
    for b in bernoulli[-2::-1]:
        series = number(b) + series * r
    out = mx.log(y) - number(0.5) / y - series * r - shift
    return mx.where(reflect, out - pi * mx.cos(pi * x) / mx.sin(pi * x), out)


def _erfcx_tail(y: mx.array) -> mx.array:
    """erfcx above 0.46875, in two intervals."""
    number = _number(y)
    low, split = 0.46875, 4.0
    middle = _series(_fit(scipy.special.erfcx, low, split, 16), y, low, split)
    inverse = number(1.0) / mx.maximum(y, number(split))
    far = _fit(
        lambda t: scipy.special.erfcx(1 / np.maximum(t, 1e-9)) / np.maximum(t, 1e-9), 0, 0.25, 10
    )
    tail = inverse * _series(far, inverse, 0, 0.25)
    return mx.where(y <= number(split), middle, tail)


def _erf_center(y: mx.array) -> mx.array:
    """erf up to 0.46875."""
    number = _number(y)
    z = mx.minimum(y, number(0.46875))
    z = z * z
    odd = _fit(lambda t: scipy.special.erf(np.sqrt(t + 1e-12)) / np.sqrt(t + 1e-12), 0, 0.22, 9)
    return y * _series(odd, z, 0, 0.22)


def erfc(x: mx.array) -> mx.array:
    """Three intervals and the symmetry."""
    number = _number(x)
    y, split = mx.abs(x), number(0.46875)
    tail = mx.maximum(y, split)
    out = mx.where(
        y <= split, number(1.0) - _erf_center(y), _exp(-(tail * tail)) * _erfcx_tail(tail)
    )
    return mx.where(x >= number(0.0), out, number(2.0) - out)


def erfcx(x: mx.array) -> mx.array:
    """Three intervals and the symmetry."""
    number = _number(x)
    y, split = mx.abs(x), number(0.46875)
    near = mx.minimum(y, split)
    center = _exp(near * near) * (number(1.0) - _erf_center(near))
    out = mx.where(y <= split, center, _erfcx_tail(mx.maximum(y, split)))
    return mx.where(x >= number(0.0), out, number(2.0) * _exp(y * y) - out)


def erfcinv(x: mx.array) -> mx.array:
    """Three intervals in the probability or in the root of its logarithm."""
    number = _number(x)
    zero, half, two = number(0.0), number(0.5), number(2.0)
    q = (x - number(1.0)) * half
    square = mx.minimum(q * q, number(0.18))
    center = _fit(
        lambda t: -scipy.special.ndtri(0.5 + np.sqrt(t + 1e-12)) / np.sqrt(t + 1e-12), 0, 0.181, 16
    )
    middle_q = q * _series(center, square, 0, 0.181)
    r = mx.sqrt(number(math.log(2)) - mx.log(mx.where(q < zero, x, two - x)))

    def quantile(r: np.ndarray) -> np.ndarray:
        return -scipy.special.ndtri_exp(-r * r)

    middle = _series(_fit(quantile, 1.6, 5, 16), r, 1.6, 5)
    far = _series(_fit(quantile, 5, 30, 16), r, 5, 30)
    tail = mx.where(r <= number(5.0), middle, far)
    tail = mx.where(q < zero, tail, -tail)
    out = mx.where(mx.abs(q) <= number(0.425), middle_q, tail) / number(math.sqrt(2))
    out = mx.where(x == zero, number(math.inf), out)
    out = mx.where(x == two, number(-math.inf), out)
    return mx.where((x < zero) | (x > two), zero / zero, out)


def _bessel(
    scaled: Callable[[np.ndarray], np.ndarray], odd: bool
) -> Callable[[mx.array], mx.array]:
    def large(t: np.ndarray) -> np.ndarray:
        y = 8 / np.maximum(t, 1e-6)
        return scaled(y) * np.sqrt(y)

    def small(y: np.ndarray) -> np.ndarray:
        return scaled(y + 1e-9) / (y + 1e-9) if odd else scaled(y)

    def bessel(x: mx.array) -> mx.array:
        number = _number(x)
        terms = (30, 25) if x.dtype == mx.float64 else (18, 10)
        y = mx.abs(x)
        near = _series(_fit(small, 0, 8, terms[0]), y, 0, 8)
        near = near * mx.minimum(y, number(8.0)) if odd else near
        above = mx.maximum(y, number(8.0))
        far = _series(_fit(large, 0, 1, terms[1]), number(8.0) / above, 0, 1) / mx.sqrt(above)
        out = mx.where(y <= number(8.0), near, far) * _exp(y)
        return mx.where(x < number(0.0), -out, out) if odd else out

    return bessel


i0 = _bessel(scipy.special.i0e, odd=False)
i1 = _bessel(scipy.special.i1e, odd=True)


def _gamma_tails(a: mx.array, x: mx.array, lower: bool) -> mx.array:
    """Series, continued fraction and an expansion near x = a: all three for every element."""
    number = _number(x)
    one = number(1.0)
    ratio = x / a
    temme = (a >= number(15.0)) & (ratio >= number(0.4)) & (ratio <= number(1.8))
    series_holds = ~temme & (x <= a + one)

    at = mx.where(series_holds, x, a * number(0.25))
    term = total = one
    for n in range(1, 50):
        term = term * at / (a + number(float(n)))
        total = total + term
    series = total * _exp(a * mx.log(at) - at - _lgamma1p(a))

    at = mx.where(temme | series_holds, a + number(2.0), x)
    tiny = number(1e-30)
    b = at + one - a
    c = one / tiny
    d = h = one / b
    for i in range(1, 50):
        numerator = number(float(-i)) * (number(float(i)) - a)
        b = b + number(2.0)
        d = numerator * d + b
        d = mx.where(mx.abs(d) < tiny, tiny, d)
        c = b + numerator / c
        c = mx.where(mx.abs(c) < tiny, tiny, c)
        d = one / d
        h = h * d * c
    fraction = h * _exp(a * mx.log(at) - at - _lgamma1p(a - one))

    at = mx.where(temme, x, a)
    s = (at - a) / a
    eta = mx.sign(s) * mx.sqrt(mx.maximum(number(2.0) * (s - mx.log1p(s)), number(0.0)))
    total, power = number(0.0), one
    for k in range(10):  # a table of ten polynomials of degree 13 in eta (DLMF 8.12.9)
        row = number(0.0)
        for n in range(14):
            row = row * eta + number(-1 / 3 if (k, n) == (0, 13) else 1e-9)
        total = total + row * power
        power = power / a
    sign = -1.0 if lower else 1.0
    correction = _exp(number(-0.5) * a * eta * eta) * mx.rsqrt(number(2 * math.pi) * a) * total
    uniform = number(0.5) * erfc(number(sign) * eta * mx.sqrt(a * number(0.5)))
    uniform = uniform + number(sign) * correction

    if lower:
        fraction = one - fraction
    else:
        series = one - series
    return mx.where(temme, uniform, mx.where(series_holds, series, fraction))


def gammainc(a: mx.array, x: mx.array) -> mx.array:
    """The lower tail."""
    return _gamma_tails(a, x, lower=True)


def gammaincc(a: mx.array, x: mx.array) -> mx.array:
    """The upper tail."""
    return _gamma_tails(a, x, lower=False)


def betainc(a: mx.array, b: mx.array, x: mx.array) -> mx.array:
    """Lentz' continued fraction with 120 terms on the side where it converges."""
    number = _number(x)
    one = number(1.0)
    swap = x > (a + one) / (a + b + number(2.0))
    p, q = mx.where(swap, b, a), mx.where(swap, a, b)
    z = mx.where(swap, one - x, x)
    tiny = number(1e-30)
    c = one
    d = one / (one - (p + q) * z / (p + one))
    h = d
    for i in range(1, 60):
        m = number(float(i))
        for numerator in (
            m * (q - m) * z / ((p + m + m - one) * (p + m + m)),
            -(p + m) * (p + q + m) * z / ((p + m + m) * (p + m + m + one)),
        ):
            d = one + numerator * d
            d = one / mx.where(mx.abs(d) < tiny, tiny, d)
            c = one + numerator / c
            c = mx.where(mx.abs(c) < tiny, tiny, c)
            h = h * d * c
    log_beta = _lgamma1p(p - one) + _lgamma1p(q - one) - _lgamma1p(p + q - one)
    out = h * _exp(p * mx.log(z) + q * mx.log1p(-z) - log_beta) / p
    return mx.where(swap, one - out, out)


def log1mexp(x: mx.array) -> mx.array:
    """log(1 - exp(x)) in two branches."""
    return mx.where(x < math.log(0.5), mx.log1p(-mx.exp(x)), mx.log(-mx.expm1(x)))


COMPOSITIONS: dict[str, Callable[..., mx.array]] = {
    function.__name__: function
    for function in (lgamma, gamma, digamma, erfc, erfcx, erfcinv, gammainc, gammaincc, betainc)
} | {"i0": i0, "i1": i1, "log1mexp": log1mexp}
