"""Importing this module makes mlx-lm's models compute with mlxops, so that they can be trained.

    >>> import mlxops.mlx_lm
    >>> mlx_lm.tuner.trainer.train(model, optimizer, data, loss=mlxops.mlx_lm.loss)

The recurrences of mlx-lm have Metal kernels without gradients. In training, each of their steps is
therefore a few MLX operations, whose results are all stored. ``REPLACED`` lists the replaced
functions; all modules that have already imported them are updated, too. ``uninstall()`` undoes the
replacement, ``install()`` repeats it, and ``report(model)`` prints what they do in a model.

Results have the same dtypes as mlx-lm's, for any mix of dtypes in a model. Without this conversion
a 16-bit model would continue in float32, because the operators promote all arguments.

``loss`` is the trainer's loss, computed without storing all logits at once.

Requires mlx-lm 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn
from mlx.utils import tree_map
from mlx_lm.models import gated_delta, ssm
from mlx_lm.models.activations import swiglu
from mlx_lm.tuner.trainer import default_loss

from mlxops import _models, mlx_lm_packing, nn
from mlxops._experts import Experts
from mlxops._fused import Fused
from mlxops._kernels import Kernels, operator_of_attention
from mlxops._models import Place, Row, hybrid_gla, recurrent_gla, rnn_scan, too_many_states


def gated_delta_update(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    A_log: mx.array,
    dt_bias: mx.array,
    state: mx.array | None = None,
    mask: mx.array | None = None,
    *,
    use_kernel: bool = True,  # false in training
    lower_bound: float | None = None,
    allow_neg_eigval: bool = False,
) -> tuple[mx.array, mx.array]:
    """Compute the gated delta rule with ``nn.gated_delta`` or MLX; the gates are mlx-lm's."""
    if lower_bound is None:
        g = gated_delta.compute_g(A_log, a, dt_bias)
    else:
        g = gated_delta.compute_lower_bound_g(A_log, a, dt_bias, lower_bound)
    beta = mx.sigmoid(b) * (2 if allow_neg_eigval else 1)
    fused = not use_kernel and _patch.mlx_kernels  # in training
    use_kernel = use_kernel and k.shape[-1] % 32 == 0
    return _models.gated_delta(q, k, v, g, beta, state, mask, use_kernel, fused)


