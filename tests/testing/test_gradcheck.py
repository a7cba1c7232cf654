"""gradcheck accepts right functions, and describes the errors of wrong ones."""

import functools
import traceback

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxgen.testing import GradcheckError, Report, gradcheck

rng = np.random.default_rng(0)


def uniform(*shape, dtype=mx.float32):
    return mx.array(rng.uniform(-2, 2, shape), dtype=dtype)


X, Y = uniform(3, 4), uniform(3, 4)
Z = mx.array(rng.uniform(-1, 1, (2, 3)) + 1j * rng.uniform(0.5, 1, (2, 3))).astype(mx.complex64)
DERIVATIVES = ("vjp", "jvp", "second", "vmap")  # compilation of fused functions takes a second


def with_rules(forward, **rules):
    """Return a custom function."""
    fn = mx.custom_function(forward)
    for name, rule in rules.items():
        getattr(fn, name)(rule)
    return fn


def failure(f, *args, **options):
    """Return the message of the required error."""
    with pytest.raises(GradcheckError) as caught:
        gradcheck(f, *args, **options)
    return str(caught.value)


# Right functions

RIGHT = {
    "sin": (mx.sin, X),
    "matmul": (lambda a, b: a @ b, X, uniform(4, 2)),
    "softmax": (lambda x: mx.softmax(x, axis=-1), X),
    "scalar": (lambda x: mx.mean(x * x), X),
    "of a scalar": (mx.exp, mx.array(0.3)),
    "outputs": (lambda x, y: (mx.sin(x) * y, x.sum()), X, Y),
    "dict": (lambda x: {"sin": mx.sin(x), "rest": [mx.cos(x), mx.argmax(x)]}, X),
    "indices": (lambda x, i: mx.tanh(x)[i], X, mx.array([2, 0, 0])),
    "mask": (lambda x, m: mx.where(m, x * x, 0), X, X > 0),
    "tree": (lambda p, x: x @ p["w"] + p["b"][0], {"w": uniform(4, 2), "b": [uniform(2)]}, X),
    "number": (lambda x, n: x**n, X, 3),
    "partial": (functools.partial(mx.logsumexp, axis=0), X),
    "empty": (lambda x: mx.sin(x), mx.zeros((0, 3))),
    "fast": (lambda x, w: mx.fast.rms_norm(x, w, 1e-5), X, uniform(4)),
    "noisy": (lambda x: mx.exp(x) - 1.3 * x, mx.array(0.26)),
    "near an edge": (mx.log, mx.array([0.001, 0.02, 3.0])),
    "near a kink": (mx.abs, mx.array([0.003, -0.0001, 3.0])),
    "steep": (lambda x: mx.sin(300 * x), X),
    "wide": (lambda x: mx.sin(x), uniform(20, 20)),
}


@pytest.mark.parametrize("args", RIGHT.values(), ids=RIGHT)
def test_right_functions(args):
    assert gradcheck(*args, checks=DERIVATIVES)


COMPLEX = {
    "abs": (mx.abs, Z),
    "exp": (mx.exp, Z),
    "product": (lambda a, b: mx.conjugate(a) * b @ b.T, Z, Z + 1),
    "fft": (lambda x: mx.fft.rfft(x), uniform(6)),
    "of the real part": (lambda z, x: mx.real(z) * x, Z, uniform(3)),
}


@pytest.mark.parametrize("args", COMPLEX.values(), ids=COMPLEX)
def test_complex_functions(args):
    # MLX 0.32.4 loses the second derivative of abs.
    report = gradcheck(*args, checks=("vjp", "jvp", "vmap"))
    assert report.passed == 3
    assert "Checked in float32" in report.notes[0]


def test_wrong_complex_gradient():
    """The gradient lacks the conjugate."""
    f = with_rules(lambda a: a * (1 + 2j), vjp=lambda a, c, _: c * (1 + 2j))
    message = failure(f, Z)
    assert "vjp of 'a': the gradient at a[" in message
    assert failure(with_rules(mx.exp, vjp=lambda a, c, _: c * mx.exp(a).real), Z)


def test_compile():
    assert gradcheck(lambda x: mx.tanh(x) * x.sum(), X, checks=["compile"])
    assert "compile: it raised ValueError" in failure(lambda x: x * x.sum().item(), X)


