"""Common parts of ``mlxops.mlx_lm`` and ``mlxops.mlx_vlm``.

``Patch`` replaces functions of a package and reports what they do in a model. The functions below
compute the recurrences that are the same in these packages.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn

from mlxops import nn

Function = Callable[..., Any]
_Cached = type(functools.cache(len))  # a function with a cache
Place = tuple[str, str]  # a module and the name of a function or method in it

# The starts of the sequences of a packed row; see mlx_lm_packing.
cu_seqlens: mx.array | None = None

# The installed patches by package, also after this module or one of its users is loaded again.
_installed: dict[str, Patch] = globals().get("_installed", {})


class Patch:
    """The replaced functions of a package, and those that are not replaced, and why.

    The patch that this package had before is undone. ``operators`` names what the replacements
    use, or returns it for a layer; None is for layers without a row in reports. Two packages must
    not share a replacement, because it is found by its identity. ``unfit`` has functions that
    return why a replacement leaves a layer to the package, or an empty string.
    """

    def __init__(
        self,
        package: str,
        requires: str,
        replaced: Mapping[Place, Function],
        operators: Mapping[Function, str | Callable[[Any], str | None]],
        unreplaced: Mapping[Place, str],
        unfit: Mapping[Place, Callable[[Any], str]],
    ) -> None:
        if package in _installed:
            _installed[package].uninstall()
        _installed[package] = self
        self.package = package
        self.module = "mlxops." + package.replace("-", "_")
        self.requires = requires
        self.replaced, self.operators = replaced, operators
        self.unreplaced, self.unfit = unreplaced, unfit
        self.mlx_kernels = False
        self.originals: dict[Place, Function] = {}
        self._owners: dict[Place, Any] = {}

    def install(self, mlx_kernels: bool = False) -> None:
        """Replace the package's functions; ``mlx_kernels`` allows MLX's gated delta rule."""
        self.mlx_kernels = mlx_kernels
        # All functions are looked up first, so that an ImportError leaves the package as it was.
        found = {p: self.owner(p) for p in self.replaced if p not in self.originals}
        self._owners |= {place: owner for place, (owner, _) in found.items()}
        self.originals |= {place: original for place, (_, original) in found.items()}
        self._swap({place: (self.originals[place], self.replaced[place]) for place in found})

    def uninstall(self) -> None:
        """Restore the package's own functions."""
        self._swap({place: (self.replaced[place], own) for place, own in self.originals.items()})
        self.originals.clear()

    def _swap(self, changes: dict[Place, tuple[Function, Function]]) -> None:
        """Replace functions in modules and classes, and in all modules that have imported them."""
        for place, (_, new) in changes.items():
            setattr(self._owners[place], place[1].rpartition(".")[2], new)
        by_id = {id(old): new for old, new in changes.values()}
        for key, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and not key.startswith("mlxops."):
                # Not by setattr, because a module can have properties, and names of its own.
                names = vars(module)
                found = [(name, id(value)) for name, value in names.items() if id(value) in by_id]
                names.update({name: by_id[old] for name, old in found})

    def own(self, place: Place) -> Function:
        """Return the package's own function."""
        return self.originals.get(place) or self.owner(place)[1]

    def owner(self, place: Place) -> tuple[Any, Any]:
        """Return the module or class that defines a function, and the function."""
        owner: Any = importlib.import_module(place[0])
        *outer, name = place[1].split(".")
        try:
            for part in outer:
                owner = getattr(owner, part)
            return owner, getattr(owner, name)
        except AttributeError as error:
            raise ImportError(
                f"{self.module} requires {self.package} {self.requires}, but {error}"
            ) from error

    def report(
        self, model: mlx.nn.Module, more: Callable[[Any], list[Row]] = lambda _: []
    ) -> list[Row]:
        """Print and return the layers with a function of the table, and rows of ``more``.

        A line is about all layers of one kind. Their numbers are ranges, as in ``layers.0-2,4-6``.
        Raises ``TypeError`` if the model is not a module.
        """
        if not isinstance(model, mlx.nn.Module):
            raise TypeError(f"[report] model must be an mlx.nn.Module, not {type(model).__name__}.")
        known: dict[type, list[Place]] = {}
        rows = [
            row for path, layer in layers_of(model) for row in self._rows_of(path, layer, known)
        ]
        # A layer that one operator computes hides the products in it.
        whole = [r.path + "." for r in rows if r.function == "__call__" and _is_operator(r)]
        whole = [path.removeprefix(".") for path in whole]
        rows = [
            r
            for r in rows
            if not (r.function == "__call__" and _is_operator(r) and _inner(r.path, whole))
        ]
        rows += more(model)
        lines: dict[Row, list[int]] = {}
        for row in rows:
            parts = row.path.split(".")
            at = next((n for n, part in enumerate(parts) if part.isdecimal()), None)
            index = -1 if at is None else int(parts[at])
            if at is not None:
                parts[at] = "{}"
            lines.setdefault(replace(row, path=".".join(parts)), []).append(index)
        table = [
            (
                row.path.format(_ranges(indices)),
                row.layer,
                f"{row.function} -> {row.replacement}"
                if row.replacement
                else f"{row.function} is not replaced: {row.reason}",
            )
            for row, indices in lines.items()
        ]
        widths = [max((len(line[n]) for line in table), default=0) for n in range(2)]
        for path, layer, what in table:
            print(f"{path:{widths[0]}}  {layer:{widths[1]}}  {what}")
        if not table:
            print(f"no layer has a recurrence or a kernel of {self.package}")
        return rows

    def _rows_of(
        self, path: str, layer: mlx.nn.Module, known: dict[type, list[Place]]
    ) -> Iterator[Row]:
        """Yield a layer's rows; ``known`` has the functions of the classes so far."""
        kind = type(layer)
        if kind not in known:
            places = [p for p in (*self.replaced, *self.unreplaced) if p[0] in sys.modules]
            known[kind] = [place for place in places if self.uses(kind, place)]
        for place in known[kind]:
            new = self.replaced.get(place)
            reason = self.unreplaced.get(place, "")
            if new is not None and place not in self.originals:
                reason = f"{self.module}.uninstall() was called"
            elif place in self.unfit:
                reason = self.unfit[place](layer)
            name = place[1].rpartition(".")[2]
            operator = None if new is None or reason else self.operators[new]
            if callable(operator):
                operator = operator(layer)
                if operator is None:
                    continue
            if operator == "nn.gated_delta" and self._is_fused(layer):
                operator = "mx.fast.gated_delta_update in training, nn.gated_delta"
            yield Row(path, type(layer).__name__, name, operator, reason)

    def _is_fused(self, layer: Any) -> bool:
        """Return true if MLX's kernels compute the gated delta rule of a layer in training."""
        names = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
        sizes = [getattr(layer, name, 0) for name in names]
        return self.mlx_kernels and mlx_gated_delta(*sizes)

    def uses(self, kind: type, place: Place) -> bool:
        """Return true if a class has a method, or if its methods name a function.

        They can also name it in other functions of the package.
        """
        owner, function = self.owner(place)
        if isinstance(owner, type):
            return getattr(kind, place[1].rpartition(".")[2], None) is function
        root = place[0].partition(".")[0]
        waiting = [value for base in kind.__mro__ for value in vars(base).values()]
        seen = set()
        while waiting:
            method = waiting.pop()
            if method is function:
                return True
            if isinstance(method, FunctionType) and method not in seen:
                seen.add(method)
                named = [
                    n.__wrapped__ if isinstance(n, _Cached) else n
                    for n in _named(method.__code__, method.__globals__)
                ]
                waiting += [n for n in named if n is function or _is_of(n, root)]
        return False


