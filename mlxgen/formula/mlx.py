"""MLX's functions as formulas call them: Python signatures and the matching C++ overloads.

The Python and C++ APIs differ in more than spelling: one Python function with ``axis: None | int |
Sequence[int]`` corresponds to three C++ overloads, and ``scalar | array`` exists only in Python.
``data/functions.json`` maps one API to the other for every function and release, so that the
generator works without MLX. tools/functions.yaml explains its words.

A call is bound as in Python, and then matched against the C++ overloads until one accepts all
arguments. An ``Overload`` has a slot for each C++ parameter, which specifies the Python argument
and its C++ type. It applies only if all Python parameters without a slot are None.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..diagnostics import Guess, did_you_mean
from ..model.dtypes import CATEGORIES, DTYPES
from ..model.op import Fact
from ..read.settings import numbers
from . import explain
from .explain import Wrong, escaped
from .values import (
    NOTHING,
    NUMBERS,
    Cpp,
    Value,
    binary,
    call,
    constant,
    cpp,
    dereferenced,
    fit,
    member,
    named,
    present,
    remaining,
    ternary,
)

TABLE = Path(__file__).parent / "data" / "functions.json"
# Names of formulas other than functions, modules and those of the entry.
VALUES = ("pi", "e", "euler_gamma", "inf", "nan", *DTYPES)
CONSTANTS = frozenset([*VALUES, "newaxis", *CATEGORIES])
PARTS = ("functions", "aliases")  # parts of the table that depend on the release
MODULES = ("linalg", "fft", "random", "fast")  # submodules of mlx.core

# The effect of a function on the facts about its operands, and of a shapeless trace on a function.
_WithAxis = Literal["along", "reduced", "squeezed", "expanded", "stacked"]
RankEffect = Literal["", "broadcast", "same", _WithAxis, "matmul", "given", "free"]
DtypeEffect = Literal[
    "", "promoted", "same", "inexact", "chosen", "given", "bits", "bool_", "uint32"
]
Degree = Literal[
    "sum", "product", "linear", "parts", "choice", "second", "zero", "one", "nonlinear", "each"
]
Trace = Literal["", "gradient", "forward", "axis"]


class PythonParam(NamedTuple):
    """A parameter of a Python function."""

    name: str
    kind: str  # "/" positional only, "k" keyword only, "" either, "*" all further positional ones
    annotation: str  # as in MLX's stubs
    default: str | None = None  # Python literal, or None for a required argument

    @property
    def takes_none(self) -> bool:
        """True if None is a separate value, not another spelling of the default."""
        # In `Dtype | None = float32`, None means float32. Bools and strings do not accept None.
        parts = self.annotation.split(" | ")
        own = self.default in (None, "None") or {"Dtype", "bool", "str"}.isdisjoint(parts)
        return own and "None" in parts


class Slot(NamedTuple):
    """The argument of a C++ function's parameter."""

    param: str  # Python parameter; empty for text
    type: str  # one of the slot types; empty if C++ does not need the argument
    optional: bool = False  # accepts None
    text: str = ""  # C++ text of a slot without an argument
    item: int | None = None  # which item of a pair of lists
    like: str = ""  # the parameter whose dtype a number has
    only: str = ""  # the only string that it accepts


class Overload(NamedTuple):
    """A C++ overload of a function."""

    cpp: str  # qualified, with mx:: or mlxgen::
    slots: tuple[Slot, ...]
    params: frozenset[str]  # Python parameters that have a slot


@dataclass(frozen=True, slots=True)
class MlxFunction:
    """A function of MLX's Python API."""

    name: str  # "sum", "linalg.norm"
    signatures: Sequence[Sequence[PythonParam]]  # alternatives, tried in order
    overloads: Sequence[Overload]  # empty: the function is defined by operations
    result: str  # a kind | tuple (std::pair or std::tuple) | flags (number depends on flags)
    count: int | None  # number of arrays, if fixed; for flags: number per flag
    stream: bool  # the C++ function takes a stream


class Effect(NamedTuple):
    """The effect of a function on the facts about its operands; the default is unknown."""

    rank: RankEffect = ""
    dtype: DtypeEffect = ""
    degree: str = "nonlinear"  # a Degree, or sums and products of parameters
    shapeless: Trace = ""
    repeats: bool = False  # an axis may be listed several times


