"""mlxops in mlx-vlm's models: outputs and gradients against mlx-vlm's own operations, and training.

The models of vlm_families.py are tiny, with random weights. Kernels of mlx-vlm cannot run here: in
some tests, objects without a gradient replace them and the modules believe that there is a GPU.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import mlx.utils
import pytest

pytest.importorskip("mlx_vlm", reason="mlx-vlm is not installed: make integrations")

import mlxops._models as models
import mlxops.mlx_vlm as ours
from mlx_vlm.models import base, gated_delta, rope_utils
from mlx_vlm.models.kimi_linear import language as kimi_linear
from mlx_vlm.models.qwen3_5 import gated_delta as qwen_gated_delta
from mlxops import _fused, _packing, mlx_vlm_packing
from programs import all_families, vlm_families
from programs.vlm_families import FAMILIES, build

from examples.fine_tune import CLOSE, difference

# Families whose own operations do not run on a CPU, or have no gradient there.
FAILING = ("bitnet", "muse_spark", "glm5_next", "longcat_flash_sparse", "deepseek_v41", "qwen4_exp")

COMPARED = [name for name in FAMILIES if name not in FAILING]
OTHERS = ("inkling", "nemotron_labs_diffusion", "qwen3_5", "minimax_m3_vl")
RECURRENT = [name for name in COMPARED if name not in OTHERS]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    mx.disable_compile()  # the C++ compiler would take most of the time
    with mx.stream(mx.cpu):
        yield
    mx.enable_compile()
    ours.install()


def tiny(name: str) -> tuple[Any, mx.array]:
    """Return a model in training mode and tokens."""
    mx.random.seed(7)
    model = build(name)
    return model, mx.random.randint(0, 36, (2, 14))


def gradients(model: Any, tokens: mx.array, **more: Any) -> dict[str, mx.array]:
    """Return the mean loss and its gradients by name of the weight."""

    def loss(model: Any) -> mx.array:
        logits = model(tokens[:, :-1], **more).logits.astype(mx.float32)
        return mlx.nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="mean")

    value, grads = mlx.nn.value_and_grad(model, loss)(model)
    found = {"loss": value, **dict(mlx.utils.tree_flatten(grads))}
    mx.eval(found)
    return found


def sequential(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Qwen3.5 compute single steps: its chunks limit decays, with another gradient."""
    monkeypatch.setattr(qwen_gated_delta, "gated_delta_chunked", qwen_gated_delta.gated_delta_ops)


@pytest.mark.parametrize("name", COMPARED)
def test_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sequential(monkeypatch)
    model, tokens = tiny(name)
    found = gradients(model, tokens)
    ours.uninstall()
    expected = gradients(model, tokens)
    assert found.keys() == expected.keys() and len(found) > 15
    assert difference(found, expected) < CLOSE


@pytest.mark.parametrize("name", FAMILIES)
def test_training(name: str) -> None:
    model, tokens = tiny(name)
    optimizer = mlx.optimizers.Adam(1e-2)
    losses = []
    for _ in range(12):
        grads = gradients(model, tokens)
        losses.append(grads.pop("loss").item())
        optimizer.update(model, mlx.utils.tree_unflatten(list(grads.items())))
        mx.eval(model.parameters(), optimizer.state)
    assert losses[-1] < 0.9 * losses[0]


