"""Kernels of mlx-lm and mlx-vlm for `mx.fast.metal_kernel`, unchanged, in the emulation.

Each case calls a function of a package as the package's models do, on small arrays, and compares
the result with the package's own alternative for devices without Metal, or with a formula. The page
docs/metal-kernels-elsewhere.md lists the results.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxgen.metal import Emulation, EmulationError, emulate

Pairs = Sequence[tuple[mx.array, mx.array]]
Case = Callable[[], Pairs]
LM: dict[str, Case] = {}


def lm(*kernels: str) -> Callable[[Case], Case]:
    """Add a case of mlx-lm, which launches these kernels."""

    def add(case: Case) -> Case:
        LM[" ".join(kernels)] = case
        return case

    return add


def module(name: str) -> Any:
    """Import a module of a package, whose kernels are emulated."""
    pytest.importorskip(name.partition(".")[0], reason="not installed: make integrations")
    with emulate(pretend=True):
        return importlib.import_module(name)


def normal(*shape: int, dtype: Any = mx.float32) -> mx.array:
    return mx.random.normal(shape).astype(dtype)


def both(function: Callable[..., Any], *arguments: Any, **more: Any) -> Pairs:
    """Call a function that selects a kernel by the device, with the kernel and without it."""
    with emulate(pretend=True):
        found = function(*arguments, **more)
        mx.eval(found)
    expected = function(*arguments, **more)
    if isinstance(found, mx.array):
        return [(found, expected)]
    return list(zip(found, expected, strict=True))


def rms(x: mx.array, eps: float) -> mx.array:
    return mx.fast.rms_norm(x, None, eps)


# ------------------------------------------------------------------------------- mlx-lm


@lm("expert_routing")
def routing() -> Pairs:
    logits, bias = normal(3, 40), normal(40)
    options = {"top_k": 4, "multiplier": 0.5, "score_eps": 1e-6, "route_scale": 2.5}
    found = module("mlx_lm.kernels").expert_routing(logits, bias, **options)
    scores = mx.sigmoid(0.5 * logits)
    best = mx.argsort(-(scores + bias), axis=-1)[:, :4]
    weights = mx.take_along_axis(scores, best, axis=-1)
    weights = 2.5 * weights / (weights.sum(-1, keepdims=True) + 1e-6)
    return [(found[0], best), (found[1], weights)]


def gated_stream(post_weight: mx.array | None, norm: Any) -> Pairs:
    width, kernels = 520, module("mlx_lm.kernels")
    branch, stream = normal(3, width), normal(3, width)
    alpha, beta = normal(width), normal(width)
    options = {"alpha": alpha, "beta": beta, "post_weight": post_weight, "post_eps": 1e-5}
    found, normed = kernels.norm_add_norm(branch, stream, **options, next_norm=norm)
    scaled = branch if post_weight is None else branch * post_weight
    expected = alpha * stream + beta * rms(scaled, 1e-5)
    if norm is None:
        return [(found, expected)]
    again = kernels.pre_norm(found, norm, dtype=mx.float32)
    return [(found, expected), (normed, norm(expected)), (again, norm(expected))]


@lm("norm_add")
def norm_add() -> Pairs:
    return gated_stream(None, None)


@lm("norm_add_norm", "norm_add_norm_pre_norm")
def norm_add_norm() -> Pairs:
    norm = nn.RMSNorm(520)
    norm.weight = normal(520)
    return gated_stream(normal(520), norm)


@lm("post_expert_norm_combine")
def combine() -> Pairs:
    experts, weights, weight = normal(3, 2, 200), normal(3, 2), normal(200)
    combined = module("mlx_lm.kernels").post_expert_norm_combine
    found = combined(experts, weights, norm_weight=weight, eps=1e-5)
    return [(found, (rms(experts * weight, 1e-5) * weights[..., None]).sum(-2))]


def heads(qkvg: mx.array) -> tuple[mx.array, mx.array]:
    q, k, _ = mx.split(qkvg.reshape(2, 3, 12, 40), [4, 6], axis=2)
    return 0.5 * rms(q, 1e-5), rms(k, 1e-5)


HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 40, "eps": 1e-5, "query_scale": 0.5}


@lm("qk_norm")
def qk_norm() -> Pairs:
    qkvg = normal(2, 3, 12 * 40)
    found = module("mlx_lm.kernels").qk_norm(qkvg, **HEADS)
    return list(zip(found, heads(qkvg), strict=True))


@lm("qk_norm_rope")
def qk_norm_rope() -> Pairs:
    qkvg = normal(2, 3, 12 * 40)
    found = module("mlx_lm.kernels").qk_norm_rope(qkvg, **HEADS, rope_base=1e4, offset=7)
    options = {"traditional": True, "base": 1e4, "scale": 1.0, "offset": 7}
    rotated = [mx.fast.rope(x.swapaxes(1, 2), 40, **options).swapaxes(1, 2) for x in heads(qkvg)]
    return list(zip(found, rotated, strict=True))


@lm("rms_norm_sigmoid_gate")
def sigmoid_gate() -> Pairs:
    x = normal(2, 5, 3, 40).swapaxes(1, 2)  # strided
    gate = normal(2, 5, 240)[..., ::2]
    found = module("mlx_lm.kernels").rms_norm_sigmoid_gate(x, gate, eps=1e-5)
    return [(found, rms(x, 1e-5).swapaxes(1, 2).reshape(2, 5, 120) * mx.sigmoid(gate))]


def delta(key: int, vector: bool = False, dtype: Any = mx.float32) -> list[mx.array]:
    """Return q, k, v, g, beta and the state for heads of a size."""
    q, k = (normal(2, 5, 2, key, dtype=dtype) / key**0.5 for _ in range(2))
    v, beta = normal(2, 5, 4, 16, dtype=dtype), mx.sigmoid(normal(2, 5, 4, dtype=dtype))
    g = mx.sigmoid(normal(2, 5, 4, *([key] if vector else [])))
    return [q, k, v, g, beta, normal(2, 4, 16, key)]


MASK = mx.arange(5) < mx.array([[5], [3]])


def gated_delta(package: str, arguments: list[mx.array], mask: mx.array | None = None) -> Pairs:
    models = module(f"{package}.models.gated_delta")
    y, state = models.gated_delta_kernel(*arguments, mask)
    expected, expected_state = models.gated_delta_ops(*arguments, mask)
    if mask is not None:  # where it is false, the kernel's output is 0
        expected = mx.where(mask[..., None, None], expected, 0)
    return [(y, expected), (state, expected_state)]


@lm("gated_delta_step")
def gated_delta_step() -> Pairs:
    return gated_delta("mlx_lm", delta(64))


@lm("gated_delta_step_mask")
def gated_delta_mask() -> Pairs:
    return gated_delta("mlx_lm", delta(64), MASK)


@lm("gated_delta_step_vec")
def gated_delta_vec() -> Pairs:
    return gated_delta("mlx_lm", delta(64, vector=True))


@lm("gated_delta_step_vec_mask")
def gated_delta_vec_mask() -> Pairs:
    return gated_delta("mlx_lm", delta(64, vector=True), MASK)


@lm("gated_delta_step_packed_btree")
def gated_delta_packed() -> Pairs:
    return gated_delta("mlx_lm", delta(128))


@lm("gated_delta_step_xtree")
def gated_delta_xtree() -> Pairs:
    models, arguments = module("mlx_lm.models.gated_delta"), delta(128)
    found = models.gated_delta_kernel_xtree(*arguments)
    packed = models.gated_delta_kernel(*arguments)
    return list(zip(found, packed, strict=True))


@lm("ssm_kernel")
def ssm() -> Pairs:
    x, a, (b, c) = normal(2, 1, 4, 16), normal(4), normal(2, 2, 1, 2, 32)
    more = [normal(4), normal(2, 1, 4), normal(4), normal(2, 4, 16, 32)]
    return both(module("mlx_lm.models.ssm").ssm_update, x, a, b, c, *more)


@lm("wkv7_kernel")
def wkv7() -> Pairs:
    block = module("mlx_lm.models.rwkv7").Rwkv7TimeMixing
    holder = SimpleNamespace(num_heads=2, head_dim=64)
    r, w, k, v, a, b = 0.1 * normal(6, 2, 5, 2, 64)
    (y, expected), (state, expected_state) = both(
        *(block._wkv7, holder, r, mx.sigmoid(w), k, v, a, b, normal(2, 2, 64, 64))
    )
    return [(y, expected.squeeze(-1)), (state, expected_state)]


@lm("attnres_mix")
def attention_residual() -> Pairs:
    models = module("mlx_lm.models.kimi_k3")
    blocks = models.ResidualBlocks(1e-5)
    blocks.append(normal(2, 3, 700))
    blocks.append(normal(2, 3, 700))
    return both(models._attn_res_mix, blocks, normal(2, 3, 700), normal(700), 1e-5)


@lm("deepseek_v41_sinkhorn")
def sinkhorn() -> Pairs:
    comb, eps = mx.exp(normal(2, 150, 4, 4)), mx.array([1e-6])
    return both(module("mlx_lm.models.deepseek_v41")._sinkhorn, comb, iters=5, eps=eps)


@lm("bitlinear_matmul")
def bitlinear() -> Pairs:
    layer = module("mlx_lm.models.bitlinear_layers").BitLinear(96, 20, bias=False)
    digits = mx.random.randint(0, 3, (4, 5, 96))
    layer.weight = (digits << mx.array([0, 2, 4, 6])[:, None, None]).sum(0).astype(mx.uint8)
    layer.weight_scale, x = mx.array([0.3]), normal(2, 3, 96)
    return [(layer(x), 0.3 * x @ (digits.reshape(20, 96) - 1.0).T)]


LOGITS = (2, 2500)


@lm("kl_forward")
def kl() -> Pairs:
    return both(module("mlx_lm.tuner.losses").kl_div_loss, normal(*LOGITS), normal(*LOGITS))


@lm("js_forward")
def js() -> Pairs:
    return both(module("mlx_lm.tuner.losses").js_div_loss, normal(*LOGITS), normal(*LOGITS))


@lm("kl_backward")
def kl_backward() -> Pairs:
    losses, p = module("mlx_lm.tuner.losses"), normal(*LOGITS)
    return both(mx.grad(lambda q: losses.kl_div_loss(q, p).sum()), normal(*LOGITS))


@lm("js_backward")
def js_backward() -> Pairs:
    losses, p = module("mlx_lm.tuner.losses"), normal(*LOGITS)
    return both(mx.grad(lambda q: losses.js_div_loss(q, p).sum()), normal(*LOGITS))


# ------------------------------------------------------------------------------- the test


@pytest.fixture
def seen() -> Iterator[Emulation]:
    mx.random.seed(0)
    with emulate() as seen:
        yield seen


# What the emulation finds wrong in a kernel.
FOUND = {
    **dict.fromkeys(["kl_forward", "js_forward"], "race: shared"),
    **dict.fromkeys(["kl_backward", "js_backward"], "race: shared"),
}


@pytest.mark.parametrize("kernels", LM)
def test_kernels(kernels: str, seen: Emulation) -> None:
    if kernels in FOUND:
        with pytest.raises(EmulationError, match=FOUND[kernels]):
            LM[kernels]()
        return
    for found, expected in LM[kernels]():
        assert found.shape == expected.shape
        a, b = (np.array(x.astype(mx.float32)) for x in (found, expected))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    seen.update()
    assert {*kernels.split()} <= {*seen.launches}
