"""One entry with its keys and signature, and how its mistakes are reported.

Every phase of ``check`` gets the ``Context`` of its entry, and the results of the phases before it.
It reports through the context, at a key or value. An entry with an error gives no operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partialmethod
from pathlib import Path as FilePath
from typing import Any

from ..diagnostics import Diagnostics, Help, Span, did_you_mean
from ..diagnostics.messages import messages, rows
from ..formula.compile import Name, Need, Scope, Want, compile_formula
from ..model.kinds import Kind
from ..model.op import Arguments, Expr, Fact, Form
from ..model.signature import Signature, Type
from ..read.keys import OpEntry, listed
from ..read.settings import Settings
from ..read.signature import Spelling
from ..read.sources import Sources
from ..read.yaml import Entry
from .axes import NamedAxes

Path = tuple[str | int, ...]

TABLE = FilePath(__file__).parent / "messages.txt"

# The keys of signatures, and how they are spelled.
SIGNATURES: dict[str, Spelling] = {
    "signature": "any",
    "cpp_signature": "cpp",
    "python_signature": "python",
}

_NAMES = rows(TABLE.with_name("names.txt"))
# Names that generated code has, by where it has them.
GENERATED = {where[0]: frozenset(names.split()) for *where, names in _NAMES}
# Names that no operator can have: why, and a pattern of them.
FORMS = [(row[1], re.compile(row[2].replace(" ", "|"))) for row in _NAMES if row[0] == "operators"]
# Words of C++ that Metal has not, and what they ask for.
METAL = [row for row in _NAMES if row[0] == "metal"]

ARRAY = Type(Kind.ARRAY)
ARRAYS = Type(Kind.ARRAYS)
BOOL = Type(Kind.BOOL)


Degrees = Callable[[str, Mapping[str, int]], Sequence[Fact]]


@dataclass
class Surroundings:
    """What all entries of a file are looked at with."""

    settings: Settings
    sources: Sources
    diags: Diagnostics
    signatures: Mapping[str, Signature] = field(default_factory=dict)  # of entries, by name
    degrees: Degrees = lambda *_: ()  # how their results depend on a cotangent
    pure: Callable[[str], bool] = lambda _: False  # whether that depends on arguments alone
    cpp_names: dict[str, str] = field(default_factory=dict)  # their functions
    class_names: set[str] = field(default_factory=set)  # their classes
    broken: set[str] = field(default_factory=set)  # names of entries whose signature is not known


@dataclass(frozen=True, eq=False)
class Named:
    """An entry by what it is called; nothing else of it is looked at."""

    entry: Entry
    name: str
    diags: Diagnostics
    failed: set[str | int] = field(default_factory=set)  # keys with errors; "": the name

    @property
    def ok(self) -> bool:
        """Whether no error was reported so far."""
        return not self.failed

    def fail(self, path: Path) -> None:
        """Note an error at a value of the entry."""
        self.failed.add(path[0] if path else "")

    def text(self, key: str) -> str:
        """The text of a key; empty where there is none."""
        return next(iter(self.entry.words(key)), "")

    @property
    def python_name(self) -> str:
        """Its name in Python."""
        return self.text("python_name") or self.name

    @property
    def label(self) -> str:
        """How messages about other entries name it."""
        return f"op '{self.name}'"

    @property
    def at_name(self) -> Path:
        """The key that has its name, if it is not in the signature."""
        return ("name",) if self.text("name") else ()

    @property
    def name_span(self) -> Span:
        """Where its name stands."""
        if self.at_name:
            return self.entry.span(self.at_name)
        for key in SIGNATURES:
            if found := re.search(rf"\b{re.escape(self.name)}(?=\s*\()", self.text(key)):
                return self.entry.text_span((key,), *found.span())
        return self.entry.span()

    def report(
        self, code: str, message: str, path: Path = (), help: Help = None, **more: Any
    ) -> None:
        """Report at a value of the entry, with ``key=True`` at its key, or ``at`` a slice of that;
        for () at its name. ``clear``: what is meant is clear all the same."""
        clear = more.pop("clear", False)
        if more.get("severity") != "warning":
            self.fail(() if clear else path)
        key, at = more.pop("key", False), more.pop("at", None)
        span = self.entry.span(path, key=key) if path else self.name_span
        span = self.entry.text_span(path, *at, key=key) if at else span
        self.diags.error(code, message, span, help=help, op=self.name or None, **more)

    def report_in(
        self, path: Path, code: str, message: str, start: int, end: int, help: Help
    ) -> None:
        """Report inside of the text at ``path``."""
        span = self.entry.text_span(path, start, end)
        self.diags.error(code, message, span, help=help, op=self.name or None)

    def error(
        self, wrong: str, path: Path = (), /, *keys: str, key: bool = False, **about: Any
    ) -> None:
        """Report what messages.txt says of this, in the same way."""
        code, message, help = messages(TABLE)[wrong].filled(keys, about)
        more = {
            name: about[name]
            for name in ("notes", "severity", "at", "related", "clear")
            if name in about
        }
        self.report(code, message, path, help, key=key, **more)

    # The same for what may be right, and fails nothing.
    warning = partialmethod(error, severity="warning")


@dataclass(frozen=True, eq=False, kw_only=True)
class Context(Named):
    """An entry with its keys and signature read."""

    around: Surroundings
    raw: OpEntry
    signature: Signature
    left_out: frozenset[str]  # keys that have an error, and are therefore not in `raw`

    def __post_init__(self) -> None:
        self.failed.update(self.left_out)

    @property
    def settings(self) -> Settings:
        """Package name, namespace and paths."""
        return self.around.settings

    @property
    def sources(self) -> Sources:
        """The hand-written C++ and Metal sources."""
        return self.around.sources

    @cached_property
    def output_names(self) -> list[str]:
        """The names of its outputs."""
        return [output.name for output in self.signature.outputs]

    @cached_property
    def form(self) -> Form:
        """How the forward is given."""
        raw = self.raw
        if raw.dispatch is not None:
            return Form.KERNELS
        if raw.composite is not None:
            return Form.COMPOSITE
        return Form.KERNELS if {"eval_cpu", "eval_gpu"} & {*raw.manual} else Form.BIND

    @cached_property
    def elementwise(self) -> bool:
        """Whether it has kernels without a rule for shapes."""
        shaped = self.raw.shape is not None or bool(self.axes.outputs)
        return self.form is Form.KERNELS and not shaped

    @cached_property
    def axes(self) -> NamedAxes:
        """The axes of its arrays, by name."""
        return NamedAxes(self.raw.axes, self.signature)

    def keys(self, mapping: str) -> dict[str, str]:
        """The keys of a mapping of the entry by the names in them."""
        given = getattr(self.raw, mapping)
        return {name: key for name, key, _ in listed(given if isinstance(given, dict) else ())}

    def is_known(
        self,
        code: str,
        name: str,
        known: Collection[str],
        what: str,
        path: Path,
        key: bool = True,
        at: tuple[int, int] | None = None,
    ) -> bool:
        """Whether a name that the entry mentions is one of those it has; reports it if not."""
        if name not in known:
            guess = did_you_mean(name, list(known))
            message = f"there is no {what} '{name}'{guess}"
            help = guess.advice(f"{what}s: {', '.join(known)}" if known else None)
            self.report(code, message, path, help, key=key, at=at)
        return name in known

    def known(
        self, code: str, names: Iterable[str], known: Collection[str], what: str, path: Path
    ) -> list[str]:
        """Those keys of the mapping at ``path`` that the entry knows; reports the others."""
        return [n for n in names if self.is_known(code, n, known, what, (*path, n))]

    def known_in(
        self, code: str, mapping: str, known: Collection[str], what: str
    ) -> dict[str, list[str]]:
        """Those names in the keys of a mapping that the entry knows, by key; reports the others,
        and names that are there twice."""
        found: dict[str, list[str]] = {}
        seen: set[str] = set()
        for name, key, at in listed(getattr(self.raw, mapping)):
            path = (mapping, key)
            if name in seen:
                self.error("twice", path, key=True, at=at, item=name)
            elif self.is_known(code, name, known, what, path, at=at):
                found.setdefault(key, []).append(name)
            seen.add(name)
        return found

    def not_twice(self, items: Sequence[str], path: Path) -> None:
        """Report items of the list at ``path`` that were there before."""
        seen: set[str] = set()
        for i, item in enumerate(items):
            if item in seen:
                self.error("twice", (*path, i), item=item, clear=True)
            seen.add(item)

    # Formulas

    def scope(self, names: Mapping[str, Name], stream: bool = True) -> Scope:
        """What a formula of the entry may refer to."""
        around = self.around
        release = around.settings.mlx
        lengths = self.axes.lengths
        known = around.signatures, around.cpp_names
        return Scope(names, *known, stream, release, lengths, around.degrees, around.pure)

    def formula(
        self, path: Path, text: str, want: Want, names: Mapping[str, Name], stream: bool = True
    ) -> Expr | None:
        """Compile a formula of the entry; problems are reported inside its text.

        Without a stream it is about shapes, dtypes and attributes, and cannot compute arrays.
        """

        def report(code: str, message: str, start: int, end: int, help: Help) -> None:
            self.fail(path)
            if text[start:end] not in self.around.broken:  # an entry that has errors of its own
                self.report_in(path, code, message, start, end, help)

        scope = self.scope(names, stream)
        if self.elementwise and path[0] not in ("axes", "checks"):  # arrays are broadcast there
            scope = scope._replace(lengths={})
        return compile_formula(text, scope, want, report)

    def want_outputs(self, needs: Sequence[Need] = ()) -> Want:
        """What a formula for all outputs gives."""
        return Want.arrays([o.type.kind is Kind.ARRAYS for o in self.signature.outputs], needs)


@dataclass(frozen=True)
class Known:
    """The names in formulas of an entry, with the facts about them."""

    arguments: Arguments
    facts: Mapping[str, Fact] = field(default_factory=dict)  # of the arrays, ...
    results: Sequence[Fact] = ()  # ... and of the outputs
    free: frozenset[str] = frozenset()  # arrays that `checks` do not mention

    def names(self) -> dict[str, Name]:
        """Arguments by name."""
        return {p.name: Name(p.type, fact=self.facts.get(p.name)) for p in self.arguments.params}

    def need(
        self, context: Context, sort: str, name: str, fact: Fact, dtype: str, linear: str
    ) -> Need:
        """What an array has to be that has the rank of another."""
        every = context.elementwise and not context.raw.checks
        summed = sort == "gradient" and context.form is not Form.KERNELS
        return Need(sort, name, fact.rank, dtype, linear, summed, self.free, every)
