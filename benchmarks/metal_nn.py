"""The cost of mlxops.nn's kernels against those of mlx-lm and MLX for the same operators.

Arguments are given by name. Further parameters of a kernel, shapes and positions, are computed
here. mlx-lm's kernels come from its installation: their source is what it would pass to
`metal_kernel`. MLX's `rope` and `layer_norm` are missing in its wheels (`mlx_kernels`).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from .measure import Result
from .metal_cost import INCLUDE, MLX, OURS, THREAD, WIDTH, Cost, beside, mlx_add, mlx_kernels, ours
from .metal_ir import Argument, Kernels

Value = np.ndarray | float | Sequence[int]

_PARAMETER = re.compile(r"(?P<type>.*?)(?P<name>\w+)(?:\[\d*\])?\s*(?:\[\[(?P<attribute>\w+).*)?$")
_NUMBERS = {
    **{"bool": np.bool_, "int": np.int32, "int32_t": np.int32, "uint": np.uint32},
    **{"int64_t": np.int64, "float": np.float32},
}


@dataclass(frozen=True)
class Launch:
    """The threads of a threadgroup, and the counted thread of the first simdgroup."""

    threads: tuple[int, int, int]
    groups: tuple[int, int, int] = (1, 1, 1)
    thread: int = THREAD

    def place(self, attribute: str, one: bool) -> Argument:
        """Return the value of a position or size attribute, as one number or three."""
        x, y, z = self.threads
        number = {
            "thread_index_in_threadgroup": self.thread,
            "thread_index_in_simdgroup": self.thread,
            "simdgroup_index_in_threadgroup": 0,
            "simdgroups_per_threadgroup": (x * y * z + 31) // 32,
        }
        if attribute in number:
            return number[attribute]
        grid = tuple(n * m for n, m in zip(self.threads, self.groups, strict=True))
        three = {
            "thread_position_in_grid": (self.thread, 0, 0),
            "thread_position_in_threadgroup": (self.thread, 0, 0),
            "threadgroup_position_in_grid": (0, 0, 0),
            "threads_per_threadgroup": self.threads,
            "threadgroups_per_grid": self.groups,
            "threads_per_grid": (grid[0], grid[1], grid[2]),
        }[attribute]
        return three[0] if one else three


def arguments(
    text: str, function: str, values: Mapping[str, Value], launch: Launch
) -> list[Argument]:
    """Return the arguments of a kernel with this source."""
    match = re.search(rf"\[\[kernel[^;{{}}]*? void\s+{function}\((.*?)\)\s*{{", text, re.DOTALL)
    assert match is not None, function
    given: list[Argument] = []
    for parameter in match[1].split(","):
        found = _PARAMETER.match(" ".join(parameter.split()))
        assert found is not None, parameter
        type, name, attribute = found["type"], found["name"], found["attribute"]
        words = re.findall(r"\w+", type)
        number = next((_NUMBERS[word] for word in words if word in _NUMBERS), np.float32)
        array, _, what = name.rpartition("_")
        if attribute not in (None, "buffer"):
            given.append(launch.place(attribute, words[-1] == "uint"))
        elif name in values:
            value = values[name]
            given.append(value if isinstance(value, np.ndarray) else np.array(value, number))
        elif name.startswith("has_"):
            given.append(np.bool_(name[4:] in values))
        elif what in ("ndim", "size") and array not in values:
            given.append(np.int32(0))
        elif what in ("shape", "ndim", "size"):
            given.append(np.array(getattr(values[array], what), np.int32))
        else:
            assert "device" in words, f"{function} wants {name}"
            given.append(np.zeros(64, np.float32))
    return given


@dataclass(frozen=True)
class Peer:
    """Another library's kernel: the kernel `function` of a source, instantiated under a name."""

    text: str
    function: str
    name: str
    constants: Mapping[str, str] = field(default_factory=dict)

    def cost(self, values: Mapping[str, Value], launch: Launch, elements: int) -> Cost:
        """Return its cost."""
        given = arguments(self.text, self.function, values, launch)
        return Cost(Kernels(self.text, [INCLUDE], self.constants).run(self.name, given), elements)