def _is_of(value: Any, package: str) -> bool:
    """Return true if a value is a function of a package."""
    return isinstance(value, FunctionType) and value.__module__.partition(".")[0] == package


@dataclass(frozen=True)
class Row:
    """A layer of a model that has a recurrence or a kernel of a package, or computes the logits."""

    path: str  # of the layer in the model
    layer: str  # its class
    function: str  # of the package
    replacement: str | None  # the operator, or None if the package's function computes the layer
    reason: str = ""  # why it is not replaced


def _is_operator(row: Row) -> bool:
    return (row.replacement or "").startswith("nn.")


def _inner(path: str, outer: list[str]) -> bool:
    return path != "" and any(path.startswith(prefix) for prefix in outer)


def layers_of(model: mlx.nn.Module) -> list[tuple[str, mlx.nn.Module]]:
    """Return all modules of a model and their paths, in the order of the model."""
    return list(reversed(model.named_modules()))


def _named(code: CodeType, names: dict[str, Any]) -> Iterator[Any]:
    """Yield the globals that code names, also as attributes of modules, and in its functions."""
    found = [names[name] for name in code.co_names if name in names]
    yield from found
    for module in found:
        if isinstance(module, ModuleType):
            yield from (vars(module)[name] for name in code.co_names if name in vars(module))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _named(inner, names)


