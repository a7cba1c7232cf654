"""Kernels for training: an operator and its gradients on all cores, in float32.

The competitors are MLX's operations, directly and compiled, MLX's own fused operation if it exists,
and torch on the CPU if it is installed. Each case has its own process: this module, run as a
program. It reports MLX's maximum memory without the inputs and cotangents, and the part of it that
is neither a result nor a gradient.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn
import mlxops.nn as ours
import numpy as np

from .measure import Options, Result, alternate, duration, run_command

ROUNDS = 5
BUDGET = 20  # seconds of rounds for a case
COLUMNS = ("mlxops", "MLX's operations", "compiled", "MLX's own", "torch")
RECURRENCE = (5, 20)  # aims: the factors of speed and of working memory
LOSS = (10, 10)
ATTENTION = (3, 0)
NO_AIM = (0, 0)

Function = Callable[..., Any]  # returns one or several arrays


@dataclass(frozen=True)
class Case:
    """A computation and its inputs."""

    aims: tuple[float, float]
    inputs: tuple[mx.array, ...]  # all of them with gradients
    functions: tuple[Function, ...]  # ours, a composition of MLX's operations, MLX's own
    compiled: bool = True  # a loop of many steps takes minutes to compile
    torch: Callable[..., Any] | None = None  # receives torch.nn.functional and tensors


def over_time(step: Callable[..., tuple[Any, ...]], state: Any) -> Function:
    """Loop over the second axis: ``step(state, *arrays)`` returns the next state and results."""

    def call(*arrays: mx.array) -> list[mx.array]:
        s, results = state, []
        for t in range(arrays[0].shape[1]):
            s, *y = step(s, *(a[:, t] for a in arrays))
            results.append(y)
        return [mx.stack(y, axis=1) for y in zip(*results, strict=True)]

    return call


def _linear(h: mx.array, a: mx.array, b: mx.array) -> tuple[mx.array, mx.array]:
    h = a * h + b
    return h, h


def _delta(s: mx.array, *arrays: mx.array) -> tuple[mx.array, mx.array]:
    q, k, v, g, beta = arrays
    s = s * g[..., None, None]
    error = beta[..., None] * (v - (s @ k[..., None])[..., 0])
    s = s + error[..., None] * k[..., None, :]
    return s, (s @ q[..., None])[..., 0]


def _wkv(s: mx.array, *arrays: mx.array) -> tuple[mx.array, mx.array]:
    r, w, k, v, a, b = (x[..., None, :] for x in arrays)
    s = s * w + (s @ a.swapaxes(-1, -2)) * b + v.swapaxes(-1, -2) * k
    return s, (s @ r.swapaxes(-1, -2))[..., 0]


def _state_space(s: mx.array, *arrays: mx.array) -> tuple[mx.array, mx.array]:
    x, b, c, dt = arrays
    s = mx.exp(-dt)[..., None, None] * s + (dt[..., None] * x)[..., None] * b[..., None, :]
    return s, (s @ c[..., None])[..., 0] + x


def _selective(s: mx.array, *arrays: mx.array) -> tuple[mx.array, mx.array]:
    u, delta, b, c = arrays
    s = mx.exp(-delta)[..., None] * s + (delta * u)[..., None] * b[:, None]
    return s, (s @ c[..., None])[..., 0]


def _lstm(x: mx.array, weight: mx.array) -> list[mx.array]:
    def step(state: tuple[mx.array, mx.array], x: mx.array) -> tuple[Any, ...]:
        h, c = state
        i, f, g, o = mx.split(x + h @ weight.T, 4, axis=-1)
        c = mx.sigmoid(f) * c + mx.sigmoid(i) * mx.tanh(g)
        h = mx.sigmoid(o) * mx.tanh(c)
        return (h, c), h, c

    zeros = mx.zeros((x.shape[0], weight.shape[1]))
    return over_time(step, (zeros, zeros))(x)


def _gru(x: mx.array, weight: mx.array) -> list[mx.array]:
    units = weight.shape[1]

    def step(h: mx.array, x: mx.array) -> tuple[mx.array, mx.array]:
        p = h @ weight.T
        r, z = mx.split(mx.sigmoid(x[:, : 2 * units] + p[:, : 2 * units]), 2, axis=-1)
        n = mx.tanh(x[:, 2 * units :] + r * p[:, 2 * units :])
        h = (1 - z) * n + z * h
        return h, h

    return over_time(step, mx.zeros((x.shape[0], units)))(x)


def _divergence(p: mx.array, q: mx.array) -> mx.array:
    """Return the divergence of distributions from their logarithms."""
    return mx.sum(mx.exp(p) * (p - q), axis=-1)


def _log_softmax(x: mx.array) -> mx.array:
    return x - mx.logsumexp(x, axis=-1, keepdims=True)


def _kl_div(x: mx.array, y: mx.array) -> mx.array:
    return mx.mean(_divergence(_log_softmax(y), _log_softmax(x)))


def _js_div(x: mx.array, y: mx.array) -> mx.array:
    q, p = _log_softmax(x), _log_softmax(y)
    m = mx.log((mx.exp(p) + mx.exp(q)) / 2)
    return mx.mean(_divergence(p, m) + _divergence(q, m)) / 2


def _attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    i = mx.arange(q.shape[2])
    scores = mx.where(i <= i[:, None], q.shape[-1] ** -0.5 * (q @ k.swapaxes(-1, -2)), -mx.inf)
    return mx.softmax(scores, axis=-1) @ v


def _rms_norm(x: mx.array, weight: mx.array, eps: float = 1e-6) -> mx.array:
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _heads(norm: Function) -> Function:
    """Return queries and keys, after the norm and the rotation, in one array."""

    def call(q: mx.array, k: mx.array, *weights: mx.array) -> mx.array:
        normed = (norm(x, w, 1e-6).swapaxes(1, 2) for x, w in zip((q, k), weights, strict=True))
        options = {"traditional": False, "base": 10000.0, "scale": 1.0, "offset": 0}
        turned = [mx.fast.rope(x, x.shape[-1], **options) for x in normed]
        return mx.concatenate(turned, axis=1).swapaxes(1, 2)

    return call


def _convolution(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
    taps = weight.shape[1]
    x = mx.pad(x, [(0, 0), (taps - 1, 0), (0, 0)])
    y = bias
    for k in range(taps):
        y = y + x[:, k : x.shape[1] - taps + 1 + k] * weight[:, k]
    return y * mx.sigmoid(y)


def _routing(logits: mx.array) -> mx.array:
    scores = mx.softmax(logits, axis=-1)
    chosen = mx.argpartition(-scores, 7, axis=-1)[..., :8]
    order = mx.argsort(-mx.take_along_axis(scores, chosen, -1), axis=-1)
    chosen = mx.stop_gradient(mx.take_along_axis(chosen, order, -1))
    scores = mx.take_along_axis(scores, chosen, -1)
    return scores / mx.sum(scores, axis=-1, keepdims=True)


def _tensor(x: mx.array) -> Any:
    import torch

    return torch.from_numpy(np.array(x))


def _with_torch(case: Case, cotangent: mx.array) -> Callable[[], object]:
    """Return the case's gradients by torch; raise ``ImportError`` if it is not installed."""
    import torch

    function = case.torch
    assert function is not None
    tensors = [_tensor(x).requires_grad_() for x in case.inputs]
    factor = _tensor(cotangent)

    def call() -> object:
        return torch.autograd.grad(
            (function(torch.nn.functional, *tensors) * factor).sum(), tensors
        )

    return call