def test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of Qwen3.5 with an image, also of its encoder: M-RoPE and gated delta rules."""
    sequential(monkeypatch)
    model, _ = tiny("qwen3_5")
    tokens = mx.array([[1, 2, 36, 37, 37, 37, 37, 5, 6, 7, 8, 9]])
    image = {
        "pixel_values": mx.random.normal((16, 24)),
        "image_grid_thw": mx.array([[1, 4, 4]]),
    }
    found = gradients(model, tokens, **image)
    assert found["vision_tower.patch_embed.proj.weight"].any()
    ours.uninstall()
    assert difference(found, gradients(model, tokens, **image)) < CLOSE


@pytest.mark.parametrize("name", [*RECURRENT, "nemotron_labs_diffusion"])
def test_generation(name: str) -> None:
    """Generate with a cache, from a prompt in two parts; compare with mlx-vlm."""
    model, tokens = tiny(name)
    model.eval()

    def outputs() -> mx.array:
        cache = model.make_cache()
        parts = [
            model(tokens[:, :9], cache=cache).logits,
            model(tokens[:, 9:12], cache=cache).logits,
        ]
        for _ in range(6):
            parts.append(model(parts[-1][:, -1:].argmax(-1), cache=cache).logits)
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
        model, tokens = tiny(name)
        model.set_dtype(mx.bfloat16)
        for path, module in model.named_modules():
            for key, value in module.items():
                if isinstance(value, mx.array) and single in f"{path}.{key}":
                    module[key] = value.astype(mx.float32)
        dtypes = [model(tokens).logits.dtype]  # without evaluation
        model.eval()
        cache = model.make_cache()
        dtypes += [
            model(part, cache=cache).logits.dtype for part in (tokens[:, :9], tokens[:, 9:10])
        ]
        states = mlx.utils.tree_flatten([layer.state for layer in cache])
        return dtypes + [state.dtype for _, state in states if isinstance(state, mx.array)]

    for single in ("A_log", "dt_bias", "in_proj", "w_lora", ".D", "none"):
        ours.install()
        dtypes = found(single)
        ours.uninstall()
        assert dtypes == found(single), single


@pytest.mark.parametrize("module", [gated_delta, qwen_gated_delta])
@pytest.mark.parametrize("vector", [False, True])
def test_gated_delta(module: Any, vector: bool) -> None:
    """Masks, states, bounds, caches and the states of all steps, against mlx-vlm."""
    mx.random.seed(0)
    q, k = mx.random.normal((2, 2, 5, 2, 8)) / 4
    v, b = mx.random.normal((2, 5, 4, 6)), mx.random.normal((2, 5, 4))
    a = mx.random.normal((2, 5, 4, 8) if vector else (2, 5, 4))
    gates = (mx.zeros((4, 1) if vector else 4), mx.ones((4, 8) if vector else 4))
    state = mx.random.normal((2, 4, 6, 8))
    mask = mx.array([[False, True, True, False, True], [True] * 5])
    arguments = (q, k, v, a, b, *gates)

    class Cache:
        def update_recurrent(self, index: int, length: int, update: Any) -> Any:
            assert (index, length) == (2, 5)
            return update(state, self.steps)

    cases: list[dict[str, Any]] = [{}, {"state": state}, {"state": state, "mask": mask}]
    if module is gated_delta:
        cases.append({"lower_bound": -5.0})
    for steps in (None, 3):
        cache: Any = Cache()
        cache.steps = steps
        cases.append({"cache": cache, "cache_index": 2})
    cases.append({"state": state, "state_steps": 4, "mask": mask})
    if vector and module is qwen_gated_delta:
        cases = cases[:-2]  # its states of all steps are those of gates per head
    for case in cases:
        ours.install()
        found = module.gated_delta_update(*arguments, **case)
        ours.uninstall()
        expected = module.gated_delta_update(*arguments, **case)
        where = case.get("mask", mx.array(True))[..., None, None]
        y, other = (mx.where(where, results[0], 0) for results in (found, expected))
        assert len(found) == len(expected)
        assert mx.allclose(y, other, 1e-4, 1e-5)
        for one, other in zip(found[1:], expected[1:], strict=True):
            assert one.dtype == other.dtype and mx.allclose(one, other, 1e-4, 1e-5)


def test_what_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert kimi_linear.gated_delta_update is ours.gated_delta_update
    own = ours._patch.originals[ours.GATED_DELTA]
    importlib.reload(ours)
    assert kimi_linear.gated_delta_update is ours.gated_delta_update is not own
    model, _ = tiny("kimi_linear")
    rows = ours.report(model)
    assert [(row.path, row.function, row.replacement) for row in rows] == [
        ("language_model.model.layers.0.self_attn", "gated_delta_update", "nn.gated_delta"),
        ("language_model.model.layers.1.mlp.switch_mlp", "__call__", "nn.expert_mlp"),
    ]
    assert "gated_delta_update -> nn.gated_delta\n" in capsys.readouterr().out
    ours.uninstall()
    assert kimi_linear.gated_delta_update is gated_delta.gated_delta_update is own
    assert ours.gated_delta_update is not own
    assert "mlxops.mlx_vlm.uninstall" in ours.report(model)[0].reason
    assert ours.report(mlx.nn.Linear(2, 2)) == []
    assert capsys.readouterr().out.endswith("no layer has a recurrence or a kernel of mlx-vlm\n")
    with pytest.raises(TypeError, match=r"\[report\] model must be an mlx\.nn\.Module, not str"):
        ours.report("a/name")


def test_with_mlx_lm() -> None:
    """The functions of mlx-lm with the same names are replaced and restored on their own."""
    pytest.importorskip("mlx_lm")
    lm = importlib.import_module("mlxops.mlx_lm")
    assert not set(lm.REPLACED.values()) & set(ours.REPLACED.values())
    mine = sys.modules["mlx_vlm.models.recurrent_gemma.language"]
    other = sys.modules["mlx_lm.models.recurrent_gemma"]
    own = lm._patch.originals["mlx_lm.models.recurrent_gemma", "rnn_scan"]
    lm.uninstall()
    assert other.rnn_scan is own and mine.rnn_scan is ours.rnn_scan
    lm.install()
    ours.uninstall()
    assert other.rnn_scan is lm.rnn_scan and mine.rnn_scan.__module__ == mine.__name__


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_many_states(name: str) -> None:
    """nn.selective_scan has at most 64 states, so that mlx-vlm computes layers with more."""
    model = build(name, state_size=65, mamba_d_state=65).eval()
    row = ours.report(model)[0]
    assert row.replacement is None and "64 states" in row.reason
    tokens = mx.array([[1, 2, 3, 4]])
    found = model(tokens).logits
    ours.uninstall()
    assert mx.array_equal(found, model(tokens).logits)


@pytest.mark.parametrize("mask", [None, "causal", "window"])
def test_sinks(mask: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention with sinks calls MLX's kernel, which has no gradient, with a cache only."""
    mx.random.seed(8)
    arrays = [mx.random.normal((2, heads, 6, 8)) for heads in (4, 2, 2)]
    window = mx.arange(6)[:, None] - mx.arange(6) < 3
    mask = window if mask == "window" else mask
    calls = []
    own = mx.fast.scaled_dot_product_attention
    recorder = lambda *args, **keys: calls.append(args) or own(*args, **keys)  # noqa: E731
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", recorder)

    def loss(q: mx.array, k: mx.array, v: mx.array, sinks: mx.array, cache: Any = None) -> mx.array:
        y = base.scaled_dot_product_attention(q, k, v, cache, 0.3, mask, sinks)
        return (y * mx.cos(mx.arange(y.size)).reshape(y.shape)).sum()

    arrays.append(mx.random.normal((4,)))
    differentiate = mx.value_and_grad(loss, argnums=range(4))
    value, grads = differentiate(*arrays)
    assert not calls
    assert mx.allclose(loss(*arrays, cache=object()), value, 1e-5, 1e-5) and len(calls) == 1
    ours.uninstall()
    expected, expected_grads = differentiate(*arrays)
    assert len(calls) == 2 and mx.allclose(value, expected, 1e-5, 1e-5)
    assert all(mx.allclose(*pair, 1e-4, 1e-5) for pair in zip(grads, expected_grads, strict=True))


