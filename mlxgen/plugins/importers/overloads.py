"""The overloads of an operator in Python: their signatures, their order, and unneeded ones.

An entry has the names, types, order and defaults of ATen's arguments, in torch's spelling. What MLX
does not have (layouts, devices) is dropped, and the generator of random numbers becomes MLX's key.

Python tries the overloads of a name in the order of the file. An overload that accepts every call
of another one, with the same meaning, makes the other one superfluous: an array may be a Python
number, so that ``add.Tensor`` serves the calls of ``add.Scalar``. If it accepts such calls with
another meaning, the other one precedes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...check.context import GENERATED
from ...formula.mlx import table
from ...read.names import clash, generated
from ...read.names import overload as split_name
from .schema import Argument, Overload, Schema

DROPPED = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "non_blocking", "Layout", "MemoryFormat"}
)
GENERATOR = "Generator?"

_SCALARS = ("Tensor", "Scalar", "float", "int", "bool", "str", "ScalarType")
# The Python values that an argument accepts.
_ACCEPTED = {
    "Tensor": {"array", "float", "int", "bool"},
    "Scalar": {"float", "int", "bool"},
    "float": {"float", "int"},
    "int": {"int"},
    "bool": {"bool"},
    "str": {"str"},
    "ScalarType": {"dtype"},
    "Tensor[]": {"arrays"},
    "Tensor?[]": {"arrays", "optional arrays"},
    "int[]": {"ints"},
    "float[]": {"floats", "ints"},
    "Scalar[]": {"floats", "ints"},
}
_SIZED = re.compile(r"int\[\d+\]")
_BOOLS = re.compile(r"bool\[\d+\]")
_WORDS = {"Mean": "1", "Sum": "2", "long": "int64", "contiguous_format": "None"}


class Unsupported(Exception):
    """Raised with the reason if an overload cannot be an entry."""


def signature(overload: Overload) -> Overload:
    """Return the overload with the signature of its entry; raise ``Unsupported`` with a reason."""
    taken = (arg for arg in overload.args if not (arg.kw_only and arg.written))
    args = tuple(_supported(arg) for arg in taken if arg.name not in DROPPED)
    positional = tuple(arg for arg in args if not arg.kw_only)
    keywords = tuple(arg for arg in args if arg.kw_only)
    if not all(output.type in ("Tensor", "Tensor[]") for output in overload.returns):
        returned = ", ".join(output.type for output in overload.returns)
        raise Unsupported(f"it returns {returned}" if returned else "it returns nothing")
    if not overload.returns:
        raise Unsupported("it returns nothing")
    if len(overload.returns) > 1 and any(out.type == "Tensor[]" for out in overload.returns):
        raise Unsupported("it returns a list next to other results")
    outputs = tuple(
        output._replace(alias="", name=_output_name(output.name)) for output in overload.returns
    )
    if len(outputs) == 1:
        outputs = (outputs[0]._replace(name=""),)
    return overload._replace(args=positional + keywords, returns=outputs)


def _output_name(name: str) -> str:
    """Return the name of an output, in lower case where C++ has macros of such names."""
    return name.lower() if clash(name, "an output") else name


def _supported(arg: Argument) -> Argument:
    """Return the argument of an entry for an argument of ATen."""
    if arg.type == GENERATOR:
        return Argument("Tensor", "key", kw_only=True)
    type = re.sub(r"^SymInt", "int", arg.type)
    plain = type.removesuffix("?")
    if plain not in _ACCEPTED and not (_SIZED.fullmatch(plain) or _BOOLS.fullmatch(plain)):
        raise Unsupported(f"the type {arg.type} of '{arg.name}' is not supported")
    default = arg.default
    if default is not None:
        default = _WORDS.get(default, default)
        if default.startswith("'"):
            default = f'"{default[1:-1]}"'
    return arg._replace(type=type, default=default, alias="")


def with_empty_lists(overload: Overload, schema: Schema) -> Overload:
    """Return the overload with lists that may be empty, as by default in the forward operator.

    The stride of ``avg_pool2d`` is ``int[2] stride=[]``. That of ``avg_pool2d_backward`` has no
    default, but may be empty too.
    """
    forward = schema.overloads.get(overload.name.removesuffix("_backward"), overload)
    empty = {arg.name for arg in forward.args if arg.default == "[]"}
    args = (
        arg._replace(type="int[]") if arg.name in empty and arg.default is None else arg
        for arg in overload.args
    )
    return overload._replace(args=tuple(args))


def cpp_name(name: str) -> str | None:
    """Return the C++ name of an overload that cannot have its own; None for all others."""
    own, _ = split_name(name) or (name, name)
    if clash(own, "an operator") or generated(own):
        return f"{own}_op"
    return None


def random(overload: Overload) -> bool:
    """Return whether the overload draws random numbers with a generator."""
    return any(arg.type == GENERATOR for arg in overload.args)


def without_generator(overload: Overload, schema: Schema) -> str | None:
    """Return the name of the overload that differs only by its generator, if there is one."""
    args = [(arg.type, arg.name) for arg in overload.args]
    for other in schema.operators[overload.base]:
        rest = [(arg.type, arg.name) for arg in other.args if arg.type != GENERATOR]
        if random(other) and other.functional and not random(overload) and rest == args:
            return other.name
    return None


def aliases(overload: Overload) -> list[str]:
    """Return the names in submodules: ``special.erfcx`` of ``special_erfcx``."""
    base, module = overload.base, overload.module
    if module not in ("special", "linalg", "fft", "nn") or base.startswith("_"):
        return []
    return [f"{module}.{base.removeprefix(f'{module}_')}"]


def variants(overload: Overload, schema: Schema) -> list[str]:
    """Return the forms of the operator that torch has, except methods that mx.array has."""
    single = [output.type for output in overload.returns] == ["Tensor"]
    first = overload.args[0].type if overload.args else ""
    taken = overload.base in GENERATED["mx.array"] or overload.base in table().methods
    method = overload.method and first == "Tensor" and not taken
    found = ["function", *(["method"] if method else [])]
    return [*found, *(schema.twins(overload) if single else ())]


# -------------------------------------------------------------------------------------------------
# Order
# -------------------------------------------------------------------------------------------------


def arrange(
    overloads: Sequence[Overload], keep: frozenset[str]
) -> tuple[list[Overload], dict[str, str]]:
    """Order the overloads of one name; also return the superfluous ones with their substitutes.

    Overloads in ``keep`` are never superfluous. They are tried before those that accept their
    calls.
    """
    merged: dict[str, str] = {}
    for overload in overloads:
        for other in overloads:
            same = overload.name not in keep and _replaces(other, overload)
            if other is not overload and other.name not in merged and same:
                merged[overload.name] = other.name
                break
    left = [overload for overload in overloads if overload.name not in merged]
    ordered: list[Overload] = []
    while left:
        ready = (
            item
            for item in left
            if not any(_hides(item, other) for other in left if other is not item)
        )
        item = next(ready, left[0])
        left.remove(item)
        ordered.append(item)
    return ordered, merged


def served(overloads: Sequence[Overload], by: Sequence[Overload]) -> dict[str, str]:
    """Return the overloads whose every call another one serves, with its name."""
    found: dict[str, str] = {}
    for overload in overloads:
        for other in by:
            if _replaces(other, overload):
                found.setdefault(overload.name, other.name)
    return found


def unreachable(ordered: Sequence[Overload]) -> Iterator[tuple[str, str]]:
    """Yield overloads whose every call an overload before them accepts, with that overload."""
    for i, overload in enumerate(ordered):
        for other in ordered[:i]:
            if _accepts_all(other, overload):
                yield overload.name, other.name
                break


def accepted(type: str) -> set[str]:
    """Return the kinds of Python values that an argument of a type accepts."""
    plain = type.removesuffix("?")
    if _SIZED.fullmatch(plain):
        kinds = {"ints", "int"}
    elif _BOOLS.fullmatch(plain):
        kinds = {"bools"}
    else:
        kinds = _ACCEPTED[plain]
    return kinds | ({"None"} if type.endswith("?") else set())


def _replaces(other: Overload, overload: Overload) -> bool:
    """Return whether ``other`` accepts the calls of ``overload`` and means the same."""
    if len(other.returns) != len(overload.returns) or not _accepts_all(other, overload):
        return False
    names = {arg.name: arg for arg in other.args}
    return all(names[arg.name].default == arg.default for arg in overload.args)


def _accepts_all(other: Overload, overload: Overload) -> bool:
    """Return whether ``other`` accepts every call of ``overload``, by position and by name."""
    theirs = {arg.name: arg for arg in other.args}
    ours = {arg.name for arg in overload.args}
    places = [arg.name for arg in other.args if not arg.kw_only]
    for place, arg in enumerate(overload.args):
        match = theirs.get(arg.name)
        if match is None or not accepted(arg.type) <= accepted(match.type):
            return False
        if not arg.kw_only and places[place : place + 1] != [arg.name]:
            return False
        if arg.default is not None and match.default is None:
            return False
    return all(arg.default is not None for arg in other.args if arg.name not in ours)


def _hides(item: Overload, other: Overload) -> bool:
    """Return whether ``item`` accepts a call by position that is meant for ``other``.

    This is so if each of its arguments accepts the values of the other's, and one accepts more.
    """
    ours = [arg for arg in item.args if not arg.kw_only]
    theirs = [arg for arg in other.args if not arg.kw_only]
    pairs = list(zip(ours, theirs, strict=False))
    if any(arg.default is None for arg in ours[len(theirs) :]):
        return False
    wider = [accepted(other.type) < accepted(own.type) for own, other in pairs]
    fits = all(accepted(other.type) <= accepted(own.type) for own, other in pairs)
    return fits and any(wider)
