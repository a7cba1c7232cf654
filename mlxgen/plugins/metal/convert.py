"""Converts recorded kernels of `mx.fast.metal_kernel` to entries and Metal files.

An entry describes calls of one form: inputs of the same kinds, and template arguments that are
bools. Recorded calls of several forms become several entries. Numbers that differ between calls
become formulas of sizes (formulas.py), or else arguments. Dtypes that differ become T, and ranks
that differ leading axes. All others are constants, and the axes of the entry then allow only the
recorded sizes.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any

from ...formula.values import INT_MAX
from ...model.dtypes import INTEGER, LIMITS, METAL_TYPES
from ...model.names import free
from ...read.names import better, clash, cpp_names, meanings
from ..common.entries import Inline
from .formulas import ENOUGH, Formula, Numbers, Sizes, constant, size, times
from .records import Array, Call, Constant, Kernel, Number, Record, TypeName
from .signature import ATTRIBUTES, MOST_CONSTANT, Declared, named_type

Shape = tuple[int, ...]
_SAMPLES = 2
_RESERVED = ("accumulator", "max_threads")  # in entries with kernels
_AXES = [*"BTHDKLMNPQRUVWXYZ", *(f"{letter}{i}" for letter in "AB" for i in range(1, 50))]
_UTILS = '#include "mlx/backend/metal/kernels/utils.h"'  # as MLX does


class Unfit(Exception):
    """The calls cannot be one entry; the text is the reason.

    Attributes:
        part: Returns what calls with an entry of their own have in common.
    """

    def __init__(self, reason: str, part: Callable[[Call], object] = lambda call: None) -> None:
        super().__init__(reason)
        self.part = part


@dataclass
class Entry:
    """An entry with its kernel."""

    name: str
    keys: dict[str, Any]
    metal: str  # the text of the file
    notes: list[str]  # sentences for the comment above the entry
    # The recorded calls, the names of their inputs, and the numbers of further arguments.
    calls: Sequence[Call]
    inputs: Sequence[str]
    asked: Mapping[str, Numbers]


@dataclass
class Names:
    """The names of operators that are in use."""

    taken: set[str] = field(default_factory=set)

    def new(self, kernel: str) -> str:
        """Return a name for the operator of a kernel."""
        name = re.sub(r"\W", "_", kernel, flags=re.ASCII)
        if not name.isidentifier() or clash(name, "an operator") or name.startswith("_"):
            name = better(name if name[:1].isalpha() else f"kernel_{name}", "an operator")
        found, number = name, 2
        while found in self.taken:
            found, number = f"{name}_{number}", number + 1
        self.taken.add(found)
        return found


def convert(record: Record, names: Names) -> Iterator[Entry | Unfit]:
    """Yield the entries of a kernel, and reasons for calls that cannot be entries."""
    zeros = {
        argument.name
        for call in record.calls
        for argument in call.template
        if isinstance(argument, Constant) and int(argument.value) < 1
    }
    for calls in _grouped(record.calls, lambda call: _form(call, zeros)):
        yield from _entries(record.kernel, calls, names)


def _entries(kernel: Kernel, calls: Sequence[Call], names: Names) -> Iterator[Entry | Unfit]:
    """Yield as few entries as calls of one form need."""
    try:
        yield _fitting(kernel, calls).entry(names)
    except Unfit as reason:
        parts = _grouped(calls, reason.part)
        if len(parts) == 1:
            yield reason
        else:
            for part in parts:
                yield from _entries(kernel, part, names)


def _fitting(kernel: Kernel, calls: Sequence[Call]) -> _Converter:
    """Return the converter whose entry needs the fewest further arguments.

    Axes of outputs can depend on template parameters, and template parameters on these axes.

    Raises:
        Unfit: If the calls cannot be one entry.
    """
    first = _Converter(kernel, calls)
    first.fit()
    found = []
    for arguments in chain.from_iterable(combinations(first.unexplained, n) for n in (1, 2)):
        found.append(_Converter(kernel, calls))
        found[-1].fit(arguments)
    # Of several, the one with the most template parameters, whose names people know.
    return min([*reversed(found), first], key=lambda converter: len(converter.asked))


def _grouped(calls: Iterable[Call], key: Callable[[Call], object]) -> list[list[Call]]:
    found: dict[str, list[Call]] = {}
    for call in calls:
        found.setdefault(repr(key(call)), []).append(call)
    return [*found.values()]


def _form(call: Call, zeros: set[str]) -> object:
    """Return the form of a call: what all calls of an entry have in common."""
    inputs = [
        str(bool(i.shape)) if isinstance(i, Array) else type(i.value).__name__ for i in call.inputs
    ]
    template = [
        (a.name, a.value)
        if isinstance(a, Constant) and (isinstance(a.value, bool) or a.name in zeros)
        else (a.name, type(a).__name__)
        for a in call.template
    ]
    return (*inputs, *template, call.init_value)


def _ranks(call: Call) -> object:
    """Return the ranks of a call's arrays."""
    arrays = (*call.inputs, *call.outputs)
    return [len(array.shape) for array in arrays if isinstance(array, Array)]


