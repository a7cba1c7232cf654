"""The checks of mlxgen.testing find mistakes: each is made here, in plain Python."""

import re

import mlx.core as mx
import numpy as np
import pytest
from evaluation import in_thread

from mlxgen import testing
from mlxgen.testing.compare import to_numpy
from mlxgen.testing.report import Failure

rng = np.random.default_rng(0)
X = mx.array(rng.uniform(-2, 2, (3, 4)), dtype=mx.float64)
Y = mx.array(rng.uniform(-2, 2, (3, 4)), dtype=mx.float64)


def with_rules(forward, vjp=None, jvp=None, vmap=None):
    """Return a function with its own rules, like an operator."""
    fn = mx.custom_function(lambda *args: forward(*args))
    for name, rule in (("vjp", vjp), ("jvp", jvp), ("vmap", vmap)):
        if rule is not None:
            getattr(fn, name)(rule)
    return testing.Function(fn, "op", ("x", "y"), ("out",))


def fails(message):
    return pytest.raises(AssertionError, match=message)


# Derivatives


def product(x, y):
    return mx.sin(x) * y


def product_vjp(primals, cotangent, _):
    x, y = primals
    return cotangent * mx.cos(x) * y, cotangent * mx.sin(x)


def test_right_gradients_pass():
    op = with_rules(product, product_vjp)
    testing.check_vjp(op, [X, Y])
    testing.check_second(op, [X, Y])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("sign", r"vjp of 'x': the gradient at x\["),
        ("factor", r"vjp of 'y': the gradient at y\["),
        ("small factor", r"vjp of 'y': the gradient at y\["),
        ("swapped", r"vjp of 'x': the gradient at x\["),
        ("no cotangent", r"vjp of 'y': the gradient at y\["),
        ("one element", r"vjp of 'x': the gradient at x\[1, 2\] = .*; 1 of 12 elements are wrong"),
        ("nan", r"vjp of 'x': the gradient at x\[0, 3\] = .* is nan, but"),
        ("shape", r"vjp of 'x': the gradient has shape \(4,\), but \(3, 4\) for the argument"),
        ("dtype", r"vjp of 'x': the gradient has dtype mlx.core.float32, but mlx.core.float64"),
    ],
)
def test_wrong_vjp(mistake, message):
    def vjp(primals, cotangent, _):
        gx, gy = product_vjp(primals, cotangent, _)
        if mistake == "sign":
            gx = -gx
        elif mistake == "factor":
            gy = 2 * gy
        elif mistake == "small factor":
            gy = 1.001 * gy
        elif mistake == "swapped":
            gx, gy = gy, gx
        elif mistake == "no cotangent":
            gy = mx.sin(primals[0])
        elif mistake == "one element":
            gx[1, 2] = 0
        elif mistake == "nan":
            gx[0, 3] = mx.nan
        elif mistake == "shape":
            gx = gx.sum(axis=0)
        elif mistake == "dtype":
            gx = gx.astype(mx.float32)
        return gx, gy

    op = with_rules(product, vjp)
    with fails(rf"\[op\] {message}"):
        testing.check_vjp(op, [X, Y])


def test_missing_term():
    op = with_rules(lambda x, y: x * x * x + x, lambda p, c, _: (3 * p[0] ** 2 * c, 0 * c))
    with fails(r"vjp of 'x': .* \(difference "):
        testing.check_vjp(op, [X, Y])


def test_missing_sum_over_broadcast():
    def forward(x, y):
        return x * y

    op = with_rules(forward, lambda p, c, _: (c * p[1], c * p[0]))
    testing.check_vjp(op, [X, Y])
    with fails(r"vjp of 'y': the gradient has shape \(3, 4\), but \(4,\) for the argument"):
        testing.check_vjp(op, [X, Y[0]])


def test_missing_share_of_an_output():
    def forward(x, y):
        return [mx.sin(x), mx.cos(x)]

    op = with_rules(forward, lambda p, c, _: (c[0] * mx.cos(p[0]), 0 * p[1]))
    with fails(r"vjp of 'x'"):
        testing.check_vjp(op, [X, Y])


def test_wrong_second_derivative():
    # The gradient is right, but consists of a function whose own gradient is wrong.
    cosine = with_rules(mx.cos, lambda p, c, _: c * mx.sin(p[0] if isinstance(p, tuple) else p))
    op = with_rules(mx.sin, lambda p, c, _: c * cosine.call(p))
    testing.check_vjp(op, [X])
    with fails(r"\[vjp of op\] vjp of 'x'"):
        testing.check_second(op, [X])


