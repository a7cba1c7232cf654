"""Compute the coefficients of the incomplete gamma and beta functions' approximations.

python csrc/special/incomplete_coefficients.py           # rewrite incomplete_coefficients.h
python csrc/special/incomplete_coefficients.py --check   # exit with 1 if it is out of date
"""

from __future__ import annotations

import sys
from fractions import Fraction

import mpmath as mp  # type: ignore[import-untyped]
from minimax import DIGITS, Fit, Precision, Table, limit, main
from mpmath import mpf

LARGE = 8
"""From here on, Gamma is Stirling's formula times `gamma_star`."""

UNIFORM_TERMS: dict[Precision, int] = {"full": 32, "half": 16}
"""Number of f_n in the uniform expansions: enough for nu >= 12 and |zeta| <= 1."""


def atanh_rest(z: mpf) -> mpf:
    """(atanh(f) / f - 1) / f^2 at f^2 = z; DLMF 4.37.24 and 4.6.6."""
    if z < mpf("1e-6"):
        return sum(z**k / (2 * k + 3) for k in range(10))
    f = mp.sqrt(z)
    return (mp.atanh(f) / f - 1) / z


def gamma_star(w: mpf) -> mpf:
    """Gamma(z) / (sqrt(2 pi / z) (z / e)^z) at z = 1/w; DLMF 5.11.3."""
    if w < mpf(1) / 300:
        exponent = mpf(0)
        for k in range(1, 60):
            exponent += mp.bernoulli(2 * k) / (2 * k * (2 * k - 1)) * w ** (2 * k - 1)
        return mp.exp(exponent)
    z = 1 / w
    return mp.exp(mp.loggamma(z) - (z - mpf(1) / 2) * mp.log(z) + z - mp.log(2 * mp.pi) / 2)


def reciprocal_gamma(r: mpf) -> mpf:
    """(1 / Gamma(1 + r) - 1) / (r (1 - r)); DLMF 5.7.1."""
    return (mp.rgamma(1 + r) - 1) / (r * (1 - r))


def scaled_erfc(v: mpf) -> mpf:
    """exp(z^2) erfc(z) / v at z = 2 (1/v - 1); DLMF 7.2.2."""
    z = 2 * (1 / v - 1)
    # erfc itself would underflow the working precision's guard digits only beyond this range.
    return mp.exp(z * z) * mp.erfc(z) / v


FITS = [
    Fit(
        "atanh_rest",
        atanh_rest,
        mpf(0),
        mpf(1) / 9,
        (11, 0),
        (7, 0),
        "(atanh(f) / f - 1) / f^2 in f^2, |f| <= 1/3",
    ),
    Fit(
        "gamma_star",
        gamma_star,
        mpf(0),
        1 / mpf(LARGE),
        (9, 0),
        (5, 0),
        f"Gamma(z) / (sqrt(2 pi / z) (z / e)^z) in 1/z, {LARGE} <= z",
    ),
    Fit(
        "reciprocal_gamma",
        limit(reciprocal_gamma, mpf(0), mpf(1)),
        mpf(0),
        mpf(1),
        (14, 0),
        (10, 0),
        "(1 / Gamma(1 + r) - 1) / (r (1 - r)), 0 <= r <= 1",
    ),
    Fit(
        "scaled_erfc",
        scaled_erfc,
        mpf(1) / 15,
        mpf(1),
        (10, 10),
        (6, 6),
        "exp(z^2) erfc(z) / v in v = 1 / (1 + z / 2), 0 <= z <= 28",
    ),
]

Polynomial = list[Fraction]
"""Coefficients, lowest first."""


def plus(*terms: Polynomial) -> Polynomial:
    """The sum of polynomials."""
    out = [Fraction(0)] * max(map(len, terms))
    for term in terms:
        for i, c in enumerate(term):
            out[i] += c
    return out


def times(p: Polynomial, q: Polynomial) -> Polynomial:
    """The product of polynomials."""
    out = [Fraction(0)] * (len(p) + len(q) - 1)
    for i, a in enumerate(p):
        for j, b in enumerate(q):
            out[i + j] += a * b
    return out


def convolved(a: list[Polynomial], b: list[Polynomial], n: int) -> Polynomial:
    """Coefficient n of the product of two power series whose coefficients are polynomials."""
    parts = [times(a[i], b[n - i]) for i in range(n + 1) if i < len(a) and n - i < len(b)]
    return plus(*parts) if parts else [Fraction(0)]


def uniform_series(count: int) -> list[Polynomial]:
    """f_0 to f_count, polynomials in r, of f(zeta) = zeta / d = f_0 + f_1 zeta + ...

    d(zeta) has d d' = zeta (1 + r d - p d^2), p = (1 - r^2) / 4, d = zeta + ...: see `Uniform` in
    incomplete.h.
    """
    minus_p = [Fraction(-1, 4), Fraction(0), Fraction(1, 4)]
    r = [Fraction(0), Fraction(1)]
    d: list[Polynomial] = [[Fraction(0)], [Fraction(1)]]
    for n in range(2, count + 2):
        # The coefficient of zeta^n on both sides. d d' is half the derivative of d^2, whose
        # coefficient n + 1 consists of 2 d_n and known numbers.
        right = plus(times(r, d[n - 1]), times(minus_p, convolved(d, d, n - 1)))
        known = convolved(d[2:], d[2:], n - 3) if n >= 3 else [Fraction(0)]
        scaled = [c * Fraction(2, n + 1) for c in right]
        d.append([c / 2 for c in plus(scaled, [-c for c in known])])
    shifted = d[1:]
    f: list[Polynomial] = [[Fraction(1)]]
    for n in range(1, count + 1):
        f.append([-c for c in convolved(shifted[1:], f, n - 1)])
    return f


def more(precision: Precision) -> list[Table]:
    """The tables that are not fits."""

    def exact(x: Fraction) -> mpf:
        return mpf(x.numerator) / x.denominator

    count = UNIFORM_TERMS[precision]
    series = uniform_series(count)
    # f_n has the parity of n: only every second coefficient is kept.
    padded = [f + [Fraction(0)] * (n + 1 - len(f)) for n, f in enumerate(series)]
    rows = [[exact(c) for c in f[n % 2 : n + 1 : 2]] for n, f in enumerate(padded)]
    about = f"f_n of the uniform expansion, n = 0 to {count}"
    return [
        Table("uniform_gamma", [exact(sum(f, Fraction(0))) for f in series], about),
        Table(
            "uniform_beta",
            [c for row in rows for c in row],
            f"{about}, as polynomials in r^2\n(times r for odd n) of n / 2 + 1 coefficients each",
        ),
    ]


if __name__ == "__main__":
    mp.mp.dps = DIGITS
    sys.exit(main(__file__, FITS, more))
