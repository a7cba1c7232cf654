"""mlxops in mlx-lm's models: loss and gradients against mlx-lm's own compositions, and training.

The models are those of examples/fine_tune.py and families.py: tiny, with random weights.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import operator
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import mlx.utils
import numpy as np
import pytest

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: make integrations")

import mlxops.mlx_lm as ours
import programs.families as families
from mlx_lm.models import deepseek_v41, gated_delta, llama, mamba2, qwen3_next, rwkv7
from mlx_lm.tuner.callbacks import TrainingCallback
from mlx_lm.tuner.datasets import CacheDataset
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.tuner.trainer import TrainingArgs, default_loss, grad_checkpoint, train
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlxops import mlx_lm_packing
from programs import all_families

from examples.fine_tune import CLOSE, CONFIGURATIONS, build, difference, gradients

LOOPS = ("mamba", "falcon_mamba", "jamba", "recurrent_gemma", "bailing_moe_linear",
         "bailing_hybrid")  # fmt: skip
RECURRENT = (*CONFIGURATIONS, *LOOPS)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fine_tune.py"


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield
    ours.install()


def tiny(name: str) -> tuple[Any, tuple[mx.array, mx.array]]:
    """Return a model in training mode and a batch, in which one row is shorter."""
    mx.random.seed(7)
    model = build(name, 50) if name in CONFIGURATIONS else families.build(name, vocab_size=50)
    return model, (mx.random.randint(0, 50, (2, 14)), mx.array([[1, 13], [3, 9]]))


@pytest.mark.parametrize("name", RECURRENT)
def test_training(name: str) -> None:
    model, batch = tiny(name)
    found = gradients(model, batch, ours.loss)
    ours.uninstall()
    expected = gradients(model, batch, default_loss)
    assert found.keys() == expected.keys() and len(found) > 20
    assert difference(found, expected) < CLOSE
    ours.install()
    optimizer = mlx.optimizers.Adam(1e-2)
    step = mlx.nn.value_and_grad(model, ours.loss)
    for _ in range(8):
        (mean, _), grads = step(model, *batch)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
    assert mean.item() < 0.8 * found["loss"].item()


def test_strong_decays() -> None:
    """Gradients of all weights of Mamba-2, for heads whose state vanishes after one step."""
    model, batch = tiny("mamba2")
    for layer in model.layers:
        layer.mixer.A_log = mx.log(mx.array([0.1, 1.0, 4.0, 16.0]))
        layer.mixer.dt_bias = mx.array([-4.0, 0.0, 2.0, 2.0])
    found = gradients(model, batch, ours.loss)
    ours.uninstall()
    assert difference(found, gradients(model, batch, default_loss)) < 1e-5


def test_example() -> None:
    command = [sys.executable, str(EXAMPLE), "mamba2", "rwkv7", "--steps", "20"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("gradients") == 2 and done.stdout.count("step 20: loss") == 2


@pytest.mark.parametrize("name", RECURRENT)
def test_generation(name: str) -> None:
    """Generate with a cache, from a prompt in two parts; compare with mlx-lm."""
    model, (tokens, _) = tiny(name)
    model.eval()

    def outputs() -> mx.array:
        cache = model.make_cache()
        parts = [model(tokens[:, :9], cache=cache), model(tokens[:, 9:12], cache=cache)]
        for _ in range(6):
            parts.append(model(parts[-1][:, -1:].argmax(-1), cache=cache))
        return mx.concatenate(parts, axis=1)

    found = outputs()
    ours.uninstall()
    expected = outputs()
    assert mx.abs(found - expected).max().item() < 1e-4 * mx.abs(expected).max().item()
    assert mx.array_equal(found[:, 11:].argmax(-1), expected[:, 11:].argmax(-1))


@pytest.mark.parametrize("name", RECURRENT)
def test_dtypes(name: str) -> None:
    """A 16-bit model with some float32 parameters keeps its dtypes."""

    def found(single: str) -> list[mx.Dtype]:
        model, (tokens, _) = tiny(name)
        model.set_dtype(mx.bfloat16)
        for path, module in model.named_modules():
            for key, value in module.items():
                if isinstance(value, mx.array) and single in f"{path}.{key}":
                    module[key] = value.astype(mx.float32)
        dtypes = [model(tokens).dtype]  # without evaluation
        model.eval()
        cache = model.make_cache()
        dtypes += [model(tokens[:, :9], cache=cache).dtype, model(tokens[:, 9:10], cache).dtype]
        states = mlx.utils.tree_flatten([layer.state for layer in cache])
        return dtypes + [state.dtype for _, state in states if isinstance(state, mx.array)]

    for single in ("A_log", "dt_bias", "in_proj", "conv", "w_lora", "a_lora", ".D", "none"):
        ours.install()
        dtypes = found(single)
        ours.uninstall()
        assert dtypes == found(single), single
        assert single != "none" or dtypes[:3] == [mx.bfloat16] * 3


def test_lengths() -> None:
    """Padding on the left by a mask, and on the right by lengths."""
    mx.random.seed(0)
    x, dt = mx.random.normal((3, 6, 4, 5)), mx.random.normal((3, 6, 4))
    B, C = mx.random.normal((2, 3, 6, 2, 7))
    arguments = (x, mx.zeros(4), B, C, mx.ones(4), dt, mx.zeros(4))
    lengths = mx.array([6, 2, 4])
    y, state = ours.ssm_update(*arguments, lengths=lengths)
    for i, length in enumerate([6, 2, 4]):
        one = [a[i : i + 1, :length] if a.ndim > 1 else a for a in arguments]
        alone, last = ours.ssm_update(*one)
        assert mx.allclose(y[i, :length], alone[0], 1e-5, 1e-5)
        assert mx.allclose(state[i], last[0], 1e-5, 1e-5)
    mask = mx.arange(6)[None] >= mx.array([0, 3, 1])[:, None]
    for lengths, ends in ((None, [6, 6, 6]), (mx.array([6, 5, 4]), [6, 5, 4])):
        y, state = ours.ssm_update(*arguments, mask=mask, lengths=lengths)
        for i, part in enumerate(map(slice, [0, 3, 1], ends)):
            alone, last = ours.ssm_update(
                *(a[i : i + 1, part] if a.ndim > 1 else a for a in arguments)
            )
            assert mx.allclose(y[i, part], alone[0], 1e-5, 1e-5)
            assert mx.allclose(state[i], last[0], 1e-5, 1e-5)


def test_other_gates() -> None:
    """Variants of gated_delta_update in other models, against mlx-lm."""
    mx.random.seed(0)
    q, k = mx.random.normal((2, 2, 5, 2, 8)) / 4
    v, b = mx.random.normal((2, 5, 4, 6)), mx.random.normal((2, 5, 4))
    a = mx.random.normal((2, 5, 4, 8))
    arguments = (q, k, v, a, b, mx.zeros((4, 1)), mx.ones((4, 8)))
    mask = mx.array([[False, True, True, False, True], [True] * 5])
    more = {"mask": mask, "lower_bound": -5.0, "allow_neg_eigval": True}
    y, state = gated_delta.gated_delta_update(*arguments, **more)
    ours.uninstall()
    expected, last = gated_delta.gated_delta_update(*arguments, **more)
    where = mask[..., None, None]
    assert mx.allclose(mx.where(where, y, 0), mx.where(where, expected, 0), 1e-5, 1e-5)
    assert mx.allclose(state, last, 1e-5, 1e-5)


def delta_arguments(dtype: mx.Dtype = mx.float32) -> list[mx.array]:
    """Return arguments of gated_delta_update for which MLX has kernels."""
    mx.random.seed(0)
    q, k = mx.random.normal((2, 1, 3, 16, 128)) / 12
    v = mx.random.normal((1, 3, 32, 128))
    a, b = mx.random.normal((2, 1, 3, 32))
    gates = [mx.random.normal((32,)), mx.random.normal((32,))]
    return [*(x.astype(dtype) for x in (q, k, v, a, b)), *gates]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_mlx_gated_delta(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's function in training on Metal, if allowed: results, dtypes and gradients as ours."""
    monkeypatch.setattr(ours._models, "has_kernels", lambda: True)
    own, calls = mx.fast.gated_delta_update, []
    recorder = lambda *args: calls.append(args) or own(*args)  # noqa: E731
    monkeypatch.setattr(mx.fast, "gated_delta_update", recorder)
    arguments = delta_arguments(dtype)

    def outcome(**keys: Any) -> list[mx.array]:
        calls.clear()
        update = lambda *given: ours.gated_delta_update(*given, **keys)  # noqa: E731
        results = list(update(*arguments))
        # The cotangents of the outputs and of the last state.
        loss = lambda *given: sum(mx.sin(y.astype(mx.float32)).sum() for y in update(*given))  # noqa: E731
        results += mx.grad(loss, list(range(7)))(*arguments)
        mx.eval(results)
        return results

    expected = outcome(use_kernel=False)
    assert not calls
    ours.install(mlx_kernels=True)
    found = outcome(use_kernel=False)
    assert len(calls) == 2
    close = 1e-5 if dtype == mx.float32 else 0.02
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        scale = mx.abs(other).max().item()
        assert mx.abs(one - other).max().item() <= close * max(scale, 1e-3)
    zeros = mx.zeros((1, 32, 128, 128))
    for keys in ({}, {"mask": mx.ones((1, 3), mx.bool_)}, {"state": zeros}):
        outcome(**{"use_kernel": not keys, **keys})
        assert not calls
    arguments[4] = arguments[4].astype(mx.float16)  # of another dtype than q
    outcome(use_kernel=False)
    assert not calls


