"""Records torch's results and gradients for the samples of tests/: run with torch's Python.

    python aten/tools/record.py [NAME ...]
    python aten/tools/record.py --wide --seed 7 --into build/wide [NAME ...]

The calls come from OpInfo, torch's own database of operators and sample inputs. Each sample is
run under a mode that sees the calls of ATen: once in inference mode, where composite operators
stay whole, and once with gradients, where they are decomposed and the backward operators are
called. What is called with an overload of allowlist.txt is recorded, and called.py has calls for
the names that no sample reaches. The same torch writes the same bytes.

The second command records, into another folder, far more calls than the tests can keep: OpInfo's
samples of all dtypes and its reference samples, with other random numbers.
``aten/tests/live.py`` compares with them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import json
import random
import sys
import time
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchgen
import yaml
from calls import REFERENCES, SAME, at_edges, by_hand
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import DecorateInfo
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ATEN = Path(__file__).resolve().parent.parent
SAMPLES = ATEN / "tests" / "samples"
#: arguments that MLX has nothing for
DROPPED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")
#: dtypes other than the main one, of which a few samples are recorded
OTHERS = (
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
#: most elements of one call
LARGEST = 20_000
#: the largest of OpInfo's reference samples that are recorded
SMALL = 400
#: OpInfos that do not concern dense arrays on one device
UNRELATED = ("sparse.", "jiterator_", "masked.")
#: results that are free up to a phase, per overload: "columns" and "rows" are compared by
#: absolute value, as many of them as there are singular values or eigenvalues
GAUGES: dict[str, list[str | None]] = {
    "svd": ["columns", None, "columns"],
    "linalg_svd": ["columns", None, "rows"],
    "_linalg_svd": ["columns", None, "rows"],
    "linalg_eigh": [None, "columns"],
    "_linalg_eigh": [None, "columns"],
    "linalg_eig": [None, "columns"],
}
#: operators of complex numbers only, whose gradients are recorded
COMPLEX = ("_fft_c2c", "_fft_c2r")
#: results without a defined value
UNDEFINED = ("empty",)


@dataclass(frozen=True)
class Limits:
    """The most calls that are recorded, and the seed of OpInfo's random numbers."""

    seed: int = 0
    #: samples of each dtype but the main one
    few: int = 4
    #: most calls and elements of one overload
    calls: int = 400
    elements: int = 60_000
    #: most calls of an overload that samples of other operators reach
    reached: int = 24
    #: operators with fewer samples than ``scarce`` get as many of OpInfo's reference samples
    scarce: int = 8
    references: int = 8


KEPT = Limits()
WIDE = Limits(few=150, calls=2500, elements=10**9, reached=60, scarce=10**9, references=150)


def schema_names() -> dict[str, Any]:
    """Return the overloads of the allowlist, without in-place and out twins, by name."""
    allowed = {
        line.strip()
        for line in (ATEN / "allowlist.txt").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    }
    native = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    found = {}
    for entry in yaml.load(native.read_text(), yaml.CSafeLoader):
        full = entry["func"].split("(")[0]
        base, _, overload = full.partition(".")
        if base not in allowed:
            continue
        operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        # a twin with a generator of random numbers is one function with a key
        if "generator" in overload or any(a.is_out for a in operator._schema.arguments):
            continue
        found[full] = operator
    return found


def full_name(operator: Any) -> str:
    """Return an overload's name as native_functions.yaml has it: without ``.default``."""
    base = operator._schema.name.split("::")[1]
    overload = operator._schema.overload_name
    return f"{base}.{overload}" if overload else base


