"""Records torch's results and gradients for the samples of tests/: run with torch's Python.

    python aten/tools/record.py [NAME ...]
    python aten/tools/record.py --wide --seed 7 --into build/wide [NAME ...]
    python aten/tools/record.py --replay --into build/replayed [NAME ...]

The calls come from OpInfo, torch's own database of operators and sample inputs. Each sample is
run under a mode that sees the calls of ATen: once in inference mode, where composite operators
stay whole, and once with gradients, where they are decomposed and the backward operators are
called. Calls of overloads of the lists of names are recorded, and calls.py has calls for the names
that no sample reaches. Further calls come from OpInfo's references and errors and from torch's
modules, one of each kind, and from variants.py. The same torch writes the same bytes.

The second command records, into another folder, far more calls than the tests can keep: OpInfo's
samples of all dtypes and its reference samples, with other random numbers. The third one records
the calls of tests/samples again, without OpInfo, so that the results of two releases of torch can
be compared. ``aten/tools/live.py`` compares with both.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import math
import multiprocessing
import random
import sys
import time
import warnings
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchgen
import yaml
from torch._decomp import decomposition_table as DECOMPOSITIONS
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.opinfo.core import DecorateInfo
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ATEN = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ATEN / "tests"))
from calls import EXACT, REFERENCES, SAME, Generated, at_edges, by_hand, large_calls, made  # noqa: E402
from generated import TOLERANCES, every  # noqa: E402
from samples import Array, Dtype, load  # noqa: E402
from variants import errors_of, shapes_of, values_of  # noqa: E402

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
HALVES = (torch.float16, torch.bfloat16)
#: dtypes of OpInfo's reference samples that are recorded
REFERENCED = (torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64)
#: elements after an array that torch does not reach, unless it reads beyond the array
MARGIN = 1000
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
#: the ends of origins of calls that torch may reject
REJECTED = ("outside", "is shorter")
#: the end of origins of calls whose arrays torch may not broadcast alike
BROADCAST = "is 1"
#: results without a defined value
UNDEFINED = ("empty", "empty_like", "new_empty")


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
#: most further samples of an overload and dtype: of its own and of other operators and modules
FURTHER, REACHED = 10, 4
#: seconds after which a name is recorded without variants
LONGEST = 60
#: most inputs of a module
INPUTS = 8
#: most elements of the arrays of a further sample, and of a base of variants
ELEMENTS, BASE = 1500, 150
WIDE = Limits(few=150, calls=2500, elements=10**9, reached=60, scarce=10**9, references=150)


def schema_names() -> dict[str, Any]:
    """Return the overloads of the lists of names, without in-place and out twins, by name."""
    allowed = {
        line.strip()
        for name in ("allowlist.txt", "releases/2.13.txt", "models.txt")
        for line in (ATEN / name).read_text().splitlines()
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
    #: the exception that torch raised
    error: Exception | None = None
    #: whether it was made from another call, so that torch need not accept it
    variant: bool = False
    #: whether it is one of the recorded samples, of which errors are recorded too
    replayed: bool = False


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


def kind(call: Call) -> tuple[Any, ...]:
    """Return what distinguishes calls of one overload: ranks, layouts, classes of values."""

    def of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            sizes = tuple(min(n, 2) for n in value.shape)
            marks = isinstance(value, Strided), len(set(value.shape))
            if not value.numel() or value.dtype == torch.bool:
                return value.dtype, sizes, marks
            real = plain_tensor(value)
            real = torch.view_as_real(real) if real.dtype.is_complex else real
            if not real.dtype.is_floating_point:
                return value.dtype, sizes, marks, bool(real.min() < 0), bool(real.max() > 100)
            finite = real[real.isfinite()].abs()
            size = float(finite.max()) if finite.numel() else 0.0
            classes = bool(real.isnan().any()), bool(real.isinf().any()), size > 50, size > 1e4
            return value.dtype, sizes, marks, classes
        if isinstance(value, (list, tuple)):
            return tuple(of(part) for part in value[:4])
        if type(value) is int or isinstance(value, float):
            return type(value), (value > 0) - (value < 0)
        return value if isinstance(value, (bool, str, torch.dtype)) else type(value)

    names = argument_names(call.operator)
    named = dict(zip(names, call.args, strict=False)) | call.kwargs
    return tuple((key, of(value)) for key, value in sorted(named.items()) if key not in DROPPED)


@dataclass
class Further:
    """Calls of other kinds than those that are known, few of each overload and dtype."""

    operators: dict[str, Any]
    calls: dict[str, list[Call]] = field(default_factory=dict)
    kinds: dict[str, set[Any]] = field(default_factory=dict)
    counts: dict[Any, int] = field(default_factory=dict)

    def know(self, calls: dict[str, list[Call]]) -> None:
        """Remember the kinds of calls that are recorded anyway."""
        for name, known in calls.items():
            self.kinds.setdefault(name, set()).update(kind(call) for call in known)

    def add(self, call: Call, dtype: torch.dtype) -> None:
        """Keep a call if it is of a new kind."""
        name = full_name(call.operator)
        tensors = [t for t in tree_leaves((call.args, call.kwargs)) if isinstance(t, torch.Tensor)]
        if any(t.layout != torch.strided or t.dtype not in STORED for t in tensors):
            return
        if sum(t.numel() for t in tensors) > ELEMENTS:
            return
        group = name, dtype, call.own, call.error is None
        most = FURTHER if call.own else REACHED
        if name not in self.operators or self.counts.get(group, 0) >= most:
            return
        key = (type(call.error), str(call.error)[:24]) if call.error else kind(call)
        if key in self.kinds.setdefault(name, set()):
            return
        self.kinds[name].add(key)
        self.counts[group] = self.counts.get(group, 0) + 1
        self.calls.setdefault(name, []).append(call)


class Recorder(TorchDispatchMode):
    """Collects the calls of ATen that happen while it is active."""

    def __init__(
        self, harvest: Harvest | Further, info: Any, index: Any, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.harvest, self.info, self.index, self.dtype = harvest, info, index, dtype
        of_operator = hasattr(info, "full_name")
        self.title = info.full_name if of_operator else info.name
        self.tolerance = tolerance(info, dtype) if of_operator else None
        self.related = related(info) if of_operator else set()
        #: whether calls are kept if torch rejects them, instead of the others
        self.errors = False

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = full_name(operator)
        if operator.namespace == "aten" and name in self.harvest.operators:
            args_copy, kwargs_copy = tree_map(copied, (tuple(args), kwargs))
            own = name.split(".")[0] in self.related
            title = str(self.dtype).removeprefix("torch.")
            origin = f"{self.title} {title} {self.index}"
            call = Call(operator, args_copy, kwargs_copy, origin, own, self.tolerance)
            if not self.errors:
                self.harvest.add(call, self.dtype)
                return operator(*args, **kwargs)
            try:
                return operator(*args, **kwargs)
            except Exception as error:
                self.harvest.add(replace(call, error=error), self.dtype)
                raise
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


def further(operators: dict[str, Any], known: Harvest) -> Further:
    """Return calls of other kinds: of OpInfo's references and errors, and of modules."""
    result = Further(operators)
    result.know(known.calls)
    bases = {name.split(".")[0] for name in operators}
    for info in op_db:
        if info.name.startswith(UNRELATED) or not related(info) & bases:
            continue
        dtypes = info.supported_dtypes("cpu")
        for dtype in (d for d in REFERENCED if d in dtypes):
            seed()
            try:
                samples = list(itertools.islice(info.reference_inputs("cpu", dtype), 300))
            except Exception as error:
                print(f"{info.full_name} {dtype}: no references: {error}", file=sys.stderr)
                continue
            seen = set()
            most = 4 * FURTHER if dtype == torch.float32 else FURTHER
            for index, sample in enumerate(samples):
                call = Call(None, (sample.input, *sample.args), sample.kwargs, "", True)
                size = sum(tensor.numel() for tensor in tensors(sample))
                if size > ELEMENTS or (key := sample_kind(call)) in seen or len(seen) >= most:
                    continue
                seen.add(key)
                run(Recorder(result, info, f"reference {index}", dtype), sample, False)
        try:
            errors = list(info.error_inputs("cpu"))
        except Exception:  # OpInfo has none
            continue
        for index, error in enumerate(errors):
            recorder = Recorder(result, info, f"error {index}", torch.float32)
            recorder.errors = True
            if hasattr(error, "sample_input"):
                run(recorder, error.sample_input, False)
    modules(result)
    return result


