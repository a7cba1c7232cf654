"""Writes torch_results.json: results of torch, for tests that run without torch.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 numpy
    /tmp/torch/bin/python tests/nn/data/torch_results.py

All operators of mlxops.nn that torch has are computed by torch's functions with the operator's
arguments: results, and the gradients of all floating arrays, in float64 on the CPU. Inputs are
multiples of 1/16, which every floating dtype represents.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

rng = np.random.default_rng(0)


def draw(*shape, low=-2.0, high=2.0):
    return (rng.uniform(low, high, shape) * 16).round() / 16


# The operators


def attention(q, k, v, mask=None, *, scale, causal=False):
    if causal:  # torch's own option counts from the first key
        mask = causal_lower_right(q.shape[2], k.shape[2])
    gqa = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=gqa)


def cross_entropy(logits, targets, weight=None, **options):
    return functional.cross_entropy(logits, targets, weight, **options)


def linear_cross_entropy(x, weight, targets, bias=None, **options):
    return functional.linear_cross_entropy(x, weight, targets, linear_bias=bias, **options)


def kl_div_loss(logits, target_logits, *, temperature=1.0, reduction="mean"):
    q, p = (torch.log_softmax(x / temperature, -1) for x in (logits, target_logits))
    return reduced(q, p, reduction)


def js_div_loss(logits, target_logits, *, beta=0.5, temperature=1.0, reduction="mean"):
    q, p = (torch.log_softmax(x / temperature, -1) for x in (logits, target_logits))
    m = torch.log(beta * p.exp() + (1 - beta) * q.exp())
    return beta * reduced(m, p, reduction) + (1 - beta) * reduced(m, q, reduction)


def reduced(q, p, reduction):
    """Reduce rows; torch calls the mean of rows batchmean."""
    if reduction == "none":
        return functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    reduction = "batchmean" if reduction == "mean" else reduction
    return functional.kl_div(q, p, reduction=reduction, log_target=True)


def lstm(x, weight, hidden, cell):
    """torch.nn.LSTM on inputs of the gates; runs for each prefix of steps, for its cell states."""
    layer, parameters = recurrent(torch.nn.LSTM, x, weight)
    start = hidden[None], cell[None]
    runs = [
        torch.func.functional_call(layer, parameters, (x[:, : t + 1], start))
        for t in range(x.shape[1])
    ]
    return runs[-1][0], torch.stack([last[1][0] for _, last in runs], 1)


def gru(x, weight, bias, hidden):
    """torch.nn.GRU on inputs of the gates."""
    layer, parameters = recurrent(torch.nn.GRU, x, weight)
    parameters["bias_hh_l0"] = torch.cat([torch.zeros_like(bias), torch.zeros_like(bias), bias])
    return torch.func.functional_call(layer, parameters, (x, hidden[None]))[0]


def recurrent(kind, x, weight):
    gates, units = weight.shape
    layer = kind(gates, units, batch_first=True, dtype=torch.float64)
    zeros = torch.zeros(gates, dtype=torch.float64)
    parameters = {"weight_ih_l0": torch.eye(gates, dtype=torch.float64), "weight_hh_l0": weight}
    return layer, {**parameters, "bias_ih_l0": zeros, "bias_hh_l0": zeros}


def layer_norm_residual(x, residual, weight=None, bias=None, *, eps=1e-5):
    h = x + residual
    return functional.layer_norm(h, h.shape[-1:], weight, bias, eps), h


def norm_add_norm(x, residual, w1=None, w2=None, *, eps=1e-6):
    h = residual + functional.rms_norm(x, x.shape[-1:], w1, eps)
    return functional.rms_norm(h, h.shape[-1:], w2, eps), h


def rms_norm_gate(x, gate, weight=None, *, eps=1e-5, activation="silu", norm_before_gate=True):
    factor = functional.silu(gate) if activation == "silu" else torch.sigmoid(gate)
    if norm_before_gate:
        return functional.rms_norm(x, x.shape[-1:], weight, eps) * factor
    return functional.rms_norm(x * factor, x.shape[-1:], weight, eps)


def geglu(x, gate, *, approximate="none"):
    return x * functional.gelu(gate, approximate=approximate)


def causal_conv1d(x, weight, bias, state, *, activation="none"):
    inputs = torch.cat([state, x], 1)
    y = functional.conv1d(inputs.mT, weight[:, None], bias, groups=x.shape[2]).mT
    return functional.silu(y) if activation == "silu" else y, inputs[:, x.shape[1] :]


def expert_routing(logits, k, *, score="softmax", normalize=True):
    scores = torch.softmax(logits, -1) if score == "softmax" else torch.sigmoid(logits)
    weights, indices = torch.topk(scores, k, -1)
    return weights / weights.sum(-1, keepdim=True) if normalize else weights, indices


def embedding_bag(weight, indices, offsets=None, per_sample_weights=None, *, mode="mean"):
    """Indices of -1, which are not rows, become torch's padding row."""
    padded = torch.cat([weight, torch.zeros_like(weight[:1])])
    padding = len(weight) if (indices < 0).any() else None
    at = torch.where(indices < 0, len(weight), indices)
    return functional.embedding_bag(
        at, padded, offsets, mode=mode, per_sample_weights=per_sample_weights, padding_idx=padding
    )