def test_module():
    layer = nn.Linear(4, 2)
    before = layer.weight
    assert gradcheck(layer, X, checks=("vjp", "jvp", "second"))
    assert layer.weight is before
    block = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.RMSNorm(3))
    assert gradcheck(block, X, checks=["vjp"])

    class Wrong(nn.Linear):
        def __call__(self, x):
            return x @ mx.stop_gradient(self.weight.T) + self.bias

    message = failure(Wrong(4, 2), X, checks=["vjp"])
    assert "checks of Wrong failed" in message
    assert "vjp of 'weight'" in message and "all are 0: the gradient was lost" in message


def test_dtypes():
    assert gradcheck(lambda x: x.astype(mx.float32) ** 2, X, checks=["vjp"]).notes == (
        "Checked in float32, because float64 arguments return float32.",
    )
    assert gradcheck(mx.square, X, checks=["vjp"]).notes == ()
    assert gradcheck(mx.square, X, checks=["vjp"], dtype=mx.float32)

    def single(x):
        if x.dtype == mx.float64:
            raise ValueError("no float64\nat all")
        return x * x

    report = gradcheck(single, X, checks=["vjp"])
    assert report.notes == ("Checked in float32, because float64 raises ValueError: no float64",)
    half = with_rules(lambda x: x * x, vjp=lambda x, c, _: (2 * c * x).astype(mx.float32))
    assert gradcheck(half, X, dtype=mx.float32, checks=["vjp"])
    message = failure(half, X.astype(mx.bfloat16), dtype=mx.float32, checks=["vjp"])
    assert "has dtype mlx.core.float32, but mlx.core.bfloat16 for the argument" in message


def test_argnums_and_options():
    wrong = with_rules(lambda x, y: x * y, vjp=lambda p, c, _: (c * p[1], 2 * c * p[0]))
    assert gradcheck(wrong, X, Y, argnums=0, checks=["vjp"])
    assert "vjp of 'y'" in failure(wrong, X, Y, argnums=[-1], checks=["vjp"])
    slightly = with_rules(mx.sin, vjp=lambda x, c, _: 1.01 * c * mx.cos(x))
    assert failure(slightly, X, checks=["vjp"])
    assert gradcheck(slightly, X, checks=["vjp"], rtol=0.02)
    assert gradcheck(slightly, X, checks=["vjp"], atol=0.02)
    for options, error in (
        ({"argnums": 2}, "argnums: there is no argument 2"),
        ({"checks": ["grad"]}, "is not a sequence of vjp, jvp, second, vmap, compile"),
        ({"checks": "vjp"}, "is not a sequence of"),
        ({"dtype": mx.float16}, "in float64 or float32"),
    ):
        with pytest.raises(ValueError, match=error):
            gradcheck(mx.add, X, Y, **options)
    with pytest.raises(ValueError, match="there is nothing to differentiate: give floating"):
        gradcheck(mx.sin, 1.0)
    with pytest.raises(ValueError, match="argmax returns no floating or complex array"):
        gradcheck(mx.argmax, X)


def test_large_outputs_hide_no_small_gradients():
    """A mean of many elements has small derivatives."""
    x = uniform(50, 60)
    loss = with_rules(
        lambda x: 5 + mx.mean(mx.sin(x)), vjp=lambda x, c, _: 1.05 * c * mx.cos(x) / x.size
    )
    assert "all are 1.05 times the expected values" in failure(loss, x, checks=["vjp"])


def test_an_element_among_many():
    """The element is moved only together with all others."""

    def vjp(x, c, _):
        gradient = c * mx.cos(x)
        return mx.where(mx.arange(x.size) == 123, 0, gradient)

    x = mx.linspace(0.1, 1.4, 1000)
    message = failure(with_rules(mx.sin, vjp=vjp), x, checks=["vjp"])
    assert "the derivative along a random direction in 'args[0]'" in message


# Wrong functions


def square(x):
    return x * x


def transposed(x, c, _):
    return (c @ mx.ones((3, 3), c.dtype)).T


def one_nan(x, c, _):
    gradient = 2 * c * x
    gradient[1, 2] = mx.nan
    return gradient