class _Converter:
    """Converts calls of one form."""

    def __init__(self, kernel: Kernel, calls: Sequence[Call]) -> None:
        self.kernel, self.calls = kernel, calls
        self.first = calls[0]
        # The arrays and numbers of all calls, by the position of the input.
        self.arrays: dict[int, list[Array]] = {}
        self.numbers: dict[int, list[bool | int | float]] = {}
        for i, values in enumerate(zip(*(call.inputs for call in calls), strict=True)):
            if isinstance(values[0], Array):
                self.arrays[i] = [value for value in values if isinstance(value, Array)]
            else:
                self.numbers[i] = [value.value for value in values if isinstance(value, Number)]
                if any(abs(value) > INT_MAX for value in self.numbers[i] if type(value) is int):
                    raise Unfit(f"{kernel.input_names[i]} has more than 32 bits")
        # The values of template parameters in all calls, by name.
        self.dtypes: dict[str, list[str]] = {}
        self.integers: dict[str, list[bool | int]] = {}
        for arguments in zip(*(call.template for call in calls), strict=True):
            name = arguments[0].name
            if isinstance(arguments[0], TypeName):
                self.dtypes[name] = [a.dtype for a in arguments if isinstance(a, TypeName)]
            else:
                self.integers[name] = [a.value for a in arguments if isinstance(a, Constant)]
        self.words = {*re.findall(r"\w+", kernel.source + kernel.header)}
        self.taken = {*self.words, *kernel.input_names, *kernel.output_names, "max_threads", "T"}
        self.taken |= {argument.name for argument in self.first.template}
        self.sizes = Sizes(len(calls), known=_constants(kernel, calls))
        self.fixed: set[int] = set()  # axes of inputs that are equal in all calls
        self.open: list[str] = []  # what the calls leave open, for the comment
        self.asked: dict[str, Numbers] = {}  # further arguments: no formula gives them
        self.checks: list[dict[str, str]] = []

    # -- names

    def _free(self, name: str) -> str:
        name = free(name, "arg", lambda n: n in self.taken or bool(clash(n, "an argument")))
        self.taken.add(name)
        return name

    def _argument(self, name: str, value: Array | Number) -> str:
        """Return the name of an argument; without axes, the kernel has a reference of its own."""
        if isinstance(value, Array) and not value.shape:
            return self._free(f"{name}_array")
        return self._free(f"{name}_in") if self._is_reserved(name, "an argument") else name

    def _is_reserved(self, name: str, what: str) -> bool:
        names = self.kernel.input_names, self.kernel.output_names
        return clash(name, what) is not None or name in {*meanings(*names), *_RESERVED}

    # -- the parts of an entry

    def fit(self, arguments: Sequence[str] = ()) -> None:
        """Find names, types and formulas.

        Args:
            arguments: The template parameters that are further arguments.

        Raises:
            Unfit: If the calls cannot be one entry.
        """
        kernel, first = self.kernel, self.first
        pairs = list(zip(kernel.input_names, first.inputs, strict=True))
        self.inputs = [self._argument(name, value) for name, value in pairs]
        self.outputs = [
            self._free(f"{name}_out") if self._is_reserved(name, "an output") else name
            for name in kernel.output_names
        ]
        if not self.arrays:
            raise Unfit("it has no array as an input, which an operator with a kernel needs")
        self._set_types()
        self.axes = self._input_axes()
        varied = {name: own for name, own in self._numbers().items() if len(set(own)) > 1}
        self.unexplained = [
            n for n, own in varied.items() if not self.sizes.formula(own, simple=True)
        ]
        for name in arguments:
            self._ask(self._free(name.lower()), varied[name])
        outputs = self._output_axes()
        self.axes |= outputs
        computed = [axis for own in outputs.values() for axis in own if axis.kind != "size"]
        self.sizes.more += [replace(axis, cost=1.3, exact=()) for axis in computed]
        self.template = self._template()
        for name, own in outputs.items():
            self._add_size(name, own)
            self.sizes.more += _shape(name, own)
        self.threadgroup = self._extents("threadgroup", [call.threadgroup for call in self.calls])
        self.grid = self._extents("grid", [call.grid for call in self.calls])
        self.initial = [] if first.init_value is None else [*self._initial()]

    def entry(self, names: Names) -> Entry:
        """Return the entry; `fit` comes before."""
        kernel = self.kernel
        name = names.new(kernel.name)
        function = self._free(f"{name}_kernel") if name in self.words else name
        launch: dict[str, Any] = {"kernel": function, "grid": self.grid}
        launch["threadgroup"] = self.threadgroup
        if self.template:
            launch["template"] = self.template
        keys: dict[str, Any] = {
            "signature": self._signature(name),
            "dispatch": {"metal": launch},
            "axes": _merged({name: _axes(own) for name, own in self.axes.items()}),
            "dtypes": _merged({self.inputs[i]: types for i, types in self.types.items()}),
        }
        if any(self.of_output):
            of = next((f"{self.inputs[i]}.dtype" for i in self.types if self._is_element(i)), "")
            named = zip(self.outputs, self.of_output, strict=True)
            keys["dtype"] = _merged({output: dtype or of for output, dtype in named})
        if self.initial:
            keys["init"] = _merged(dict(zip(self.outputs, self.initial, strict=True)))
        if strided := [self.inputs[i] for i in self.arrays if self._is_strided(i)]:
            keys["strided"] = strided
        if self.checks:
            keys["checks"] = self.checks
        if any("float" in array.dtype for arrays in self.arrays.values() for array in arrays):
            keys["grad"] = "todo" if any(call.with_gradient for call in self.calls) else "none"
        keys["samples"] = self._samples()
        about = self.calls, self.inputs, self.asked
        return Entry(name, keys, self._metal(function), self._comments(), *about)

    def _is_element(self, i: int) -> bool:
        return isinstance(self.types[i], list)

    def _set_types(self) -> None:
        """Find the arrays whose dtypes are T, and the dtype of each other one."""
        inputs = {i: [array.dtype for array in arrays] for i, arrays in self.arrays.items()}
        outputs = [[call.outputs[i].dtype for call in self.calls] for i in range(len(self.outputs))]
        every = {d for own in (*inputs.values(), *outputs) for d in own}
        for dtype in sorted(every):
            if ("bool_" if dtype == "bool" else dtype) not in METAL_TYPES:
                raise Unfit(f"kernels of entries have no {dtype}")
        varied = [own for own in inputs.values() if len(set(own)) > 1]
        self.group = max(varied, key=varied.count, default=[])
        for i, own in inputs.items():
            if len(set(own)) > 1 and own != self.group:
                raise Unfit(
                    "the dtypes of its inputs vary in different ways", _dtype_of("inputs", i)
                )
        for i, own in enumerate(outputs):
            if len(set(own)) > 1 and own != self.group:
                reason = "the dtypes of its outputs do not follow from those of its inputs"
                raise Unfit(reason, _dtype_of("outputs", i))
        # T is "" for an output, and a list for an input.
        self.of_output = ["" if own == self.group else own[0] for own in outputs]
        self.types: dict[int, str | list[str]] = {
            i: [*dict.fromkeys(own)] if own == self.group else own[0] for i, own in inputs.items()
        }
        self.element = ""
        self.types_by_name: dict[str, str] = {}  # in the kernel
        positions = [argument.name for argument in self.first.template]
        for name, own in self.dtypes.items():
            if own != self.group and len(set(own)) > 1:
                reason = f"its template argument {name} varies on its own"
                raise Unfit(reason, _dtype_of("template", positions.index(name)))
            if own != self.group:
                self.types_by_name[name] = named_type(own[0])
            elif not self.element:
                self.element = name
            else:
                self.types_by_name[name] = self.element
        if not self.element:
            used = {*self.words, *self.kernel.input_names, *self.dtypes, *self.integers}
            self.element = self._free("T") if "T" in used else "T"

    def _numbers(self) -> dict[str, Numbers]:
        """Return the values of the template parameters that are numbers."""
        return {name: tuple(map(int, given)) for name, given in self.integers.items()}

    def _input_axes(self) -> dict[str, list[Formula]]:
        """Return the axes of the inputs; name sizes that differ between calls."""
        named = self.sizes.named
        for i, values in self.numbers.items():
            whole = tuple(value for value in values if type(value) is int)
            if len(whole) == len(values) and len(set(whole)) > 1:
                named[self.inputs[i]] = whole
        letters = (name for name in _AXES if name not in self.taken)
        found: dict[str, list[Formula]] = {}
        leading = self._leading()
        for i, arrays in self.arrays.items():
            axes, shapes = _after(leading, [array.shape for array in arrays])
            for numbers in zip(*shapes, strict=True):
                equal = (name for name, own in named.items() if own == numbers)
                if len(set(numbers)) == 1:
                    axes.append(str(numbers[0]))
                    self.fixed |= {*numbers} - {1}
                else:
                    axes.append(next(equal, "") or next(letters))
                    named[axes[-1]] = numbers
            found[self.inputs[i]] = [constant(int(a)) if a.isdigit() else size(a) for a in axes]
        if any(leading):
            self.sizes.hidden["..."] = tuple(map(math.prod, leading))
        for name, own in found.items():
            self._add_size(name, own)
        return found

    def _add_size(self, array: str, axes: Sequence[Formula]) -> None:
        """Add the number of elements of an array to the sizes that formulas can contain."""
        if len(axes) > 1 or [axis.text for axis in axes] == ["..."]:
            of = replace(times(*axes), text=f"{array}.size", cost=1.2, kind="size", exact=())
            self.sizes.more.append(of)

    def _leading(self) -> list[Shape]:
        """Return the leading axes of each call, without which the ranks of calls are equal."""
        found: list[Shape] = []
        for arrays in self.arrays.values():
            least = min(len(array.shape) for array in arrays)
            leading = [array.shape[: len(array.shape) - least] for array in arrays]
            if any(leading) and found not in ([], leading):
                raise Unfit("the ranks of its inputs vary in different ways", _ranks)
            found = leading if any(leading) else found
        self.leading = found or [()] * len(self.calls)
        return self.leading

    def _find(self, role: str, place: str, numbers: Numbers, *, axis: bool = False) -> Formula:
        """Return a formula, or a further argument.

        Args:
            role: The name of the argument.
            place: The part of the entry, for the comment.
            numbers: The number of each call.
            axis: The formula is an axis of an output.
        """
        key = place.partition(" ")[0]
        found = self.sizes.formula(numbers, axis=axis, grid=key == "grid")
        if found is None and key in ("grid", "threadgroup"):  # no formulas of such numbers
            equal = (name for name, own in self.asked.items() if own == numbers)
            name = next(equal, None) or self._free(role)
            self.asked[name], found = numbers, size(name)
        found = found or self._ask(self._free(role), numbers)
        self._explain(place, found)
        return found

    def _ask(self, name: str, numbers: Numbers) -> Formula:
        """Return a further argument."""
        self.asked[name] = self.sizes.named[name] = numbers
        return size(name)

    def _explain(self, place: str, formula: Formula) -> None:
        """Note what the calls leave open about a formula; check that its divisions are exact."""
        self.open += [f"{place} is `{formula.text}`: {note}." for note in formula.notes]
        for a, b in formula.exact:
            that = f"{a.factor} % {b.operand} == 0"
            check = {"that": that, "else": f"{a.text} must be a multiple of {b.text}"}
            if check not in self.checks:
                self.checks.append(check)

    def _template(self) -> dict[str, Any]:
        """Return the integer template parameters that are formulas."""
        found: dict[str, Any] = {}
        for name, numbers in self._numbers().items():
            values = sorted({*numbers})
            if len(values) > 1:
                of = self._find(name.lower(), name, numbers)
            elif values[0] > 1 and (ratio := self.sizes.ratio(values[0])):
                of = replace(ratio, notes=(f"it can also be {values[0]} always",))
                self._explain(name, of)
            else:
                continue
            if of.text not in self.sizes.named:
                self.sizes.more.append(replace(of, text=name, cost=1.1, kind="size", exact=()))
            listed = ", ".join(map(str, values))
            that = " or ".join(f"{of.text} == {value}" for value in values)
            self.checks.append(
                {"that": that, "else": f"{name}, which is {of.text}, must be one of {listed}"}
            )
            found[name] = Inline(of=of.text, values=values)
        return found

    def _output_axes(self) -> dict[str, list[Formula]]:
        """Return the axes of the outputs."""
        found = {}
        for i, name in enumerate(self.outputs):
            given = [call.outputs[i].shape for call in self.calls]
            leading, shapes = _after(self.leading, given)
            found[name] = [*map(size, leading)]
            for numbers in zip(*shapes, strict=True):
                of = self._find(f"{name}_size", f"an axis of {name}", numbers, axis=True)
                found[name].append(of)
        return found

    def _initial(self) -> Iterator[int | float | str]:
        """Yield the initial value of each output, which MLX converts to its dtype."""
        value = self.first.init_value or 0
        whole = math.trunc(value) if math.isfinite(value) else None
        for i in range(len(self.outputs)):
            integers = {call.outputs[i].dtype for call in self.calls} & {*INTEGER}
            for low, high in map(LIMITS.__getitem__, integers):
                if whole is None or not low <= whole <= high:
                    names = ", ".join(sorted(integers))
                    raise Unfit(f"the initial value {value} of its outputs is not valid {names}")
            yield str(value) if whole is None else whole if integers or whole == value else value

    def _extents(self, key: str, given: Sequence[tuple[int, int, int]]) -> list[int | str]:
        found = []
        for axis, numbers in zip("xyz", zip(*given, strict=True), strict=True):
            of = self._find(f"{key}_{axis}", f"{key} {axis}", numbers)
            found.append(of)
            if key == "threadgroup" and of.constant is None:
                if of.text not in self.sizes.named | self.asked:
                    self.sizes.more.append(replace(of, cost=1.5, exact=()))
                if "min(" not in of.text:
                    note = "a call for which it exceeds 1024 shows whether it has a bound"
                    self.open.append(f"{key} {axis} is `{of.text}`: {note}.")
        while len(found) > 1 and found[-1].constant == 1:
            found.pop()
        return [each.text if each.constant is None else each.constant for each in found]

    def _is_strided(self, i: int) -> bool:
        """Return whether the kernel reads an input by its strides."""
        used = f"{self.kernel.input_names[i]}_strides" in self.kernel.source
        return used and not self.kernel.ensure_row_contiguous and bool(self.arrays[i][0].shape)

    def _signature(self, name: str) -> str:
        required = [f"{self.inputs[i]}: array" for i in self.arrays]
        optional = []
        for i, values in self.numbers.items():
            text = f"{self.inputs[i]}: {type(values[0]).__name__}"
            if len(set(values)) == 1 and math.isfinite(values[0]):
                optional.append(f"{text} = {values[0]}")
            else:
                required.append(text)
        required += [f"{name}: int" for name in self.asked]
        outputs = [f"{output}: array" for output in self.outputs]
        result = "array" if self.outputs == ["out"] else f"({', '.join(outputs)})"
        return f"{name}({', '.join([*required, *optional])}) -> {result}"

    def _samples(self) -> list[dict[str, Any]]:
        """Return samples of small calls, which have all recorded values of template parameters."""

        def elements(position: int) -> int:
            call = self.calls[position]
            return sum(math.prod(a.shape) for a in call.inputs if isinstance(a, Array))

        found: list[dict[str, Any]] = []
        instances = set()
        for position in sorted(range(len(self.calls)), key=elements):
            instance = tuple(given[position] for given in self.integers.values())
            if instance in instances and len(found) >= _SAMPLES:
                continue
            instances.add(instance)
            sample: dict[str, Any] = {}
            for name, value in zip(self.inputs, self.calls[position].inputs, strict=True):
                if isinstance(value, Array):
                    sample[name] = Inline(shape=[*value.shape])
                    if value.low is not None:
                        sample[name].update(low=value.low, high=value.high)
                else:
                    sample[name] = value.value
            sample |= {name: numbers[position] for name, numbers in self.asked.items()}
            if sample not in found:
                found.append(sample)
        return found

    def _comments(self) -> list[str]:
        """Return the lines of the comment."""
        calls = "one recorded call" if len(self.calls) == 1 else f"{len(self.calls)} recorded calls"
        notes = [f"{self.kernel.name} of mx.fast.metal_kernel, from {calls}."]
        if not self.sizes.named and not self.sizes.hidden:
            notes.append("All sizes are constants; record calls with other sizes for formulas.")
        elif self.fixed:
            listed = ", ".join(map(str, sorted(self.fixed)))
            notes.append(
                f"Equal in all calls, so constants: {listed}. Calls with others make axes."
            )
        if self.asked:
            what = "an argument" if len(self.asked) == 1 else "arguments"
            names = ", ".join(self.asked)
            notes.append(f"{names}: {what}, because no formula of the sizes gives the numbers.")
            if any(len(set(own)) < ENOUGH for own in self.asked.values()):
                notes.append("A call with other sizes may show one.")
        copied = [self.inputs[i] for i in self.arrays if not self._is_strided(i)]
        if not self.kernel.ensure_row_contiguous and copied:
            names = ", ".join(copied)
            notes.append(f"Copied if not row-contiguous, as their strides are not read: {names}.")
        return [line for note in [*notes, *self.open] for line in textwrap.wrap(note, 96)]

    # -- the Metal file

    def _metal(self, function: str) -> str:
        kernel = self.kernel
        declared = Declared(
            *(kernel.name, kernel.input_names, kernel.output_names, kernel.source, kernel.header),
            *(kernel.ensure_row_contiguous, kernel.atomic_outputs),
        )
        shown = dict(zip(self.inputs, cpp_names(self.inputs), strict=True))
        params: list[str] = []
        aliases: list[str] = []

        def add(space: str, kind: str, mark: str, new: str, old: str) -> None:
            params.append(f"{space} {kind}{mark} {new} [[buffer({len(params)})]]")
            if new != old:
                aliases.append(f"{space} {kind}{mark} {old} = {new};")

        for i, arrays in self.arrays.items():
            new, old, types = shown[self.inputs[i]], kernel.input_names[i], self.types[i]
            kind = named_type(types) if isinstance(types, str) else self.element
            small = math.prod(arrays[0].shape) < MOST_CONSTANT  # as in MLX
            few = small and len({array.shape for array in arrays}) == 1
            if arrays[0].shape:
                add(f"const {'constant' if few else 'device'}", kind, "*", new, old)
            else:
                add("const constant", kind, "*", new, new)
                aliases.append(f"const constant {kind}& {old} = *{new};")
        for new, old, dtype in zip(self.outputs, kernel.output_names, self.of_output, strict=True):
            kind = named_type(dtype) if dtype else self.element
            add("device", f"atomic<{kind}>" if kernel.atomic_outputs else kind, "*", new, old)
        for i, values in self.numbers.items():
            new, old = shown[self.inputs[i]], kernel.input_names[i]
            add("const constant", type(values[0]).__name__, "&", new, old)
        infos = (("int", "*", "shape"), ("int64_t", "*", "strides"), ("int", "&", "ndim"))
        for i, arrays in self.arrays.items():
            new, old = shown[self.inputs[i]], kernel.input_names[i]
            for (kind, mark, word), used in zip(infos, declared.infos[i], strict=True):
                if used and arrays[0].shape:
                    add("const constant", kind, mark, f"{new}_{word}", f"{old}_{word}")
        for attribute, kind in ATTRIBUTES.items():
            if attribute in kernel.source:
                params.append(f"{kind} {attribute} [[{attribute}]]")
        aliases += [f"using {name} = {kind};" for name, kind in self.types_by_name.items()]
        whole = []
        for name, given in self.integers.items():
            if name in self.template:
                whole.append(f"int {name}")
            else:
                kind = type(given[0]).__name__
                aliases.append(f"constexpr {kind} {name} = {str(given[0]).lower()};")
        parameters = ", ".join([f"typename {self.element}", *whole])
        lines = [
            f"// Written by mlxgen import from `{kernel.name}` of mx.fast.metal_kernel.",
            _UTILS + "\n",
            *([_code(kernel.header) + "\n"] if kernel.header.strip() else []),
            *([f"template <{parameters}>"] if self.group or whole else []),
            f"[[kernel]] void {function}(",
            ",\n".join(f"    {param}" for param in params) + ") {",
            *(f"  {alias}" for alias in aliases),
            textwrap.indent(_code(kernel.source), "  "),
            "}",
        ]
        return "\n".join(lines) + "\n"