@cache
def stored() -> Any:
    """Return the stored table."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def record(name: str) -> Any:
    """Return the record of a function, operator or attribute in the newest release."""
    return stored()["functions"].get(name, {})


def effect(name: str) -> Effect:
    """Return the effect of a function on the facts about its operands."""
    return Effect(**record(name).get("effect", {}))


class Table:
    """The functions that formulas can call with a release of MLX, built on first use."""

    def __init__(self, release: str, known: Mapping[str, Any], newer: Mapping[str, Any]) -> None:
        self.release, self.newer = release, newer
        self._functions, self._aliases = functions, aliases = known["functions"], known["aliases"]
        self.names = [*functions, *aliases]  # "sum", "linalg.norm"
        self.methods = [name for name in functions if "method" in functions[name]]  # of an array
        every = stored()["functions"]
        self.omitted = {n: every[n]["omitted"] for n in every if "omitted" in every[n]}
        dotted = [name for name in every if name[0] == "."]
        self.attributes = [n[1:] for n in dotted if every[n]["operations"][0][0] == ["array"]]
        # Python's functions with their signatures; loops are allowed only in comprehensions.
        self.loops = {n: _signatures(r["loop"]) for n, r in every.items() if "loop" in r}
        self.python = {n: _signatures(r["python"]) for n, r in every.items() if "python" in r}
        self._built: dict[str, MlxFunction] = {}

    def is_function(self, name: str) -> bool:
        """Return whether Python or MLX has a function of that name for formulas."""
        return name in self.python or name in self.loops or self.function(name) is not None

    def require(self, name: str, at: ast.AST) -> None:
        """Raise ``Wrong`` if formulas cannot call a function, or the release lacks it."""
        if reason := self.omitted.get(name):
            raise Wrong("omitted", at, name=name, reason=reason)
        if name in self.newer:
            raise Wrong("newer", at, name=name, **self.newer[name])

    def function(self, name: str) -> MlxFunction | None:
        """Return the function of a name or alias."""
        name = self._aliases.get(name, name)
        if name not in self._built and name in self._functions:
            found = self._functions[name]
            self._built[name] = MlxFunction(
                name,
                _signatures(found["signatures"]),
                [_overload(**overload) for overload in found.get("overloads", ())],
                found.get("result", ""),
                found.get("count"),
                found.get("stream", True),
            )
        return self._built.get(name)

    def method(self, name: str) -> MlxFunction | None:
        """Return the method of a name, as a function with the array as its first argument."""
        key, function = f".{name}", self.function(name)
        if key not in self._built and function is not None and name in self.methods:
            own = function.signatures[0]
            params = [own[0]._replace(kind="/")]
            for param in _signatures([self._functions[name]["method"]])[0]:
                if param.kind == "*":  # x.transpose(), x.transpose(1, 0), x.transpose((1, 0))
                    param = PythonParam(param.name, "*", "int | Sequence[int]", own[1].default)
                params.append(param)
            self._built[key] = replace(function, signatures=(tuple(params),))
        return self._built.get(key)


@cache
def table(release: str | None = None) -> Table:
    """Return MLX's functions in a release; for an unknown one, in the next older known release."""
    newest, every = stored()["mlx"], stored()["functions"]
    newer: dict[str, dict[str, str]] = {}  # functions that the release lacks
    known = {"functions": {n: r for n, r in every.items() if "signatures" in r}}
    known["aliases"] = dict(stored()["aliases"])
    for older, changes in stored()["older"].items():
        if release is None or numbers(release) >= numbers(newest):
            break
        for part in PARTS:
            known[part].update(changes[part])
            for name in [name for name, value in changes[part].items() if value is None]:
                del known[part][name]
                newer.setdefault(name, {"newer": newest, "release": release})
        newest = older
    return Table(newest, known, newer)


def _signatures(stored: Sequence[Sequence[Sequence[str]]]) -> Sequence[Sequence[PythonParam]]:
    return tuple(tuple(PythonParam(*param) for param in params) for params in stored)


def _overload(cpp: str, slots: Sequence[Sequence[Any]]) -> Overload:
    found = tuple(Slot(*slot) for slot in slots)
    return Overload(cpp, found, frozenset(slot.param for slot in found if slot.param))


# Matching arguments


@dataclass(slots=True)
class Args:
    """The arguments of a call, as values."""

    node: ast.Call
    label: str  # the function's name in messages
    positional: list[Value] = field(default_factory=list)
    keywords: dict[str, Value] = field(default_factory=dict)
    star: bool = False  # the last positional one is *args
    method: bool = False  # the first positional one precedes the dot