def sample_kind(call: Call) -> Any:
    """Return what distinguishes samples of OpInfo."""
    shapes = [(t.dtype, t.is_contiguous()) for t in tree_leaves((call.args, call.kwargs))
              if isinstance(t, torch.Tensor)]  # fmt: skip
    unnamed = replace(call, operator=torch.ops.aten.relu.default, args=())
    listed = {str(i): value for i, value in enumerate(call.args)}
    return str(shapes), str(kind(replace(unnamed, kwargs=listed | call.kwargs)))


def modules(result: Further) -> None:
    """Add the calls that torch's modules make, forward and backward."""
    for info in module_db:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for training in (True, False) if dtype == torch.float32 else (True,):
                seed()
                try:
                    inputs = info.module_inputs_func(
                        info, device="cpu", dtype=dtype, requires_grad=True, training=training
                    )
                except Exception as error:
                    print(f"{info.name} {dtype}: no inputs: {error}", file=sys.stderr)
                    continue
                for index, given in spread(list(enumerate(inputs)), INPUTS):
                    recorder = Recorder(result, info, f"module {index}", dtype)
                    constructor, forward = given.constructor_input, given.forward_input
                    try:
                        module = info.module_cls(*constructor.args, **constructor.kwargs)
                        module.to(dtype).train(training)
                        with torch.inference_mode(), recorder:
                            module(*detached(forward.args), **detached(forward.kwargs))
                        with recorder:
                            output = module(*forward.args, **forward.kwargs)
                            leaves = [o for o in tree_leaves(output) if o.requires_grad]
                            torch.autograd.backward(leaves, [torch.ones_like(o) for o in leaves])
                    except Exception:  # torch lacks the dtype
                        continue