def mine(
    file: str, function: str, variant: str, values: Mapping[str, Value], launch: Launch, each: int
) -> Cost:
    """Return the cost of one of our kernels, whose threads have this number of elements."""
    given = arguments((OURS / "nn" / file).read_text(encoding="utf-8"), function, values, launch)
    return Cost(ours(f"nn/{file}").run(f"{function}_{variant}", given), each)


@cache
def _mlx_lm(module: str) -> Mapping[str, object] | None:
    """Return a module of mlx-lm, if installed, with records of its kernels instead of kernels."""
    try:
        found = importlib.util.find_spec(f"mlx_lm.{module}")
    except ImportError:
        return None
    if found is None or found.loader is None:
        return None
    with (
        patch.object(mx, "default_device", lambda: mx.gpu),
        patch.object(mx.metal, "is_available", lambda: True),
        patch.object(mx.fast, "metal_kernel", lambda **parts: parts),
    ):
        fresh = importlib.util.module_from_spec(found)
        found.loader.exec_module(fresh)
    return vars(fresh)


def mlx_lm(
    module: str,
    kernel: str,
    template: Mapping[str, str | int],
    values: Mapping[str, Value],
    launch: Launch,
    each: int,
) -> Cost | None:
    """Return the cost of a kernel of mlx-lm; its parameters are written as by MLX."""
    names = _mlx_lm(module)
    if names is None:
        return None
    parts = names[kernel]
    assert isinstance(parts, dict)
    source = str(parts["source"])
    types = {np.dtype(np.bool_): "bool", np.dtype(np.int32): "int", np.dtype(np.uint32): "uint"}
    parameters = []
    for name in parts["input_names"]:
        value = np.asarray(values[name])
        element = types.get(value.dtype, "float")
        small = "constant" if value.size < 8 else "device"
        parameters.append(f"const {small} {element}{'*' if value.ndim else '&'} {name}")
        for what, kind in (("shape", "int"), ("strides", "int64_t")):
            if f"{name}_{what}" in source:
                parameters.append(f"const constant {kind}* {name}_{what}")
    for name in parts["output_names"]:
        parameters.append(f"device {types.get(np.asarray(values[name]).dtype, 'float')}* {name}")
    for attribute in (
        *("thread_position_in_grid", "thread_position_in_threadgroup"),
        *("threadgroup_position_in_grid", "thread_index_in_threadgroup"),
        *("thread_index_in_simdgroup", "simdgroup_index_in_threadgroup"),
    ):
        if attribute in source:
            element = "uint3" if "_position_" in attribute else "uint"
            parameters.append(f"{element} {attribute} [[{attribute}]]")
    kinds = [
        "bool" if v == "true" else "typename" if isinstance(v, str) else "int"
        for v in template.values()
    ]
    text = f"""
        #include <metal_stdlib>
        #include "{MLX}/defines.h"
        using namespace metal;
        {parts.get("header", "")}
        template <{", ".join(f"{k} {name}" for k, name in zip(kinds, template, strict=True))}>
        [[kernel]] void peer({", ".join(parameters)}) {{ {source} }}
    """
    text += f'\ninstantiate_kernel("peer", peer, {", ".join(map(str, template.values()))})'
    return Peer(text, "peer", "peer").cost(values, launch, each)


def zeros(*shape: int) -> np.ndarray:
    """Return an array of zeros."""
    return np.zeros(shape, np.float32)


STEPS = 512
HEADS = 2
CHANNELS = 128
WORDS = 1 << 15


