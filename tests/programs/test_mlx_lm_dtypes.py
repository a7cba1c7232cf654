"""mlxops.mlx_lm's functions return mlx-lm's dtypes, for any argument with another dtype.

If mlx-lm is not installed, empty modules replace it. `make integrations` compares the expected
dtypes below with mlx-lm's own functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import mlx.core as mx
import pytest

INSTALLED = importlib.util.find_spec("mlx_lm") is not None
DTYPES = [mx.float32, mx.float16, mx.bfloat16]

# Shapes of the arguments: batch, time, heads, channels.
SHAPES = {
    "gated_delta_update": {
        "q": (1, 2, 1, 4),
        "k": (1, 2, 1, 4),
        "v": (1, 2, 2, 3),
        "a": (1, 2, 2),
        "b": (1, 2, 2),
        "A_log": (2,),
        "dt_bias": (2,),
        "state": (1, 2, 3, 4),
    },
    "ssm_update": {
        "hidden_states": (1, 2, 4, 3),
        "A_log": (4,),
        "B": (1, 2, 2, 5),
        "C": (1, 2, 2, 5),
        "D": (4,),
        "dt": (1, 2, 4),
        "dt_bias": (4,),
        "state": (1, 4, 3, 5),
    },
    "wkv7": {**dict.fromkeys("rwkvab", (1, 2, 2, 4)), "state": (1, 2, 4, 4)},
    "recurrent_gla": {**dict.fromkeys("qkv", (1, 2, 2, 4)), "g": (2,), "h": (1, 2, 4, 4)},
    "hybrid_gla": {**dict.fromkeys("qkv", (1, 2, 2, 4)), "g": (2,), "h": (1, 2, 4, 4)},
}
STATES = ("state", "h")
# Arguments that are no arrays, and absent states.
OTHERS: dict[str, dict[str, Any]] = {
    name: {"scale": 0.5, "h": None} for name in ("recurrent_gla", "hybrid_gla")
}


def expected(name: str, arrays: dict[str, mx.array]) -> list[mx.Dtype]:
    """Return the dtypes of the result and the state."""
    if name == "gated_delta_update":
        return [arrays["q"].dtype, mx.float32]
    if name == "ssm_update":
        return [mx.result_type(arrays["hidden_states"], arrays["D"]), mx.float32]
    if name == "recurrent_gla":
        return [mx.result_type(*(a for other, a in arrays.items() if other != "g"))] * 2
    if name == "hybrid_gla":
        return [arrays["q"].dtype, mx.float32]
    first = arrays.get("state", arrays["r"])
    return [arrays["r"].dtype, mx.result_type(first, *(arrays[other] for other in "wkvab"))]


class Absent:
    """A function of mlx-lm that no test calls; all modules with this object are updated."""


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    if not INSTALLED:
        gate: Any = lambda A_log, a, dt_bias: mx.exp(  # noqa: E731
            -mx.exp(A_log.astype(mx.float32)) * (a + dt_bias)
        )
        step: Any = lambda dt, bias, limit: dt.astype(mx.float32) + bias  # noqa: E731
        layer = type("Rwkv7TimeMixing", (), {"_wkv7": Absent()})
        mamba = type("MambaBlock", (), {"_process_sequence": Absent()})
        jamba = type("JambaMambaMixer", (), {"ssm_step": Absent()})
        names = ("SwitchGLU", "SwitchLinear", "QuantizedSwitchLinear", "LoRASwitchLinear")
        experts = {name: type(name, (), {"__call__": Absent()}) for name in names}
        product = type("BitLinear", (), {"execute_matmul_kernel": Absent()})
        called = type("Called", (), {"__call__": Absent()})
        names = ("_sinkhorn", "_fake_quant_fp8", "_fake_quant_fp4")
        deepseek = {**{name: Absent() for name in names}, "Router": called, "Indexer": called}
        kernels = ("expert_routing", "post_expert_norm_combine", "qk_norm", "qk_norm_rope",
                   "rms_norm_sigmoid_gate")  # fmt: skip
        for name, content in {
            "mlx_lm": {},
            "mlx_lm.models": {},
            "mlx_lm.models.base": {"scaled_dot_product_attention": Absent()},
            "mlx_lm.models.gated_delta": {"compute_g": gate, "gated_delta_update": Absent()},
            "mlx_lm.models.ssm": {"compute_dt": step, "ssm_update": Absent()},
            "mlx_lm.models.rwkv7": {"Rwkv7TimeMixing": layer},
            "mlx_lm.models.activations": {"swiglu": Absent()},
            "mlx_lm.models.mamba": {"MambaBlock": mamba},
            "mlx_lm.models.jamba": {"JambaMambaMixer": jamba},
            "mlx_lm.models.recurrent_gemma": {"rnn_scan": Absent()},
            "mlx_lm.models.bailing_moe_linear": {"recurrent_gla": Absent()},
            "mlx_lm.models.bailing_hybrid": {"recurrent_gla": Absent()},
            "mlx_lm.models.switch_layers": experts,
            "mlx_lm.models.bitlinear_layers": {"BitLinear": product},
            "mlx_lm.models.deepseek_v41": deepseek,
            "mlx_lm.tuner": {},
            "mlx_lm.tuner.lora": experts,
            "mlx_lm.tuner.trainer": {"default_loss": Absent()},
            "mlx_lm.kernels": {},
            **{f"mlx_lm.kernels.{name}": {name: Absent()} for name in kernels},
            "mlx_lm.kernels.norm_add_norm": {"norm_add_norm": Absent(), "pre_norm": Absent()},
        }.items():
            module = ModuleType(name)
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)
            package, _, child = name.rpartition(".")
            if package:
                setattr(sys.modules[package], child, module)
        monkeypatch.delitem(sys.modules, "mlxops.mlx_lm", raising=False)
    with mx.stream(mx.cpu):
        yield importlib.import_module("mlxops.mlx_lm")
    if not INSTALLED:
        del sys.modules["mlxops.mlx_lm"]


def functions(ours: ModuleType, name: str) -> Iterator[Callable[..., Any]]:
    """Yield our function with a name, and mlx-lm's if it is installed."""
    layer = type("Layer", (), {"num_heads": 2, "head_dim": 4})
    first = [layer] if name == "wkv7" else []
    others = OTHERS.get(name, {"state": None})
    yield lambda **given: getattr(ours, name)(*first, **{**others, **given})
    if INSTALLED:
        ours.uninstall()
        place = next(place for place, new in ours.REPLACED.items() if new.__name__ == name)
        own = importlib.import_module(place[0])
        for part in place[1].split("."):
            own = getattr(own, part)
        ours.install()
        yield lambda **given: own(*first, **{**others, **given})