def results(function: Function, *inputs: mx.array) -> list[mx.array]:
    """Return the results of a function as a list."""
    result = function(*inputs)
    return list(result) if isinstance(result, list | tuple) else [result]


def cotangents(case: Case) -> list[mx.array]:
    """Return random cotangents for all results."""
    return [mx.random.uniform(-1, 1, y.shape) for y in results(case.functions[0], *case.inputs)]


def gradients(function: Function, cotangents: list[mx.array]) -> Callable[..., list[mx.array]]:
    """Return a function of the same arguments that returns its results and the gradients."""

    def call(*inputs: mx.array) -> list[mx.array]:
        outputs, vjps = mx.vjp(lambda *x: results(function, *x), inputs, cotangents)
        return [*outputs, *vjps]

    return call


def cases(quick: bool) -> Mapping[str, Case]:
    """Return all cases; their arrays are computed on first use."""
    steps, tokens, words, length = (32, 32, 500, 64) if quick else (512, 1024, 32_000, 1024)
    wide = (64, 128) if quick else (4096, 2048)
    targets = mx.random.randint(0, words, (tokens,))
    items = mx.random.randint(0, words, (tokens, 16))

    def draw(*shape: int, low: float = -1, high: float = 1) -> mx.array:
        return mx.random.uniform(low, high, shape)

    def state(*shape: int) -> mx.array:
        return mx.zeros((1, *shape))

    def share(*shape: int) -> mx.array:
        return draw(*shape, low=0.9, high=0.999)

    heads = (1, steps, 4)
    vectors = (*heads, 64)
    ones = mx.ones((4,))
    return {
        "linear_recurrence": Case(
            RECURRENCE,
            (share(1, steps, 4096), draw(1, steps, 4096)),
            (ours.linear_recurrence, over_time(_linear, state(4096))),
            compiled=False,
        ),
        "gated_delta": Case(
            RECURRENCE,
            (
                *(draw(*vectors, low=-0.1, high=0.1) for _ in range(2)),
                draw(*vectors),
                share(*heads),
                share(*heads),
            ),
            (
                lambda *x: ours.gated_delta(*x)[0],
                over_time(_delta, state(4, 64, 64)),
                lambda *x: mx.fast.gated_delta_update(*x)[0],
            ),
            compiled=False,
        ),
        "wkv7": Case(
            RECURRENCE,
            (
                draw(*vectors),
                share(*vectors),
                *(draw(*vectors, low=-0.1, high=0.1) for _ in range(4)),
            ),
            (lambda *x: ours.wkv7(*x)[0], over_time(_wkv, state(4, 64, 64))),
            compiled=False,
        ),
        "ssm_scan": Case(
            RECURRENCE,
            (draw(*vectors), draw(*vectors), draw(*vectors), share(*heads)),
            (
                lambda x, b, c, dt: ours.ssm_scan(x, 0 * ones, b, c, ones, dt)[0],
                over_time(_state_space, state(4, 64, 64)),
            ),
            compiled=False,
        ),
        "selective_scan": Case(
            RECURRENCE,
            (draw(1, steps, 512), share(1, steps, 512), draw(1, steps, 16), draw(1, steps, 16)),
            (
                lambda u, delta, b, c: ours.selective_scan(u, delta, -mx.ones((512, 16)), b, c)[0],
                over_time(_selective, state(512, 16)),
            ),
            compiled=False,
        ),
        "lstm": Case(
            RECURRENCE,
            (draw(8, steps, 512), draw(512, 128, low=-0.1, high=0.1)),
            (ours.lstm, _lstm),
            compiled=False,
        ),
        "gru": Case(
            RECURRENCE,
            (draw(8, steps, 384), draw(384, 128, low=-0.1, high=0.1)),
            (ours.gru, _gru),
            compiled=False,
        ),
        "cross_entropy": Case(
            LOSS,
            (draw(tokens, words),),
            (
                lambda x: ours.cross_entropy(x, targets),
                lambda x: mx.mean(
                    mx.logsumexp(x, axis=-1) - mx.take_along_axis(x, targets[:, None], -1)[:, 0]
                ),
                lambda x: mlx.nn.losses.cross_entropy(x, targets, reduction="mean"),
            ),
            torch=lambda f, x: f.cross_entropy(x, _tensor(targets).long()),
        ),
        "linear_cross_entropy": Case(
            LOSS,
            (draw(tokens, 512), draw(words, 512, low=-0.1, high=0.1)),
            (
                lambda x, w: ours.linear_cross_entropy(x, w, targets),
                lambda x, w: mlx.nn.losses.cross_entropy(x @ w.T, targets, reduction="mean"),
            ),
            torch=lambda f, x, w: f.cross_entropy(x @ w.T, _tensor(targets).long()),
        ),
        "kl_div_loss": Case(
            LOSS,
            (draw(tokens, words), draw(tokens, words)),
            (ours.kl_div_loss, _kl_div),
            torch=lambda f, x, y: f.kl_div(
                f.log_softmax(x, -1), f.log_softmax(y, -1), reduction="batchmean", log_target=True
            ),
        ),
        "js_div_loss": Case(
            LOSS, (draw(tokens, words), draw(tokens, words)), (ours.js_div_loss, _js_div)
        ),
        "attention": Case(
            ATTENTION,
            tuple(draw(1, 8, length, 256) for _ in range(3)),
            (
                lambda q, k, v: ours.attention(q, k, v, scale=256**-0.5, causal=True),
                _attention,
                lambda q, k, v: mx.fast.scaled_dot_product_attention(
                    q, k, v, scale=256**-0.5, mask="causal"
                ),
            ),
            torch=lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
        ),
        "rms_norm_gate": Case(
            NO_AIM,
            (draw(*wide), draw(*wide), draw(wide[1])),
            (
                ours.rms_norm_gate,
                lambda x, gate, w: _rms_norm(x, w, 1e-5) * gate * mx.sigmoid(gate),
            ),
        ),
        "norm_add_norm": Case(
            NO_AIM,
            (draw(*wide), draw(*wide), draw(wide[1]), draw(wide[1])),
            (
                lambda *x: ours.norm_add_norm(*x)[0],
                lambda x, h, w1, w2: _rms_norm(h + _rms_norm(x, w1), w2),
            ),
        ),
        "layer_norm_residual": Case(
            NO_AIM,
            (draw(*wide), draw(*wide), draw(wide[1]), draw(wide[1])),
            (
                lambda *x: ours.layer_norm_residual(*x)[0],
                lambda x, h, w, b: mx.fast.layer_norm(x + h, w, b, 1e-5),
            ),
            torch=lambda f, x, h, w, b: f.layer_norm(x + h, w.shape, w, b),
        ),
        "qk_norm_rope": Case(
            NO_AIM,
            (draw(1, wide[0], 12, 128), draw(1, wide[0], 4, 128), draw(128), draw(128)),
            (
                lambda *x: mx.concatenate(ours.qk_norm_rope(*x), axis=2),
                _heads(_rms_norm),
                _heads(mx.fast.rms_norm),
            ),
        ),
        "geglu": Case(
            NO_AIM,
            (draw(*wide), draw(*wide, low=-4, high=4)),
            (ours.geglu, lambda x, gate: x * gate * (1 + mx.erf(gate * 0.5**0.5)) / 2),
            torch=lambda f, x, gate: x * f.gelu(gate),
        ),
        "causal_conv1d": Case(
            NO_AIM,
            (draw(1, *wide), draw(wide[1], 4), draw(wide[1])),
            (lambda *x: ours.causal_conv1d(*x, activation="silu")[0], _convolution),
            torch=lambda f, x, w, b: f.silu(
                f.conv1d(f.pad(x.mT, (3, 0)), w[:, None], b, groups=len(w)).mT
            ),
        ),
        "embedding_bag": Case(
            NO_AIM,
            (draw(words, 512),),
            (lambda w: ours.embedding_bag(w, items), lambda w: mx.mean(w[items], axis=1)),
            torch=lambda f, w: f.embedding_bag(_tensor(items).long(), w),
        ),
        "expert_routing": Case(
            NO_AIM,
            (draw(wide[0], 128),),
            (lambda x: ours.expert_routing(x, 8)[0], _routing),
        ),
    }


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for name, case in cases(options.quick).items():
        options.progress(f"time {name}")
        command = [sys.executable, "-m", __name__, name, *(["quick"] if options.quick else [])]
        figures = json.loads(run_command(command, MLXGEN_NUM_THREADS=str(cores)))
        (time, working), (their_time, their_working) = (figures[name][:2] for name in COLUMNS[:2])
        faster, smaller = case.aims
        aim = f"{faster}x as fast" if faster else ""
        aim += f", 1/{smaller} of the working memory" if smaller else ""
        met = their_time >= faster * time and their_working >= smaller * working if aim else None
        cells = dict.fromkeys(COLUMNS, "")
        for what, (seconds, *sizes) in figures.items():
            memory = " of ".join(f"{float(f'{size / 1e6:.3g}'):,g}" for size in sizes)
            cells[what] = duration(seconds) + (f", {memory} MB" if sizes else "")
        data = {what: figure[0] for what, figure in figures.items()}
        yield Result("training", f"`{name}`", "", aim, met, data, {**cells, "aim": aim})


def _run(name: str, quick: bool) -> dict[str, tuple[float, ...]]:
    """Return seconds, and bytes of memory: without results and gradients, and with them."""
    mx.set_default_device(mx.cpu)
    case = cases(quick)[name]
    functions = dict(zip((*COLUMNS[:2], COLUMNS[3]), case.functions, strict=False))
    given = cotangents(case)
    mx.eval(case.inputs, given)
    called = {what: gradients(function, given) for what, function in functions.items()}
    if case.compiled:
        called["compiled"] = mx.compile(called[COLUMNS[1]])
    memory = {}
    for what, function in called.items():
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        wanted = function(*case.inputs)
        mx.eval(wanted)
        total = mx.get_peak_memory() - before
        memory[what] = total - sum(x.nbytes for x in wanted), total
        del wanted
    timed = {what: lambda f=f: mx.eval(f(*case.inputs)) for what, f in called.items()}
    if case.torch:
        with suppress(ImportError):
            timed["torch"] = _with_torch(case, given[0])
    times = alternate(timed, rounds=ROUNDS, budget=BUDGET)
    return {what: (times.least(what), *memory.get(what, ())) for what in timed}


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], len(sys.argv) > 2)))