def varied(calls: list[Call]) -> list[Call]:
    """Return variants of an overload's calls at the edges of values, shapes and axes."""

    def small(call: Call) -> bool:
        sizes = [t.numel() for t in tree_leaves((call.args, call.kwargs))
                 if isinstance(t, torch.Tensor)]  # fmt: skip
        return bool(sizes) and min(sizes) > 0 and sum(sizes) <= BASE and max(sizes) > 2

    bases: dict[Any, Call] = {}
    for call in sorted(filter(small, calls), key=lambda call: call.origin != "by hand"):
        found = {t.dtype for t in tree_leaves((call.args, call.kwargs))
                 if isinstance(t, torch.Tensor)}  # fmt: skip
        dtype = next((d for d in STORED if d in found), torch.float32)
        ranks = [t.ndim for t in tree_leaves(call.args) if isinstance(t, torch.Tensor)]
        if dtype in (torch.float64, torch.complex128):
            continue
        # one of several axes tells more than one of a single axis
        if dtype not in bases or max(ranks, default=0) > bases[dtype][0]:
            bases[dtype] = max(ranks, default=0), call
    result = []
    main = bases.get(torch.float32, bases.get(torch.int64, next(iter(bases.values()), None)))
    if main is None:
        return []
    name, names = full_name(main[1].operator), argument_names(main[1].operator)
    for dtype, (_, base) in bases.items():
        arguments = fresh((base.args, base.kwargs))
        listed = [*values_of(name, arguments)]
        if base is main[1]:
            listed += [*shapes_of(name, names, arguments), *errors_of(names, arguments)]
        for title, new in listed:
            if new is not None:
                origin = f"{str(dtype).removeprefix('torch.')}: {title}"
                result.append(
                    replace(base, args=new[0], kwargs=new[1], origin=origin, own=True, variant=True)
                )
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
DTYPES = {name: dtype for dtype, name in STORED.items()}


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its mark and history."""
    return tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()


def plain(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor's values; bfloat16 as uint16."""
    tensor = plain_tensor(tensor).contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


class Store:
    """The arrays of one file: one flat array per dtype, equal parts only once."""

    def __init__(self) -> None:
        self.parts: dict[str, list[np.ndarray[Any, Any]]] = {}
        self.sizes: dict[str, int] = {}
        self.known: dict[tuple[str, bytes], int] = {}

    def value(self, value: Any) -> Any:
        """Return a value in JSON; tensors are kept and referred to."""
        if isinstance(value, Generated):
            return {"generated": [STORED[value.dtype], list(value.shape), *value.recipe]}
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

    def part(self, value: torch.Tensor | None) -> Any:
        """Return a result in JSON: of a large one, some elements."""
        if value is None or value.numel() <= LARGEST:
            return self.value(value)
        flat = plain_tensor(value).flatten()[:: every(value.numel())]
        return self.value(flat) | {"of": list(value.shape)}

    def write(self, path: Path, calls: list[dict[str, Any]]) -> None:
        """Write the file; the same content gives the same bytes."""
        text = ",\n".join(json.dumps(call, separators=(",", ":")) for call in calls)
        members = {"calls": np.frombuffer(f"[{text}]".encode(), np.uint8)}
        members |= {key: np.concatenate(self.parts[key]) for key in sorted(self.parts)}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
            for key, array in members.items():
                content = io.BytesIO()
                np.lib.format.write_array(content, array, allow_pickle=False)
                info = zipfile.ZipInfo(f"{key}.npy")
                info.compress_type = zipfile.ZIP_LZMA
                archive.writestr(info, content.getvalue())