# The arguments: arrays with gradients, other arrays, and options


def cases():
    qkv = {name: draw(1, 2, 3, 2) for name in "qkv"}
    longer = qkv | {"k": draw(1, 1, 5, 2), "v": draw(1, 1, 5, 1)}
    seen = np.array([[True, False, True], [False, True, True], [False, False, False]])
    added = np.array([[0.5, -1.0, 0.0], [2.0, -np.inf, 0.25], [0.0, 0.0, -3.0]])
    yield attention, "plain", qkv, {}, {"scale": 1.25}
    yield attention, "causal", qkv, {}, {"scale": 0.5, "causal": True}
    yield attention, "bools", qkv, {"mask": seen}, {"scale": 0.5}
    yield attention, "added", qkv, {"mask": added}, {"scale": 0.5}
    yield attention, "groups", longer, {}, {"scale": 0.5}
    yield attention, "groups-causal", longer, {}, {"scale": 0.5, "causal": True}

    logits, targets = {"logits": draw(4, 5, low=-4, high=4)}, np.array([4, 0, -100, 3])
    given = {"targets": targets}
    words = given | {"weight": np.array([0.5, 2.0, 1.0, 0.25, 1.5])}
    yield cross_entropy, "mean", logits, given, {}
    yield cross_entropy, "none", logits, given, {"reduction": "none"}
    yield cross_entropy, "smoothed", logits, given, {"label_smoothing": 0.1}
    yield cross_entropy, "sum", logits, given, {"label_smoothing": 0.1, "reduction": "sum"}
    yield cross_entropy, "weights", logits, words, {}
    yield cross_entropy, "weights-smoothed", logits, words, {"label_smoothing": 0.1}
    given["targets"] = np.array([4, 0, 2, 3])
    yield cross_entropy, "ignored", logits, given, {"ignore_index": 3}

    products = {"x": draw(4, 3), "weight": draw(5, 3), "bias": draw(5)}
    given = {"targets": targets}
    yield linear_cross_entropy, "mean", products, given, {}
    options = {"label_smoothing": 0.1, "reduction": "sum"}
    yield linear_cross_entropy, "sum", products, given, options

    pair = {"logits": draw(3, 4, low=-4, high=4), "target_logits": draw(3, 4, low=-4, high=4)}
    yield kl_div_loss, "mean", pair, {}, {}
    yield kl_div_loss, "temperature", pair, {}, {"temperature": 2.0}
    yield kl_div_loss, "none", pair, {}, {"temperature": 2.0, "reduction": "none"}
    yield js_div_loss, "mean", pair, {}, {"temperature": 2.0}
    yield js_div_loss, "none", pair, {}, {"reduction": "none"}
    yield js_div_loss, "beta", pair, {}, {"beta": 0.1, "reduction": "none"}

    start = {"hidden": draw(2, 2, low=-1, high=1)}
    arrays = {"x": draw(2, 3, 8), "weight": draw(8, 2, low=-1, high=1), **start}
    yield lstm, "layer", arrays | {"cell": draw(2, 2)}, {}, {}
    arrays = {"x": draw(2, 3, 6), "weight": draw(6, 2, low=-1, high=1), "bias": draw(2), **start}
    yield gru, "layer", arrays, {}, {}

    rows = {"x": draw(2, 5), "residual": draw(2, 5)}
    yield layer_norm_residual, "plain", rows, {}, {}
    scales = {"weight": draw(5), "bias": draw(5)}
    yield layer_norm_residual, "scaled", rows | scales, {}, {"eps": 0.01}
    yield norm_add_norm, "plain", rows, {}, {}
    yield norm_add_norm, "scaled", rows | {"w1": draw(5), "w2": draw(5)}, {}, {"eps": 0.01}
    gated = {"x": draw(2, 5), "gate": draw(2, 5), "weight": draw(5)}
    yield rms_norm_gate, "before", gated, {}, {}
    yield rms_norm_gate, "sigmoid", gated, {}, {"activation": "sigmoid", "eps": 0.01}
    yield rms_norm_gate, "after", gated, {}, {"norm_before_gate": False}

    gate = np.array([-6.0, -2.5, -0.75, 0.0, 0.5, 1.25, 5.0])
    yield geglu, "none", {"x": draw(7), "gate": gate}, {}, {}
    yield geglu, "tanh", {"x": draw(7), "gate": gate}, {}, {"approximate": "tanh"}

    arrays = {"x": draw(2, 3, 2), "weight": draw(2, 4), "bias": draw(2), "state": draw(2, 3, 2)}
    yield causal_conv1d, "none", arrays, {}, {}
    yield causal_conv1d, "silu", arrays, {}, {"activation": "silu"}

    logits = {"logits": draw(3, 6)}
    yield expert_routing, "normalized", logits, {}, {"k": 2}
    yield expert_routing, "softmax", logits, {}, {"k": 3, "normalize": False}
    yield expert_routing, "sigmoid", logits, {}, {"k": 2, "score": "sigmoid"}

    table = {"weight": draw(5, 3)}
    bags = {"indices": np.array([[0, 3], [4, 4], [3, 1]])}
    flat = {"indices": np.array([0, 3, 4, 4, 3, 1]), "offsets": np.array([0, 3, 3, 5])}
    for mode in ("sum", "mean", "max"):
        yield embedding_bag, mode, table, bags, {"mode": mode}
        yield embedding_bag, f"{mode}-offsets", table, flat, {"mode": mode}
    bags = {"indices": np.array([[0, -1], [-1, -1], [3, 1]])}
    yield embedding_bag, "max-padding", table, bags, {"mode": "max"}
    factors = {"per_sample_weights": draw(3, 2)}
    yield embedding_bag, "factors-padding", table | factors, bags, {"mode": "sum"}
    factors = {"per_sample_weights": draw(6)}
    yield embedding_bag, "factors-offsets", table | factors, flat, {"mode": "sum"}