def bind(params: Sequence[PythonParam], args: Args) -> dict[str, Value]:
    """Return the given arguments by parameter, without defaults."""
    given = args.positional
    places = [p for p in params if p.kind in ("/", "")]
    named = [p.name for p in params if p.kind in ("", "k")]
    rest = next((p for p in params if p.kind == "*"), None)

    def wrong(message: str, at: ast.AST, *keys: str, **about: object) -> Wrong:
        return Wrong(
            message,
            at,
            *keys,
            label=args.label,
            usage=usage(params, args.label, args.method),
            **about,
        )

    if args.star and (rest is None or len(given) != len(places) + 1):
        raise wrong("no_star", args.node)
    bound = {p.name: value for p, value in zip(places, given, strict=False)}
    more = given[len(places) :]
    if rest is not None:
        # x.reshape(2, -1) or x.reshape((2, -1))
        listed = len(more) == 1 and rest.annotation.startswith("int") and more[0].kind != "int"
        if more:
            whole = Value("tuple", NOTHING, args.node, items=more)
            bound[rest.name] = more[0] if listed or args.star else whole
    elif more:
        raise wrong("too_many", more[0].at)
    for name, value in args.keywords.items():
        if name not in named:
            at = next((k for k in args.node.keywords if k.arg == name), args.node)
            other = explain.word(f"{name}=")
            form = f"{{}}={escaped(value.at)}"
            near = Guess(other, True, form) if other in named else did_you_mean(name, named, form)
            known = any(p.name == name for p in params)
            message = "positional_only" if known else "unknown_keyword"
            raise wrong(message, at, name=name, guess=near)
        if name in bound:
            raise wrong("given_twice", value.at, name=name)
        bound[name] = value
    needed = [p.name for p in params if p.default is None]
    if missing := [f"'{name}'" for name in needed if name not in bound]:
        raise wrong("missing", args.node, names=", ".join(missing))
    for param in params:
        text = bound.get(param.name)
        if text is not None and text.kind == "str" and param.annotation.startswith("Literal["):
            strings = choices(param.annotation)
            if text.const not in (None, *strings):
                raise explain.choice(text, param.name, strings)
    return bound


def usage(params: Sequence[PythonParam], name: str, method: bool, typed: bool = False) -> str:
    """Return the usage of a function: ``softmax(a, axis=None)``; ``typed``: with types."""
    method = method and bool(params)
    words = []
    for i, param in enumerate(params[method:]):
        if param.kind == "k" and {"k", "*"}.isdisjoint(p.kind for p in params[method:][:i]):
            words.append("*")
        word = f"{'*' * (param.kind == '*')}{param.name}{f': {param.annotation}' * typed}"
        equals = " = " if typed else "="
        optional = param.default is not None and param.kind != "*"
        words.append(f"{word}{equals}{param.default}" if optional else word)
    return f"{'.' * method}{name}({', '.join(words)})"


Bound = tuple[Sequence[PythonParam], dict[str, Value]]  # a signature and the given arguments


def candidates(function: MlxFunction, args: Args) -> list[Bound]:
    """Return the signatures that accept the arguments by number and name, or raise ``Wrong``."""
    found = list[Bound]()
    for params in function.signatures:
        with suppress(Wrong):
            found.append((params, bind(params, args)))
    last = function.signatures[-1]
    return found or [(last, bind(last, args))]


def complete(params: Sequence[PythonParam], bound: Mapping[str, Value]) -> dict[str, Value]:
    """Add the defaults to the arguments; None becomes the default if it means that."""
    every = dict(bound)
    for param in params:
        text, given = param.default, bound.get(param.name)
        if text is None or (given is not None and param.takes_none):
            continue
        if given is None or given.kind == "none":
            every[param.name] = _default(text)
        elif given.optional and given.kind == "dtype":
            either = cpp(given.cpp, ".value_or(", _default(text).cpp, ")")
            every[param.name] = Value("dtype", either, given.at)
    return every


@cache
def _default(text: str) -> Value:
    """Return the value of a default in MLX's stubs: a literal, or the name of a dtype."""
    at = ast.parse(text, mode="eval").body
    if isinstance(at, ast.Name):
        return Value("dtype", named(f"mx::{text}"), at, fact=Fact(dtype=text))
    return constant(ast.literal_eval(at), at)


@cache
def choices(annotation: str) -> tuple[str, ...]:
    """Return the strings of ``Literal["a", "b"] | None``."""
    return tuple(ast.literal_eval(f"({annotation[8 : annotation.index(']')]},)"))


def select(function: MlxFunction, bound: Mapping[str, Value], stream: Cpp) -> Cpp | None:
    """Return the C++ call of the first overload that accepts all arguments."""
    for overload in function.overloads:
        found = apply(overload, bound, [stream] if function.stream else [])
        if found is not None:
            return found
    for name, value in bound.items():
        for test, one, other in splits(value):
            yes = select(function, {**bound, name: one}, stream)
            no = yes and select(function, {**bound, name: other}, stream)
            if yes is not None and no is not None:
                return ternary(test, yes, no)
    return None


