"""Mixtures of experts and segmented products against loops over experts in NumPy."""

from pathlib import Path

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from scipy.special import erf

from mlxgen.testing import metal_backend, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
MODES = [("affine", 32, 4), ("affine", 64, 8), ("mxfp4", 32, 4), ("nvfp4", 16, 4), ("mxfp8", 32, 8)]
MATRICES = ("gate", "up", "down")
LORA = [f"{name}_{part}" for name in MATRICES for part in "ab"]


def random(shape, dtype=mx.float32, seed=0, scale=1.0):
    values = np.random.default_rng(seed).normal(size=shape) * scale
    return mx.array(values, dtype=dtype)


def arguments(dtype, tokens=(7,), k=2, experts=5, width=6, hidden=9, lora=False):
    """Return the arguments of expert_mlp; two indices are out of range, one expert has no token."""
    rng, count = np.random.default_rng(1), int(np.prod(tokens))
    indices = np.stack([rng.permutation(experts - 1)[:k] for _ in range(max(count, 1))])[:count]
    indices.flat[1:4:2] = (experts, -1)[: len(indices.flat[1:4:2])]
    arrays = {
        "x": random((*tokens, width), dtype, 2),
        "gate": random((experts, hidden, width), dtype, 3, 0.5),
        "up": random((experts, hidden, width), dtype, 4, 0.5),
        "down": random((experts, width, hidden), dtype, 5, 0.5),
        "weights": random((*tokens, k), dtype, 6),
    }
    for i, name in enumerate(LORA if lora else ()):
        rows, columns = arrays[name[:-2]].shape[1:]
        shape = (experts, 2, columns) if name.endswith("a") else (experts, rows, 2)
        arrays[name] = random(shape, dtype, 7 + i, 0.5)
    return mx.array(indices.reshape(*tokens, k), dtype=mx.int32), arrays


def unit(gate, activation):
    """Return the activation of a gate and its derivative."""
    if activation == "swiglu":
        s = 1 / (1 + np.exp(-gate))
        return gate * s, s * (1 + gate * (1 - s))
    if activation == "geglu":
        normal = (1 + erf(gate / np.sqrt(2))) / 2
        return gate * normal, normal + gate * np.exp(-gate * gate / 2) / np.sqrt(2 * np.pi)
    c = np.sqrt(2 / np.pi)
    t = np.tanh(c * (gate + 0.044715 * gate**3))
    slope = (1 - t * t) * c * (1 + 3 * 0.044715 * gate**2)
    return gate * (1 + t) / 2, (1 + t) / 2 + gate * slope / 2


def reference(indices, arrays, cotangent, activation="swiglu", scale=0.5):
    """Return the results of all k experts, their sum, and the gradient of the sum, in float64."""
    a = {name: to_numpy(value).astype(np.float64) for name, value in arrays.items()}
    k, width = indices.shape[-1], a["x"].shape[-1]
    x, weights = a["x"].reshape(-1, width), a["weights"].reshape(-1, k)
    g = cotangent.reshape(-1, width)
    whole = {
        name: a[name] + (scale * a[f"{name}_b"] @ a[f"{name}_a"] if f"{name}_a" in a else 0)
        for name in MATRICES
    }
    grads = {name: np.zeros_like(value) for name, value in {**whole, "x": x, "w": weights}.items()}
    results = np.zeros((len(x), k, width))
    for t, row in enumerate(np.array(indices).reshape(-1, k)):
        for j, e in enumerate(row):
            if not 0 <= e < len(a["gate"]):
                continue
            gate, up = whole["gate"][e] @ x[t], whole["up"][e] @ x[t]
            value, slope = unit(gate, activation)
            hidden, w = value * up, weights[t, j]
            results[t, j] = whole["down"][e] @ hidden
            grads["w"][t, j] = g[t] @ results[t, j]
            grads["down"][e] += w * np.outer(g[t], hidden)
            back = w * g[t] @ whole["down"][e]
            grads["gate"][e] += np.outer(back * up * slope, x[t])
            grads["up"][e] += np.outer(back * value, x[t])
            grads["x"][t] += back * up * slope @ whole["gate"][e] + back * value @ whole["up"][e]
    for name in set(LORA) & set(a):
        d = scale * grads[name[:-2]]
        b = a[name[:-2] + ("_b" if name.endswith("a") else "_a")].swapaxes(1, 2)
        grads[name] = b @ d if name.endswith("a") else d @ b
    grads["weights"] = grads.pop("w").reshape(a["weights"].shape)
    grads["x"] = grads["x"].reshape(a["x"].shape)
    results = results.reshape(*indices.shape, width)
    return results, (results * a["weights"][..., None]).sum(axis=-2), grads