@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_one_argument_of_another_dtype(ours: ModuleType, name: str, with_state: bool) -> None:
    shapes = {arg: shape for arg, shape in SHAPES[name].items() if with_state or arg not in STATES}
    for function in functions(ours, name):
        for dtype in DTYPES:
            for other, arg in [(other, arg) for other in DTYPES for arg in shapes]:
                arrays = {a: mx.zeros(s, other if a == arg else dtype) for a, s in shapes.items()}
                found = [result.dtype for result in function(**arrays)]  # not computed
                assert found == expected(name, arrays), (dtype, arg, other)


@pytest.mark.parametrize("name", SHAPES)
def test_gradients(ours: ModuleType, name: str) -> None:
    """Each gradient has the dtype of its argument."""
    for at in range(len(SHAPES[name])):
        arrays = [
            mx.zeros(shape, mx.float32 if n == at else mx.bfloat16)
            for n, shape in enumerate(SHAPES[name].values())
        ]

        def loss(*given: mx.array) -> mx.array:
            results = next(functions(ours, name))(**dict(zip(SHAPES[name], given, strict=True)))
            return sum(result.astype(mx.float32).sum() for result in results)

        found = mx.grad(loss, argnums=list(range(len(arrays))))(*arrays)
        assert [g.dtype for g in found] == [a.dtype for a in arrays]


def test_states_of_metal_kernels(ours: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-lm's Metal kernels keep the dtype of a state; results have the other dtype."""
    monkeypatch.setattr("mlxops._models.has_kernels", lambda: True)
    half, single = mx.bfloat16, mx.float32
    for name in ("gated_delta_update", "ssm_update", "wkv7"):
        shapes = SHAPES[name]
        short = {a: (1, 1, *s[2:]) if s[:2] == (1, 2) and a != "state" else s
                 for a, s in shapes.items()}  # fmt: skip
        if name == "gated_delta_update":
            short |= {"q": (1, 1, 1, 32), "k": (1, 1, 1, 32), "state": (1, 2, 3, 32)}
        arrays = {a: mx.zeros(s, single if a in "DvB" else half) for a, s in short.items()}
        found = [result.dtype for result in next(functions(ours, name))(**arrays)]
        assert found == [half, half], name