def test_all_kernels() -> None:
    """Every file of mlx-vlm with a kernel is replaced, has a gradient, or is not for training."""
    root = Path(gated_delta.__file__).parents[1]
    files = {
        ".".join(("mlx_vlm", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
        if "metal_kernel(" in path.read_text()
    }
    named = {module for module, _ in (*ours.REPLACED, *ours.UNREPLACED)}
    # Their users are replaced: attention by chosen keys, and its scores.
    users = {ours._MODELS + "sparse_attention",
             ours._MODELS + "longcat_flash_sparse.indexer_kernel"}  # fmt: skip
    assert files - named - users == set(ours.UNUSED)
    for module, name in (*ours.REPLACED, *ours.UNREPLACED):
        owner = importlib.import_module(module)
        for part in name.split("."):
            owner = getattr(owner, part)
    assert set(ours.REPLACED.values()) == set(ours._OPERATORS)


def test_signatures() -> None:
    """Arguments have mlx-vlm's names, positions and default values."""
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
        ], place


class Kernel:
    """A kernel without a gradient that counts its calls; results are zeros."""

    calls = 0

    def __call__(self, *, output_shapes: Any, output_dtypes: Any, **_: Any) -> list[mx.array]:
        Kernel.calls += 1
        return [mx.zeros(*of) for of in zip(output_shapes, output_dtypes, strict=True)]


class WithMetal:
    """mlx.core for modules that must believe that there is a GPU."""

    metal = SimpleNamespace(is_available=lambda: True)
    fast = SimpleNamespace(
        metal_kernel=lambda **_: Kernel(),
        scaled_dot_product_attention=mx.fast.scaled_dot_product_attention,
    )

    def default_device(self) -> Any:
        return mx.gpu

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)


@pytest.fixture
def with_metal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that gives modules of mlx-vlm a GPU."""
    monkeypatch.setattr(models, "has_kernels", lambda: True)
    caches = []

    def give(*names: str) -> None:
        for name in names:
            module = importlib.import_module(name)
            monkeypatch.setattr(module, "mx", WithMetal())
            for key, value in list(vars(module).items()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
                    caches.append(value)
                elif key == "_HAS_METAL":
                    monkeypatch.setattr(module, key, True)
                elif key.lower().endswith("_kernel") and not inspect.isfunction(value):
                    monkeypatch.setattr(module, key, Kernel())

    yield give
    for cached in caches:
        cached.cache_clear()


def floats(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return (mx.random.normal(shape) * 0.5).astype(dtype)


def is_float(value: Any) -> bool:
    return isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)


def attention(dtype: mx.Dtype) -> tuple[mx.array, ...]:
    return tuple(floats(1, 2, steps, 32, dtype=dtype) for steps in (6, 6, 6))


HALF = mx.float16
BLOCKS = mx.broadcast_to(mx.array([0, 1]), (1, 6, 2))
# Functions with kernels, and arguments for which mlx-vlm uses them.
CALLS: dict[str, tuple[str, Callable[[], tuple[Any, ...]], dict[str, Any]]] = {
    "nearest_interpolate": ("models.kernels", lambda: (floats(1, 2, 3, 4), (6, 5)), {}),
    "bicubic_interpolate": ("models.kernels", lambda: (floats(1, 2, 3, 4), (6, 5)), {}),
    "bicubic_interpolate in 16 bits": (
        "models.kernels",
        lambda: (floats(1, 2, 6, 7, dtype=HALF), (3, 3), None, False, True),
        {},
    ),
    "separable_interpolate": (
        "models.kernels",
        lambda: (
            *(floats(1, 4, 5, 2), mx.array([[0, 1], [1, 3], [2, 3]]), floats(3, 2)),
            *(mx.array([[0, 4], [1, 2]]), floats(2, 2)),
        ),
        {},
    ),
    "banded_additive_mask": (
        "models.inkling.language",
        lambda: (floats(2, 5, 2, 3), floats(3, 4), 1, 6, 3, 4),
        {"left_padding": mx.array([0, 2])},
    ),
    "hc_split_sinkhorn": (
        "models.deepseek_v4.hyper_connection",
        lambda: (floats(1, 3, 24), floats(3), floats(24), 4, 5, 1e-6),
        {},
    ),
    "_sparse_prefill_attention": (
        "models.glm5_next.language",
        lambda: (*attention(HALF), mx.random.randint(-1, 6, (1, 6, 3)), 0.2),
        {},
    ),
    "dispatch_qsa_attention": (
        "models.qwen4_exp.qsa_kernel",
        lambda: (*attention(HALF), BLOCKS, mx.arange(1, 7)[None]),
        {
            **{"cache": None, "scale": 0.2, "block_size": 2, "causal": True, "mask": None},
            "mask_factory": lambda: mx.tril(mx.ones((6, 6), mx.bool_)),
        },
    ),
    "one_bit_quantized_matmul": (
        "quantization.one_bit",
        lambda: (floats(2, 3, 64), mx.random.randint(0, 2**31, (8, 2)).astype(mx.uint32),
                 floats(8, 2), floats(8, 2)),
        {"group_size": 32},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_kernels(name: str, with_metal: Any) -> None:
    """The kernel computes the result, and mlx-vlm's operations the gradient."""
    module, arguments, more = CALLS[name]
    mx.random.seed(3)
    given = arguments()
    at = [n for n, value in enumerate(given) if is_float(value)]
    function = getattr(importlib.import_module("mlx_vlm." + module), name.split()[0])

    def loss(*arrays: mx.array) -> mx.array:
        values = list(given)
        for n, array in zip(at, arrays, strict=True):
            values[n] = array
        results = function(*values, **more)
        results = [results] if isinstance(results, mx.array) else results
        # Linear in the results, so that the gradient does not depend on the kernel's zeros.
        return sum((r * mx.cos(mx.arange(r.size)).reshape(r.shape)).sum() for r in results)

    arrays = [given[n] for n in at]
    expected = mx.grad(loss, list(range(len(at))))(*arrays)
    mx.eval(expected)
    with_metal("mlx_vlm." + module, "mlx_vlm.models.sparse_attention")
    before = Kernel.calls
    found = mx.grad(loss, list(range(len(at))))(*arrays)
    assert Kernel.calls > before
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and other.any()
        assert mx.allclose(one, other, 1e-3 if one.dtype == HALF else 1e-6, 1e-6)