def _ranges(numbers: list[int]) -> str:
    """Return "0-2,4" for 0, 1, 2, 4."""
    runs = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [(group[0][1], group[-1][1]) for _, run in runs if (group := list(run))]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ends)


def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None,
    mask: mx.array | None,
    use_kernel: bool,
    fused: bool = False,
) -> tuple[mx.array, mx.array]:
    """Compute the gated delta rule; with ``use_kernel``, the state keeps its dtype on the GPU.

    ``fused`` allows MLX's function where it has Metal kernels. ``beta`` and the first state have
    the dtype of ``q`` there.
    """
    same = q.dtype == k.dtype == v.dtype == beta.dtype and g.ndim == 3
    fused = fused and same and cu_seqlens is None
    if fused and state is None and mask is None and mlx_gated_delta(*sizes_of(k, v)):
        y, last = mx.fast.gated_delta_update(q, k, v, g.astype(mx.float32), beta)
        return y.astype(q.dtype), last
    y, last = nn.gated_delta(q, k, v, g, beta, state, _booleans(mask), cu_seqlens)
    if state is not None and use_kernel and has_kernels():
        last = last.astype(state.dtype)
    return y.astype(q.dtype), last


def sizes_of(k: mx.array, v: mx.array) -> tuple[int, int, int, int]:
    """Return the heads of k and their size, the heads of v and their size."""
    return k.shape[-2], k.shape[-1], v.shape[-2], v.shape[-1]


def mlx_gated_delta(heads: int, size: int, v_heads: int, v_size: int) -> bool:
    """Return true if MLX has Metal kernels for the gated delta rule and its gradient.

    The sizes are those of MLX 0.32.4. For others, MLX's gradient stores the results of each step.
    """
    known = {(16, 16), (16, 32), (16, 48), (16, 64), (24, 24), (32, 32)}
    return (
        size == v_size == 128
        and (heads, v_heads) in known
        and has_kernels()
        and hasattr(mx.fast, "gated_delta_update")
    )