def gated_delta(channels: bool, masked: bool, many: bool = False) -> tuple[Cost, Cost | None]:
    """Compare for four rows of the state per lane; `many` selects mlx-lm's kernel for many steps,
    which has neither a mask nor a `g` for each channel.
    """
    q, k, v, y = np.zeros((4, 1, STEPS, HEADS, CHANNELS), np.float32)
    state, last = np.zeros((2, 1, HEADS, CHANNELS, CHANNELS), np.float32)
    beta = zeros(1, STEPS, HEADS)
    values = {"q": q, "k": k, "v": v, "g": q if channels else beta, "beta": beta, "state": state}
    values |= {"y": y, "last": last, "state_in": state, "state_out": last}
    if masked:
        values["mask"] = np.ones((1, STEPS), np.bool_)
    lanes = STEPS * CHANNELS // 32
    own = mine(
        "gated_delta.metal",
        "gated_delta",
        f"float32_{CHANNELS}",
        values,
        Launch((128, 1, 1)),
        4 * lanes,
    )
    sizes: dict[str, str | int] = {"Dk": CHANNELS, "Dv": CHANNELS, "Hk": HEADS, "Hv": HEADS}
    name = f"_gated_delta_kernel{'_vec' * channels}{'_masked' * masked}{'_packed' * many}"
    values["T"] = np.array(STEPS, np.int32)
    template = {"InT": "float", "StT": "float", **sizes}
    each = 8 * lanes if many else lanes
    peer = mlx_lm("models.gated_delta", name, template, values, Launch((32, 4, 1)), each)
    return own, peer


def wkv7() -> tuple[Cost, Cost | None]:
    """Compare for four rows of the state per lane."""
    size = 64
    names = ("r", "w", "k", "v", "a", "b", "y")
    values = dict(zip(names, np.zeros((7, 1, STEPS, HEADS, size), np.float32), strict=True))
    state, last = np.zeros((2, 1, HEADS, size, size), np.float32)
    values |= {"state": state, "last": last, "state_in": state, "state_out": last}
    lanes = STEPS * size // 32
    own = mine("wkv7.metal", "wkv7", f"float32_{size}", values, Launch((128, 1, 1)), 4 * lanes)
    template: dict[str, str | int] = {"InT": "float", "H": HEADS, "D": size}
    values["T"] = np.array(STEPS, np.int32)
    peer = mlx_lm("models.rwkv7", "_wkv7_kernel", template, values, Launch((32, 4, 1)), lanes)
    return own, peer