@dataclass
class Call:
    """One call of an overload, before torch's results are known."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    origin: str
    own: bool
    tolerance: tuple[float, float] | None = None


@dataclass
class Harvest:
    """The calls of all overloads, without duplicates."""

    operators: dict[str, Any]
    limits: Limits = KEPT
    calls: dict[str, list[Call]] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)
    reached: dict[tuple[str, torch.dtype], int] = field(default_factory=dict)

    def add(self, call: Call, dtype: torch.dtype) -> None:
        """Keep a call if it is new and can be recorded."""
        name = full_name(call.operator)
        if name not in self.operators:
            return
        leaves = tree_leaves((call.args, call.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if sum(tensor.numel() for tensor in tensors) > LARGEST:
            return
        if any(t.layout != torch.strided or t.dtype not in STORED for t in tensors):
            return
        own = call.own
        limits = self.limits
        limit = limits.reached if dtype == torch.float32 else limits.few
        if not own and self.reached.get((name, dtype), 0) >= limit:
            return
        key = hashlib.sha256(name.encode())
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                key.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
                if own:
                    key.update(plain(leaf).tobytes())
            else:
                key.update(repr(leaf).encode() if not isinstance(leaf, torch.Generator) else b"g")
        key.update(repr(sorted(call.kwargs)).encode())
        if key.digest() in self.seen:
            return
        self.seen.add(key.digest())
        if not own:
            self.reached[name, dtype] = self.reached.get((name, dtype), 0) + 1
        self.calls.setdefault(name, []).append(call)


class Recorder(TorchDispatchMode):
    """Collects the calls of ATen that happen while it is active."""

    def __init__(self, harvest: Harvest, info: Any, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.harvest, self.info, self.index, self.dtype = harvest, info, index, dtype
        self.tolerance = tolerance(info, dtype)
        self.related = related(info)

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = full_name(operator)
        if operator.namespace == "aten" and name in self.harvest.operators:
            args_copy, kwargs_copy = tree_map(copied, (tuple(args), kwargs))
            own = name.split(".")[0] in self.related
            title = str(self.dtype).removeprefix("torch.")
            origin = f"{self.info.full_name} {title} {self.index}"
            call = Call(operator, args_copy, kwargs_copy, origin, own, self.tolerance)
            self.harvest.add(call, self.dtype)
        return operator(*args, **kwargs)


def copied(leaf: Any) -> Any:
    """Return a tensor's detached copy with its layout; other values as they are."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    with torch.inference_mode(False), torch.no_grad():
        leaf = torch.zeros(leaf.shape, dtype=leaf.dtype) if leaf._is_zerotensor() else leaf
        copy = leaf.detach().resolve_conj().resolve_neg()
        if leaf.layout != torch.strided or copy.is_contiguous():
            return copy.clone()
        return Strided(copy.clone(memory_format=torch.contiguous_format))


class Strided(torch.Tensor):
    """Marks a copy of a tensor that was not contiguous."""

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Any:
        return torch.Tensor._make_subclass(cls, data)

    __torch_function__ = torch._C._disabled_torch_function_impl


def related(info: Any) -> set[str]:
    """Return the ATen names that an OpInfo is about, with its backward operators."""
    names = {info.name, info.aten_name, *(alias.name for alias in info.aliases)}
    names |= {name.removeprefix("nn.functional.") for name in names}
    names |= {name.replace(".", "_") for name in names}
    if info.aten_backward_name:
        names.add(info.aten_backward_name)
    return names


def tolerance(info: Any, dtype: torch.dtype) -> tuple[float, float] | None:
    """Return the widest tolerance (relative, absolute) that an OpInfo sets for a dtype."""
    found = [
        (override.rtol, override.atol)
        for decorator in info.decorators
        if isinstance(decorator, DecorateInfo) and decorator.device_type in (None, "cpu")
        for inner in decorator.decorators
        if isinstance(inner, toleranceOverride)
        for key, override in inner.d.items()
        if key == dtype
    ]
    return (max(r for r, _ in found), max(a for _, a in found)) if found else None