def gradients(function, arrays, cotangent):
    """Return the result of a function of keyword arguments, and its gradients."""
    names = list(arrays)
    call = lambda *values: function(**dict(zip(names, values, strict=True)))  # noqa: E731
    values = list(arrays.values())
    out, grads = mx.vjp(call, values, [mx.array(cotangent, dtype=arrays["x"].dtype)])
    return out[0], dict(zip(names, grads, strict=True))


def assert_near(got, exact, limit=8):
    scale = np.abs(exact).max(initial=1e-3)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit * EPSILON[got.dtype] * scale)


def compare(dtype, activation="swiglu", lora=False, limit=12, **sizes):
    indices, arrays = arguments(dtype, lora=lora, **sizes)
    cotangent = to_numpy(random(arrays["x"].shape, dtype, 20)).astype(np.float64)
    options = {"activation": activation, "lora_scale": 0.5}
    each, wanted, grads = reference(indices, arrays, cotangent, activation)
    function = lambda **a: mlxops.nn.expert_mlp(indices=indices, **a, **options)  # noqa: E731
    out, got = gradients(function, arrays, cotangent)
    assert out.dtype == dtype
    assert_near(out, wanted)
    for name in arrays:
        assert got[name].dtype == dtype
        assert_near(got[name], grads[name], limit)
    assert_near(function(**{**arrays, "weights": None}), each)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("activation", ["swiglu", "geglu", "geglu_tanh"])
def test_values_and_gradients(dtype, activation, lora):
    compare(dtype, activation, lora)


@pytest.mark.parametrize("k", range(1, 9))
def test_numbers_of_experts(k):
    compare(mx.float32, k=k, experts=10, tokens=(3, 4))


@pytest.mark.parametrize("tokens", [(1,), (), (0,), (2, 0), (2, 1, 3)])
def test_shapes(tokens):
    compare(mx.float32, tokens=tokens, lora=True)


def test_many_tokens(dtype):
    """More than a block of rows, columns and elements of sums on each axis, on all cores."""
    if dtype == mx.float16:
        pytest.skip("bfloat16 has the same kernel")
    # The reference adds as many terms in another order.
    compare(dtype, tokens=(300,), experts=4, width=270, hidden=290, limit=30)


def test_indices_of_the_differentiated_logits():
    """As in models: the indices are computed of what is trained (mlx-lm#1814)."""
    _, arrays = arguments(mx.float32)
    router = random((6, 5), seed=30)

    def loss(x, router, hold):
        logits = x @ router
        chosen = mx.argpartition(-logits, 2, axis=-1)[..., :2]
        weights = mx.softmax(mx.take_along_axis(logits, mx.stop_gradient(chosen), -1), axis=-1)
        chosen = hold(chosen)
        out = mlxops.nn.expert_mlp(x, chosen, *(arrays[name] for name in MATRICES), weights)
        return (out**2).sum()

    got, wanted = (
        mx.grad(lambda x, r, h=h: loss(x, r, h), argnums=(0, 1))(arrays["x"], router)
        for h in (lambda chosen: chosen, mx.stop_gradient)
    )
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(g, w)
        assert np.abs(to_numpy(g)).max() > 0


def test_transformations():
    """Functions of vmap and compile compute what a loop and plain calls do."""
    indices, arrays = arguments(mx.float32, tokens=(3, 4), lora=True)
    loss = lambda x: (mlxops.nn.expert_mlp(x, indices, *few, arrays["weights"]) ** 2).sum()  # noqa: E731
    few = [arrays[name] for name in MATRICES]
    step = mx.grad(loss)
    np.testing.assert_allclose(mx.compile(step)(arrays["x"]), step(arrays["x"]), 1e-5, 1e-5)
    out = mlxops.nn.expert_mlp(indices=indices, **arrays)
    tokens = {name: arrays.pop(name) for name in ("x", "weights")}
    row = lambda x, w, i: mlxops.nn.expert_mlp(x, i, weights=w, **arrays)  # noqa: E731
    got = mx.vmap(row)(tokens["x"], tokens["weights"], indices)
    np.testing.assert_allclose(got, out, 1e-5, 1e-6)
    row = lambda gate: mlxops.nn.expert_mlp(  # noqa: E731
        tokens["x"], indices, gate, arrays["up"], arrays["down"], tokens["weights"]
    ).sum()
    gates = mx.stack([arrays["gate"], -arrays["gate"]])
    got = mx.vmap(mx.grad(row))(gates)
    for one, gate in zip(got, gates, strict=True):
        np.testing.assert_allclose(one, mx.grad(row)(gate), 1e-5, 1e-6)


