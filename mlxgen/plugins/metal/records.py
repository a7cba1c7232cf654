"""The data format of recorded calls of `mx.fast.metal_kernel`: a JSON file per kernel in a folder.

A kernel is what `mx.fast.metal_kernel` gets; a call is what its function gets. Calls that differ
only in the elements of arrays are recorded once. Further runs add their calls to the files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

MOST_CALLS = 500  # of a kernel; a growing cache makes a new one in each step


class RecordError(ValueError):
    """A file of records cannot be read."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Array(_Data):
    """An array.

    Attributes:
        shape: Its shape.
        dtype: The name of its dtype, without `mlx.core.`.
        low: The smallest element, if it is an input of integers whose elements are known.
        high: The largest element of such an input.
    """

    shape: tuple[int, ...]
    dtype: str
    low: int | None = None
    high: int | None = None

    @property
    def plain(self) -> Array:
        """The array without its smallest and largest elements."""
        return Array(shape=self.shape, dtype=self.dtype)

    def joined(self, other: Array) -> Array:
        """Return the array with the smallest and largest elements of both, as far as known."""
        low = min((n for n in (self.low, other.low) if n is not None), default=None)
        high = max((n for n in (self.high, other.high) if n is not None), default=None)
        return Array(shape=self.shape, dtype=self.dtype, low=low, high=high)


class Number(_Data):
    """A number as an input."""

    value: bool | int | float


class Constant(_Data):
    """A template argument that is a number."""

    name: str
    value: bool | int


class TypeName(_Data):
    """A template argument that is a dtype."""

    name: str
    dtype: str


class Call(_Data):
    """A call of a kernel's function.

    Attributes:
        inputs: The inputs, in the order of the names.
        outputs: The outputs, in the order of the names.
        template: The template arguments.
        grid: The number of threads along three axes.
        threadgroup: The number of threads of a threadgroup along three axes.
        init_value: The initial value of the outputs; None if they have none.
        with_gradient: The call is part of an `mx.custom_function`, which may define a gradient.
    """

    inputs: tuple[Array | Number, ...]
    outputs: tuple[Array, ...]
    template: tuple[Constant | TypeName, ...] = ()
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    init_value: float | None = None
    with_gradient: bool = False

    @property
    def plain(self) -> Call:
        """The call without elements of its inputs."""
        inputs = tuple(i.plain if isinstance(i, Array) else i for i in self.inputs)
        return self.model_copy(update={"inputs": inputs})

    def joined(self, other: Call) -> Call:
        """Return the call with the elements of another one that is equal without them."""
        inputs = tuple(
            a.joined(b) if isinstance(a, Array) and isinstance(b, Array) else a
            for a, b in zip(self.inputs, other.inputs, strict=True)
        )
        return self.model_copy(update={"inputs": inputs})


class Kernel(_Data):
    """The arguments of `mx.fast.metal_kernel`."""

    name: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    source: str
    header: str = ""
    ensure_row_contiguous: bool = True
    atomic_outputs: bool = False

    @property
    def file(self) -> str:
        """The name of its file: kernels of one name can have several sources."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', self.name)[:100]}-{digest[:8]}.json"


class Record(_Data):
    """A kernel with its calls."""

    kernel: Kernel
    calls: tuple[Call, ...]

    @model_validator(mode="after")
    def _fits(self) -> Record:
        names = self.kernel.input_names, self.kernel.output_names
        if any((len(c.inputs), len(c.outputs)) != tuple(map(len, names)) for c in self.calls):
            raise ValueError("a call has other inputs or outputs than the kernel")
        return self


def read(path: Path) -> Record:
    """Return the record in a file.

    Raises:
        RecordError: If it has another content.
        OSError: If it cannot be read.
    """
    try:
        return Record.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        reason = f"{place}: {first['msg']}" if place else first["msg"]
        raise RecordError(
            f"{os.path.relpath(path)} is not a record of a kernel: {reason}"
        ) from None


def join(known: dict[Call, Call], call: Call) -> Call:
    """Add a call to known ones by their plain calls, and return its plain call."""
    plain = call.plain
    if plain in known or len(known) < MOST_CALLS:
        known[plain] = known[plain].joined(call) if plain in known else call
    return plain


def add(folder: Path, kernel: Kernel, calls: Iterable[Call]) -> None:
    """Add calls to the file of a kernel, which is written whole or not at all.

    Raises:
        RecordError: If the file has another content.
        OSError: If it cannot be written.
    """
    path = folder / kernel.file
    known: dict[Call, Call] = {}
    for call in (*(read(path).calls if path.exists() else ()), *calls):
        join(known, call)
    made = path.with_name(f".{path.name}.{os.getpid()}")
    record = Record(kernel=kernel, calls=tuple(known.values()))
    made.write_text(record.model_dump_json(indent=1, exclude_defaults=True), "utf-8")
    made.replace(path)