def _axes(axes: Iterable[Formula]) -> str:
    """Return the axes of an array, as an entry has them."""
    return " ".join(axis.text.replace(" ", "") for axis in axes) or "()"


def _shape(array: str, axes: Sequence[Formula]) -> Iterator[Formula]:
    """Yield the axes of an output that are formulas, as formulas of a launch name them."""
    start = -len(axes) if axes[:1] and axes[0].text == "..." else 0
    for position, axis in enumerate(axes, start):
        if axis.kind != "size":
            text = f"{array}.size" if len(axes) == 1 else f"{array}.shape[{position}]"
            yield replace(axis, text=text, cost=1.1, kind="size", exact=())


def _constants(kernel: Kernel, calls: Sequence[Call]) -> set[int]:
    """Return the constants of the source, the threadgroups and the template."""
    found = {int(text) for text in re.findall(r"\b\d{1,5}\b", kernel.source + kernel.header)}
    for extents in zip(*(call.threadgroup for call in calls), strict=True):
        found.add(max(extents))
    found |= {math.prod(call.threadgroup) for call in calls[:1]}
    for arguments in zip(*(call.template for call in calls), strict=True):
        values = {int(a.value) for a in arguments if isinstance(a, Constant)}
        found |= values if len(values) == 1 else set()
    return {value for value in found if value > 1}


def _dtype_of(attribute: str, position: int) -> Callable[[Call], object]:
    return lambda call: getattr(call, attribute)[position].dtype


def _after(leading: Sequence[Shape], shapes: Sequence[Shape]) -> tuple[list[str], list[Shape]]:
    """Return the axes `...` if the ranks differ, and the shapes without them."""
    if len({*map(len, shapes)}) == 1:
        return [], [*shapes]
    pairs = list(zip(leading, shapes, strict=True))
    after = [shape[len(first) :] for first, shape in pairs]
    if any(shape[: len(first)] != first for first, shape in pairs) or len({*map(len, after)}) > 1:
        raise Unfit("the ranks of its arrays vary in different ways", _ranks)
    return ["..."], after


def _code(text: str) -> str:
    """Return code without empty lines around it and without common indentation."""
    return textwrap.dedent(text).strip("\n").rstrip()


def _merged(values: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping in which keys of equal values are one: `"x, y": B T`."""
    found: dict[str, tuple[list[str], Any]] = {}
    for name, value in values.items():
        found.setdefault(repr(value), ([], value))[0].append(name)
    return {", ".join(names): value for names, value in found.values()}