def test_compiled_gradients(with_metal: Any) -> None:
    """A kernel with a gradient, in compiled and in checkpointed functions."""
    module = importlib.import_module("mlx_vlm.quantization.one_bit")
    given = CALLS["one_bit_quantized_matmul"][1]()

    def loss(x: mx.array, scales: mx.array) -> mx.array:
        _, weight, _, biases = given
        return module.one_bit_quantized_matmul(x, weight, scales, biases, group_size=32).sum()

    arrays = (given[0], given[2])
    expected = mx.grad(loss, [0, 1])(*arrays)
    mx.eval(expected)
    with_metal(module.__name__)
    mx.enable_compile()
    for function in (mx.compile(mx.grad(loss, [0, 1])), mx.grad(mx.checkpoint(loss), [0, 1])):
        for _ in range(2):
            found = function(*arrays)
            assert all(mx.allclose(a, b, 1e-5) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["inkling", "nemotron_labs_diffusion"])
def test_no_kernels_in_training(name: str, with_metal: Any) -> None:
    """Kernels whose operations are used in training are used outside of it."""
    model, tokens = tiny(name)
    tokens = tokens[:, :7]  # for kernels for a few rows
    expected = gradients(model, tokens)
    with_metal(f"mlx_vlm.models.{name}.language")
    before = Kernel.calls
    found = gradients(model, tokens)
    banded = 2 * len(model.layers) if name == "inkling" else 0  # their gradient is another test's
    assert Kernel.calls <= before + banded
    if not banded:
        assert difference(found, expected) < 1e-6
    if name == "inkling":  # the factor of its kernel is computed from trained weights
        assert all(layer.mlp._wscale is None for layer in model.layers)
    model.eval()
    before = Kernel.calls
    model(tokens)
    assert Kernel.calls > before + banded // 2


def test_chosen_keys_in_training(with_metal: Any) -> None:
    """MiniMax-M3's kernel for chosen blocks of keys is not used in training."""
    module = importlib.import_module("mlx_vlm.models.minimax_m3_vl.language")
    with_metal(module.__name__)
    layer = build("minimax_m3_vl").layers[0].self_attn
    layer.scale, layer.sparse_block_size = 0.2, 1
    q, k, v = (floats(1, 2, steps, 32, dtype=HALF) for steps in (3, 16, 16))
    arguments = (q, k, v, mx.zeros((1, 3, 2), mx.int32), None, mx.arange(13, 16)[None])
    assert layer._sparse_prefill_attention(*arguments) is None
    layer.eval()
    assert layer._sparse_prefill_attention(*arguments).shape == q.shape