def ssm_update(
    hidden_states: mx.array,
    A_log: mx.array,
    B: mx.array,
    C: mx.array,
    D: mx.array,
    dt: mx.array,
    dt_bias: mx.array,
    state: mx.array | None = None,
    time_step_limit: tuple[float, float] = (0.001, 100.0),
    mask: mx.array | None = None,
    lengths: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Compute Mamba-2's scan with ``nn.ssm_scan``; the time steps are mlx-lm's."""
    dt = ssm.compute_dt(dt, dt_bias, time_step_limit)
    return _models.ssm(hidden_states, A_log, B, C, D, dt, state, mask, lengths)


def wkv7(
    layer: Any,
    r: mx.array,
    w: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    state: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """Compute RWKV-7's recurrence with ``nn.wkv7``."""
    return _models.wkv7(r, w, k, v, a, b, state)


def mamba(
    layer: Any, x: mx.array, conv_cache: mx.array | None, state_cache: mx.array | None
) -> tuple[mx.array, tuple[mx.array, mx.array]]:
    """Compute Mamba's mixer with ``nn.selective_scan``."""
    if too_many_states(layer):
        return _patch.own(MAMBA)(layer, x, conv_cache, state_cache)  # type: ignore[no-any-return]
    return _models.mamba(layer, x, conv_cache, state_cache, swiglu)


def jamba(
    layer: Any, x: mx.array, A: mx.array, state: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Compute Jamba's state space with ``nn.selective_scan``."""
    if too_many_states(layer):
        return _patch.own(JAMBA)(layer, x, A, state)  # type: ignore[no-any-return]
    return _models.jamba(layer, x, state)


ATTENTION = ("mlx_lm.models.base", "scaled_dot_product_attention")
MAMBA = ("mlx_lm.models.mamba", "MambaBlock._process_sequence")
JAMBA = ("mlx_lm.models.jamba", "JambaMambaMixer.ssm_step")
BITNET = ("mlx_lm.models.bitlinear_layers", "BitLinear.execute_matmul_kernel")
_DEEPSEEK = "mlx_lm.models.deepseek_v41"
_SINKHORN = (_DEEPSEEK, "_sinkhorn")
_ROUNDINGS = [(_DEEPSEEK, name) for name in ("_fake_quant_fp8", "_fake_quant_fp4")]
_INDICES = [(_DEEPSEEK, name) for name in ("Router.__call__", "Indexer.__call__")]
_kernels = Kernels("mlx_lm", lambda place: _patch.own(place))
_fused = Fused("mlx_lm")
_experts = Experts(
    lambda place: _patch.own(place), "mlx_lm.models.switch_layers", "mlx_lm.tuner.lora"
)
bit_linear = _kernels.bit_linear(BITNET)
attention = _kernels.attention(ATTENTION)
# The replaced functions of mlx-lm, by module and name, and their replacements.
REPLACED: dict[Place, Callable[..., Any]] = {
    ("mlx_lm.models.gated_delta", "gated_delta_update"): gated_delta_update,
    ("mlx_lm.models.ssm", "ssm_update"): ssm_update,
    ("mlx_lm.models.rwkv7", "Rwkv7TimeMixing._wkv7"): wkv7,
    MAMBA: mamba,
    JAMBA: jamba,
    ("mlx_lm.models.recurrent_gemma", "rnn_scan"): rnn_scan,
    ("mlx_lm.models.bailing_moe_linear", "recurrent_gla"): recurrent_gla,
    ("mlx_lm.models.bailing_hybrid", "recurrent_gla"): hybrid_gla,
    ATTENTION: attention,
    **_fused.replaced,
    **_experts.replaced,
    BITNET: bit_linear,
    _SINKHORN: _kernels.with_gradient(_SINKHORN),
    **{place: _kernels.straight_through(place) for place in _ROUNDINGS},
    **{place: _kernels.composed_in_training(place) for place in _INDICES},
}
_OWN = "its kernel, with the gradient of mlx-lm's operations"
# What the replacements use.
_OPERATORS: dict[Callable[..., Any], str | Callable[[Any], str | None]] = {
    gated_delta_update: "nn.gated_delta",
    ssm_update: "nn.ssm_scan",
    wkv7: "nn.wkv7",
    mamba: "nn.selective_scan",
    jamba: "nn.selective_scan",
    rnn_scan: "nn.linear_recurrence",
    recurrent_gla: "nn.ssm_scan",
    hybrid_gla: "nn.ssm_scan",
    attention: operator_of_attention,
    **_fused.operators,
    **_experts.operators,
    **dict.fromkeys((bit_linear, REPLACED[_SINKHORN]), _OWN),
    **{REPLACED[p]: "its rounding, with the gradient of the identity" for p in _ROUNDINGS},
    **{REPLACED[p]: "mlx-lm's operations, with constant indices in training" for p in _INDICES},
}
_LOSS = "nn.linear_cross_entropy"
# Functions that return why a replacement leaves a layer to mlx-lm, or nothing.
_UNFIT: dict[Place, Callable[[Any], str]] = {
    MAMBA: too_many_states,
    JAMBA: too_many_states,
    **_experts.unfit,
}
# Recurrences and kernels of mlx-lm that are not replaced, and the reasons.
UNREPLACED: dict[Place, str] = {
    ("mlx_lm.models.kimi_k3", "_attn_res_mix"): "mlx-lm computes operations in training",
}
_patch = _models.Patch(
    *("mlx-lm", "0.32"),
    *(REPLACED, _OPERATORS, UNREPLACED, _UNFIT),
)


def install(mlx_kernels: bool = False) -> None:
    """Replace mlx-lm's functions with mlxops' functions.

    If ``mlx_kernels`` is true, ``mx.fast.gated_delta_update`` computes gated delta rules in
    training on Metal, if MLX has kernels for their sizes. It rounds decays to the dtype of ``q``.
    Its gradients vary from run to run in their last digits, and store the state of each step (64
    KiB per head) on chips before the M5.
    """
    _patch.install(mlx_kernels)


def uninstall() -> None:
    """Restore mlx-lm's own functions."""
    _patch.uninstall()


def report(model: mlx.nn.Module) -> list[Row]:
    """Print and return the layers whose functions are replaced, and those that are not, and why.

    The last row is the layer of the logits and the operator of ``loss``, a replacement of the
    trainer's ``default_loss``.
    A line is about all layers of one kind. Their numbers are ranges, as in ``layers.0-2,4-6``.
    Raises ``TypeError`` if the model is not a module.
    """
    return _patch.report(model, lambda model: [_row_of_loss(model)] if callable(model) else [])


def _row_of_loss(model: Any) -> Row:
    try:
        head, _ = _find_head(model, mx.zeros((1, 2), mx.int32))
    except Exception as error:  # of the model: a part of one, or a kernel that needs a GPU
        message = next(iter(str(error).splitlines()), "")
        head = f"the model fails for tokens: {type(error).__name__}: {message}"
    if isinstance(head, str):
        return Row("", type(model).__name__, "default_loss", None, head)
    path = next(path for path, layer in _models.layers_of(model) if layer is head.layer)
    operator = "nn.quantized_linear_cross_entropy" if "scales" in head.layer else _LOSS
    return Row(path, type(head.layer).__name__, "default_loss", operator)


# The layers that can compute logits, and their methods for it. Others, such as adapters, are
# unknown, because ``loss`` must know all parameters that the logits depend on.
_HEADS: dict[type, str] = {
    mlx.nn.Linear: "__call__",
    mlx.nn.QuantizedLinear: "__call__",
    mlx.nn.Embedding: "as_linear",
    mlx.nn.QuantizedEmbedding: "as_linear",
}


@dataclass(frozen=True)
class _Head:
    """The layer that computes a model's logits, ``softcap(scale * layer(x))``."""

    layer: Any
    x: mx.array
    scale: float = 1.0
    softcap: float | None = None


def _find_head(
    model: Any, tokens: mx.array, cu_seqlens: mx.array | None = None
) -> tuple[_Head | str, mx.array]:
    """Return the layer of a model's logits, or why ``loss`` cannot use it, and the logits.

    MLX computes the logits only if something else needs them.
    """
    layers = [layer for layer in model.modules() if type(layer) in _HEADS]
    context = nullcontext() if cu_seqlens is None else packed(model, cu_seqlens)
    with context, _recorded(layers, None) as calls:
        logits = model(tokens)
    if not isinstance(logits, mx.array):
        return f"the model returns {type(logits).__name__}, not an array", logits
    layer, x, y = calls[-1] if calls else (model, tokens, tokens)
    if y.shape != logits.shape or x.shape[:-1] != tokens.shape:
        return "the last linear layer does not compute the logits", logits
    if "scales" in layer and layer.trainable_parameters():
        return "the last layer is quantized, and its bias or scales are trained", logits
    change = (1.0, None) if logits is y else _elementwise(model, layer, y.shape[-1])
    if change is None:
        return "the logits are not a linear layer's, with a scale or a softcap", logits
    return _Head(layer, x, *change), logits


@contextmanager
def _recorded(
    layers: list[Any], answer: mx.array | None
) -> Iterator[list[tuple[Any, mx.array, mx.array]]]:
    """Record the calls of linear layers; ``answer`` replaces their results.

    The layers have another class meanwhile. Other models with the same classes are not affected.
    """
    calls: list[tuple[Any, mx.array, mx.array]] = []

    def recorder(kind: type) -> type:
        method = _HEADS[kind]

        def call(layer: Any, x: mx.array) -> mx.array:
            y = getattr(kind, method)(layer, x) if answer is None else answer
            calls[:] = [(layer, x, y)]
            return y

        return type(kind.__name__, (kind,), {method: call})

    classes = [type(layer) for layer in layers]
    recorders = {kind: recorder(kind) for kind in set(classes)}
    try:
        for layer, kind in zip(layers, classes, strict=True):
            layer.__class__ = recorders[kind]
        yield calls
    finally:
        for layer, kind in zip(layers, classes, strict=True):
            layer.__class__ = kind


def _elementwise(model: Any, layer: Any, words: int) -> tuple[float, float | None] | None:
    """Return the scale and the softcap by which a model changes its layer's results, or None.

    The layer's results are replaced by known numbers, of all magnitudes. All weights are NaN, so
    that the model's result is NaN if it depends on anything else.
    """
    weights = model.parameters()
    given = mx.sinh(mx.linspace(-8, 8, 2 * words))  # up to 1490
    given[0], given[-1] = 2**-10, 2**20
    try:
        model.update(tree_map(_poison, weights))
        with _recorded([layer], given.reshape(1, 2, words)):
            found = model(mx.zeros((1, 2), mx.int32)).astype(mx.float32).flatten()
    finally:
        model.update(weights)
    scale, most = found[0].item() * 2**10, found[-1].item()
    if not (math.isfinite(scale) and scale != 0 and math.isfinite(most)):
        return None
    scale = 1.0 if abs(scale - 1) < 1e-6 else scale
    softcap = None if abs(most / (2**20 * scale) - 1) < 1e-5 else abs(most)
    expected = scale * given
    if softcap is not None:
        expected = softcap * mx.tanh(expected / softcap)
    close = mx.abs(found - expected) <= 1e-5 * mx.abs(expected)
    return (scale, softcap) if close.all().item() else None


def _poison(weight: mx.array) -> mx.array:
    if not mx.issubdtype(weight.dtype, mx.floating):
        return weight
    return mx.broadcast_to(mx.array(math.nan, weight.dtype), weight.shape)


def packed(model: Any, cu_seqlens: mx.array) -> AbstractContextManager[None]:
    """Return a context in which the model computes rows of several sequences.

    ``cu_seqlens`` has the starts of the sequences and the end of the last one, ascending, for all
    rows. Each sequence sees only itself: attention, short convolutions and recurrences begin again.
    Positions continue, so that RoPE yields the same attention. Raises ``ValueError`` for a family
    that is not in ``mlx_lm_packing.FAMILIES``, and if ``cu_seqlens`` is not of integers. Other
    models must not run meanwhile.
    """
    return mlx_lm_packing.packing.packed(model, cu_seqlens)


def loss(
    model: Any, batch: mx.array, lengths: mx.array, cu_seqlens: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Compute the trainer's ``default_loss`` without storing all logits: mean and count.

    With ``cu_seqlens``, the starts of sequences and the end of the last one, each row of ``batch``
    has several sequences, and each sees and predicts only itself. ``lengths`` then has a pair for
    each sequence: its first and last tokens that count, as for a row with this sequence alone.

    The logits must be the results of a linear layer or of embeddings, also quantized. They can have
    a scale and a softcap. Other models use ``default_loss``; ``report`` prints the reason. If no
    token counts, the mean is 0 (with ``default_loss``: NaN). Raises ``ValueError`` if an array is
    not of integers.
    """
    for name, array in (("batch", batch), ("lengths", lengths)):
        if not mx.issubdtype(array.dtype, mx.integer):
            raise ValueError(f"[loss] {name} must be integers, not {array.dtype}.")
    head, logits = _find_head(model, batch[:, :-1], cu_seqlens)
    targets = batch[:, 1:].astype(mx.int32)  # unsigned tokens are allowed, and -100 is below
    steps = mx.arange(1, targets.shape[1] + 1)
    if cu_seqlens is None:
        if isinstance(head, str):
            mean, count = default_loss(lambda _: logits, batch, lengths)
            return mean, count
        inside = (steps >= lengths[:, :1]) & (steps <= lengths[:, 1:])
    else:
        inside = mx.broadcast_to(_inside(steps, lengths, cu_seqlens), targets.shape)
        if isinstance(head, str):
            rows = mlx.nn.losses.cross_entropy(logits, targets) * inside
            return rows.astype(mx.float32).sum() / mx.maximum(inside.sum(), 1), inside.sum()
    targets = mx.where(inside, targets, -100)
    count = inside.sum()  # once: mx.compile fails for a result that is computed twice
    layer, bias = head.layer, head.layer.get("bias")
    x = head.x if head.scale == 1 else head.x * head.scale
    if bias is not None and head.scale != 1:
        bias = bias * head.scale
    if "scales" in layer:
        mean = nn.quantized_linear_cross_entropy(
            x,
            layer.weight,
            layer.scales,
            layer.get("biases"),
            targets,
            bias,
            group_size=layer.group_size,
            bits=layer.bits,
            mode=layer.mode,
            logit_softcap=head.softcap,
        )
    else:
        mean = nn.linear_cross_entropy(x, layer.weight, targets, bias, logit_softcap=head.softcap)
    return mean.astype(mx.float32), count


def _inside(steps: mx.array, lengths: mx.array, cu_seqlens: mx.array) -> mx.array:
    """Return whether a token of a packed row counts: not the first one of a sequence."""
    number = (steps[:, None] >= cu_seqlens[1:-1]).sum(-1)
    steps = mx.where(steps < cu_seqlens[-1], steps - cu_seqlens[number], -1)
    pairs = lengths[number]
    return (steps >= mx.maximum(pairs[:, 0], 1)) & (steps <= pairs[:, 1])


install()