def test_gradient_that_is_not_linear_in_the_cotangent():
    op = with_rules(mx.sin, lambda p, c, _: mx.abs(c) * mx.cos(p))
    with fails(r"\[op\] vjp of 'x'"):
        testing.check_vjp(op, [X])


@pytest.mark.parametrize("factor", [-1, 2, 1.001])
def test_wrong_jvp(factor):
    op = with_rules(mx.sin, jvp=lambda p, t: factor * mx.cos(p) * t)
    with fails(r"\[op\] jvp along 'x': the tangent of out\[\d, \d\] is"):
        testing.check_jvp(op, [X])
    testing.check_jvp(mx.sin, [X])


def test_kink_is_explained():
    x = mx.array([-1.0, 0.5, 0.0], dtype=mx.float64)
    relu = testing.Function(lambda x: mx.maximum(x, 0), "relu", ("x",))
    with fails(r"x\[2\] = 0 .* if the function is not smooth here, change the sample"):
        testing.check_vjp(relu, [x])


@pytest.mark.parametrize("distance", [0.01, 0.003, 0.0005])
def test_kinks_and_edges_nearby(distance):
    """The step becomes smaller."""
    x = mx.array([distance, -1.0, 2.0], dtype=mx.float64)
    for fn in (mx.abs, lambda x: mx.log(mx.abs(x)), lambda x: mx.maximum(x, 0) * x[1]):
        testing.check_vjp(fn, [x])
    testing.check_vjp(mx.sqrt, [mx.abs(x)])
    with fails("not finite next to x"):
        testing.check_vjp(testing.Function(mx.sqrt, "sqrt", ("x",)), [mx.abs(x) - distance])


def test_poles_are_no_problem_at_a_distance():
    x = mx.array([0.2, 0.3, 2.0, 50.0], dtype=mx.float64)
    testing.check_vjp(lambda x: 1 / x**3, [x])
    testing.check_vjp(mx.log, [x])


@pytest.mark.parametrize("name", ["exp", "sin", "cos", "erf", "tanh", "sigmoid", "log1p"])
def test_right_functions_of_mlx_pass(name):
    fn = getattr(mx, name)
    x = mx.abs(X) if name == "log1p" else X
    for check in (testing.check_vjp, testing.check_jvp, testing.check_second):
        check(fn, [x])
        check(fn, [x], dtype=mx.float32)


def test_arguments_that_are_not_differentiable():
    def refuse(message):
        def vjp(*_):
            raise ValueError(message)

        return with_rules(lambda x, y: x, vjp)

    testing.check_not_differentiable(refuse("[op] Not with respect to 'x'."), [X, Y], 0)
    with fails(r"no \[op\] in"):
        testing.check_not_differentiable(refuse("Not with respect to 'x'."), [X, Y], 0)
    with fails(r"no 'x' in"):
        testing.check_not_differentiable(refuse("[op] Not with respect to 'y'."), [X, Y], 0)
    with fails(r"no error"):
        testing.check_not_differentiable(with_rules(product), [X, Y], 0)


# vmap and the other transforms

ELEMENTS = [
    [mx.array(rng.uniform(-2, 2, shape), dtype=mx.float32) for shape in ((2, 3), (3,))]
    for _ in range(4)
]


def shift(x, y):
    return x + y


@pytest.mark.parametrize(
    "mistake", ["axis ignored", "axis of y ignored", "wrong out axis", "None ignored"]
)
def test_wrong_vmap(mistake):
    def vmap(inputs, axes):
        x, y = inputs
        a, b = axes
        if mistake == "axis ignored":
            return shift(x, y if b is None or y.ndim == 1 else mx.moveaxis(y, b, 0)[:, None]), 0
        x = mx.expand_dims(x, 0) if a is None else mx.moveaxis(x, a, 0)
        if mistake != "axis of y ignored" and b is not None:
            y = mx.moveaxis(y, b, 0)
        if b is not None:
            y = mx.expand_dims(y, 1)
        elif mistake == "None ignored":
            y = mx.broadcast_to(y, (x.shape[0], *y.shape))[:, ::-1][:, None]
        return shift(x, y), 1 if mistake == "wrong out axis" else 0

    op = with_rules(shift, vmap=vmap)
    try:
        with fails(r"\[op\] vmap with in_axes="):
            testing.check_vmap(op, ELEMENTS)
    except ValueError as error:
        assert "broadcast" in str(error)


def test_right_vmap_passes():
    testing.check_vmap(shift, ELEMENTS)
    testing.check_vmap_vjp(lambda x, y: mx.sin(x) @ y, ELEMENTS, [0, 1])