class Unrecordable(Exception):
    """A call that cannot be recorded, with the reason."""


def arguments(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments without those that MLX has nothing for."""
    kwargs = {key: value for key, value in call.kwargs.items() if key not in DROPPED}
    if call.kwargs.get("layout") not in (None, torch.strided):
        raise Unrecordable("a sparse layout")
    return call.args, kwargs


def fresh(
    tree: Any, double: bool = False, gaps: bool = False, device: str = "cpu", after: int = 0
) -> Any:
    """Return copies of the arguments.

    If asked, they are in float64, have gaps between the elements, are on another device, or have
    so many NaN after them in memory.
    """
    wider = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64)
    wider[torch.complex64] = torch.complex128

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.detach().as_subclass(torch.Tensor).clone()
            value = torch.stack([value, value], -1)[..., 0] if gaps and value.dim() else value
            if after and (value.dtype.is_floating_point or value.dtype.is_complex):
                whole = torch.cat([value.flatten(), value.new_full((after,), math.nan)])
                value = whole[: value.numel()].view(value.shape)
            value = value.to(device)
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


def evaluate(
    call: Call,
    double: bool = False,
    wanted: list[str] | None = None,
    gaps: bool = False,
    number: int = 0,
    instead: Any = None,
) -> Results:
    """Return the results, and the gradients by argument (of those wanted) for the cotangents.

    ``number`` is the seed of random numbers, ``instead`` a function in place of the operator.
    """
    args, kwargs = fresh((call.args, call.kwargs), double, gaps)
    named = dict(zip(argument_names(call.operator), args, strict=False)) | kwargs
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
            and (part.dtype.is_floating_point or part.dtype.is_complex)
        }
    # what is written to cannot be a leaf with gradients
    for argument in call.operator._schema.arguments:
        if argument.alias_info and argument.alias_info.is_write:
            inputs.pop(argument.name, None)
    for part in inputs.values():
        part.requires_grad_()
    seed(number)
    name = full_name(call.operator)
    operator = EXACT.get(name) if double else instead
    result = (operator or REFERENCES.get(name, call.operator))(*args, **kwargs)
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
    """Return a cotangent that looks random, by a formula."""
    return made("steps", output.shape, output.dtype, index)


def slack(single: list[Any], double: list[Any], tolerance: tuple[float, float] | None) -> float:
    """Return how many times the tolerance torch's results need, at least 1."""
    worst = 0.0
    for a, b in zip(single, double, strict=False):
        if a is None or b is None or not (a.dtype.is_floating_point or a.dtype.is_complex):
            continue
        rtol, atol = tolerance or TOLERANCES.get(STORED[a.dtype], (0.0, 0.0))
        if not rtol:
            continue
        error = (a.detach().to(b.dtype) - b.detach()).abs() / (atol + rtol * b.detach().abs())
        error = error[error.isfinite()]
        worst = max(worst, float(error.max()) if error.numel() else 0.0)
    return 1.0 if worst < 0.5 else float(f"{2 * worst:.2g}")


def elsewhere(
    single: Any, other: Any, tolerance: tuple[float, float] | None
) -> torch.Tensor | None:
    """Return another result for the same arguments, if it is not close to the first one."""
    if single is None or other is None or single.shape != other.shape:
        return None
    if not (single.dtype.is_floating_point or single.dtype.is_complex):
        return None
    a, b = single.detach(), other.detach().to(single.dtype)
    rtol, atol = tolerance or TOLERANCES.get(STORED[a.dtype], (0.0, 0.0))
    return None if torch.allclose(a, b, rtol, atol, equal_nan=True) else b


def record(call: Call, store: Store) -> dict[str, Any]:
    """Return a call with torch's results."""
    args, kwargs = arguments(call)
    (outputs, grads, cotangents), able = differentiated(call)
    random_result = full_name(call.operator).split(".")[0] in UNDEFINED
    if torch.Tag.nondeterministic_seeded in call.operator.tags:
        again, other_grads, _ = evaluate(call, wanted=able, number=1)
        found, others = [*outputs, *grads.values()], [*again, *other_grads.values()]
        random_result = not all(
            torch.equal(a, b)
            for a, b in zip(detached(found), detached(others), strict=False)
            if a is not None and b is not None
        )
    big = any(isinstance(leaf, Generated) for leaf in tree_leaves((args, kwargs)))
    if sum(output.numel() for output in outputs) > LARGEST and not big:
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
    entry["out"] = [store.part(output) for output in outputs]
    if grads:
        entry["gradients"] = {key: store.part(value) for key, value in grads.items()}
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
    if random_result:
        return entry
    if (values, slopes) != (1.0, 1.0):
        entry["slack"] = [values, slopes]
    # memory that torch does not write is NaN
    torch.use_deterministic_algorithms(True, warn_only=True)
    scalar, scalar_grads, _ = evaluate(call, wanted=able, gaps=True)
    torch.use_deterministic_algorithms(False)
    kinds = [("double", wide, wide_grads), ("scalar", scalar, scalar_grads)]
    if call.origin.endswith(BROADCAST) and call.operator in DECOMPOSITIONS:
        with contextlib.suppress(Exception):  # it may reject the call
            plain = evaluate(call, wanted=able, instead=DECOMPOSITIONS[call.operator])
            kinds.append(("decomposed", *plain[:2]))
    for kind, others, slopes in kinds:
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(outputs, others, strict=False))]
        pairs += [(key, value, slopes.get(key)) for key, value in grads.items()]
        found = {key: elsewhere(a, b, call.tolerance) for key, a, b in pairs}
        if found := {key: store.part(b) for key, b in found.items() if b is not None}:
            entry[kind] = found
    return entry