def seed(number: int = 0) -> None:
    """Make what follows reproducible."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def spread(values: list[Any], count: int) -> list[Any]:
    """Return at most ``count`` of the values, evenly spread."""
    if len(values) <= count:
        return values
    return [values[i * len(values) // count] for i in range(count)]


def harvest(operators: dict[str, Any], limits: Limits, only: set[str]) -> Harvest:
    """Return the calls that OpInfo's samples make; of some names, if only these are wanted."""
    result = Harvest(operators, limits)
    for info in op_db:
        if info.name.startswith(UNRELATED):
            continue
        if only and limits != KEPT and not related(info) & only:
            continue
        dtypes = info.supported_dtypes("cpu")
        main = next(
            (d for d in (torch.float32, torch.int64, torch.bool, torch.complex64) if d in dtypes),
            None,
        )
        if main is None:
            continue
        for dtype in (main, *(d for d in OTHERS if d in dtypes and d != main)):
            seed(limits.seed)
            differentiable = dtype == torch.float32 and info.supports_autograd
            try:
                samples = list(
                    itertools.islice(
                        info.sample_inputs(
                            "cpu", dtype, requires_grad=differentiable, set_seed=not limits.seed
                        ),
                        3000,
                    )
                )
            except Exception as error:
                print(f"{info.full_name} {dtype}: no samples: {error}", file=sys.stderr)
                continue
            if dtype == main and len(samples) < limits.scarce:
                try:
                    samples += references(info, dtype, limits.references)
                except Exception as error:
                    print(f"{info.full_name} {dtype}: no references: {error}", file=sys.stderr)
            indexed = list(enumerate(samples))
            for index, sample in indexed if dtype == main else spread(indexed, limits.few):
                if sum(tensor.numel() for tensor in tensors(sample)) > LARGEST:
                    continue
                run(Recorder(result, info, index, dtype), sample, differentiable)
    return result


def tensors(sample: Any) -> list[torch.Tensor]:
    """Return the tensors of a sample."""
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def references(info: Any, dtype: torch.dtype, count: int) -> list[Any]:
    """Return a few small samples of OpInfo's longer list: no axes, empty, other layouts."""
    found = []
    for sample in itertools.islice(info.reference_inputs("cpu", dtype), 2000):
        given = [tensor.detach() for tensor in tensors(sample)]
        small = sum(tensor.numel() for tensor in given) <= SMALL
        numbers = [t for t in given if t.numel() and t.dtype != torch.bool]
        if small and all(bool((t.abs() < 100).all()) for t in numbers):
            found.append(sample)
    return spread(found, count)


def run(recorder: Recorder, sample: Any, differentiable: bool) -> None:
    """Run one sample: whole in inference mode, then decomposed, then backward."""
    functions = [recorder.info.op, *(alias.op for alias in recorder.info.aliases)]
    for function in functions:
        seed()
        try:
            with torch.inference_mode(), recorder:
                function(detached(sample.input), *detached(sample.args), **detached(sample.kwargs))
        except Exception:
            pass  # the alias is not a function, or torch rejects the call
    seed()
    try:
        with recorder:
            result = functions[0](sample.input, *sample.args, **sample.kwargs)
            outputs = [
                leaf
                for leaf in tree_leaves(result)
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
            if differentiable and outputs:
                torch.autograd.backward(outputs, [torch.ones_like(leaf) for leaf in outputs])
    except Exception:
        pass


def detached(tree: Any) -> Any:
    """Return arguments without their history."""
    return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, tree)


STORED = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


def plain(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor's values; bfloat16 as uint16."""
    tensor = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


class Store:
    """The arrays of one file: one flat array per dtype, equal parts only once."""

    def __init__(self) -> None:
        self.parts: dict[str, list[np.ndarray[Any, Any]]] = {}
        self.sizes: dict[str, int] = {}
        self.known: dict[tuple[str, bytes], int] = {}

    def value(self, value: Any) -> Any:
        """Return a value in JSON; tensors are kept and referred to."""
        if isinstance(value, torch.Tensor):
            dtype, data = STORED[value.dtype], plain(value).ravel()
            key = (dtype, data.tobytes())
            if key not in self.known:
                self.known[key] = self.sizes.get(dtype, 0)
                self.sizes[dtype] = self.known[key] + data.size
                self.parts.setdefault(dtype, []).append(data)
            where = [dtype, list(value.shape), self.known[key]]
            return {"array": [*where, True] if isinstance(value, Strided) else where}
        if isinstance(value, (list, tuple)):
            return [self.value(part) for part in value]
        if isinstance(value, torch.dtype):
            return {"dtype": STORED[value]}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise Unrecordable(f"{type(value).__name__}")

    def write(self, path: Path, calls: list[dict[str, Any]]) -> None:
        """Write the file; the same content gives the same bytes."""
        text = ",\n".join(json.dumps(call, separators=(",", ":")) for call in calls)
        members = {"calls": np.frombuffer(f"[{text}]".encode(), np.uint8)}
        members |= {key: np.concatenate(self.parts[key]) for key in sorted(self.parts)}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for key, array in members.items():
                content = io.BytesIO()
                np.lib.format.write_array(content, array, allow_pickle=False)
                info = zipfile.ZipInfo(f"{key}.npy")
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, content.getvalue())