def test_vmap_of_arrays_without_elements():
    element = [mx.zeros((0,)), mx.ones((3,))]
    testing.check_vmap(lambda x, y: x.sum() * y, [element, element])
    testing.check_vmap_vjp(lambda x, y: (mx.sin(x).sum() * y, x), [element, element], [0, 1])
    # The vjp of a loop does not terminate here. Nor does MLX 0.32.4, in some runs, if empty arrays
    # are
    # broadcast: multiply of (0, 3) and (3,).
    element = [mx.zeros((2, 0)), mx.zeros((0, 3))]
    testing.check_vmap_vjp(mx.matmul, [element] * 3, [0, 1])


def test_gradient_forgotten_by_vmap():
    # mx.custom_function itself makes this mistake: under vmap it ignores the vjp.
    op = with_rules(lambda x, y: x * x, lambda p, c, _: (c * 7, 0 * p[1]))
    with fails(r"\[vjp of op\] of vmap with in_axes="):
        testing.check_vmap_vjp(op, [[a, a] for a, _ in ELEMENTS], [0])


def test_constant_shape_under_shapeless_compile():
    def op(x):
        return mx.broadcast_to(mx.sum(x), x.shape) + mx.zeros(x.shape)

    x = mx.ones((2, 3))
    testing.check_compile(op, [x])
    with pytest.raises((AssertionError, ValueError), match="shape"):
        testing.check_compile(op, [x], [mx.ones((5, 3))])


def test_state_is_noticed_by_compile():
    calls = []

    def op(x):
        calls.append(1)
        return x + len(calls)

    with fails(r"\[op\] compiled: the result\[0\] is"):
        testing.check_compile(op, [mx.zeros(3)])


def test_checkpoint():
    testing.check_checkpoint(product, [X, Y], [0, 1])


# Dtypes, layouts and sizes


def through_numpy(fn):
    """Return an operator that reads memory itself."""

    def call(*args):
        return mx.array(fn(*(np.array(a) for a in args)))

    return testing.Function(call, "op", ("x", "y"))


SINGLE = [X.astype(mx.float32), Y.astype(mx.float32)]


def test_right_layouts_pass():
    testing.check_layouts(shift, SINGLE)
    testing.check_layouts(shift, [mx.array(1.0), mx.array(2.0)])
    testing.check_layouts(shift, [mx.zeros((0, 3)), mx.zeros((0, 3))])


def test_strides_ignored():
    def flat(x, y):
        # It reads both with the layout of x, which is right if their layouts are equal.
        as_x = np.lib.stride_tricks.as_strided(x, (3, 4), sorted(x.strides, reverse=True))
        return as_x + y

    op = testing.Function(
        lambda x, y: mx.array(flat(np.array(x, copy=False), np.array(y, copy=False))),
        "op",
        ("x", "y"),
    )
    with fails(r"\[op\] transposed 'x': the result\[\d, \d\] is"):
        testing.check_layouts(op, SINGLE)


INVERTIBLE = [mx.array([[2.0, 1.0], [1.0, 3.0]])]


def inverse(x):
    return mx.linalg.inv(x, stream=mx.cpu)


@in_thread
def test_an_error_for_every_layout_passes():
    testing.check_layouts(testing.Function(inverse, "op", ("x",)), INVERTIBLE)


@in_thread
def test_error_for_contiguous_arguments_only():
    def op(x):
        repeated = 0 in np.array(x, copy=False).strides
        return mx.array(x) if repeated else inverse(x)

    with fails(r"\[op\] broadcast 'x': no error, but '\[Inverse::eval_cpu\] LU fact.*' if contig"):
        testing.check_layouts(testing.Function(op, "op", ("x",)), INVERTIBLE)


@in_thread
def test_an_error_of_the_evaluation_is_raised():
    for _ in range(20):
        with pytest.raises(RuntimeError, match="LU factorization failed"):
            to_numpy(inverse(mx.zeros((2, 2))))