def test_second_derivatives(device):
    """The derivative of the gradient along a direction against differences, in float64."""
    if device == mx.gpu or metal_backend() == "emulation":
        pytest.skip("differences need float64")
    indices, arrays = arguments(mx.float64, lora=True)
    names = list(arrays)
    directions = [random(arrays[name].shape, mx.float64, 40) for name in names]

    def loss(*values):
        out = mlxops.nn.expert_mlp(indices=indices, **dict(zip(names, values, strict=True)))
        return (out**2).sum()

    grad = mx.grad(loss, argnums=list(range(len(names))))
    along = lambda *v: sum((g * d).sum() for g, d in zip(grad(*v), directions, strict=True))  # noqa: E731
    values = list(arrays.values())
    got = mx.grad(along, argnums=list(range(len(names))))(*values)
    step = 1e-6
    moved = [[v + h * d for v, d in zip(values, directions, strict=True)] for h in (step, -step)]
    for one, up, down in zip(got, grad(*moved[0]), grad(*moved[1]), strict=True):
        # MLX's exp in float64, in the second derivative, has only float32's accuracy.
        wanted = (to_numpy(up) - to_numpy(down)) / (2 * step)
        np.testing.assert_allclose(to_numpy(one), wanted, 1e-5, 1e-5 * np.abs(wanted).max())


def quantized(dtype, mode, group_size, bits, lora=True, **sizes):
    """Return the arguments of both operators: quantized and the same numbers, and the others."""
    indices, arrays = arguments(dtype, lora=lora, width=64, hidden=128, **sizes)
    packed, dense = {}, {}
    for name in MATRICES:
        few = {"group_size": group_size, "bits": bits, "mode": mode}
        parts = mx.quantize(arrays.pop(name).astype(mx.float32) / 4, **few)
        if mode == "affine":
            parts = [parts[0], *(part.astype(dtype) for part in parts[1:])]
        keys = (name, f"{name}_scales", f"{name}_biases")
        packed |= dict(zip(keys[: len(parts)], parts, strict=True))
        wide = [p.astype(mx.float32) if p.dtype == dtype else p for p in parts]
        dense[name] = mx.dequantize(*wide, **few, dtype=mx.float32)
    return indices, arrays, dense, {**packed, "group_size": group_size, "bits": bits, "mode": mode}


@pytest.mark.parametrize(("mode", "group_size", "bits"), MODES)
def test_quantized(dtype, mode, group_size, bits):
    """Results and gradients are those of the dense operator on the dequantized matrices."""
    if dtype == mx.float64:
        dtype = mx.float32  # not a dtype of mx.quantize
    indices, arrays, dense, packed = quantized(dtype, mode, group_size, bits)
    cotangent = to_numpy(random(arrays["x"].shape, dtype, 20)).astype(np.float64)
    each, wanted, grads = reference(indices, {**arrays, **dense}, cotangent)
    function = lambda **a: mlxops.nn.quantized_expert_mlp(  # noqa: E731
        indices=indices, **a, **packed, lora_scale=0.5
    )
    out, got = gradients(function, arrays, cotangent)
    assert out.dtype == dtype
    assert_near(out, wanted, 12)
    for name in arrays:
        assert_near(got[name], grads[name], 16)
    assert_near(function(**{**arrays, "weights": None}), each, 12)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("transpose", [True, False])
def test_quantized_products(bits, transpose):
    """All numbers of bits, and more than one block in each axis."""
    weight = random((3, 320, 576), seed=bits)
    parts = mx.quantize(weight, 64, bits)
    indices = mx.array([0, 0, 2, 7, 1] if metal_backend() is None else [0, 0, 2, 2, 1])
    x = random((5, 576 if transpose else 320), seed=9)
    call = lambda x, i: mlxops.nn.quantized_expert_matmul(  # noqa: E731
        x, parts[0], parts[1], i, parts[2], transpose, bits=bits
    )
    exact = to_numpy(mx.dequantize(*parts, 64, bits)).astype(np.float64)
    rows = zip(to_numpy(x).astype(np.float64), indices.tolist(), strict=True)
    wanted = [
        (exact[i] @ row if transpose else row @ exact[i]) if i < 3 else 0 * exact[0, :, 0] + 0
        for row, i in rows
    ]
    wanted = np.stack([np.resize(w, 320 if transpose else 576) for w in wanted])
    assert_near(call(x, indices), wanted)
    got = mx.vmap(call)(mx.stack([x, 2 * x]), mx.stack([indices, indices]))
    assert_near(got[1], 2 * wanted)
    assert_near(mx.jvp(lambda x: call(x, indices), [x], [x])[1][0], wanted)


