"""Reads the recorded samples of aten/tests/samples: torch's results without torch.

Each file holds the calls of one ATen name, as tools/record.py wrote them: a zip of NumPy arrays,
one flat array per dtype, and a JSON text ``calls`` that refers to parts of them. bfloat16, which
NumPy lacks, is stored as uint16.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from generated import every, stored

SAMPLES = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class Array:
    """A recorded array. ``contiguous`` is false where torch's tensor had gaps or another order."""

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray[Any, Any]
    contiguous: bool = True
    #: of a large result, some elements are recorded: those of the flat array with this step
    step: int = 1
    #: the formula of generated.py and its number, for an array that is not stored
    generated: tuple[str, int] | None = None


@dataclass(frozen=True)
class Dtype:
    """A dtype as an argument, by its name in torch."""

    name: str


@dataclass
class Sample:
    """One call: arguments, torch's results, and its gradients for the cotangents."""

    overload: str
    origin: str
    args: list[Any]
    kwargs: dict[str, Any]
    out: list[Any]
    #: names of the arguments of the overload, in order
    names: list[str]
    #: by name (``self``, or ``tensors.0`` in a list of arrays); an array, or None for zeros
    gradients: dict[str, Any] = field(default_factory=dict)
    cotangents: list[Any] = field(default_factory=list)
    #: how many times torch's own tolerance is allowed, for values and for gradients: more than
    #: one where torch's result is itself that far from the one that it computes in float64
    slack: tuple[float, float] = (1.0, 1.0)
    #: relative and absolute tolerance that OpInfo sets, if it does
    tolerance: tuple[float, float] | None = None
    #: per result: what is compared where the result is free up to a phase
    gauge: list[str | None] = field(default_factory=list)
    #: results that are random: only shapes and dtypes are compared
    random: bool = False
    #: by index of the result, or by argument: the result that torch computes in float64, if it is
    #: not close
    double: dict[str, Any] = field(default_factory=dict)
    #: likewise, the result of torch's code for single elements, instead of that for vectors
    scalar: dict[str, Any] = field(default_factory=dict)
    #: likewise, that of torch's decomposition of a call whose arrays are broadcast
    decomposed: dict[str, Any] = field(default_factory=dict)
    #: type and message of the exception that torch raises
    raises: tuple[str, str] | None = None

    @functools.cached_property
    def identity(self) -> str:
        """Eight digits that depend on the call, not on its place among the others."""
        digest = hashlib.sha256(f"{self.overload} {sorted(self.kwargs)}".encode())

        def add(value: Any) -> None:
            if isinstance(value, (list, dict)):
                for part in value if isinstance(value, list) else value.values():
                    add(part)
            elif isinstance(value, Array):
                digest.update(f"{value.dtype} {value.shape} {value.contiguous}".encode())
                digest.update(value.data.tobytes())
            else:
                digest.update(repr(value).encode())

        add(self.args)
        add({key: self.kwargs[key] for key in sorted(self.kwargs)})
        return digest.hexdigest()[:8]


def names() -> list[str]:
    """Return the names that have samples."""
    return sorted(path.stem for path in SAMPLES.glob("*.npz"))


def load(name: str, folder: Path = SAMPLES) -> list[Sample]:
    """Return the samples of a name, or none."""
    path = folder / f"{name}.npz"
    if not path.exists():
        return []
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    calls = json.loads(arrays.pop("calls").tobytes())

    def value(entry: Any) -> Any:
        if isinstance(entry, list):
            return [value(part) for part in entry]
        if not isinstance(entry, dict):
            return entry
        if "dtype" in entry:
            return Dtype(entry["dtype"])
        if "complex" in entry:
            return complex(*entry["complex"])
        if "generated" in entry:
            dtype, shape, formula, seed = entry["generated"]
            data = stored(dtype, shape, formula, seed)
            return Array(dtype, tuple(shape), data, generated=(formula, seed))
        dtype, shape, start, *strided = entry["array"]
        size = int(np.prod(shape, dtype=np.int64))
        data = arrays[dtype][start : start + size].reshape(shape)
        if "of" in entry:
            whole = tuple(entry["of"])
            return Array(dtype, whole, data, step=every(int(np.prod(whole, dtype=np.int64))))
        return Array(dtype, tuple(shape), data, not strided)

    return [
        Sample(
            overload=call["call"],
            origin=call["origin"],
            args=value(call["args"]),
            kwargs={key: value(entry) for key, entry in call["kwargs"].items()},
            out=value(call["out"]),
            names=call["names"],
            gradients={key: value(entry) for key, entry in call.get("gradients", {}).items()},
            cotangents=value(call.get("cotangents", [])),
            slack=tuple(call.get("slack", (1.0, 1.0))),
            tolerance=tuple(call["tolerance"]) if "tolerance" in call else None,
            gauge=call.get("gauge", []),
            random=call.get("random", False),
            double={key: value(entry) for key, entry in call.get("double", {}).items()},
            scalar={key: value(entry) for key, entry in call.get("scalar", {}).items()},
            decomposed={key: value(entry) for key, entry in call.get("decomposed", {}).items()},
            raises=tuple(call["raises"]) if "raises" in call else None,
        )
        for call in calls
    ]


def arrays_of(sample: Sample) -> list[Array]:
    """Return the arrays among the arguments of a sample."""
    values = [*sample.args, *sample.kwargs.values()]
    flat = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return [value for value in flat if isinstance(value, Array)]