def test_argument_changed():
    def op(x, y):
        x += y
        return x

    with fails(r"\[op\] temporary arguments: the result\["):
        testing.check_layouts(op, SINGLE)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_wrong_precision(dtype):
    def op(x, y):
        # Sums 1000 small terms in the dtype itself.
        total = x
        for _ in range(1000):
            total = total + y * 0.001
        return total

    testing.check_precision(lambda x, y: x + y, SINGLE, dtype, ulps=1, keeps_dtype=True)
    with fails(rf"\[op\] in {'b' * (dtype == mx.bfloat16)}float16: the result\[\d, \d\] is"):
        testing.check_precision(op, SINGLE, dtype)
    with fails(r"has dtype mlx.core.float32"):
        wide = testing.Function(lambda x, y: (x + y).astype(mx.float32), "op", ("x", "y"))
        low = testing.Function(lambda x, y: wide(x, y), "op", ("x", "y"))
        testing.check_precision(low, SINGLE, dtype, keeps_dtype=True)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_rounding_of_compositions(dtype):
    """Rounding of canceling sums and of steps is allowed, but mistakes are not."""
    x = mx.array([[3.1, -2.9, 5.7], [-5.6, 1.2, -1.49]])
    for fn in (
        lambda x: mx.broadcast_to(x.sum(), x.shape).astype(x.dtype),
        lambda x: (x + 40) - 40,
        lambda x: mx.square(x).mean() - mx.square(x.mean()),
    ):
        testing.check_precision(fn, [x], dtype, composed=True)
    y = mx.array(rng.uniform(0.1, 1, (4000,)), dtype=mx.float32)
    exact = testing.to_numpy(y.astype(dtype)).sum()

    def stagnates(y):
        total = mx.array(0, y.dtype)
        for part in y.reshape(-1, 4)[:1000]:
            total = total + part[0] + part[1] + part[2] + part[3]
        return total

    def loses(y):
        return (y.sum() * (0.7 if y.dtype == dtype else 1)).astype(y.dtype)

    def overflows(y):
        return mx.log(mx.exp(y * 100)).astype(y.dtype) if dtype == mx.float16 else loses(y)

    assert exact > 2000
    for fn in (stagnates, loses, overflows):
        with fails("float16: the result"):
            testing.check_precision(fn, [y], dtype, composed=True)
    # For a kernel, no rounding of steps is allowed.
    with fails("float16: the result"):
        testing.check_precision(lambda x: (x + 40) - 40, [x], dtype, ulps=1)


def test_shapes_that_are_refused():
    """They are left out."""

    def matrices(x, y):
        if x.ndim != 2 or x.shape != y.shape:
            raise ValueError("[op] x must be a matrix")
        return x + y

    def accepts(args):
        x, y = args
        return x.ndim == 2 and x.shape == y.shape

    for check in (testing.check_sizes, testing.check_long):
        check(matrices, SINGLE, accepts=accepts)
        with pytest.raises(ValueError, match="must be a matrix"):
            check(matrices, SINGLE)
    with fails("elements|with gaps"):
        testing.check_long(lambda x, y: matrices(x, y) * (x.size < 100), SINGLE, accepts=accepts)


def test_sizes():
    testing.check_sizes(shift, SINGLE)
    with fails(r"0-d arguments: the result has shape \(1,\), but \(\)"):
        testing.check_sizes(lambda x, y: mx.atleast_1d(x + y), SINGLE)
    with fails(r"arguments of shape \(0,\)"):
        testing.check_sizes(lambda x, y: mx.ones((2,)) if x.size == 0 else x + y, SINGLE)
    with fails(r"'y' of shape \(1, 4\)"):
        testing.check_sizes(lambda x, y: x if y.shape == (1, 4) else x + y, SINGLE)


def test_long_arrays():
    testing.check_long(shift, SINGLE)

    def short(x, y):
        first = mx.arange(x.size) < 2048
        return mx.where(first.reshape(x.shape), x + y, 0) if x.size > 12 else x + y

    with fails(r"2226 elements: the result\[\d+\] is"):
        testing.check_long(short, SINGLE)


def test_forward():
    testing.check_forward(shift, mx.add, SINGLE)
    op = testing.Function(shift, "op", ("x", "y"), ("sum",))
    wrong = mx.zeros((3, 4))
    wrong[2, 1] = 1
    with fails(
        r"\[op\] forward: sum\[2, 1\] is .*, but .* by the reference \(difference 1, .*; 1 of 12"
    ):
        testing.check_forward(op, lambda x, y: x + y + wrong, SINGLE)
    with fails(r"2 outputs, but 1"):
        testing.check_forward(lambda x, y: [x, y], mx.add, SINGLE)


def test_names_of_plain_functions():
    def op(left, right):
        return left

    assert testing.Function.of(op, 2).args == ("left", "right")
    assert testing.Function.of(mx.add, 2).arg(1) == "args[1]"
    assert re.match(r"args\[0\]\[1\]", testing.element_of("args[0]", mx.zeros(2), 1))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("one\ntwo"), "RuntimeError: one"),
        (AssertionError("one:"), "one:"),
        (AssertionError("it does not compile:\n  f.metal:1:2: error\nmore"), None),
    ],
)
def test_lines_of_messages(error, message):
    shown = message or "it does not compile: f.metal:1:2: error"
    assert Failure.of("f", "sample", error).message == shown