def splits(value: Value) -> Iterator[tuple[Cpp, Value, Value]]:
    """Yield the tests at run time that select an overload, with the value for each outcome."""
    if value.cases is not None:
        yield value.cases
    if value.kind == "union":
        string = constant(next(c for c in value.choices if c in value.states), value.at)
        rest = remaining(value, value.states - {string.const})
        yield binary("==", value.mode, string.cpp), string, rest
    if value.optional and value.name is not None:
        yield present(value.cpp), dereferenced(value), constant(None, value.at)


def apply(overload: Overload, bound: Mapping[str, Value], last: Sequence[Cpp]) -> Cpp | None:
    """Return the call of one overload, or None if it does not accept the arguments."""
    if not overload.params <= bound.keys():  # it belongs to another signature
        return None
    others = bound.keys() - overload.params if len(bound) > len(overload.params) else ()
    if any([bound[name].kind != "none" for name in others]):
        return None
    parts: list[str | Cpp] = []
    numbers = arrays = False
    for slot in overload.slots:
        if slot.text or not slot.type:  # this overload ignores a slot without a type
            parts += [slot.text] if slot.text else []
            continue
        part = fit_slot(slot, bound)
        if part is None:
            return None
        parts.append(part)
        if slot.type in ("weak", "array"):
            value = bound[slot.param]
            arrays |= value.is_array
            numbers |= value.kind in NUMBERS
    head = overload.cpp
    if numbers:  # they take the dtype of an array, which only `where` does not need
        if not arrays and head != "mlxgen::where":
            return None
        head = head.replace("mx::", "mlxgen::", 1)
    return call(head, *parts, *last)


def fit_slot(slot: Slot, bound: Mapping[str, Value]) -> Cpp | None:
    """Return the C++ of a slot's argument, or None if the slot does not accept it."""
    value = bound[slot.param]
    if slot.item is not None:
        if value.kind == "nested" and not value.optional:
            return call("mlxgen::half", value.cpp, str(slot.item))
        pair = value.kind == "tuple" and len(value.items) == 2
        return fit(value.items[slot.item], slot.type) if pair else None
    if slot.only and slot.only != value.const and value.choices != (slot.only,):
        return None
    if not slot.like:
        return fit(value, slot.type, slot.optional)
    if fit(value, "scalar") is None:
        return fit(value, "array", slot.optional)
    like = bound[slot.like]
    dtype = member(like.cpp, "dtype") if like.is_array else fit(like, "dtype")
    return call("mlxgen::scalar", value.cpp, dtype) if dtype is not None else None


def mismatch(
    function: MlxFunction, params: Sequence[PythonParam], bound: Mapping[str, Value], args: Args
) -> Wrong:
    """Return the error if no overload accepts the arguments.

    It is about the first argument that no overload accepts, else about the combination.
    """
    overloads = [o for o in function.overloads if o.params <= {p.name for p in params}]
    for param in params:
        value = bound.get(param.name)
        slots = [s for o in overloads for s in o.slots if s.param == param.name]
        if value is None or (
            value.kind == "none" and any(param.name not in o.params for o in overloads)
        ):
            continue
        if any(fit_slot(s, {"dtype": value, **bound}) is not None for s in slots):
            continue
        return explain.argument(args.label, param.name, param.annotation, value)
    numbers = any(fit(v, "scalar") for v in bound.values())
    arrays = any(v.is_array for v in bound.values())
    wrong = "needs_array" if numbers and not arrays else "together"
    return Wrong(wrong, args.node, label=args.label)


def unknown(name: str, node: ast.Call, others: Sequence[str], api: Table) -> Wrong:
    """Return the error for an unknown or omitted function; ``others`` are names of entries."""
    api.require(name, node.func)
    module, _, own = name.rpartition(".")
    names = [(n.rpartition("."), n) for n in (*others, *api.loops, *api.python, *api.names)]
    dotted = isinstance(node.func, ast.Attribute)
    inside = next((n for (_, _, last), n in names if last == own and (dotted or n != own)), None)
    word = f"{inside}(...)" if inside else explain.word(own)
    form = f"{module}.{{}}" if module else "{}"
    near = did_you_mean(own, [last for (of, _, last), _ in names if of == module], form)
    return Wrong("unknown_function", node.func, own, name=name, guess=near, word=word)