class Unrecordable(Exception):
    """A call that cannot be recorded, with the reason."""


def arguments(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments without those that MLX has nothing for."""
    kwargs = {key: value for key, value in call.kwargs.items() if key not in DROPPED}
    if call.kwargs.get("layout") not in (None, torch.strided):
        raise Unrecordable("a sparse layout")
    return call.args, kwargs


def fresh(tree: Any, double: bool = False) -> Any:
    """Return copies of the arguments, in float64 if asked."""
    wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.detach().as_subclass(torch.Tensor).clone()
            return value.to(wider.get(value.dtype, value.dtype)) if double else value
        if isinstance(value, torch.dtype) and double:
            return wider.get(value, value)
        return value

    return tree_map(leaf, tree)


Results = tuple[list[Any], dict[str, Any], list[Any]]


def differentiated(call: Call) -> tuple[Results, list[str]]:
    """Return what evaluate does, for the arguments for which torch has a derivative, and these."""
    try:
        results = evaluate(call)
        return results, list(results[1])
    except (RuntimeError, NotImplementedError):
        results = evaluate(call, wanted=[])
    able = []
    for name in array_names(call):
        try:
            able += evaluate(call, wanted=[name])[1]
        except (RuntimeError, NotImplementedError):
            continue
    return (evaluate(call, wanted=able) if able else results), able


def argument_names(operator: Any) -> list[str]:
    """Return the names of an overload's arguments."""
    return [argument.name for argument in operator._schema.arguments]


def array_names(call: Call) -> list[str]:
    """Return the names of a call's arrays, ``tensors.0`` in a list."""
    names = []
    for name, value in (
        dict(zip(argument_names(call.operator), call.args, strict=False)) | call.kwargs
    ).items():
        if isinstance(value, torch.Tensor):
            names.append(name)
        if isinstance(value, (list, tuple)):
            names += [f"{name}.{i}" for i, v in enumerate(value) if isinstance(v, torch.Tensor)]
    return names


def evaluate(call: Call, double: bool = False, wanted: list[str] | None = None) -> Results:
    """Return the results, and the gradients by argument (of those wanted) for the cotangents."""
    args, kwargs = fresh((call.args, call.kwargs), double)
    named = dict(zip(argument_names(call.operator), args, strict=False)) | kwargs
    # MLX's and torch's gradients of complex numbers differ by conventions
    differentiable = {torch.float32, torch.float64}
    if full_name(call.operator) in COMPLEX:
        differentiable |= {torch.complex64, torch.complex128}
    inputs = {}
    for name, value in named.items():
        parts = {name: value}
        if isinstance(value, (list, tuple)):
            parts = {f"{name}.{i}": part for i, part in enumerate(value)}
        inputs |= {
            key: part
            for key, part in parts.items()
            if (wanted is None or key in wanted)
            and isinstance(part, torch.Tensor)
            and part.dtype in differentiable
        }
    # what is written to cannot be a leaf with gradients
    for argument in call.operator._schema.arguments:
        if argument.alias_info and argument.alias_info.is_write:
            inputs.pop(argument.name, None)
    for part in inputs.values():
        part.requires_grad_()
    seed()
    result = REFERENCES.get(full_name(call.operator), call.operator)(*args, **kwargs)
    outputs = list(result) if isinstance(result, (list, tuple)) else [result]
    if not all(isinstance(output, torch.Tensor) for output in outputs):
        raise Unrecordable("a result that is no array")
    gauge = GAUGES.get(call.operator._schema.name.split("::")[1])
    through = [gauged(o, gauge, i, outputs) for i, o in enumerate(outputs)] if gauge else outputs
    used = [o for o in through if o.requires_grad]
    if not used or not inputs:
        return outputs, {}, []
    cotangents = [
        cotangent(output, i) if output.requires_grad else None for i, output in enumerate(through)
    ]
    given = [c for c in cotangents if c is not None]
    grads = torch.autograd.grad(used, list(inputs.values()), given, allow_unused=True)
    return outputs, dict(zip(inputs, grads, strict=False)), cotangents


def gauged(output: torch.Tensor, gauge: list[str | None], index: int, outputs: list[Any]) -> Any:
    """Return the part of a result that does not depend on phases."""
    if gauge[index] is None or output.numel() == 0:
        return output
    rank = outputs[gauge.index(None)].shape[-1]
    return output.narrow(-1 if gauge[index] == "columns" else -2, 0, rank).abs()


def cotangent(output: torch.Tensor, index: int) -> torch.Tensor:
    """Return a cotangent that looks random and has few digits, so that it compresses well."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{index} {tuple(output.shape)}".encode()))
    draw = torch.randint(1, 9, output.shape, generator=generator) / 8
    sign = torch.randint(0, 2, output.shape, generator=generator) * 2 - 1
    return (draw * sign).to(output.dtype)


#: torch.testing's default tolerances of float32, relative and absolute
DEFAULT = (1.3e-6, 1e-5)


def slack(single: list[Any], double: list[Any], tolerance: tuple[float, float] | None) -> float:
    """Return how many times the tolerance torch's float32 results need, at least 1."""
    rtol, atol = tolerance or DEFAULT
    worst = 0.0
    for a, b in zip(single, double, strict=False):
        if a is None or b is None or not (a.dtype.is_floating_point or a.dtype.is_complex):
            continue
        error = (a.detach().to(b.dtype) - b.detach()).abs() / (atol + rtol * b.detach().abs())
        error = error[error.isfinite()]
        worst = max(worst, float(error.max()) if error.numel() else 0.0)
    return 1.0 if worst < 0.5 else float(f"{2 * worst:.2g}")


def record(call: Call, store: Store) -> dict[str, Any] | None:
    """Return a call with torch's results, or None where there is nothing to compare."""
    args, kwargs = arguments(call)
    (outputs, grads, cotangents), able = differentiated(call)
    random_result = full_name(call.operator).split(".")[0] in UNDEFINED
    if torch.Tag.nondeterministic_seeded in call.operator.tags:
        torch.manual_seed(1)
        again = call.operator(*fresh(call.args), **fresh(call.kwargs))
        again = list(again) if isinstance(again, (list, tuple)) else [again]
        random_result = not all(
            torch.equal(a, b) for a, b in zip(detached(outputs), detached(again), strict=False)
        )
    if sum(output.numel() for output in outputs) > LARGEST:
        raise Unrecordable("a large result")
    entry: dict[str, Any] = {
        "call": full_name(call.operator),
        "names": [n for n in argument_names(call.operator) if n not in DROPPED],
        "origin": call.origin,
        "args": store.value(args),
        "kwargs": {key: store.value(value) for key, value in kwargs.items()},
    }
    if random_result:
        entry["random"] = True
        outputs, grads = [torch.zeros_like(output) for output in outputs], {}
    entry["out"] = store.value(outputs)
    if grads:
        entry["gradients"] = {key: store.value(value) for key, value in grads.items()}
        entry["cotangents"] = store.value(cotangents)
    if call.tolerance:
        entry["tolerance"] = list(call.tolerance)
    gauge = GAUGES.get(full_name(call.operator))
    if gauge:
        entry["gauge"] = gauge
    try:
        wide, wide_grads, _ = evaluate(call, double=True, wanted=able)
    except Exception:  # torch lacks the operator in double precision
        return entry
    values = 1.0 if gauge else slack(outputs, wide, call.tolerance)
    slopes = slack(list(grads.values()), list(wide_grads.values()), call.tolerance)
    if (values, slopes) != (1.0, 1.0) and not random_result:
        entry["slack"] = [values, slopes]
    return entry


def retyped(call: Call, operator: Any) -> Call | None:
    """Return a call of another overload with the same values, where kinds can be converted."""
    schema = operator._schema.arguments
    args = []
    for argument, value in zip(schema, call.args, strict=False):
        kind = str(argument.type)
        if kind == "number" and isinstance(value, torch.Tensor):
            if value.numel() == 0:
                return None
            value = value.flatten()[0].item()
        if kind == "Tensor" and isinstance(value, (bool, int, float, complex)):
            value = torch.tensor(value)
        args.append(value)
    kwargs = {k: v for k, v in call.kwargs.items() if k in argument_names(operator)}
    return Call(operator, tuple(args), kwargs, call.origin, call.own, call.tolerance)


def supplement(collected: Harvest) -> None:
    """Add calls for overloads without: from siblings with other kinds, and by hand."""
    listed = by_hand()
    for full, operator in collected.operators.items():
        for *args, kwargs in listed.get(full, []):
            call = Call(operator, tuple(args), kwargs, "by hand", True)
            collected.calls.setdefault(full, []).append(call)
        if full in collected.calls and full not in SAME:
            continue
        base = full.split(".")[0]
        sources = (
            [SAME[full]]
            if full in SAME
            else [
                other
                for other, twin in collected.operators.items()
                if other != full
                and other.split(".")[0] == base
                and len(twin._schema.arguments) == len(operator._schema.arguments)
            ]
        )
        for source in sources:
            found = [retyped(call, operator) for call in collected.calls.get(source, [])]
            calls = [call for call in found if call is not None]
            collected.calls.setdefault(full, []).extend(spread(calls, 2 * KEPT.reached))


def weight(call: Call) -> int:
    """Return the elements of a call's arrays."""
    leaves = tree_leaves((call.args, call.kwargs))
    return 8 + sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def thinned(calls: list[Call], limits: Limits) -> list[Call]:
    """Return as many of the calls, evenly spread, as the file may have."""
    count = min(len(calls), limits.calls)
    while count > 8 and sum(weight(call) for call in spread(calls, count)) > limits.elements:
        count = count * 9 // 10
    return spread(calls, count)


def main() -> None:
    """Record the samples of all names, or of some."""
    operators = schema_names()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="the names to record again; all by default")
    parser.add_argument("--into", type=Path, default=SAMPLES, help="the folder of the files")
    parser.add_argument("--wide", action="store_true", help="far more calls; needs --into")
    parser.add_argument("--seed", type=int, default=0, help="other random numbers; needs --into")
    options = parser.parse_args()
    if (options.wide or options.seed) and options.into == SAMPLES:
        parser.error("the samples of the tests are recorded without --wide and --seed: give --into")
    only = set(options.names)
    if unknown := sorted(only - {name.split(".")[0] for name in operators}):
        parser.error(f"allowlist.txt has no {', '.join(unknown)}")
    limits = replace(WIDE if options.wide else KEPT, seed=options.seed)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    start = time.monotonic()
    collected = harvest(operators, limits, only)
    supplement(collected)
    print(f"calls collected: {time.monotonic() - start:.0f} s")
    options.into.mkdir(parents=True, exist_ok=True)
    edges = at_edges()
    by_name: dict[str, list[str]] = {}
    for full in operators:
        by_name.setdefault(full.split(".")[0], []).append(full)
    missing = []
    for name, overloads in sorted(by_name.items()):
        if only and name not in only:
            continue
        store, entries = Store(), []
        for full in overloads:
            own = len(entries)
            reasons = {}
            found = thinned(collected.calls.get(full, []), limits)
            for *args, kwargs in edges.get(full, []):
                found.append(Call(operators[full], tuple(args), kwargs, "at an edge", True))
            for call in found:
                try:
                    entry = record(call, store)
                except Exception as error:
                    reasons[f"{type(error).__name__}: {error}"[:200]] = call.origin
                    continue
                entries.append(entry)
            if len(entries) == own:
                missing.append(full)
            for reason, origin in reasons.items():
                print(f"{full}: {origin}: {reason}", file=sys.stderr)
        if entries:
            store.write(options.into / f"{name}.npz", entries)
    print("no samples:", *missing)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