@pytest.mark.parametrize("function", [ours.gated_delta_update, ours.qwen_gated_delta_update])
def test_mlx_gated_delta(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's function computes the gated delta rule in training on Metal, if allowed."""
    monkeypatch.setattr(models, "has_kernels", lambda: True)
    own, calls = mx.fast.gated_delta_update, []
    recorder = lambda *args: calls.append(args) or own(*args)  # noqa: E731
    monkeypatch.setattr(mx.fast, "gated_delta_update", recorder)
    q, k, v = (floats(1, 2, 16, 128) / 8 for _ in range(3))
    arguments = (q, k, v, floats(1, 2, 16), floats(1, 2, 16), floats(16), floats(16))
    expected = function(*arguments, use_kernel=False)
    assert not calls
    ours.install(mlx_kernels=True)
    found = function(*arguments, use_kernel=False)
    assert len(calls) == 1
    assert mx.allclose(found[0], expected[0], 1e-5, 1e-5)
    function(*arguments)
    assert len(calls) == 1


def test_grid_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-vlm's operations have no gradient for the grid, unless indices are constants."""
    module = importlib.import_module("mlx_vlm.models.kernels")

    class Constants(WithMetal):
        def floor(self, x: mx.array) -> mx.array:
            return mx.stop_gradient(mx.floor(x))

    mx.random.seed(0)
    x, grid = floats(2, 4, 5, 3), mx.random.uniform(-1.2, 1.2, (2, 3, 2, 2))

    def outcome(function: Any, x: mx.array) -> list[mx.array]:
        loss = lambda x, grid: mx.sin(function(x, grid)).sum()  # noqa: E731
        return [function(x, grid), *mx.grad(loss, [0, 1])(x, grid)]

    assert module.grid_sample is ours.grid_sample
    monkeypatch.setattr(module, "mx", Constants())
    for dtype, close in ((mx.float32, 1e-5), (mx.bfloat16, 0.05)):
        found = outcome(module.grid_sample, x.astype(dtype))
        expected = outcome(module._grid_sample_mlx, x.astype(dtype))
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype and mx.allclose(one, other, close, close)
    monkeypatch.setattr(models, "has_kernels", lambda: True)
    assert ours.grid_sample(x.astype(HALF), grid).dtype == HALF


def same_gradients(
    found: Callable[..., Any], expected: Callable[..., Any], arrays: list[mx.array], close: float
) -> None:
    """Compare results and gradients with those in float64."""

    def all_of(results: Any) -> list[mx.array]:
        return [results] if isinstance(results, mx.array) else list(results)

    wide = [array.astype(mx.float64) for array in arrays]
    results, others = all_of(found(*arrays)), all_of(expected(*wide))
    cotangents = [mx.random.normal(other.shape) for other in others]
    _, grads = mx.vjp(
        lambda *given: all_of(found(*given)),
        arrays,
        [c.astype(r.dtype) for c, r in zip(cotangents, results, strict=True)],
    )
    _, other_grads = mx.vjp(
        lambda *given: all_of(expected(*given)), wide, [c.astype(mx.float64) for c in cotangents]
    )
    for one, other in zip([*results, *grads], [*others, *other_grads], strict=True):
        error = mx.abs(one.astype(mx.float64) - other).max().item()
        assert error <= close * mx.abs(other).max().item()
    assert [grad.dtype for grad in grads] == [array.dtype for array in arrays]


def rms(x: mx.array, eps: float) -> mx.array:
    return x * mx.rsqrt((x * x).mean(-1, keepdims=True) + eps)


def rotated(x: mx.array, base: float, positions: mx.array) -> mx.array:
    """Rotate adjacent pairs of the last axis; the axes are batch, steps, heads, size."""
    size = x.shape[-1]
    rates = base ** (-mx.arange(0, size, 2).astype(x.dtype) / size)
    angles = (positions.astype(x.dtype)[..., None] * rates)[:, :, None]
    a, b, c, s = x[..., ::2], x[..., 1::2], mx.cos(angles), mx.sin(angles)
    return mx.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)


@pytest.mark.parametrize("dtype, close", [(mx.float32, 2e-5), (mx.bfloat16, 0.03)])
def test_muse_spark(dtype: mx.Dtype, close: float) -> None:
    """Muse Spark's kernels, by the formulas of their sources."""
    mx.random.seed(5)
    stream, alpha, beta, weight = floats(2, 3, 8), floats(8), floats(8), floats(8)
    branch = floats(2, 3, 8, dtype=dtype)
    norm = mlx.nn.RMSNorm(8, eps=1e-5)

    for post, post_eps, last in ((True, 1e-5, False), (False, 0.1, False), (True, 1e-5, True)):

        def own(branch: Any, stream: Any, alpha: Any, beta: Any, weight: Any, next_w: Any) -> Any:
            norm.weight = next_w
            found = _fused.norm_add_norm(
                *(branch, stream),
                **{"alpha": alpha, "beta": beta, "post_weight": weight if post else None},  # noqa: B023
                **{"post_eps": post_eps, "next_norm": None if last else norm},  # noqa: B023
            )
            assert found[0].dtype == mx.float32
            assert found[1] is None if last else found[1].dtype == dtype  # noqa: B023
            return found[:1] if last else found  # noqa: B023

        def reference(branch: Any, stream: Any, alpha: Any, beta: Any, weight: Any, n: Any) -> Any:
            normed = rms(weight * branch if post else branch, post_eps)  # noqa: B023
            h = alpha * stream + beta * normed
            return [h] if last else [h, rms(h, 1e-5) * n]  # noqa: B023

        same_gradients(own, reference, [branch, stream, alpha, beta, weight, floats(8)], close)

    same_gradients(
        lambda s, w: _fused.pre_norm(s, SimpleNamespace(weight=w, eps=0.1), dtype=dtype),
        *(lambda s, w: rms(s, 0.1) * w, [stream, weight], close),
    )
    same_gradients(
        lambda x, e, w: _fused.post_expert_norm_combine(x, e, norm_weight=w, eps=0.1),
        lambda x, e, w: (rms(x * w, 0.1) * e[..., None]).sum(-2),
        *([floats(2, 3, 4, 8, dtype=dtype), floats(2, 3, 4), weight], close),
    )
    same_gradients(
        lambda x, g: _fused.rms_norm_sigmoid_gate(x, g, eps=0.1),
        lambda x, g: rms(x, 0.1).swapaxes(1, 2).reshape(2, 3, 16) * mx.sigmoid(g),
        *([floats(2, 4, 3, 4, dtype=dtype), floats(2, 3, 16, dtype=dtype)], close),
    )
    heads = {"n_heads": 3, "n_kv_heads": 2, "head_dim": 4, "eps": 0.1, "query_scale": 1.5}

    def split(x: mx.array) -> tuple[mx.array, mx.array]:
        q, k = x[..., :12].reshape(2, 3, 3, 4), x[..., 12:20].reshape(2, 3, 2, 4)
        return 1.5 * rms(q, 0.1), rms(k, 0.1)

    qkvg = floats(2, 3, 40, dtype=dtype)
    same_gradients(lambda x: _fused.qk_norm(x, **heads), split, [qkvg], close)
    for offset in (0, 5, mx.array(5), mx.array([5]), mx.array([2, 70])):
        positions = (mx.array(offset).reshape(-1, 1) + mx.arange(3)) * mx.ones((2, 1), mx.int32)
        same_gradients(
            lambda x: _fused.qk_norm_rope(x, **heads, rope_base=1e4, offset=offset),  # noqa: B023
            lambda x: [rotated(part, 1e4, positions) for part in split(x)],  # noqa: B023
            *([qkvg], close),
        )