@pytest.mark.parametrize("steps", [5, 14])  # less and more than the window
def test_sinks(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention with sinks never calls MLX's kernel in training, and always does with a cache."""
    model = families.build("gpt_oss", sliding_window=8)
    layers = [layer.self_attn for layer in model.layers]
    for layer in layers:
        layer.sinks = mx.random.normal(layer.sinks.shape)
    model.train()
    batch = mx.random.randint(0, 40, (2, steps + 1)), mx.array([[1, steps], [1, steps - 2]])
    ours.uninstall()
    expected = gradients(model, batch, default_loss)
    logits = model(batch[0])
    ours.install()
    own, calls = mx.fast.scaled_dot_product_attention, []
    recorder = lambda *args, **keys: calls.append(args) or own(*args, **keys)  # noqa: E731
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", recorder)
    found = gradients(model, batch, ours.loss)
    assert not calls and difference(found, expected) < CLOSE
    assert all(mx.any(found[f"model.layers.{n}.self_attn.sinks"]) for n in range(len(layers)))
    assert mx.allclose(model(batch[0], model.make_cache()), logits, 1e-4, 1e-4)
    assert len(calls) == len(layers)
    rows = [row for row in ours.report(model) if row.function == "scaled_dot_product_attention"]
    assert [row.path for row in rows] == [f"model.layers.{n}.self_attn" for n in range(len(layers))]
    assert {row.replacement for row in rows} == {"nn.attention without a cache"}
    rows = ours.report(families.build("llama"))
    assert "scaled_dot_product_attention" not in {row.function for row in rows}


def test_sizes_of_mlx_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's kernels: head size 128, pairs of heads, Metal; and the rows of the report."""
    chosen = ours._models.mlx_gated_delta
    assert not chosen(16, 128, 32, 128)  # the CPU
    layer = tiny("qwen3_next")[0].layers[0].linear_attn
    sizes = {"num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128}
    vars(layer).update(sizes)
    assert ours.report(layer)[0].replacement == "nn.gated_delta"
    monkeypatch.setattr(ours._models, "has_kernels", lambda: True)
    pairs = itertools.product(range(1, 70), repeat=2)
    expected = [(16, 16), (16, 32), (16, 48), (16, 64), (24, 24), (32, 32)]
    assert [(k, v) for k, v in pairs if chosen(k, 128, v, 128)] == expected
    assert not any(chosen(16, *other) for other in ((64, 32, 64), (128, 32, 64), (256, 32, 128)))
    assert ours.report(layer)[0].replacement == "nn.gated_delta"
    ours.install(mlx_kernels=True)
    assert ours.report(layer)[0].replacement.startswith("mx.fast.gated_delta_update in training")


def test_what_is_replaced() -> None:
    assert qwen3_next.gated_delta_update is ours.gated_delta_update
    assert mamba2.ssm_update is ours.ssm_update
    ours.install()
    ours.uninstall()
    for (module, name), new in ours.REPLACED.items():
        owner = importlib.import_module(module)
        for part in name.split("."):
            owner = getattr(owner, part)
        assert owner is not new and owner.__module__ == module
    assert qwen3_next.gated_delta_update is gated_delta.gated_delta_update
    assert mamba2.ssm_update is not ours.ssm_update


def test_modules_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that imported a function before or after install(), under any name."""

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    ours.uninstall()
    own = gated_delta.gated_delta_update
    before, after, same = Lazy("before_install"), Lazy("after_install"), Lazy("same_name")
    for module in (before, after, same):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "not_a_module", cast(Any, object()))
    before.update = before.again = own
    same.gated_delta_update = len
    ours.install()
    after.update = gated_delta.gated_delta_update
    assert before.update is before.again is after.update is ours.gated_delta_update
    ours.uninstall()
    assert before.update is before.again is after.update is own
    assert same.gated_delta_update is len
    assert ours.gated_delta_update is not own and ours.REPLACED


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = tiny("qwen3_next")
    rows = [row for row in ours.report(model) if row.function == "gated_delta_update"]
    assert [row.path for row in rows] == [f"model.layers.{i}.linear_attn" for i in range(3)]
    assert {(row.layer, row.replacement, row.reason) for row in rows} == {
        ("Qwen3NextGatedDeltaNet", "nn.gated_delta", "")
    }
    first = capsys.readouterr().out.splitlines()[0].split("  ")
    assert first[0] == "model.layers.0-2.linear_attn"
    assert first[-1] == "gated_delta_update -> nn.gated_delta"
    ours.uninstall()
    row = ours.report(model)[0]
    assert row.replacement is None and "uninstall" in row.reason


def test_install_is_complete_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of mlx-lm without one of the functions stays as it was."""
    ours.uninstall()
    with monkeypatch.context() as patched:
        patched.delattr("mlx_lm.models.bailing_moe_linear.recurrent_gla")
        with pytest.raises(ImportError, match=r"requires mlx-lm 0\.32"):
            ours.install()
    assert gated_delta.gated_delta_update is not ours.gated_delta_update
    ours.install()
    assert gated_delta.gated_delta_update is ours.gated_delta_update


def test_reload() -> None:
    """Loading the modules again does not replace the replacements."""
    original = ours._patch.originals["mlx_lm.models.gated_delta", "gated_delta_update"]
    for module in (ours, ours._models, ours):
        importlib.reload(module)
        place = ("mlx_lm.models.gated_delta", "gated_delta_update")
        assert ours._patch.originals[place] is original
        assert qwen3_next.gated_delta_update is gated_delta.gated_delta_update is not original
    assert qwen3_next.gated_delta_update is ours.gated_delta_update
    ours.uninstall()
    assert qwen3_next.gated_delta_update is gated_delta.gated_delta_update is original


def test_signatures() -> None:
    """Arguments have mlx-lm's names, positions and default values."""
    for place, new in ours.REPLACED.items():
        found, expected = (
            list(inspect.signature(function).parameters.values())
            for function in (new, ours._patch.originals[place])
        )
        if found[-1].kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if expected[0].name == "self":
            found, expected = found[1:], expected[1:]
        assert [(p.name, p.kind, p.default) for p in found] == [
            (p.name, p.kind, p.default) for p in expected
        ]


def test_report_of_failing_models() -> None:
    """Models that cannot compute logits: without a head, or with another result."""
    rows = ours.report(families.build("mamba").backbone)
    assert rows[0].replacement == "nn.selective_scan"
    assert rows[-1].reason.startswith("the model fails for tokens: TypeError: ")

    class Output(llama.Model):
        def __call__(self, tokens: mx.array) -> Any:
            return {"logits": super().__call__(tokens)}

    model = families.build("llama")
    model.__class__ = Output
    assert ours.report(model)[-1].reason == "the model returns dict, not an array"


def unpacked(layer: Any) -> mx.array:
    """Return the weights -1, 0 and 1 of a layer of BitNet."""
    parts = [(layer.weight >> shift) & 3 for shift in (0, 2, 4, 6)]
    return mx.concatenate(parts).astype(mx.float32) - 1


def trained(model: Any, batch: Any) -> None:
    optimizer = mlx.optimizers.Adam(1e-2)
    losses = []
    for _ in range(8):
        grads = gradients(model, batch, ours.loss)
        losses.append(grads.pop("loss").item())
        del grads["count"]
        optimizer.update(model, mlx.utils.tree_unflatten(list(grads.items())))
        mx.eval(model.parameters(), optimizer.state)
    assert losses[-1] < 0.9 * losses[0]


def test_bitnet() -> None:
    """Loss and gradients of BitNet, whose kernel has no CPU path, against dense layers."""
    model, batch = tiny("bitnet")
    found = gradients(model, batch, ours.loss)

    class Dense(mlx.nn.Module):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self._weight, self.weight_scale = unpacked(layer), layer.weight_scale

        def __call__(self, x: mx.array) -> mx.array:
            return x @ self._weight.T * self.weight_scale

    dense, _ = tiny("bitnet")
    layers = [(path, layer) for path, layer in dense.named_modules() if "weight_scale" in layer]
    assert len(layers) == 14
    dense.update_modules(mlx.utils.tree_unflatten([(path, Dense(layer)) for path, layer in layers]))
    assert difference(found, gradients(dense, batch, default_loss)) < CLOSE
    trained(model, batch)


@pytest.mark.parametrize("invert", [False, True])
def test_gradient_of_bitnet_kernel(invert: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel computes the result, here zeros, and the gradient is that of the product."""
    layer = families.build("bitnet").layers[0].mlp.up_proj
    layer.invert_weight_scales = invert
    x, scale, c = mx.random.normal((2, 3, 32)), mx.array([0.7]), mx.random.normal((2, 3, 48))
    monkeypatch.setattr(ours._models, "has_kernels", lambda: True)
    monkeypatch.setitem(
        *(ours._patch.originals, ours.BITNET, lambda *_: mx.stop_gradient(mx.zeros((2, 3, 48))))
    )

    def loss(x: mx.array, scale: mx.array) -> mx.array:
        layer.weight_scale = scale
        return (layer(x) * c).sum()

    value, found = mx.value_and_grad(loss, [0, 1])(x, scale)
    weight, wide, wide_c = (np.array(a, np.float64) for a in (unpacked(layer), x, c))
    of_scale = (wide @ weight.T * wide_c).sum()
    factor, of_factor = (1 / 0.7, -1 / 0.7**2) if invert else (0.7, 1)
    assert value == 0
    np.testing.assert_allclose(found[0], wide_c @ weight * factor, 1e-5, 1e-5)
    np.testing.assert_allclose(found[1], [of_scale * of_factor], 1e-4)
    with pytest.raises(ValueError, match="weight_scale"):
        mx.grad(loss)(x.astype(mx.float16), scale)


class Constants:
    """mlx.core whose chosen indices have no gradient."""

    def argpartition(self, *args: Any, **kwargs: Any) -> mx.array:
        return mx.stop_gradient(mx.argpartition(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)


def test_deepseek_v41(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roundings have the gradient of the identity, and chosen experts and keys are constants."""
    model, batch = tiny("deepseek_v41")
    found = gradients(model, batch, ours.loss)
    trained(tiny("deepseek_v41")[0], batch)
    ours.uninstall()
    with pytest.raises(ValueError, match="Cannot calculate VJP with respect to indices"):
        gradients(model, batch, default_loss)
    monkeypatch.setattr(deepseek_v41, "mx", Constants())

    def rounding(own: Any) -> Any:
        return lambda x, *args, **keys: x + mx.stop_gradient(own(x, *args, **keys) - x)

    for name in ("_fake_quant_fp8", "_fake_quant_fp4"):
        monkeypatch.setattr(deepseek_v41, name, rounding(getattr(deepseek_v41, name)))
    expected = gradients(model, batch, default_loss)
    assert found["model.layers.1.self_attn.compressor.gate_proj.weight"].any()
    assert difference(found, expected) < CLOSE


def test_gradient_of_sinkhorn_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel computes the result, here zeros, and mlx-lm's loop the gradient."""
    comb, c = mx.random.uniform(0.1, 1, (2, 3, 4, 4)), mx.random.normal((2, 3, 4, 4))

    def grad() -> mx.array:
        eps = mx.array([1e-6])
        return mx.grad(lambda x: (deepseek_v41._sinkhorn(x, iters=3, eps=eps) * c).sum())(comb)

    expected = grad()
    mx.eval(expected)
    calls = []

    class Metal(Constants):
        def default_device(self) -> Any:
            return mx.gpu

    def kernel(inputs: Any, output_shapes: Any, **_: Any) -> list[mx.array]:
        calls.append(inputs)
        return [mx.stop_gradient(mx.zeros(output_shapes[0]))]

    monkeypatch.setattr(ours._models, "has_kernels", lambda: True)
    monkeypatch.setattr(deepseek_v41, "mx", Metal())
    monkeypatch.setattr(deepseek_v41, "_sinkhorn_kernel", kernel)
    assert mx.allclose(grad(), expected, 1e-5, 1e-6) and len(calls) == 1 and expected.any()
    ours.uninstall()
    assert not grad().any() and len(calls) == 2


def test_hybrid_gla() -> None:
    """Results, states and gradients of Bailing's hybrids, with masks and states, against mlx-lm."""
    module = importlib.import_module("mlx_lm.models.bailing_hybrid")
    mx.random.seed(1)
    mask = mx.array([[False, True, True, True, True], [True, True, True, False, False]])
    for steps, masked, with_state in itertools.product((1, 5), (False, True), (False, True)):
        arrays = [*mx.random.normal((3, 2, 3, steps, 4)), mx.random.normal((2, 3, 4, 4))]
        keys = {"scale": 0.5, "mask": mask[:, :steps] if masked else None}

        def outcome(*given: mx.array) -> Any:
            state = given[-1] if with_state else None  # noqa: B023
            g = mx.array([-1e-6, -0.5, -0.9])
            return module.recurrent_gla(*given[:-1], g, h=state, **keys)  # noqa: B023

        def total(*given: mx.array) -> mx.array:
            return sum(mx.sin(result).sum() for result in outcome(*given))

        ours.install()
        found = [*outcome(*arrays), *mx.grad(total, [0, 1, 2, 3])(*arrays)]
        ours.uninstall()
        expected = [*outcome(*arrays), *mx.grad(total, [0, 1, 2, 3])(*arrays)]
        assert all(mx.allclose(a, b, 1e-5, 1e-5) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("model", [None, "a/name", (None, None), llama.Model], ids=str)
def test_report_of_no_model(model: Any) -> None:
    with pytest.raises(TypeError, match=r"\[report\] model must be an mlx\.nn\.Module, not "):
        ours.report(model)


@pytest.mark.parametrize("quantize", [False, True])
def test_unusual_batches(quantize: bool) -> None:
    """Tokens of any integer type, and rows of which no token counts."""
    model = quantized("llama", False, group_size=32, bits=8) if quantize else tiny("mamba")[0]
    tokens, lengths = mx.random.randint(0, 50, (2, 8)), mx.array([[1, 7], [2, 5]])
    expected = gradients(model, (tokens, lengths), default_loss)
    for dtype in (mx.uint8, mx.uint32, mx.int64):
        found = gradients(model, (tokens.astype(dtype), lengths), ours.loss)
        assert difference(found, expected) < CLOSE
    found = gradients(model, (tokens, mx.array([[9, 9]] * 2)), ours.loss)
    assert not any(value.any() for value in found.values())


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_many_states(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """nn.selective_scan has at most 64 states, so that mlx-lm computes layers with more."""
    tokens = mx.array([[1, 2, 3, 4]])
    for states, replacement in ((64, "nn.selective_scan"), (65, None)):
        model = families.build(name, state_size=states, mamba_d_state=states)
        row = ours.report(model)[0]
        assert row.replacement == replacement and ("64 states" in row.reason) == (states == 65)
        found = model(tokens)
        ours.uninstall()
        assert mx.allclose(found, model(tokens), 1e-4, 1e-4)
        ours.install()
    assert "is not replaced: nn.selective_scan has at most 64 states" in capsys.readouterr().out


@pytest.mark.parametrize("module, name", [("bailing_moe_linear", "recurrent_gla"),
                                          ("recurrent_gemma", "rnn_scan")])  # fmt: skip
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("with_state", [False, True])
def test_linear_recurrences(module: str, name: str, steps: int, with_state: bool) -> None:
    """Results, states and gradients, for one step and more, against mlx-lm."""
    mx.random.seed(1)
    if name == "rnn_scan":
        x, a = mx.random.uniform(shape=(2, 2, steps, 3))
        arguments = [x, a, mx.random.normal((2, 3))]
    else:
        arguments = [*mx.random.normal((3, 2, 3, steps, 4)), mx.random.normal((2, 3, 4, 4))]
    owner = importlib.import_module(f"mlx_lm.models.{module}")

    def outcome(*given: mx.array) -> Any:
        state = given[-1] if with_state else None
        decay = [] if name == "rnn_scan" else [-mx.array([1e-6, 0.5, 3.0]), 0.5]
        return getattr(owner, name)(*given[:-1], *decay, state)

    def total(*given: mx.array) -> mx.array:
        return sum(mx.sin(result).sum() for result in outcome(*given))

    found = [*outcome(*arguments), *mx.grad(total, [0, 1, 2])(*arguments)]
    ours.uninstall()
    expected = [*outcome(*arguments), *mx.grad(total, [0, 1, 2])(*arguments)]
    assert [a.dtype for a in found] == [a.dtype for a in expected]
    assert all(mx.allclose(a, b, 1e-5, 1e-5) for a, b in zip(found, expected, strict=True))


def test_report_of_own_layers(capsys: pytest.CaptureFixture[str]) -> None:
    """Layers of other packages that call mlx-lm's functions, also in inner functions."""

    class Called(mlx.nn.Module):
        def __call__(self, *args: Any) -> Any:
            return (lambda: gated_delta.gated_delta_update(*args))()

    class Inherited(rwkv7.Rwkv7TimeMixing):
        pass

    class Replaced(rwkv7.Rwkv7TimeMixing):
        def _wkv7(self, *args: Any) -> Any:
            return args

    class Plain(mlx.nn.Module):
        pass

    model = Plain()
    arguments = rwkv7.ModelArgs("rwkv7", 9, 16, 16, 1e-5, 8, 1, 4, 4, 4, 4), 0
    model.layers = [Called(), Inherited(*arguments), Replaced(*arguments), Plain()]
    found = {row.path: (row.layer, row.replacement) for row in ours.report(model)}
    assert found == {
        "layers.0": ("Called", "nn.gated_delta"),
        "layers.1": ("Inherited", "nn.wkv7"),
    }
    capsys.readouterr()
    assert ours.report(Plain()) == []
    assert capsys.readouterr().out == "no layer has a recurrence or a kernel of mlx-lm\n"


def test_unreplaced() -> None:
    """mlx-lm's files with a Metal kernel or a loop over time, and their functions."""
    root = Path(gated_delta.__file__).parents[1]
    loops = ("metal_kernel(", "for t in range(", "range(x.shape[1])", "range(n_chunks)")
    files = {
        f"mlx_lm.{path.parent.name}.{path.stem}"
        for path in (*root.glob("models/*.py"), *root.glob("kernels/*.py"))
        if any(loop in path.read_text() for loop in loops)
    }
    # Experts and attention have neither.
    places = {*ours.REPLACED, *ours.UNREPLACED} - {*ours._experts.replaced, ours.ATTENTION}
    files.add("mlx_lm.models.bailing_hybrid")  # a loop over chunks
    assert files == {module for module, _ in places}
    for module, name in ours.UNREPLACED:
        owner = importlib.import_module(module)
        function = operator.attrgetter(name)(owner)
        users = [
            kind for kind in vars(owner).values()
            if isinstance(kind, type) and ours._patch.uses(kind, (module, name))
        ]  # fmt: skip
        assert function and users, name


# Models that compute logits without a linear layer, or change them otherwise.
OWN_LOGITS = {("minicpm", True), ("seed_oss", True), ("talkie", False), ("talkie", True),
              ("phi3small", False), ("phi3small", True)}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", families.FAMILIES)
def test_loss(name: str, tied: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Loss and gradients of mlx-lm's families against default_loss. Weights are not changed."""
    model = families.build(name, tie_word_embeddings=tied)
    before = [weight for _, weight in mlx.utils.tree_flatten(model.parameters())]
    kinds = [type(layer) for layer in model.modules()]
    batch = mx.random.randint(0, 40, (2, 14)), mx.array([[1, 13], [3, 9]])
    row = ours.report(model)[-1]
    assert (row.replacement is None) == ((name, tied) in OWN_LOGITS), row
    found = gradients(model, batch, ours.loss)
    assert difference(found, gradients(model, batch, default_loss)) < CLOSE
    after = [weight for _, weight in mlx.utils.tree_flatten(model.parameters())]
    assert all(mx.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert kinds == [type(layer) for layer in model.modules()]
    assert "default_loss" in capsys.readouterr().out


# Families that the tests cannot build.
NOT_BUILT = {
    "olmo": "another package",
    "prism_hadamard_qwen35": "weights",
}


@pytest.mark.parametrize(
    "name",
    sorted({*all_families.modules("mlx_lm")} - {*families.FAMILIES, *NOT_BUILT}),
)
def test_every_family(name: str) -> None:
    """A step of training, for all families that test_loss does not train."""
    if not hasattr(importlib.import_module(f"mlx_lm.models.{name}"), "Model"):
        return
    mx.disable_compile()  # the C++ compiler would take most of the time
    model = all_families.build_lm(name)
    batch = mx.random.randint(0, 40, (2, 22)), mx.array([[1, 21], [3, 9]])
    found = gradients(model, batch, ours.loss)
    floats = [v for v in found.values() if mx.issubdtype(v.dtype, mx.floating)]
    assert all(mx.isfinite(v).all().item() for v in floats)
    assert sum(v.any().item() for v in floats) > 0.6 * len(floats)
    ours.report(model)
    mx.enable_compile()


QUANTIZED = [("llama", False), ("llama", True), ("gemma2", True), ("granite", True),
             ("qwen3_next", False), ("phimoe", False)]  # fmt: skip


def quantized(name: str, tied: bool, **keys: Any) -> Any:
    """Return a model with quantized words, whose other weights are trained."""
    if name in CONFIGURATIONS:
        model, _ = tiny(name)
    else:
        model = families.build(name, tie_word_embeddings=tied, vocab_size=50)
    heads = ("lm_head", "embed_tokens")
    mlx.nn.quantize(model, class_predicate=lambda path, _: path.endswith(heads), **keys)
    if name == "phimoe":
        model.lm_head.freeze()  # its bias
    return model


@pytest.mark.parametrize("keys", [{"group_size": 32, "bits": 4}, {"mode": "mxfp8"}], ids=str)
@pytest.mark.parametrize("name, tied", QUANTIZED)
def test_quantized_loss(name: str, tied: bool, keys: dict[str, Any]) -> None:
    """Loss and gradients with a quantized last layer, in training and not, compiled and not."""
    model = quantized(name, tied, **keys)
    assert ours.report(model)[-1].replacement == "nn.quantized_linear_cross_entropy"
    batch = mx.random.randint(0, 50, (5, 18)), mx.array([[1, 17], [3, 9], [1, 2], [5, 5], [1, 17]])
    expected = gradients(model, batch, default_loss)
    assert len(expected) > 10
    assert difference(gradients(model, batch, ours.loss), expected) < CLOSE
    model.eval()
    assert difference(gradients(model, batch, ours.loss), expected) < CLOSE
    assert ours.loss(model, *batch)[0].item() == pytest.approx(expected["loss"].item(), rel=1e-5)
    model.train()
    step = mlx.nn.value_and_grad(model, ours.loss)
    state = [model.state]
    compiled = mx.compile(lambda *given: step(model, *given), inputs=state, outputs=state)
    (mean, _), found = compiled(*batch)
    found = {"loss": mean, "count": expected["count"], **dict(mlx.utils.tree_flatten(found))}
    assert difference(found, expected) < CLOSE


@pytest.mark.parametrize("quantize", [False, True])
def test_memory(quantize: bool) -> None:
    """The logits of 4,000 rows and 5,000 words are 80 MB."""
    model = families.build("llama", vocab_size=5000, tie_word_embeddings=False)
    if quantize:
        mlx.nn.quantize(model, 32, 8, class_predicate=lambda path, _: path == "lm_head")
    batch = mx.random.randint(0, 5000, (80, 51)), mx.array([[1, 50]] * 80)

    def peak(loss: Any) -> int:
        mx.eval(model.parameters())
        mx.clear_cache()
        mx.reset_peak_memory()
        start = mx.get_active_memory()
        gradients(model, batch, loss)
        return mx.get_peak_memory() - start

    expected = peak(default_loss)
    assert peak(ours.loss) < (0.2 if quantize else 0.5) * expected


def test_adapted_loss() -> None:
    """QLoRA: the adapters of layers, and of the last layer, where they start with zeros."""
    batch = mx.random.randint(0, 50, (5, 18)), mx.array([[1, 17]] * 5)
    model = quantized("llama", False, group_size=32, bits=4)
    model.freeze()
    linear_to_lora_layers(model, 2, {"rank": 4, "scale": 2.0, "dropout": 0.0})
    assert ours.report(model)[-1].layer == "QuantizedLinear"
    expected = gradients(model, batch, default_loss)
    assert any("lora_b" in key and value.any() for key, value in expected.items())
    assert difference(gradients(model, batch, ours.loss), expected) < CLOSE
    model.lm_head = LoRALinear.from_base(model.lm_head)
    assert ours.report(model)[-1].replacement is None
    expected = gradients(model, batch, default_loss)
    assert expected["lm_head.lora_b"].any()
    assert difference(gradients(model, batch, ours.loss), expected) < CLOSE


@pytest.mark.parametrize("name, weight", [("llama", "scales"), ("phimoe", "bias")])
def test_trained_weights_of_quantized_layers(name: str, weight: str) -> None:
    model = quantized(name, name == "llama", group_size=32, bits=8)
    layer = model.model.embed_tokens if name == "llama" else model.lm_head
    mlx.nn.Module.unfreeze(layer, keys=[weight], recurse=False)
    assert "is quantized" in ours.report(model)[-1].reason
    batch = mx.random.randint(0, 50, (2, 8)), mx.array([[1, 7]] * 2)
    expected = gradients(model, batch, default_loss)
    assert any(key.endswith(f".{weight}") and value.any() for key, value in expected.items())
    assert difference(gradients(model, batch, ours.loss), expected) < CLOSE


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y + 1,
        lambda y: mx.where(mx.arange(40) == 7, y - 1, y),
        lambda y: y - y.max(-1, keepdims=True),
        lambda y: mx.sigmoid(y),
        lambda y: y * mx.arange(1, y.shape[1] + 1)[:, None],
        lambda y: y[..., :39],
        lambda y: mx.maximum(y, -1000),
    ],
)
def test_changed_logits(change: Any) -> None:
    """Logits that are neither scaled nor capped: default_loss."""

    class Changed(llama.Model):
        def __call__(self, tokens: mx.array) -> mx.array:
            return change(super().__call__(tokens))

    model = families.build("llama")
    model.__class__ = Changed
    batch = mx.random.randint(0, 39, (2, 8)), mx.array([[1, 7]] * 2)
    assert ours.report(model)[-1].replacement is None
    expected = gradients(model, batch, default_loss)
    assert difference(gradients(model, batch, ours.loss), expected) < 1e-6


def sequences_of(name: str) -> tuple[Any, mx.array]:
    model = build(name, 40) if name in CONFIGURATIONS else families.build(name, **UNTIED)
    return model, mx.random.randint(0, 40, (1, 19))


UNTIED = {"tie_word_embeddings": False}
PACKED = mx.array([0, 7, 8, 19])  # a sequence of one token, without a loss
PAIRS = mx.array([[1, 7], [0, 1], [3, 10]])
# RoPE at other positions rounds otherwise, and some gradients of these tiny models are small
# differences of large numbers. Other sequences have no influence on them: test_packed_apart.
ROUNDED = {"plamo2": 2e-3, "bitnet": 5e-3}


@pytest.mark.parametrize("name", sorted(mlx_lm_packing.FAMILIES))
def test_packed(name: str) -> None:
    """Loss and gradients of a packed row against those of its sequences alone."""
    mx.disable_compile()  # the C++ compiler would take most of the time
    model, tokens = sequences_of(name)
    found = gradients(model, (tokens, PAIRS, PACKED), ours.loss)
    expected = {key: mx.zeros_like(value) for key, value in found.items()}
    for at, (begin, end) in ((0, (0, 7)), (2, (8, 19))):
        alone = gradients(model, (tokens[:, begin:end], PAIRS[at : at + 1]), ours.loss)
        count = alone["count"]
        expected["count"] += count
        for key in expected.keys() - {"count"}:
            expected[key] += alone[key] * count
    mx.enable_compile()
    count = expected.pop("count")
    assert count == found.pop("count") == 14
    expected = {key: value / count for key, value in expected.items()}
    assert difference(found, expected) < ROUNDED.get(name, CLOSE)


@pytest.mark.parametrize("name", ["plamo2", "bitnet", "llama", "gpt_oss", "qwen3_next", "rwkv7"])
def test_packed_apart(name: str) -> None:
    """The gradients of one sequence do not depend on the tokens of the others."""
    model, tokens = sequences_of(name)
    pairs = mx.array([[9, 0], [9, 0], [3, 10]])
    first = gradients(model, (tokens, pairs, PACKED), ours.loss)
    others = mx.concatenate([(tokens[:, :8] + 17) % 40, tokens[:, 8:]], axis=1)
    second = gradients(model, (others, pairs, PACKED), ours.loss)
    assert first["count"] == 8 and difference(first, second) < 1e-6


def test_packed_padding() -> None:
    """Tokens after the last sequence do not count, and several rows can have the same starts."""
    model, tokens = sequences_of("qwen3_next")
    expected = gradients(model, (tokens, PAIRS, PACKED), ours.loss)
    padded = mx.concatenate([tokens, mx.zeros((1, 4), mx.int32)], axis=1)
    found = gradients(model, (mx.concatenate([padded] * 2), PAIRS, PACKED), ours.loss)
    assert found.pop("count") == 2 * expected.pop("count")
    assert difference(found, expected) < CLOSE


def test_packed_compiled_and_checkpointed() -> None:
    """The starts are arguments of a compiled step; mask arrays replace known masks."""
    model, tokens = sequences_of("llama")
    batches = [(tokens, PAIRS, starts) for starts in (PACKED, mx.array([0, 3, 9, 19]))]
    expected = [gradients(model, batch, ours.loss) for batch in batches]
    block = type(model.layers[0])
    own = block.__call__
    grad_checkpoint(model.layers[0])
    try:
        state = [model.state]
        gradient = mlx.nn.value_and_grad(model, ours.loss)
        step = mx.compile(lambda *batch: gradient(model, *batch), state, state)
        for batch, other in zip(batches, expected, strict=True):
            (mean, count), grads = step(*batch)
            flat = {"loss": mean, "count": count, **dict(mlx.utils.tree_flatten(grads))}
            assert difference(flat, other) < CLOSE
    finally:
        block.__call__ = own


def test_packed_trainer(tmp_path: Path) -> None:
    """mlx-lm's trainer with packed rows."""
    model, tokens = sequences_of("llama")
    found: list[Any] = []

    class Callback(TrainingCallback):
        def on_train_loss_report(self, info: Any) -> None:
            found.append(info)

    def batches(loop: bool = False, **_: Any) -> Iterator[tuple[mx.array, ...]]:
        yield tokens, PAIRS, PACKED
        yield tokens, PAIRS, mx.array([0, 3, 9, 19])

    arguments = TrainingArgs(
        **{"batch_size": 1, "iters": 2, "val_batches": 1, "steps_per_report": 1},
        **{"steps_per_eval": 10, "steps_per_save": 100},
        adapter_file=str(tmp_path / "adapters.safetensors"),
    )
    expected = ours.loss(model, tokens, PAIRS, PACKED)[0].item()
    optimizer = mlx.optimizers.SGD(0.0)
    train(model, optimizer, [tokens], None, arguments, ours.loss, batches, Callback())
    assert [info["trained_tokens"] for info in found] == [14, 24]
    assert found[0]["train_loss"] == pytest.approx(expected, rel=1e-4)


def test_packed_refuses() -> None:
    model, tokens = sequences_of("gpt2")
    with pytest.raises(ValueError, match=r"\[packed\] Models of gpt2 are not known"):
        ours.loss(model, tokens, PAIRS, PACKED)
    model = families.build("llama", rope_scaling={"type": "dynamic", "factor": 2.0}, **UNTIED)
    with pytest.raises(ValueError, match="RoPE by the length"):
        ours.loss(model, tokens, PAIRS, PACKED)
    model = families.build("mamba", state_size=65)
    with pytest.raises(ValueError, match="at most 64 states"):
        ours.loss(model, tokens, PAIRS, PACKED)
    model = families.build("llama", **UNTIED)
    for starts in (mx.array(3), mx.array([3]), mx.array([[0, 19]])):
        with pytest.raises(ValueError, match="cu_seqlens must have"):
            ours.loss(model, tokens, PAIRS, starts)
    with pytest.raises(ValueError, match=r"\[packed\] cu_seqlens must be integers, not .*float32"):
        ours.loss(model, tokens, PAIRS, PACKED.astype(mx.float32))
    for name, given in (("batch", (tokens * 1.0, PAIRS)), ("lengths", (tokens, PAIRS * 1.0))):
        with pytest.raises(ValueError, match=rf"\[loss\] {name} must be integers, not .*float32"):
            ours.loss(model, *given, PACKED)
    own = llama.scaled_dot_product_attention
    with ours.packed(model, PACKED):
        assert llama.scaled_dot_product_attention is not own
        with pytest.raises(RuntimeError, match="already active"), ours.packed(model, PACKED):
            pass
    assert llama.scaled_dot_product_attention is own and ours._models.cu_seqlens is None


def test_loss_after_an_error() -> None:
    """An error of a model leaves its layers and weights as they were."""
    model = families.build("gemma2")
    weights = model.model.embed_tokens.weight
    with pytest.raises(ValueError):
        ours.loss(model, mx.zeros((2, 3, 4), mx.int32), mx.array([[1, 2]]))
    assert type(model.model.embed_tokens) is mlx.nn.Embedding
    assert model.model.embed_tokens.weight is weights


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite"])
def test_trainer(name: str, tmp_path: Path) -> None:
    """mlx-lm's trainer, which compiles steps, trains adapters as with its own loss."""

    class Words(list[Any]):
        def process(self, words: Any) -> Any:
            return words, 0

    def losses(loss: Any) -> list[float]:
        model = quantized(name, True, group_size=32, bits=4)
        model.freeze()
        linear_to_lora_layers(model, 2, {"rank": 4, "scale": 10.0, "dropout": 0.0})
        found = []

        class Callback(TrainingCallback):
            def on_train_loss_report(self, info: Any) -> None:
                found.append(info["train_loss"])

        arguments = TrainingArgs(
            **{"batch_size": 2, "iters": 20, "val_batches": 1, "max_seq_length": 32},
            **{"steps_per_report": 1, "steps_per_eval": 10, "steps_per_save": 100},
            adapter_file=str(tmp_path / "adapters.safetensors"),
        )
        data = CacheDataset(Words([list(range(30))] * 4))
        optimizer = mlx.optimizers.SGD(0.02)
        train(model, optimizer, data, data, arguments, loss, training_callback=Callback())
        return found

    found = losses(ours.loss)
    assert len(found) == 20 and found[-1] < found[0] - 0.01
    assert found == pytest.approx(losses(default_loss), rel=1e-4)
