"""mlxops.layers against mlx.nn's layers, and against loops over time in NumPy, in float64."""

from itertools import pairwise

import mlx.core as mx
import mlx.nn
import mlxops.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from mlxops import layers
from ops.accuracy import draw

from mlxgen.testing import to_numpy

LAYERS = {"LSTM": layers.LSTM, "GRU": layers.GRU}
EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
STATES = {"LSTM": ("hidden", "cell"), "GRU": ("hidden",)}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def one_direction(kind, p, x, hidden, cell):
    """Return hidden and cell states of one layer, (N, L, H), for states (N, H)."""
    gates = x @ p["Wx"].T + p.get("bias", p.get("b", 0))
    hs, cs = [], []
    for t in range(x.shape[1]):
        if kind == "LSTM":
            i, f, g, o = np.split(gates[:, t] + hidden @ p["Wh"].T, 4, axis=-1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            hidden = sigmoid(o) * np.tanh(cell)
        else:
            r, z, n = np.split(gates[:, t], 3, axis=-1)
            of_r, of_z, of_n = np.split(hidden @ p["Wh"].T, 3, axis=-1)
            n = np.tanh(n + sigmoid(r + of_r) * (of_n + p.get("bhn", 0)))
            z = sigmoid(z + of_z)
            hidden = (1 - z) * n + z * hidden
        hs.append(hidden)
        cs.append(cell)
    return np.stack(hs, 1), np.stack(cs, 1)


def reference(kind, parameters, x, hidden, cell):
    """Return the results of the last layer and the last states, as torch's documentation says."""
    both = [parameters[name] for name in ("layers", "backward_layers") if name in parameters]
    last_hidden, last_cell = [], []
    for n in range(len(both[0])):
        hs, cs = [], []
        for turn, direction in zip((1, -1), both, strict=False):
            at = len(last_hidden)
            h, c = one_direction(kind, direction[n], x[:, ::turn], hidden[at], cell[at])
            last_hidden.append(h[:, -1])
            last_cell.append(c[:, -1])
            hs.append(h[:, ::turn])
            cs.append(c[:, ::turn])
        x, cells = np.concatenate(hs, -1), np.concatenate(cs, -1)
    return x, cells, np.stack(last_hidden), np.stack(last_cell)


def close(got, exact, dtype, factor=30):
    assert got.shape == exact.shape
    limit = factor * EPSILON[dtype] * np.abs(exact).max(initial=1e-3)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit)


