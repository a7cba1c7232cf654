"""Operators under MLX's transforms, streams and threads, beyond the generated checks."""

import threading

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw


def primitives(tmp_path, *outputs):
    """Return the names of the primitives in a graph."""
    path = tmp_path / "graph.dot"
    with path.open("w") as file:
        mx.export_to_dot(file, *outputs)
    lines = path.read_text().splitlines()
    return [line.split('"')[1] for line in lines if "shape=rectangle" in line]


# mx.compile


@pytest.mark.parametrize(
    ("fn", "name", "count"),
    [
        (lambda x, y: mlxops.lgamma(x) + mlxops.lgamma(x), "Lgamma", 1),
        (lambda x, y: mlxops.lgamma(x) + mlxops.lgamma(y), "Lgamma", 2),
        (lambda x, y: mlxops.polygamma(3, x) + mlxops.polygamma(3, x), "HigherPolygamma", 1),
        (lambda x, y: mlxops.polygamma(3, x) + mlxops.polygamma(2, x), "HigherPolygamma", 2),
        (
            lambda x, y: mlxops.examples.axpby(x, y, 2.0) + mlxops.examples.axpby(x, y, 2.0),
            "Axpby",
            1,
        ),
        (
            lambda x, y: mlxops.examples.axpby(x, y, 2.0) + mlxops.examples.axpby(x, y, 3.0),
            "Axpby",
            2,
        ),
        (lambda x, y: mlxops.examples.axpby(x, y) + mlxops.examples.axpby(y, x), "Axpby", 2),
        (lambda x, y: mlxops.sincos(x)[0] + mlxops.sincos(x)[1], "Sincos", 1),
        (lambda x, y: mlxops.lgamma(x) + mlxops.digamma(x), "Lgamma", 1),
    ],
)
def test_common_subexpressions(fn, name, count, tmp_path):
    x, y = draw(mx.float32, low=0.5)[0], draw(mx.float32, low=0.5, seed=1)[0]
    compiled = mx.compile(fn)
    assert primitives(tmp_path, compiled(x, y)).count(name) == count
    np.testing.assert_allclose(compiled(x, y), fn(x, y), 1e-6)


def test_compiled_once_for_all_shapes():
    traced = []

    def fn(x, y):
        traced.append(x.shape)
        return mlxops.swiglu(mlxops.examples.axpby(x, y, 2.0), mlxops.lgamma(mx.abs(x) + 1))

    compiled = mx.compile(fn, shapeless=True)
    for shape in ((2, 3), (5, 3), (4, 7)):
        # y is broadcast along all axes but the last of x.
        x, y = mx.ones(shape), mx.ones(shape[-1:])
        np.testing.assert_allclose(compiled(x, y), fn(x, y), 1e-6)
    assert traced.count((2, 3)) == 2
    assert traced.count((5, 3)) == 1, "traced once, then called by the test"


def test_compiled_gradient():
    def loss(x):
        return (mlxops.lgamma(x) * mlxops.sincos(x)[1]).sum()

    x = draw(mx.float32, low=0.5)[0]
    np.testing.assert_allclose(mx.compile(mx.grad(loss))(x), mx.grad(loss)(x), 1e-5, 1e-6)


def test_compiled_with_state_and_many_calls():
    state = [mx.zeros((3,))]

    def step(x):
        state[0] = mlxops.examples.axpby(state[0], x, 0.5, 0.5)
        return state[0].sum()

    compiled = mx.compile(step, inputs=state, outputs=state)
    for _ in range(20):
        total = compiled(mx.ones((3,)))
    assert abs(total.item() - 3) < 1e-4


# Gradients and vmap together


def test_hessian():
    def f(x):
        return mlxops.lgamma(x).sum() * mlxops.softcap(x, 2.0).sum()

    hessian = mx.vmap(lambda x, v: mx.jvp(mx.grad(f), [x], [v])[1][0], in_axes=(None, 0))
    x = mx.array([0.7, 1.9, 3.1])
    got = np.array(hessian(x, mx.eye(3)))
    rows = [np.array(mx.grad(lambda x, i=i: mx.grad(f)(x)[i])(x)) for i in range(3)]
    np.testing.assert_allclose(got, rows, 1e-5, 1e-6)
    np.testing.assert_allclose(got, got.T, 1e-5, 1e-6)


def test_three_nested_vmaps():
    fn = mx.vmap(mx.vmap(mx.vmap(mlxops.examples.axpby, (0, None)), (1, 0)), (None, 1))
    x, y = draw(mx.float32, (4, 5))[0], draw(mx.float32, (5, 3), seed=1)[0]
    got = fn(x, y)
    wanted = np.array(x).T[None] + np.array(y).T[:, :, None]
    np.testing.assert_allclose(got, wanted, 1e-6)