def ssm() -> tuple[Cost, Cost | None]:
    """Compare for a single step, which is the limit of mlx-lm's kernel."""
    heads, size, states = 4, 64, 128
    x = zeros(1, 1, heads, size)
    key = zeros(1, 1, 1, states)
    state, last = np.zeros((2, 1, heads, size, states), np.float32)
    each = {"A_log": zeros(heads), "D": zeros(heads), "dt": zeros(1, 1, heads)}
    values = {"x": x, "B": key, "C": key, **each, "y": x.copy(), "state": state, "last": last}
    with_lanes: dict[str, Value] = {**values, "lanes": 16}
    own = mine("ssm_scan.metal", "ssm_scan", "float32", with_lanes, Launch((128, 1, 1)), 32)
    template: dict[str, str | int] = {
        "T": "float",
        "U": "float",
        "Dh": size,
        "Ds": states,
        "H": heads,
        "G": heads,
    }
    values |= {"X": x, "out": x.copy(), "state_in": state, "state_out": last}
    peer = mlx_lm("models.ssm", "_ssm_kernel", template, values, Launch((32, 8, 1)), states // 32)
    return own, peer


def divergence(kernel: str, gradient: bool) -> tuple[Cost, Cost | None]:
    """Return the cost of kl_div_loss or js_div_loss, with 1024 threads for each row."""
    names = ("logits", "target_logits", "other", "out", "logits_q", "logits_p", "out_q")
    values: dict[str, Value] = {name: zeros(1, WORDS) for name in names}
    values |= {"scale": 1.0, "width": WORDS, "beta": 0.5, "rest": 0.5, "of_target": 0}
    of_rows = [
        f"{of}{x}"
        for x in ("most", "log_sum", "beside", "mean")
        for of in ("", "target_", "other_")
    ]
    values |= dict.fromkeys((*of_rows, "loss", "cotangent"), zeros(1))
    launch, elements = Launch((1024, 1, 1)), WORDS // 1024
    rows = f"{kernel}_div_rows{'_vjp' * gradient}"
    grid = Launch((32, 1, 1), (32, 1, 1)) if gradient else launch
    own = mine("divergence.metal", rows, "float32", values, grid, elements)
    values |= {"cotan": zeros(1), "out_kl_q": zeros(1), "output_kl_q": zeros(1)}
    name = f"_{kernel}_{'backward' if gradient else 'forward'}_kernel"
    template: dict[str, str | int] = {"T": "float", "V": WORDS}
    return own, mlx_lm("tuner.losses", name, template, values, launch, elements)


def expert_routing() -> tuple[Cost, Cost | None]:
    """Compare for 8 of 256 experts by the sigmoid of their logits, one token per simdgroup."""
    experts, k = 256, 8
    values: dict[str, Value] = {"logits": zeros(1, experts), "bias": zeros(experts)}
    values |= {"weights": zeros(1, k), "indices": np.zeros((1, k), np.uint32), "k": k}
    values |= {"score": 1, "normalize": True, "experts": experts}
    other = 2 * k  # a lane that writes nothing
    launch = Launch((32, 8, 1), thread=other)
    own = mine("routing.metal", "expert_routing", "float32", values, launch, experts // 32)
    launch = Launch((256, 1, 1), thread=other)
    values |= {"inds": values["indices"], "multiplier": 1.0, "eps": 0.0, "scale": 1.0}
    template: dict[str, str | int] = {"E": experts, "K": k}
    name = ("kernels.expert_routing", "_routing_kernel")
    return own, mlx_lm(*name, template, values, launch, experts // 32)


def rms_norm_gate() -> tuple[Cost, Cost | None]:
    """Compare for the use after attention: a sigmoid as the gate, and no weight."""
    heads = 4
    x = zeros(1, heads, 1, CHANNELS)
    g = zeros(1, 1, heads * CHANNELS)
    values: dict[str, Value] = {"x": x, "gate": x, "out": x.copy(), "eps": 1e-5}
    values |= {"activation": 1, "norm_before_gate": True, "width": CHANNELS}
    launch, each = Launch((32, 1, 1)), CHANNELS // 32
    own = mine("norms.metal", "rms_norm_gate", "float32", values, launch, each)
    values |= {"g": g, "x_strides": [n // 4 for n in x.strides]}
    values["g_strides"] = [n // 4 for n in g.strides]
    template: dict[str, str | int] = {"T": "float", "D": CHANNELS}
    name = ("kernels.rms_norm_sigmoid_gate", "_norm_gate_kernel")
    return own, mlx_lm(*name, template, values, Launch((256, 1, 1)), each)


def norm_add_norm() -> tuple[Cost, Cost | None]:
    """Compare; mlx-lm's kernel also multiplies both parts of the sum by weights."""
    row = zeros(1, WIDTH)
    values: dict[str, Value] = dict.fromkeys(("x", "residual", "w1", "w2"), row)
    values |= {"y": row.copy(), "h": row.copy(), "eps": 1e-6, "width": WIDTH}
    threads = WIDTH // 8
    launch = Launch((threads, 1, 1))
    own = mine("norms.metal", "norm_add_norm", "float32", values, launch, 8)
    values |= dict.fromkeys(("branch", "stream", "alpha", "beta", "post_w", "pre_w"), row)
    values |= {"new_stream": row.copy(), "normed": row.copy(), "post_eps": 1e-6, "pre_eps": 1e-6}
    template: dict[str, str | int] = {"T": "float", "D": WIDTH, "TG": threads, "POST_SCALE": "true"}
    name = ("kernels.norm_add_norm", "_norm_add_norm_kernel")
    return own, mlx_lm(*name, template, values, launch, 8)


def norm_rope() -> tuple[Cost, Cost | None]:
    """Compare the kernel of qk_norm_rope for q or k from position 0 on; mlx-lm's kernel computes
    both, with the offset as a constant.
    """
    heads = 32
    x = zeros(1, STEPS, heads, CHANNELS)
    values: dict[str, Value] = {"x": x, "out": x.copy()}
    values |= {"traditional": True, "base": 1e4, "scale": 1.0, "eps": 1e-6}
    values |= {"turned": CHANNELS, "size": CHANNELS, "steps": STEPS, "heads": heads}
    launch, each = Launch((32, 8, 1)), CHANNELS // 32
    own = mine("rotary.metal", "norm_rope", f"float32_{CHANNELS}", values, launch, each)
    values |= {"qkvg": zeros(1, STEPS, 4 * heads, CHANNELS), "q": x, "k": x, "log2_base": 13.0}
    values |= {"seq_len": np.array(STEPS, np.int32), "offset": np.zeros(1, np.int32)}
    template: dict[str, str | int] = {
        "T": "float",
        "D": CHANNELS,
        "HQ": heads,
        "HK": heads,
        "OFFSET_STRIDE": 0,
    }
    name = ("kernels.qk_norm_rope", "_qk_norm_rope_kernel")
    return own, mlx_lm(*name, template, values, Launch((256, 1, 1)), each)


def rope(source: str | None) -> tuple[Cost, Cost | None]:
    """Compare for one pair of each of four heads per thread, as in MLX."""
    heads = 8
    x = zeros(1, heads, STEPS, CHANNELS)
    offset = np.zeros(1, np.int32)
    values: dict[str, Value] = {"x": x, "out": x.copy(), "offset": offset}
    values |= {"traditional": False, "base": 1e4, "scale": 1.0}
    values |= {"turned": CHANNELS, "size": CHANNELS, "steps": STEPS, "heads": heads}
    launch = Launch((32, 8, 1), (2, STEPS // 8, heads // 4))
    own = mine("rotary.metal", "rope", "float32", values, launch, 8)
    if source is None:
        return own, None
    strides = [STEPS * CHANNELS, CHANNELS, 1]
    values |= {"in": x, "strides": strides, "out_strides": strides, "offset_stride": 0}
    values["n_head"] = heads
    constants = {"forward": "true", "traditional": "false", "hs_transpose": "false"}
    return own, Peer(source, "rope", "rope_float32", constants).cost(values, launch, 8)


def layer_norm(source: str | None, gradient: bool) -> tuple[Cost, Cost | None]:
    """Compare layer_norm_residual or its gradient, for 16 rows; MLX adds before or after it."""
    names = ("x", "residual", "y", "h", "out", "g", "gx", "gw", "grad_x", "grad_y", "grad_h")
    values: dict[str, Value] = {name: zeros(16, WIDTH) for name in names}
    values |= dict.fromkeys(("w", "b", "weight", "bias"), zeros(WIDTH))
    values |= {"grad_weight": zeros(WIDTH), "grad_bias": zeros(WIDTH), "eps": 1e-5}
    values |= {"width": WIDTH, "rows": 16, "axis_size": WIDTH, "w_stride": 1, "b_stride": 1}
    function = f"layer_norm_residual{'_vjp' * gradient}"
    each = 4 * 16 if gradient else 4
    own = mine("norms.metal", function, "float32", values, Launch((1024, 1, 1)), each)
    if source is None:
        return own, None
    kernel = f"{'vjp_' * gradient}layer_norm_single_row"
    name = f"{'vjp_' * gradient}layer_normfloat32"
    peer = Peer(source, kernel, name, {"has_w": "true"})
    return own, mlx_add(np.float32) + peer.cost(values, Launch((WIDTH // 8, 1, 1)), 8)


def cross_entropy(gradient: bool) -> tuple[Cost, Cost]:
    """Compare for one row. MLX's kernel has neither weights nor a softcap."""
    values: dict[str, Value] = {name: zeros(1, WORDS) for name in ("logits", "in")}
    values |= {"targets": np.zeros(1, np.int32), "out": zeros(1, WORDS), "softcap": 0.0}
    values |= {"ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0, "words": 0}
    values |= {"width": WORDS, "axis_size": WORDS}
    of_rows = ("loss", "counted", "most", "log_sum", "extra", "cotangent", "lse", "cotan")
    values |= dict.fromkeys(of_rows, zeros(1))
    launch, elements = Launch((1024, 1, 1)), WORDS // 1024
    rows = f"cross_entropy_rows{'_vjp' * gradient}"
    grid = Launch((32, 1, 1), (32, 1, 1)) if gradient else launch
    own = mine("cross_entropy.metal", rows, "float32", values, grid, elements)
    text = f"""
        #include <metal_stdlib>
        #include "{MLX}/defines.h"
        #include "{MLX}/utils.h"
        using namespace metal;
    """ + (INCLUDE / MLX / "cross_entropy.h").read_text(encoding="utf-8")
    function = f"cross_entropy{'_vjp' * gradient}"
    text += f'\ninstantiate_kernel("{function}", {function}, float)'
    peer = Peer(text, function, function)
    return own, peer.cost(values, launch, elements)


def linear_cross_entropy() -> tuple[Cost, None]:
    """Return the cost of the forward: 64 rows and a part of the words, 32 logits per lane."""
    rows, words, depth = 64, 2048, 256
    values: dict[str, Value] = {"x": zeros(rows, depth), "weight": zeros(words, depth)}
    values |= {"targets": np.zeros(rows, np.int32), "softcap": 0.0, "ignore_index": -100}
    values |= {"sums": False, "rows": rows, "words": words, "depth": depth}
    values |= {"out": zeros(rows, 6), "base": zeros(1)}
    file, function = "linear_cross_entropy.metal", "linear_cross_entropy_parts"
    threads = 128
    each = rows * words // threads
    return mine(file, function, "float32", values, Launch((threads, 1, 1)), each), None


Costs = tuple[Cost, Cost | None]

MLX_LM: Mapping[str, Callable[[], Costs]] = {
    **{
        f"gated_delta, float32, heads of {CHANNELS}{kind}": (
            partial(gated_delta, "g of" in kind, "masked" in kind)
        )
        for kind in ("", ", masked", ", g of channels", ", g of channels, masked")
    },
    "gated_delta as mlx-lm has it for many steps": partial(gated_delta, False, False, True),
    "wkv7, float32, heads of 64": wkv7,
    f"ssm_scan, float32, a step, 64 x {CHANNELS}": ssm,
    f"kl_div_loss, float32, {WORDS} words": partial(divergence, "kl", False),
    "kl_div_loss's gradient": partial(divergence, "kl", True),
    f"js_div_loss, float32, {WORDS} words": partial(divergence, "js", False),
    "js_div_loss's gradient": partial(divergence, "js", True),
    "expert_routing, float32, 8 of 256 experts": expert_routing,
    f"rms_norm_gate, float32, heads of {CHANNELS}": rms_norm_gate,
    f"norm_add_norm, float32, rows of {WIDTH}": norm_add_norm,
    f"qk_norm_rope, float32, heads of {CHANNELS}": norm_rope,
}
MLX_OWN: Mapping[str, Callable[[], Costs]] = {
    f"rope, float32, heads of {CHANNELS}": lambda: rope(mlx_kernels("rope.metal")),
    f"layer_norm_residual, float32, rows of {WIDTH}": lambda: layer_norm(
        mlx_kernels("layer_norm.metal"), False
    ),
    "layer_norm_residual's gradient": lambda: layer_norm(mlx_kernels("layer_norm.metal"), True),
    f"cross_entropy, float32, {WORDS} words": partial(cross_entropy, False),
    "cross_entropy's gradient": partial(cross_entropy, True),
}
ALONE: Mapping[str, Callable[[], Costs]] = {
    "linear_cross_entropy, float32, a logit of 256 features": linear_cross_entropy
}


def beside_others() -> Iterator[Result]:
    """Yield all comparisons."""
    for who, rows in (("mlx-lm", MLX_LM), ("MLX", MLX_OWN)):
        for what, costs in rows.items():
            yield beside(f"{what}, against {who}'s", *costs())
    for what, costs in ALONE.items():
        yield beside(what, *costs())