def test_quantized_matrices_have_no_gradient():
    indices, arrays, _, packed = quantized(mx.float32, "affine", 32, 4)
    call = lambda s: mlxops.nn.quantized_expert_mlp(  # noqa: E731
        indices=indices, **arrays, **{**packed, "gate_scales": s}
    )
    with pytest.raises(ValueError, match="Not differentiable with respect to 'scales'"):
        mx.grad(lambda s: call(s).sum())(packed["gate_scales"])


@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_products(dtype, transpose, ordered):
    x, weight = random((6, 5), dtype), random((4, 3, 5) if transpose else (4, 5, 3), dtype, 1)
    indices = mx.array([0, 0, 1, 1, 3, 3] if ordered else [3, 0, 0, 1, 3, 0], dtype=mx.uint32)
    cotangent = random((6, 3), dtype, 2)
    call = lambda x, w: mlxops.nn.expert_matmul(x, w, indices, transpose, ordered)  # noqa: E731
    out, grads = mx.vjp(call, [x, weight], [cotangent])
    X, W, G = (to_numpy(a).astype(np.float64) for a in (x, weight, cotangent))
    chosen = W[np.array(indices)]
    assert_near(out[0], np.einsum("noi,ni->no" if transpose else "nio,ni->no", chosen, X))
    assert_near(grads[0], np.einsum("noi,no->ni" if transpose else "nio,no->ni", chosen, G))
    wanted = np.zeros_like(W)
    for n, i in enumerate(indices.tolist()):
        wanted[i] += np.outer(G[n], X[n]) if transpose else np.outer(X[n], G[n])
    assert_near(grads[1], wanted)


@pytest.mark.parametrize("sizes", [(0, 4, 3, 5), (2, 4, 0, 5), (2, 4, 3, 0)], ids=str)
def test_derivatives_of_empty_products(sizes):
    """MLX's gradient of a selection of rows is an error or a crash for some of these sizes."""
    rows, experts, out, width = sizes
    x, weight = random((rows, width)), random((experts, out, width), seed=1)
    indices = mx.zeros((rows,), mx.uint32)

    def call(x, w):
        return mlxops.nn.expert_matmul(x, w, indices)

    _, tangent = mx.jvp(call, [x, weight], [x, weight])
    assert tangent[0].shape == (rows, out) and not mx.any(tangent[0])
    loss = mx.grad(lambda *a: (call(*a) ** 2).sum(), (0, 1))
    second = mx.grad(lambda *a: sum((g**2).sum() for g in loss(*a)), (0, 1))(x, weight)
    for got, array in zip(second, (x, weight), strict=True):
        assert got.shape == array.shape and not mx.any(got)


SEGMENTS = [[0, 3], [2, 7], [4, 4], [9, 40], [8, 5], [11, 12]]


def test_segmented(dtype):
    """Segments that overlap, are empty, end after the axis, or before they start."""
    a, b = random((5, 12), dtype), random((12, 7), dtype, 1)
    cotangent = random((len(SEGMENTS), 5, 7), dtype, 2)
    segments = mx.array(SEGMENTS)
    call = lambda a, b: mlxops.nn.segmented_matmul(a, b, segments)  # noqa: E731
    out, grads = mx.vjp(call, [a, b], [cotangent])
    A, B, G = (to_numpy(x).astype(np.float64) for x in (a, b, cotangent))
    parts = [slice(*s) for s in SEGMENTS]
    assert_near(out[0], np.stack([A[:, s] @ B[s] for s in parts]))
    wanted = np.zeros_like(A), np.zeros_like(B)
    for s, g in zip(parts, G, strict=True):
        wanted[0][:, s] += g @ B[s].T
        wanted[1][s] += A[:, s].T @ g
    assert_near(grads[0], wanted[0])
    assert_near(grads[1], wanted[1])