WRONG_VJP = {
    "sign": (square, lambda x, c, _: -2 * c * x, "all are -1 times the expected values"),
    "factor": (square, lambda x, c, _: c * x, "all are 0.5 times the expected values"),
    "lost": (square, lambda x, c, _: 0 * x, "all are 0: the gradient was lost"),
    "term": (lambda x: x * x * x + x, lambda x, c, _: 3 * c * x * x, "by finite differences"),
    "not summed": (
        lambda x: x * mx.ones((5, 3, 4), x.dtype),
        lambda x, c, _: c,
        "the gradient has shape (5, 3, 4), but (3, 4) for the argument",
    ),
    "shape": (square, lambda x, c, _: (2 * c * x)[0], "has shape (4,), but (3, 4)"),
    "dtype": (
        square,
        lambda x, c, _: (2 * c * x).astype(mx.float32),
        "has dtype mlx.core.float32, but mlx.core.float64 for the argument",
    ),
    "nan": (square, one_nan, "the gradient at x[1, 2] = "),
    "zeros": (square, lambda x, c, _: mx.where(c == 0, x, 2 * c * x), "zeros in the cotangent"),
    "is zero": (mx.sin, lambda x, c, _: (c + (c == 0)) * mx.cos(x), "zeros in the cotangent"),
    "maximum": (square, lambda x, c, _: 2 * x * mx.maximum(c, -10), "1000 times the size"),
    "clip": (square, lambda x, c, _: 2 * x * mx.clip(c, -5, 5), "must be linear in the cotangent"),
    "small": (
        square,
        lambda x, c, _: 2 * x * mx.where(mx.abs(c) < 0.1, 0, c),
        "0.001 times the size",
    ),
    "nan_to_num": (square, lambda x, c, _: 2 * x * mx.nan_to_num(c), "a NaN must propagate"),
    "isnan": (square, lambda x, c, _: mx.where(mx.isnan(c), 0, 2 * x * c), "but must be nan"),
    "abs": (square, lambda x, c, _: 2 * x * mx.abs(c), "by finite differences"),
}


@pytest.mark.parametrize(("forward", "vjp", "message"), WRONG_VJP.values(), ids=WRONG_VJP)
def test_wrong_vjp(forward, vjp, message):
    f = with_rules(lambda x: forward(x), vjp=vjp)
    found = failure(f, X, checks=["vjp"])
    assert "vjp of 'x'" in found and message in found


def test_transposed():
    x = uniform(3, 3)
    f = with_rules(
        lambda x: x @ x[:, :1], vjp=lambda x, c, _: mx.vjp(lambda x: x @ x[:, :1], [x], [c])[1][0].T
    )
    assert "it is transposed" in failure(f, x, checks=["vjp"])


def test_wrong_jvp():
    """The vjp is right."""
    f = with_rules(mx.sin, jvp=lambda x, t: 2 * t * mx.cos(x))
    message = failure(f, X, checks=("vjp", "jvp", "vmap"))
    assert message.startswith("1 of 3 checks of")
    assert "jvp along 'args[0]': the tangent of the result[" in message
    assert "all are 2 times the expected values" in message
    assert "@f.jvp" in message
    forgets = with_rules(square, jvp=lambda x, t: mx.where(t == 0, 1, 2 * x * t))
    assert "must be linear in the tangent" in failure(forgets, X, checks=["jvp"])
    hides = with_rules(square, jvp=lambda x, t: 2 * x * mx.nan_to_num(t))
    assert "a NaN must propagate" in failure(hides, X, checks=["jvp"])


def test_wrong_second_derivative():
    """The gradient is right, but consists of a function whose own gradient is wrong."""
    cosine = with_rules(mx.cos, vjp=lambda x, c, _: c * mx.sin(x))
    f = with_rules(lambda x: mx.sin(x), vjp=lambda x, c, _: c * cosine(x))
    message = failure(f, X, checks=("vjp", "second"))
    assert message.startswith("1 of 2 checks")
    assert "second: vjp of 'x': the gradient at x[" in message
    assert "all are -1 times" in message


def test_what_follows_is_not_repeated():
    f = with_rules(mx.sin, vjp=lambda x, c, _: -c * mx.cos(x))
    message = failure(f, X, checks=DERIVATIVES)
    assert message.startswith("1 of 3 checks of")
    assert message.endswith("Not checked, because of a failed check: second.")
    wrong = with_rules(mx.sin, vjp=lambda x, c, _: -c * mx.cos(x), jvp=lambda x, t: -t * mx.cos(x))
    report = gradcheck(wrong, X, checks=DERIVATIVES, raise_exception=False)
    assert [f.check for f in report.failures] == ["vjp", "jvp"]


def test_vmap_that_ignores_the_batch():
    def first(inputs, axes):
        x = mx.moveaxis(inputs, axes, 0)
        return mx.broadcast_to(mx.sin(x[:1]), x.shape), 0

    message = failure(with_rules(mx.sin, vmap=first), X, checks=("vjp", "vmap"))
    assert "vmap with in_axes=(" in message
    assert "in a loop" in message