def ssm(
    x: mx.array,
    A_log: mx.array,
    B: mx.array,
    C: mx.array,
    D: mx.array,
    dt: mx.array,
    state: mx.array | None,
    mask: mx.array | None,
    lengths: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """Compute Mamba-2's scan; ``dt`` is given after ``softplus``."""
    mask = _booleans(mask)
    if lengths is not None:  # later positions do not change the state
        inside = mx.arange(dt.shape[1]) < lengths[:, None]
        mask = inside if mask is None else inside & mask
    y, last = nn.ssm_scan(x, A_log, B, C, D, dt, state, mask, cu_seqlens)
    if state is not None and x.shape[1] == 1 and has_kernels():
        return y.astype(x.dtype), last.astype(state.dtype)
    return y.astype(mx.result_type(x, D)), last


def wkv7(
    r: mx.array,
    w: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    state: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """Compute RWKV-7's recurrence."""
    y, last = nn.wkv7(r, w, k, v, a, b, state, cu_seqlens)
    kept = r.dtype
    if not has_kernels():
        kept = mx.result_type(r if state is None else state, w, k, v, a, b)
    return y.astype(r.dtype), last.astype(kept)


def mamba(
    layer: Any,
    x: mx.array,
    conv_cache: mx.array | None,
    state_cache: mx.array | None,
    swiglu: Function,
) -> tuple[mx.array, tuple[mx.array, mx.array]]:
    """Compute Mamba's mixer with ``nn.selective_scan``."""
    x, z = mx.split(layer.in_proj(x), 2, axis=-1)
    before = layer.conv_kernel_size - 1
    if conv_cache is None:
        x = mx.pad(x, [(0, 0), (before, 0), (0, 0)])
    else:
        x = mx.concatenate([conv_cache, x], axis=1)
    u = mlx.nn.silu(layer.conv1d(x))
    delta, B, C = _time_steps(layer, u)
    if layer.use_bcdt_rms:
        eps = layer.args.mixer_rms_eps
        delta, B, C = (mx.fast.rms_norm(part, None, eps) for part in (delta, B, C))
    delta = mlx.nn.softplus(layer.dt_proj(delta))
    kept = mx.result_type(delta, u, B)
    if state_cache is not None or u.shape[1] > 1:  # a state decays, and has the dtype of its decay
        states = [] if state_cache is None else [state_cache]
        kept = mx.result_type(mx.zeros(0, kept), layer.A_log, *states)
    y, last = _scan(layer, u, delta, B, C, state_cache, kept)
    return layer.out_proj(swiglu(z, y)), (x[:, -before:], last)


def jamba(layer: Any, x: mx.array, state: mx.array | None) -> tuple[mx.array, mx.array]:
    """Compute Jamba's state space with ``nn.selective_scan``."""
    delta, B, C = _time_steps(layer, x)
    delta, B, C = layer.dt_layernorm(delta), layer.b_layernorm(B), layer.c_layernorm(C)
    delta = mlx.nn.softplus(layer.dt_proj(delta))
    return _scan(layer, x, delta, B, C, state, mx.result_type(delta, x, B))


def _time_steps(layer: Any, x: mx.array) -> list[mx.array]:
    rank, states = layer.time_step_rank, layer.ssm_state_size
    return list(mx.split(layer.x_proj(x), [rank, rank + states], axis=-1))


def _scan(
    layer: Any,
    x: mx.array,
    delta: mx.array,
    B: mx.array,
    C: mx.array,
    state: mx.array | None,
    kept: mx.Dtype,
) -> tuple[mx.array, mx.array]:
    """Scan with the parameters of a layer; ``kept`` is the dtype of the states."""
    dtype = mx.result_type(mx.zeros(0, kept), C, layer.D, x)
    A = -mx.exp(layer.A_log)
    y, last = nn.selective_scan(x.astype(dtype), delta, A, B, C, layer.D, None, state, cu_seqlens)
    return y, last.astype(kept)


def too_many_states(layer: Any) -> str:
    """Return why ``nn.selective_scan`` cannot compute a layer, or nothing."""
    return "nn.selective_scan has at most 64 states" if layer.ssm_state_size > 64 else ""


def rnn_scan(x: mx.array, a: mx.array, h0: mx.array | None) -> tuple[mx.array, mx.array]:
    """Compute RecurrentGemma's recurrence with ``nn.linear_recurrence``."""
    y = nn.linear_recurrence(a, x, h0, cu_seqlens, axis=1)
    kept = mx.result_type(x, *([] if h0 is None else [h0]))
    return y.astype(kept if x.shape[1] == 1 else x.dtype), y[:, -1].astype(kept)


def recurrent_gla(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    scale: float,
    h: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Compute Bailing's linear attention with ``nn.ssm_scan``; each head has a constant decay."""
    kept = mx.result_type(k, v)
    if h is not None or k.shape[2] > 1:  # as in mlx-lm, where a decay has q's dtype
        kept = mx.result_type(mx.zeros(0, kept), q, *([] if h is None else [h]))
    y, last = _gla(q, k, v, g, scale, h, None)
    return y.astype(mx.result_type(mx.zeros(0, kept), q)), last.astype(kept)


def hybrid_gla(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    *,
    scale: float,
    h: mx.array | None = None,
    mask: mx.array | None = None,
    chunk: int = 128,  # ignored
) -> tuple[mx.array, mx.array]:
    """Compute linear attention of Bailing's hybrids with ``nn.ssm_scan``; states are float32."""
    kept = mx.float32
    if h is not None and k.shape[2] == 1:
        kept = mx.result_type(h, k, v)
    y, last = _gla(q, k, v, g, scale, h, _booleans(mask))
    return y.astype(q.dtype), last.astype(kept)


def _gla(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    scale: float,
    h: mx.array | None,
    mask: mx.array | None,
) -> tuple[mx.array, mx.array]:
    batch, heads, steps, _ = q.shape
    values, keys, queries = (part.swapaxes(1, 2) for part in (v, k, q * scale))
    state = None if h is None else h.swapaxes(2, 3)
    zeros, ones = mx.zeros(heads, q.dtype), mx.ones((batch, steps, heads), q.dtype)
    y, last = nn.ssm_scan(values, mx.log(-g), keys, queries, zeros, ones, state, mask, cu_seqlens)
    return y.swapaxes(1, 2), last.swapaxes(2, 3)


def has_kernels() -> bool:
    """Return true if a package uses its Metal kernels, whose results have other dtypes."""
    return bool(mx.default_device() == mx.gpu and mx.metal.is_available())


def _booleans(mask: mx.array | None) -> mx.array | None:
    return None if mask is None else mask.astype(mx.bool_)


def _booleans(mask: mx.array | None) -> mx.array | None:
    return None if mask is None else mask.astype(mx.bool_)