def results(op, name, arrays, others, options):
    tensors = {key: torch.tensor(x, requires_grad=True) for key, x in arrays.items()}
    out = op(**tensors, **{key: torch.tensor(x) for key, x in others.items()}, **options)
    out = out if isinstance(out, tuple) else (out,)
    floats = [y for y in out if y.is_floating_point()]
    cotangents = [torch.tensor(draw(*y.shape, low=-1, high=1)) for y in floats]
    gradients = torch.autograd.grad(floats, list(tensors.values()), cotangents)
    return {
        "op": op.__name__,
        "case": name,
        "options": options,
        "arrays": {key: listed(x) for key, x in arrays.items()},
        "others": {key: listed(x) for key, x in others.items()},
        "cotangents": [listed(x) for x in cotangents],
        "results": [listed(x) for x in out],
        "gradients": {key: listed(x) for key, x in zip(arrays, gradients, strict=True)},
    }


def listed(x):
    """Return nested lists with 8 digits; infinities become strings, because JSON lacks them."""

    def short(v):
        if isinstance(v, list):
            return [short(item) for item in v]
        if not isinstance(v, float):
            return v
        return float(f"{v:.8g}") if np.isfinite(v) else str(v)

    return short(x.tolist())


def main():
    lines = []
    for case in cases():
        parts = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in results(*case).items() if v != {})
        lines.append("  {" + ",\n   ".join(parts) + "}")
    head = f' "torch": {json.dumps(torch.__version__)},\n "cases": [\n'
    text = "{\n" + head + ",\n".join(lines) + "\n ]\n}\n"
    Path(__file__).with_suffix(".json").write_text(text)


if __name__ == "__main__":
    main()