def rejects(call: Call, device: str) -> bool:
    """Return whether torch rejects a call; on the device meta, its rules for shapes do."""
    try:
        call.operator(*fresh(call.args, device=device), **fresh(call.kwargs, device=device))
    except NotImplementedError:
        return False
    except Exception:
        return True
    return False


def reads_beyond(call: Call) -> bool:
    """Return whether the results of a call depend on what is in memory after its arrays."""
    found = call.operator(*fresh(call.args), **fresh(call.kwargs))
    other = call.operator(*fresh(call.args, after=MARGIN), **fresh(call.kwargs, after=MARGIN))
    pairs = zip(tree_leaves(found), tree_leaves(other), strict=True)
    return any(elsewhere(a, b, None) is not None for a, b in pairs)


def meaningful(calls: list[Call]) -> list[Call]:
    """Return the calls of an overload without those whose sizes and axes torch does not check.

    Torch accepts these, although its rules for shapes do not, or although it reads beyond the
    arrays in one of them.
    """
    accepted = [c for c in calls if c.origin.endswith(REJECTED) and not rejects(c, "cpu")]
    beyond = any(map(reads_beyond, accepted))
    unchecked = {id(call) for call in accepted if beyond or rejects(call, "meta")}
    return [call for call in calls if id(call) not in unchecked]


def entry_of(call: Call, store: Store) -> dict[str, Any]:
    """Return a call with torch's results, or with the exception that torch raises."""
    if call.error:
        return record_error(call, store)
    try:
        return record(call, store)
    except Unrecordable:
        raise
    except Exception as error:
        # a number in place of an array is not a call of the overload
        rejected = call.origin.endswith(REJECTED) and "Expected a value of type" not in str(error)
        if not (rejected or call.replayed):
            raise
        return record_error(replace(call, error=error), store)


def record_error(call: Call, store: Store) -> dict[str, Any]:
    """Return a call that torch rejects, with the exception's type and message."""
    args, kwargs = arguments(call)
    message = str(call.error).split("\n")[0]
    return {
        "call": full_name(call.operator),
        "names": [n for n in argument_names(call.operator) if n not in DROPPED],
        "origin": call.origin,
        "args": store.value(args),
        "kwargs": {key: store.value(value) for key, value in kwargs.items()},
        "out": [],
        "raises": [type(call.error).__name__, message[:100]],
    }