@pytest.mark.parametrize("shape", [(130, 300, 280), (0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_segmented_sizes(shape):
    m, k, n = shape
    a, b = random((m, k)), random((k, n), seed=1)
    segments = mx.array([[0, k // 3], [k // 3, k]])
    out, grads = mx.vjp(
        lambda a, b: mlxops.nn.segmented_matmul(a, b, segments), [a, b], [mx.ones((2, m, n))]
    )
    halves = np.split(to_numpy(a), [k // 3], axis=1), np.split(to_numpy(b), [k // 3])
    assert_near(out[0], np.stack([x @ y for x, y in zip(*halves, strict=True)]), 100)
    assert_near(grads[0], np.broadcast_to(to_numpy(b).sum(axis=1), (m, k)), 100)
    assert_near(grads[1], np.broadcast_to(to_numpy(a).sum(axis=0)[:, None], (k, n)), 100)
    assert mlxops.nn.segmented_matmul(a, b, segments[:0]).shape == (0, m, n)


def test_segmented_transformations():
    a, b = random((2, 5, 12)), random((12, 7), seed=1)
    segments = mx.array([SEGMENTS, SEGMENTS[::-1]])
    loss = lambda a, s: (mlxops.nn.segmented_matmul(a, b, s) ** 2).sum()  # noqa: E731
    got = mx.vmap(mx.grad(loss))(a, segments)
    for one, x, s in zip(got, a, segments, strict=True):
        np.testing.assert_allclose(one, mx.grad(loss)(x, s), 1e-5, 1e-5)
    second = mx.grad(lambda a: (mx.grad(loss)(a, segments[0]) ** 2).sum())(a[0])
    h = 1e-2 * random((5, 12), seed=5)
    up, down = ((mx.grad(loss)(a[0] + d, segments[0]) ** 2).sum() for d in (h, -h))
    np.testing.assert_allclose((second * h).sum(), (up - down) / 2, 1e-3)
    np.testing.assert_array_equal(
        mx.compile(mx.grad(loss))(a[0], segments[0]), mx.grad(loss)(a[0], segments[0])
    )


def test_errors():
    indices, arrays = arguments(mx.float32)
    call = lambda **new: mlxops.nn.expert_mlp(indices=indices, **{**arrays, **new})  # noqa: E731
    for wrong, message in (
        ({"down": arrays["up"]}, r"down must be \(E, D, H\)"),
        ({"weights": arrays["weights"][:, :1]}, "weights must be"),
        ({"up_a": mx.zeros((5, 2, 6))}, r"up_a and up_b must be \(E, rank, D\) and \(E, H, rank\)"),
        (
            {"down_a": mx.zeros((5, 2, 6)), "down_b": mx.zeros((5, 6, 2))},
            r"down_a and down_b must be \(E, rank, H\)",
        ),
    ):
        with pytest.raises(ValueError, match=r"^\[expert_mlp\] " + message):
            call(**wrong)
    with pytest.raises(ValueError, match=r"^\[expert_matmul\] indices must have an index for each"):
        mlxops.nn.expert_matmul(mx.zeros((3, 2)), mx.zeros((2, 2, 2)), mx.array([0]))
    with pytest.raises(ValueError, match=r"^\[segmented_matmul\] b must be \(K, N\)"):
        mlxops.nn.segmented_matmul(mx.zeros((3, 2)), mx.zeros((3, 2)), mx.array([[0, 1]]))


def test_quantized_errors():
    indices, arrays, _, packed = quantized(mx.float32, "affine", 32, 4)
    call = lambda **new: mlxops.nn.quantized_expert_mlp(  # noqa: E731
        indices=indices, **{**arrays, **packed, **new}
    )
    for wrong, message in (
        ({"bits": 7}, "affine has groups of 32, 64 or 128 elements"),
        ({"group_size": 16}, "affine has groups of 32, 64 or 128 elements"),
        ({"mode": "nvfp4"}, "affine has groups of 32, 64 or 128 elements"),
        ({"mode": "mxfp4"}, "gate_scales, up_scales and down_scales must be floating if the mode"),
        ({"up_biases": None}, "there must be biases if the mode is affine"),
        ({"up": packed["up"].astype(mx.int32)}, "gate, up and down must be uint32"),
        ({"bits": 8}, "gate and up must have D columns"),
        ({"group_size": 64}, "gate and up must have D columns"),
    ):
        with pytest.raises(ValueError, match=r"^\[quantized_expert_mlp\] " + message):
            call(**wrong)
    x, few = mx.zeros((1, 64)), [packed["gate"], packed["gate_scales"], mx.array([0])]
    with pytest.raises(ValueError, match=r"^\[quantized_expert_matmul\] x must have K columns"):
        mlxops.nn.quantized_expert_matmul(x[:, :32], *few, packed["gate_biases"], group_size=32)
    with pytest.raises(ValueError, match=r"^\[quantized_expert_matmul\] scales must be floating"):
        mlxops.nn.quantized_expert_matmul(x, *few, group_size=32)


def test_page():
    """The example of docs/train.md."""
    page = Path(__file__).parents[2] / "docs" / "train.md"
    section = page.read_text(encoding="utf-8").partition("## Train mixtures of experts")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    exec(compile(code, str(page), "exec"), {})