def test_expert_routing() -> None:
    mx.random.seed(5)
    logits, bias = floats(2, 3, 8), floats(8)
    keys = {"top_k": 3, "multiplier": 0.5, "score_eps": 0.1, "route_scale": 2.5}
    indices, weights = _fused.expert_routing(logits, bias, **keys)
    scores = mx.sigmoid(0.5 * logits)
    assert mx.array_equal(indices, mx.argsort(-(scores + bias), -1)[..., :3])
    assert (indices.dtype, weights.dtype) == (mx.uint32, mx.float32)

    def reference(logits: mx.array) -> mx.array:
        chosen = mx.take_along_axis(mx.sigmoid(0.5 * logits), indices, -1)
        return chosen / (chosen.sum(-1, keepdims=True) + 0.1) * 2.5

    same_gradients(lambda x: _fused.expert_routing(x, bias, **keys)[1], reference, [logits], 1e-5)


@pytest.mark.parametrize("invert", [False, True])
def test_bitnet(invert: bool, with_metal: Any) -> None:
    """Packed weights against unpacked ones, and the gradient of the kernel."""
    module = importlib.import_module("mlx_vlm.models.bitnet.bitlinear")
    mx.random.seed(5)
    layer = module.BitLinear(5, 8, invert_weight_scales=invert)
    weights = mx.random.randint(-1, 2, (8, 5))
    bits = (weights + 1).reshape(4, 2, 5).astype(mx.uint8)
    packed = bits[0] + 4 * bits[1] + 16 * bits[2] + 64 * bits[3]

    def own(x: mx.array, scale: mx.array) -> mx.array:
        layer.weight_scale = scale
        return layer.execute_matmul_kernel(x, packed)

    def reference(x: mx.array, scale: mx.array) -> mx.array:
        return x @ weights.T.astype(x.dtype) * (1 / scale if invert else scale)

    arrays = [floats(2, 3, 5), mx.array([0.7])]
    models.has_kernels = lambda: False  # restored by the fixture
    same_gradients(own, reference, arrays, 1e-6)
    with pytest.raises(ValueError, match="weight_scale"):
        own(arrays[0].astype(HALF), arrays[1])
    models.has_kernels = lambda: True
    with_metal(module.__name__)
    before = Kernel.calls
    assert not own(*arrays).any() and Kernel.calls == before + 1
    loss = lambda function: mx.grad(lambda *given: (function(*given) * 2).sum(), [0, 1])  # noqa: E731
    for one, other in zip(loss(own)(*arrays), loss(reference)(*arrays), strict=True):
        assert mx.allclose(one, other, 1e-5, 1e-6)


@pytest.mark.parametrize("name", [name for _, name in ours._ROUNDINGS])
def test_rounding(name: str) -> None:
    module = importlib.import_module("mlx_vlm.models.deepseek_v41.fakequant")
    x = floats(2, 64)
    found, grad = mx.value_and_grad(lambda x: (getattr(module, name)(x) * x).sum())(x)
    rounded = getattr(module, name)(x)
    assert mx.allclose(grad, x + rounded, 1e-6) and not mx.array_equal(rounded, x)
    ours.uninstall()
    assert mx.array_equal(rounded, getattr(module, name)(x))
    assert mx.allclose(found, (rounded * x).sum())


def test_quantized_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("mlx_vlm.models.qwen4_exp.language")
    monkeypatch.setattr(module, "singleton_quantized_linear", lambda layer, x: 0)
    layer = mlx.nn.QuantizedLinear(64, 8)
    x = floats(2, 3, 64)
    assert mx.array_equal(module._row_invariant_quantized_projection(layer, x), layer(x))
    layer.eval()
    assert module._row_invariant_quantized_projection(layer, x) == 0