def test_vjp_that_is_lost_under_vmap():
    """mx.custom_function does this: a vjp that is right alone is 0 under vmap."""
    f = with_rules(lambda x: mx.stop_gradient(mx.sin(x)), vjp=lambda x, c, _: c * mx.cos(x))
    assert gradcheck(f, X, checks=["vjp"])
    message = failure(f, X, checks=("vjp", "vmap"))
    assert "of vmap with in_axes=" in message and "@f.vmap" in message


def test_state():
    calls = []

    def counting(x):
        calls.append(1)
        return x * len(calls)

    for f in (counting, lambda x: x * mx.random.normal(x.shape), nn.Dropout(0.5)):
        message = failure(f, X)
        assert "called again: the result" in message and "it must be deterministic" in message
        assert message.endswith(
            "Not checked, because of a failed check: vjp, jvp, second, vmap, compile."
        )


def test_changed_argument():
    def adds(x, y):
        y += x
        return y

    before = np.array(Y)
    message = failure(adds, X, Y)
    assert "it changes its argument 'y' in place; work on a copy" in message
    np.testing.assert_array_equal(before, np.array(Y))


def test_not_implemented():
    message = failure(mx.linalg.cholesky, mx.eye(2), checks=("vjp", "vmap"))
    assert "vjp: it raised ValueError: [Primitive::vjp] Not implemented for Cholesky" in message
    report = gradcheck(mx.linalg.cholesky, mx.eye(2), checks=["vjp"], raise_exception=False)
    assert not report and isinstance(report.failures[0].error, ValueError)


def test_outside_of_the_domain():
    message = failure(mx.log, mx.array([1.0, -1.0]))
    assert "call: the result[1] is nan: the function cannot be differentiated here" in message
    message = failure(lambda x: mx.sqrt(x), mx.array([1.0, 0.0]))
    assert "call: the function is not finite next to x[1] = 0; choose arguments further" in message
    relu = failure(lambda x: mx.maximum(x, 0), mx.array([1.0, 0.0]), checks=["vjp"])
    assert "x[1] = 0" in relu and "does not look smooth here" in relu


def test_names():
    """Names of arguments in trees, and of outputs."""
    f = with_rules(square, jvp=lambda x, t: t)
    message = failure(lambda p, *rest: f(p["a"][1]) + rest[0], {"a": [X, Y]}, Y, checks=["jvp"])
    assert "jvp along 'p['a'][1]'" in message
    message = failure(lambda x: {"loss": x.sum(), "rest": f(x)}, X, checks=["jvp"])
    assert "the tangent of output['rest'][" in message
    assert "the gradient at args[1][" in failure(
        with_rules(lambda x, y: x * y, vjp=lambda p, c, _: (c * p[1], c)).__call__,
        X,
        Y,
        checks=["vjp"],
    )


# Errors and reports


def test_tracebacks_are_clean():
    """There is one frame of ours below the caller's."""
    f = with_rules(square, vjp=lambda x, c, _: c)
    with pytest.raises(GradcheckError) as caught:
        gradcheck(f, X)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames] == ["test_tracebacks_are_clean", "gradcheck"]
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert isinstance(caught.value, AssertionError)

    def broken(x):
        return x @ mx.zeros((7, 7))

    with pytest.raises(ValueError, match="matmul") as raised:
        gradcheck(broken, X)
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["gradcheck", "broken"]


def test_report():
    report = gradcheck(mx.sin, X, checks=("vjp", "jvp"))
    assert repr(report) == "2 checks passed"
    assert report._repr_html_() == "<p><b>2 checks passed</b></p>"
    f = with_rules(square, vjp=lambda x, c, _: c * x)
    report = gradcheck(f, X, checks=("vjp", "jvp"), raise_exception=False)
    assert isinstance(report, Report) and not report
    (wrong,) = report.failures
    assert (wrong.check, wrong.argument) == ("vjp", "x")
    assert wrong.element.startswith("x[") and float(wrong.got) * 2 == pytest.approx(
        float(wrong.expected), rel=1e-4
    )
    lines = repr(report).splitlines()
    assert lines[0] == "1 of 2 checks failed"
    assert lines[2].split() == ["operator", "check", "argument", "element", "got", "expected"]
    html = report._repr_html_()
    assert "<th>element</th>" in html and f"<td>{wrong.element}</td>" in html


def test_text_of_others_is_escaped():
    report = gradcheck(
        lambda x: x * mx.array(x.tolist()), X, checks=["vmap"], raise_exception=False
    )
    assert "<class" not in report._repr_html_()