def results(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_single_layers_are_mlx_nn_layers(kind, batch, bias, device):
    """Parameters, results with and without states, and the gradients of everything."""
    theirs = getattr(mlx.nn, kind)(4, 6, bias)
    ours = LAYERS[kind](4, 6, bias)
    assert {k: v.shape for k, v in ours.parameters().items()} == {
        k: v.shape for k, v in theirs.parameters().items()
    }
    ours.load_weights(tree_flatten(theirs.parameters()))
    x = mx.random.normal((*batch, 5, 4))
    states = [mx.random.normal((*batch, 6)) for _ in STATES[kind]]
    for given in ([], states):

        def loss(layer, x, states):
            out = results(layer(x, *states))
            return sum((a * mx.cos(mx.arange(a.size).reshape(a.shape))).sum() for a in out)

        for got, wanted in zip(results(ours(x, *given)), results(theirs(x, *given)), strict=True):
            assert got.dtype == mx.float32
            np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)
        gradients = []
        for layer in (ours, theirs):
            of_layer = mlx.nn.value_and_grad(layer, loss)(layer, x, given)[1]
            rest = mx.grad(lambda a, b, layer=layer: loss(layer, a, b), (0, 1))(x, given)
            gradients.append(dict(tree_flatten((of_layer, rest))))
        assert gradients[0].keys() == gradients[1].keys()
        for name, wanted in gradients[1].items():
            np.testing.assert_allclose(gradients[0][name], wanted, 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("num_layers", "bidirectional"), [(1, True), (2, False), (3, True)], ids=str
)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_and_directions(kind, num_layers, bidirectional, dtype):
    layer = LAYERS[kind](4, 5, num_layers=num_layers, bidirectional=bidirectional)
    layer.update(tree_map(lambda p: draw(dtype, p.shape, -0.7, 0.7, p.size)[0], layer.parameters()))
    parameters = tree_map(to_numpy, layer.parameters())
    directions = 1 + bidirectional
    x, x_ = draw(dtype, (2, 6, 4), -1, 1, 1)
    wide = mx.float64 if dtype == mx.float64 else mx.float32
    shape = (num_layers * directions, 2, 5)
    states = [draw(dtype, shape, -1, 1, 2), draw(wide, shape, -1, 1, 3)][: len(STATES[kind])]
    for given in (False, True):
        values = [s for _, s in states] if given else [np.zeros(shape)] * 2
        exact = reference(kind, parameters, x_, values[0], values[-1])
        arrays = [a for a, _ in states] if given else []
        got = results(layer(x, *arrays))
        y, *last = layer.with_state(x, *arrays)
        assert y.dtype == dtype and y.shape == (2, 6, 5 * directions)
        assert all(a.dtype == b for a, b in zip(last, (dtype, wide), strict=False))
        # The results of a layer are rounded for the next one.
        for a, w in zip(got, exact[: len(got)], strict=True):
            close(a, w, dtype)
        close(y, exact[0], dtype)
        for a, w in zip(last, exact[2 : 2 + len(last)], strict=True):
            close(a, w, dtype)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_states_continue(kind, num_layers):
    layer = LAYERS[kind](3, 4, num_layers=num_layers)
    for batch in ((), (2,), (2, 3)):
        x = mx.random.normal((*batch, 7, 3))
        y, *last = layer.with_state(x)
        first, *states = layer.with_state(x[..., :4, :])
        none, *states = layer.with_state(x[..., :0, :], *states)
        rest, *states = layer.with_state(x[..., 4:, :], *states)
        assert none.shape == (*batch, 0, 4)
        np.testing.assert_allclose(y, mx.concatenate([first, rest], -2), 1e-6, 1e-6)
        for got, wanted in zip(states, last, strict=True):
            assert got.shape == (() if num_layers == 1 else (2,)) + (*batch, 4)
            np.testing.assert_allclose(got, wanted, 1e-6, 1e-6)
        for state in layer.with_state(x[..., :0, :])[1:]:
            assert state.shape == last[0].shape and not state.any()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_packed(kind, bidirectional):
    """Each sequence has the results that it has alone, in both directions."""
    layer = LAYERS[kind](3, 4, num_layers=2, bidirectional=bidirectional)
    x, starts = draw(mx.float32, (2, 9, 3), -1, 1)[0], [1, 4, 5, 8]
    for rows in (x, x[0], x[None]):
        packed = layer(rows, cu_seqlens=mx.array(starts))
        for got, shape in zip(results(packed), results(layer(rows)), strict=True):
            assert got.shape == shape.shape
            assert not got[..., [0, 8], :].any()
        for first, end in pairwise(starts):
            alone = results(layer(rows[..., first:end, :]))
            for got, wanted in zip(results(packed), alone, strict=True):
                np.testing.assert_allclose(got[..., first:end, :], wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_compile_and_vmap(kind, bidirectional):
    layer = LAYERS[kind](3, 4, num_layers=2, bidirectional=bidirectional)
    mx.eval(layer.parameters())  # random numbers cannot be part of a shapeless graph
    # MLX's slices, which turn sequences, cannot be part of one either.
    compiled = mx.compile(lambda x: results(layer(x))[0], shapeless=not bidirectional)
    for batch, steps in ((2, 5), (3, 4)):
        x = mx.random.normal((batch, steps, 3))
        wanted = results(layer(x))[0]
        np.testing.assert_allclose(compiled(x), wanted, 1e-6, 1e-6)
        got = mx.vmap(lambda row: results(layer(row))[0])(x)
        np.testing.assert_allclose(got, wanted, 1e-6, 1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_parameters_of_several_layers(kind):
    """They are trained, saved and loaded by these names, and each layer is one of mlx.nn's."""
    layer = LAYERS[kind](3, 4, num_layers=2, bidirectional=True)
    names = ["Wx", "Wh", *(("bias",) if kind == "LSTM" else ("b", "bhn"))]
    assert {name for name, _ in tree_flatten(layer.trainable_parameters())} == {
        f"{stack}.{n}.{name}"
        for stack in ("layers", "backward_layers")
        for n in range(2)
        for name in names
    }
    single = getattr(mlx.nn, kind)(8, 4)
    single.load_weights(tree_flatten(layer.backward_layers[1].parameters()))
    assert "num_layers=2, bidirectional=True" in repr(layer)


def test_errors():
    lstm, gru = layers.LSTM(3, 4), layers.GRU(3, 4, num_layers=2)
    x = mx.ones((2, 5, 3))
    for call, message in (
        (lambda: layers.LSTM(3, 1025), r"\[LSTM\] hidden_size must be from 1 to 1024, not 1025"),
        (lambda: layers.GRU(3, 0), r"\[GRU\] hidden_size must be from 1 to 1024, not 0"),
        (lambda: layers.GRU(3, 4, num_layers=0), r"\[GRU\] num_layers must be at least 1, not 0"),
        (lambda: lstm(x[..., :2]), r"\[LSTM\] x must be \(\.\.\., L, 3\), not \(2, 5, 2\)"),
        (lambda: lstm(x[0, 0]), r"\[LSTM\] x must be \(\.\.\., L, 3\), not \(3,\)"),
        (
            lambda: lstm(x, mx.ones((4,))),
            r"\[LSTM\] hidden must be \(2, 4\) for x of shape \(2, 5, 3\), not \(4,\)",
        ),
        (lambda: lstm(x, None, mx.ones((3, 4))), r"\[LSTM\] cell must be \(2, 4\)"),
        (lambda: gru(x, mx.ones((2, 4))), r"\[GRU\] hidden must be \(2, 2, 4\)"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            call()


def test_norms(dtype):
    """Against the same norms of mlx.nn, with its parameters, and the operation before or after."""
    if dtype == mx.float64:
        pytest.skip("mlx.nn's norms have float32's accuracy")

    def array(*shape, seed, low=-2.0):
        return draw(dtype, shape, low, 2, seed)[0]

    x, other = array(2, 3, 8, seed=1), array(2, 3, 8, seed=2)
    weights = [array(8, seed=3, low=0.5), array(8, seed=4, low=0.5)]
    rms, second, norm = mlx.nn.RMSNorm(8), mlx.nn.RMSNorm(8, 1e-6), mlx.nn.LayerNorm(8)
    first = mlx.nn.RMSNorm(8, 1e-6)
    first.weight, second.weight = weights
    rms.weight = norm.weight = weights[0]
    norm.bias = weights[1]

    def wide(norm, x):
        norm.set_dtype(mx.float32)
        return norm(x.astype(mx.float32))

    def check(layer, names, args, wanted):
        layer.load_weights(list(zip(names, weights, strict=False)))
        out = results(layer(*args))
        assert layer.__repr__().startswith(type(layer).__name__ + "(8")
        for got, w in zip(out, wanted, strict=True):
            assert got.dtype == dtype
            close(got, np.array(w), dtype, 4)

    h = x + other
    both = ["weight", "bias"]
    check(layers.RMSNormResidual(8), both[:1], (x, other), (wide(rms, h), to_numpy(h)))
    check(layers.LayerNormResidual(8), both, (x, other), (wide(norm, h), to_numpy(h)))
    plain = mlx.nn.LayerNorm(8, affine=False)
    check(layers.LayerNormResidual(8, affine=False), [], (x, other), (wide(plain, h), to_numpy(h)))
    norm.bias = mx.zeros(8)
    check(
        layers.LayerNormResidual(8, bias=False), both[:1], (x, other), (wide(norm, h), to_numpy(h))
    )
    h = wide(first, x) + other.astype(mx.float32)
    rounded = h.astype(dtype)
    check(layers.NormAddNorm(8), ["w1", "w2"], (x, other), (wide(second, rounded), to_numpy(h)))
    gate = other.astype(mx.float32)
    wanted = (wide(rms, x) * gate * mx.sigmoid(gate),)
    check(layers.RMSNormGate(8), both[:1], (x, other), wanted)
    wanted = (wide(rms, x.astype(mx.float32) * mx.sigmoid(gate)),)
    gated = layers.RMSNormGate(8, activation="sigmoid", norm_before_gate=False)
    check(gated, both[:1], (x, other), wanted)


LINEAR = {
    "linear": lambda: mlx.nn.Linear(64, 9),
    "no bias": lambda: mlx.nn.Linear(64, 9, bias=False),
    "embedding": lambda: mlx.nn.Embedding(9, 64),
    "quantized": lambda: mlx.nn.QuantizedLinear(64, 9),
    "mxfp4": lambda: mlx.nn.QuantizedLinear(64, 9, bias=False, mode="mxfp4"),
    "quantized embedding": lambda: mlx.nn.QuantizedEmbedding(9, 64, bits=8, mode="mxfp8"),
}


@pytest.mark.parametrize("kind", LINEAR)
def test_linear_cross_entropy(kind, device):
    """The loss of the layer's logits, and the gradients of x and of the trained parameters."""
    layer = LINEAR[kind]()
    if "bias" in layer:
        layer.bias = mx.random.normal(layer.bias.shape)
        layer.unfreeze(recurse=False, keys=["bias"])
    x = mx.random.normal((2, 3, 64))
    targets = mx.array([[0, 8, -1], [3, 3, 5]])
    options = {
        "row_weight": mx.array([[1, 0.5, 2], [0, 1, 1]]),
        "ignore_index": -1,
        "label_smoothing": 0.1,
        "z_loss": 0.1,
        "logit_softcap": 3.0,
    }
    weights = mx.arange(1.0, 10.0)
    for reduction in ("mean", "none"):
        options["reduction"] = reduction

        def ours(layer, x):
            loss = layers.linear_cross_entropy(layer, x, targets, class_weight=weights, **options)
            return loss.sum()

        def theirs(layer, x):
            logits = layer.as_linear(x) if "mbedding" in type(layer).__name__ else layer(x)
            return mlxops.nn.cross_entropy(logits, targets, weights, **options).sum()

        def all_of(loss):
            results = {"loss": loss(layer, x), "x": mx.grad(lambda x: loss(layer, x))(x)}
            if layer.trainable_parameters():
                results |= mlx.nn.value_and_grad(layer, loss)(layer, x)[1]
            return results

        got, wanted = all_of(ours), all_of(theirs)
        assert got.keys() == wanted.keys()
        for name, w in wanted.items():
            # MLX rounds quantized weights of 16 bits, and the products with them.
            np.testing.assert_allclose(got[name], w, 1e-4, 2e-5 * np.abs(w).max(), err_msg=name)


def test_linear_cross_entropy_of_other_layers():
    layer = mlx.nn.Sequential(mlx.nn.Linear(4, 3))
    with pytest.raises(TypeError, match=r"^\[linear_cross_entropy\] layer must be Linear, .*Seq"):
        layers.linear_cross_entropy(layer, mx.ones((2, 4)), mx.array([0, 1]))