def test_sparse_attention() -> None:
    """GLM-5-Next's attention to chosen keys, in blocks, against a mask."""
    module = importlib.import_module("mlx_vlm.models.glm5_next.language")
    mx.random.seed(2)
    indices = mx.argsort(mx.random.normal((2, 20, 7)), -1)[..., :3]
    chosen = (indices[..., None] == mx.arange(7)).any(-2)[:, None]

    def reference(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        scores = mx.where(chosen, q @ k.swapaxes(2, 3) * 0.3, -mx.inf)
        return mx.softmax(scores, -1) @ v

    def own(*given: mx.array) -> mx.array:
        return module._sparse_prefill_attention(*given, indices, 0.3)

    same_gradients(own, reference, [floats(2, 2, n, 8) for n in (20, 7, 7)], 1e-5)


@pytest.mark.parametrize("pairing", ["half_split", "even_odd"])
def test_mrope(pairing: str) -> None:
    """The kernel of M-RoPE computes the gradient, too, which is the inverse rotation."""
    mx.random.seed(2)
    q, k, c = floats(2, 2, 5, 10), floats(2, 1, 5, 10), floats(2, 2, 5, 10)
    positions, growth, selector = (
        mx.random.randint(0, 9, (3, 2, 5)),
        floats(4),
        mx.array([0, 1, 2, 0]),
    )
    loss = lambda q, k: (q * c).sum() + mx.sin(k).sum()  # noqa: E731

    def plain(q: mx.array, k: mx.array) -> Any:
        return rope_utils._mrope_apply(q, k, positions, growth, selector, pairing)

    grids = []

    def kernel(inputs: Any, grid: Any, output_shapes: Any, output_dtypes: Any, **_: Any) -> Any:
        x, *rest = inputs
        assert (output_shapes, output_dtypes) == ([x.shape], [x.dtype])
        grids.append(grid[0])
        return [mx.stop_gradient(rope_utils._mrope_apply(x, x, *rest, pairing)[0])]

    def own(q: mx.array, k: mx.array) -> Any:
        given = (positions, growth, selector)
        return rope_utils._fast_mrope_apply(kernel, q, k, *given, pairing)

    for step in (lambda f: mx.grad(f, [0, 1]), lambda f: mx.compile(mx.grad(f, [0, 1]))):
        found = step(lambda q, k: loss(*own(q, k)))(q, k)
        expected = mx.grad(lambda q, k: loss(*plain(q, k)), [0, 1])(q, k)
        assert all(mx.allclose(a, b, 1e-5, 1e-6) for a, b in zip(found, expected, strict=True))
        assert expected[0].any()
    pairs = 2 * 5 * (4 + 2)  # of a head: rotated pairs, and elements that are not rotated
    assert set(grids) == {2 * pairs, pairs} and len(grids) == 8
    report = ours.report(rope_utils.MRoPERotaryEmbedding(8))
    assert any(row.replacement == "its kernel, also for the gradient" for row in report)


# Families that the tests cannot build, or that do not compute logits from tokens.
NOT_BUILT = {
    "embedding_gemma2": "embeddings of texts",
    **dict.fromkeys(("florence2", "nemotron_parse"), "an encoder and a decoder"),
    "diffusion_gemma": "logits of other tokens",
    "phi3_v": "an empty class",
    "phi3small": "mlx-vlm writes behind the end of the logits",
    **dict.fromkeys(("rfdetr", "rt_detr_v2", "sam3d_body"), "images only"),
}


def language_models() -> list[str]:
    """Return the names of the families with a language model."""
    root = Path(gated_delta.__file__).parent
    return [
        name for name in all_families.modules("mlx_vlm")
        if (root / name / "language.py").exists() and (root / name / "config.py").exists()
        and name not in NOT_BUILT
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted({*language_models()} - mlx_vlm_packing.FAMILIES))
def test_every_family(name: str) -> None:
    """A step of training, for all families that test_packed does not train."""
    model = all_families.build_vlm(name)
    tokens = mx.random.randint(0, 36, (2, 22))  # with two experts, more than mlx-vlm's 64 rows

    def loss(model: Any) -> mx.array:
        y = model(tokens[:, :-1])
        y = getattr(y, "logits", y).astype(mx.float32)
        return mlx.nn.losses.cross_entropy(y, tokens[:, 1:], reduction="mean")

    value, grads = mlx.nn.value_and_grad(model, loss)(model)
    found = [g for _, g in mlx.utils.tree_flatten(grads) if is_float(g)]
    assert mx.isfinite(value).item() and all(mx.isfinite(g).all().item() for g in found)
    assert sum(g.any().item() for g in found) > 0.6 * len(found)
    ours.report(model)


CHOOSING = ("deepseek_v32", "deepseek_v4", "deepseek_vl_v2", "deepseekocr", "hy_v4")


@pytest.mark.parametrize("name", CHOOSING)
def test_constant_indices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients with constant indices of keys and experts, against mlx-vlm's own with them."""
    model = all_families.build_vlm(name)
    tokens = mx.random.randint(0, 36, (2, 22))
    found = gradients(model, tokens)
    ours.uninstall()
    own = mx.argpartition
    monkeypatch.setattr(mx, "argpartition", lambda *a, **k: mx.stop_gradient(own(*a, **k)))
    assert difference(found, gradients(model, tokens)) < CLOSE


def packed_gradients(model: Any, tokens: mx.array, counted: mx.array, **image: Any) -> Any:
    """Return the summed loss of the counted tokens and its gradients."""
    if _packing._row is None:  # mlx-vlm uses the positions of the last row again
        mlx_vlm_packing._forget_positions(model)

    def loss(model: Any) -> mx.array:
        y = model(tokens, **image)
        y = getattr(y, "logits", y)[:, :-1].astype(mx.float32)
        return (mlx.nn.losses.cross_entropy(y, tokens[:, 1:]) * counted).sum()

    value, grads = mlx.nn.value_and_grad(model, loss)(model)
    found = {"loss": value, **dict(mlx.utils.tree_flatten(grads))}
    mx.eval(found)
    return found


PACKED = mx.array([0, 7, 8, 19])  # a sequence of one token, without a loss
COUNTED = mx.array([1] * 6 + [0, 0] + [1] * 10)
# RoPE at other positions rounds otherwise, see test_mlx_lm.py and test_packed_apart.
ROUNDED = {"bitnet": 5e-3, "muse_spark": 2e-3, "gemma4": 2e-3}


@pytest.mark.parametrize("name", sorted(mlx_vlm_packing.FAMILIES))
def test_packed(name: str) -> None:
    """Loss and gradients of a packed row against those of its sequences alone."""
    model = all_families.build_vlm(name)
    tokens = mx.random.randint(0, 36, (1, 19))
    for module in model.modules():
        if hasattr(module, "_position_ids"):  # of another row
            module._position_ids = mx.zeros((3, 1, 40), mx.int32)
    with ours.packed(model, PACKED):
        found = packed_gradients(model, tokens, COUNTED)
    expected = packed_gradients(model, tokens[:, :7], mx.ones(6))
    for key, value in packed_gradients(model, tokens[:, 8:], mx.ones(10)).items():
        expected[key] += value
    assert difference(found, expected) < ROUNDED.get(name, CLOSE)


@pytest.mark.parametrize("name", [*ROUNDED, "hy_v4", "qwen3_5"])
def test_packed_apart(name: str) -> None:
    """The gradients of one sequence do not depend on the tokens of the others."""
    model = all_families.build_vlm(name)
    tokens = mx.random.randint(0, 36, (1, 19))
    counted = COUNTED * (mx.arange(18) >= 8)
    others = mx.concatenate([(tokens[:, :8] + 17) % 36, tokens[:, 8:]], axis=1)
    with ours.packed(model, PACKED):
        first, second = (packed_gradients(model, t, counted) for t in (tokens, others))
    # The gradients of the last token of a row of other experts can differ in the last digits.
    assert difference(first, second) < 1e-5


def whole(name: str) -> Any:
    """Return a model with an encoder of images and M-RoPE."""
    if name in FAMILIES:
        return build(name)
    package = importlib.import_module(f"mlx_vlm.models.{name}")
    keys = {**all_families.SHARED, **all_families.keys_of(name), "model_type": name}
    vision = {
        **vlm_families.QWEN["vision_config"],
        **{"model_type": name, "hidden_size": 32 if name == "qwen2_vl" else 16, "embed_dim": 16},
        **{"mlp_ratio": 1.5, "window_size": 8, "fullatt_block_indexes": [0]},
        "deepstack_visual_indexes": [0],
    }
    mx.random.seed(7)
    model = package.Model(
        package.ModelConfig(
            text_config=package.TextConfig.from_dict(keys),
            vision_config=package.VisionConfig.from_dict(vision),
            **{"model_type": name, "image_token_id": 37, "video_token_id": 38},
            vision_start_token_id=36,
        )
    )
    for key, value in mlx.utils.tree_flatten(model.parameters()):
        if not value.any():
            model.load_weights([(key, mx.random.normal(value.shape) * 0.3)], strict=False)
    return model.train()


@pytest.mark.parametrize("name", sorted(mlx_vlm_packing.IMAGES))
def test_packed_images(name: str) -> None:
    """Two sequences with an image each, one without: the positions of M-RoPE continue."""
    model = whole(name)
    parts = [[1, 2, 36, 37, 37, 37, 37, 5, 6], [3, 36, 37, 37, 7, 8], [9, 4]]
    pixels, grids = mx.random.normal((24, 24)), mx.array([[1, 4, 4], [1, 2, 4]])
    images: list[dict[str, Any]] = [
        {"pixel_values": pixels[:16], "image_grid_thw": grids[:1]},
        {"pixel_values": pixels[16:], "image_grid_thw": grids[1:]},
        {},
    ]
    row = mx.array([[token for part in parts for token in part]])
    counted = mx.array([1] * 8 + [0] + [1] * 5 + [0, 1])
    with ours.packed(model, mx.array([0, 9, 15, 17])):
        found = packed_gradients(
            model, row, counted, pixel_values=pixels, image_grid_thw=grids
        )  # fmt: skip
    assert model.language_model._position_ids is None
    expected: dict[str, mx.array] = {}
    for part, image in zip(parts, images, strict=True):
        alone = packed_gradients(model, mx.array([part]), mx.ones(len(part) - 1), **image)
        expected = {key: value + expected.get(key, 0) for key, value in alone.items()}
    assert sum("vis" in key and value.any().item() for key, value in expected.items()) > 15
    assert difference(found, expected) < CLOSE


def refuses(model: Any, message: str, starts: mx.array = PACKED) -> None:
    with pytest.raises(ValueError, match=message), ours.packed(model, starts):
        pass


def test_packed_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpt2", "llada2_moe", "qwen4_exp"):
        refuses(all_families.build_vlm(name), rf"\[packed\] Models of {name} are not known")
    model = whole("qwen2_vl")
    refuses(model, "cu_seqlens must have", mx.array([3]))
    with ours.packed(model, PACKED), pytest.raises(RuntimeError, match="already active"):
        ours.packed(model, PACKED).__enter__()
    monkeypatch.setattr(mlx_vlm_packing, "IMAGES", frozenset())
    refuses(model, r"the images of a row: pass model\.language_model")
    with ours.packed(model.language_model, PACKED):
        pass
    keys = all_families.KEYS["minicpm3"]
    scaled = {**keys["rope_scaling"], "original_max_position_embeddings": 16}
    monkeypatch.setitem(all_families.KEYS, "minicpm3", {**keys, "rope_scaling": scaled})
    model = all_families.build_vlm("minicpm3")
    with ours.packed(model, mx.array([0, 3])):
        model(mx.zeros((1, 16), mx.int32))
        with pytest.raises(ValueError, match="more than 16"):
            model(mx.zeros((1, 17), mx.int32))