def replayed(operators: dict[str, Any], name: str) -> dict[str, list[Call]]:
    """Return the calls of the samples of the tests, of the overloads that this torch has."""

    def value(part: Any) -> Any:
        if isinstance(part, list):
            return [value(each) for each in part]
        if isinstance(part, Dtype):
            return DTYPES[part.name]
        if not isinstance(part, Array):
            return part
        if part.generated:
            formula, number = part.generated
            return made(formula, part.shape, DTYPES[part.dtype], number)
        tensor = torch.from_numpy(part.data.copy()).view(DTYPES[part.dtype])
        return tensor if part.contiguous else Strided(tensor)

    calls: dict[str, list[Call]] = {}
    for sample in load(name):
        if operator := operators.get(sample.overload):
            args, kwargs = value(sample.args), {k: value(v) for k, v in sample.kwargs.items()}
            limits = sample.tolerance
            call = Call(operator, tuple(args), kwargs, sample.origin, True, limits, replayed=True)
            calls.setdefault(sample.overload, []).append(call)
    return calls


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


def apart(function: Any, *args: Any) -> Any:
    """Return the result of a function in a process of its own, or None if that ends or hangs."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=lambda: sender.send(function(*args))
    )
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(LONGEST) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Record the samples of all names, or of some."""
    operators = schema_names()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="the names to record again; all by default")
    parser.add_argument("--into", type=Path, default=SAMPLES, help="the folder of the files")
    parser.add_argument("--wide", action="store_true", help="far more calls; needs --into")
    parser.add_argument("--seed", type=int, default=0, help="other random numbers; needs --into")
    parser.add_argument("--replay", action="store_true", help="the recorded calls; needs --into")
    options = parser.parse_args()
    if (options.wide or options.seed or options.replay) and options.into == SAMPLES:
        parser.error("the samples of the tests are recorded without these options: give --into")
    only = set(options.names)
    if unknown := sorted(only - {name.split(".")[0] for name in operators}):
        parser.error(f"no list or not this torch has {', '.join(unknown)}")
    limits = replace(WIDE if options.wide else KEPT, seed=options.seed)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    # without a GPU, it would only keep the place of each of many calls: half of the time
    torch.cuda.manual_seed_all = lambda number: None
    start = time.monotonic()
    by_name: dict[str, list[str]] = {}
    for full in operators:
        by_name.setdefault(full.split(".")[0], []).append(full)
    collected, others, edges, large = Harvest(operators), Further(operators), {}, {}
    if not options.replay:
        collected = harvest(operators, limits, only)
        supplement(collected)
        for name, calls in collected.calls.items():
            collected.calls[name] = thinned(calls, limits)
        others = others if options.wide else further(operators, collected)
        edges, large = at_edges(), large_calls()
    extended = not (options.wide or options.replay)
    print(f"calls collected: {time.monotonic() - start:.0f} s")
    options.into.mkdir(parents=True, exist_ok=True)

    def recorded(name: str, with_variants: bool) -> tuple[list[str], list[str]]:
        store, entries = Store(), []
        missing, messages = [], []
        calls = replayed(operators, name) if options.replay else collected.calls
        for full in by_name[name]:
            own = len(entries)
            found = list(calls.get(full, []))
            for *args, kwargs in edges.get(full, []):
                found.append(Call(operators[full], tuple(args), kwargs, "at an edge", True))
            variants = varied(found) if with_variants else []
            found += others.calls.get(full, [])
            for *args, kwargs in large.get(full, []):
                found.append(Call(operators[full], tuple(args), kwargs, "large", True))
            for call in meaningful(found + variants):
                try:
                    entries.append(entry_of(call, store))
                except Unrecordable:
                    continue
                except Exception as error:
                    if not call.variant:
                        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                        messages.append(f"{full}: {call.origin}: {reason}")
            if len(entries) == own:
                missing.append(full)
        if entries:
            store.write(options.into / f"{name}.npz", entries)
        return missing, messages

    missing = []
    for name in sorted(by_name):
        if not only or name in only:
            # torch does not check the sizes of all arrays, and may end the process
            found = apart(recorded, name, extended)
            found = found or (apart(recorded, name, False) if extended else None)
            lacking, messages = found or (by_name[name], [f"{name}: torch ends the process"])
            missing += lacking
            print(*messages, sep="\n", end="\n" if messages else "", file=sys.stderr)
    print("no samples:", *missing)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