def test_per_sample_gradients():
    def loss(w, x):
        return mlxops.swiglu(x @ w, x @ w).sum()

    w, x = draw(mx.float32, (3, 2))[0], draw(mx.float32, (5, 3), seed=1)[0]
    got = mx.vmap(mx.grad(loss), in_axes=(None, 0))(w, x)
    wanted = mx.stack([mx.grad(loss)(w, x[i]) for i in range(5)])
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)


def test_checkpoint_of_a_block():
    def block(x):
        return mlxops.softcap(mlxops.swiglu(x, mlxops.lgamma(mx.abs(x) + 1)), 3.0)

    x = draw(mx.float32)[0]
    got = mx.grad(lambda x: mx.checkpoint(block)(x).sum())(x)
    np.testing.assert_allclose(got, mx.grad(lambda x: block(x).sum())(x), 1e-6)


# Streams and threads


def test_stream_argument(device):
    x = mx.array([1.5])
    new = mx.new_stream(device)
    for stream in (None, device, mx.Device(device, 0), new, mx.default_stream(device)):
        assert mlxops.lgamma(x, stream=stream).item() == mlxops.lgamma(x).item()
        assert mlxops.softcap(x, stream=stream).item() == mlxops.softcap(x).item()


def test_gradients_run_on_the_stream_of_the_operator(device):
    new = mx.new_stream(device)
    gradient = mx.grad(lambda x: mlxops.lgamma(x, stream=new).sum(stream=new))(mx.array([2.5]))
    np.testing.assert_allclose(gradient, [0.7031566], 1e-6)


def test_threads(device):
    """Each thread uses its own stream, all at once."""
    wanted = {}
    got = {}
    errors = []
    inputs = {i: draw(mx.float32, (40, 50), 0.5, 9, seed=i)[0] for i in range(6)}

    def work(x, stream=None):
        y = mlxops.swiglu(mlxops.lgamma(x, stream=stream), x, stream=stream)
        for _ in range(10):
            sin, cos = mlxops.sincos(
                mlxops.examples.axpby(y, x, 0.5, 0.25, stream=stream), stream=stream
            )
            y = mlxops.examples.add(mlxops.softcap(sin, stream=stream), cos, stream=stream)
        return np.array(y)

    for i, x in inputs.items():
        wanted[i] = work(x)

    def run(i):
        try:
            stream = mx.new_stream(device)
            with mx.stream(stream):
                got[i] = work(inputs[i], stream)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for i in inputs:
        np.testing.assert_array_equal(got[i], wanted[i])


def test_a_result_outlives_its_inputs():
    def make():
        x = draw(mx.float32, (100, 100))[0]
        return mlxops.sincos(mlxops.examples.axpby(x, x, 0.5, 0.5))

    sin, cos = make()
    x = draw(mx.float32, (100, 100))[1]
    np.testing.assert_allclose(sin, np.sin(x), 1e-5, 1e-6)
    np.testing.assert_allclose(cos, np.cos(x), 1e-5, 1e-6)


@pytest.mark.parametrize("offset", [0, 1])
def test_memory_of_temporaries_is_used_rightly(dtype, offset):
    """Outputs may reuse an input's buffer; large ones are computed in place there."""
    a, b = (draw(dtype, (3001,), 0.5, 3, seed=i)[0][offset:] for i in range(2))
    for op in (
        lambda x, y: mlxops.sincos(x),
        lambda x, y: [mlxops.examples.add(x, y), mlxops.examples.add(y, x)],
        lambda x, y: [mlxops.examples.axpby(x, y, 0.5, 2.0)],
        lambda x, y: [mlxops.swiglu(y, x)],
        lambda x, y: [mlxops.polygamma(1, mlxops.lgamma(x) + y)],
    ):
        wanted = op(a, b)
        mx.eval(wanted)
        for got, w in zip(op(a * 1, b * 1), wanted, strict=True):
            assert mx.array_equal(got, w, equal_nan=True)


def test_memory_is_given_back():
    x = draw(mx.float32, (256, 256))[0]
    mx.eval(mlxops.swiglu(x, x))
    mx.clear_cache()
    before = mx.get_active_memory()
    for _ in range(20):
        mx.eval(mlxops.swiglu(x, mlxops.lgamma(x)), mlxops.sincos(x))
    assert mx.get_active_memory() <= before + x.nbytes
