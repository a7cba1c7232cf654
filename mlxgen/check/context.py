"""The context of an entry: its keys and signature, and methods that report errors.

Every phase of ``check`` receives the ``Context`` of its entry and the results of earlier phases. It
reports errors through the context, at a key or value. An entry with an error yields no operator.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partialmethod
from pathlib import Path as FilePath
from typing import Any

from ..diagnostics import Diagnostics, Rendered, Span, did_you_mean
from ..diagnostics.messages import Messages, table
from ..formula.compile import Let, Name, Need, Scope, Task, Want, compile_together, names_of
from ..formula.lets import expanded
from ..formula.source import Formula
from ..model.kinds import Kind
from ..model.op import Arguments, Expr, Fact, Form, dotted_names
from ..model.signature import Signature, Type
from ..model.used import UsedOperator
from ..read.keys import OpEntry, listed
from ..read.names import meanings
from ..read.settings import Settings
from ..read.signature import Spelling
from ..read.sources import Sources
from ..read.yaml import Entry
from .axes import NamedAxes
from .others import File, Others

Path = tuple[str | int, ...]

MESSAGES = Messages(FilePath(__file__).with_name("messages.yaml"))

# The keys of signatures, and their spellings.
SIGNATURES: dict[str, Spelling] = {
    "signature": "any",
    "cpp_signature": "cpp",
    "python_signature": "python",
}

# Reserved names of generated code, by location.
_NAMES = MESSAGES.path.with_name("names.yaml")
GENERATED = {where: frozenset(names) for where, names in table(_NAMES).items()}

ARRAY = Type(Kind.ARRAY)
ARRAYS = Type(Kind.ARRAYS)
BOOL = Type(Kind.BOOL)


@dataclass
class SharedState:
    """The state shared by all entries of a file."""

    settings: Settings
    sources: Sources
    diags: Diagnostics
    # Overloads of other packages, by dotted name.
    used: Mapping[str, Sequence[UsedOperator]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)  # names of entries with unknown signature
    file: File = field(default_factory=File)  # the other entries


@dataclass(frozen=True, eq=False)
class Named:
    """An entry of which only the name has been read."""

    entry: Entry
    name: str
    diags: Diagnostics
    failed: set[str | int] = field(default_factory=set)  # keys with errors; "": the name

    @property
    def ok(self) -> bool:
        """True if no error has been reported."""
        return not self.failed

    def fail(self, path: Path) -> None:
        """Record an error at a value of the entry."""
        self.failed.add(path[0] if path else "")

    def text(self, key: str) -> str:
        """Return the text of a key; empty if it is absent."""
        return next(iter(self.entry.words(key)), "")

    @property
    def python_name(self) -> str:
        """The name in Python."""
        return self.entry.python_name or self.name

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The dotted names in Python: its name and its aliases."""
        module = self.text("module")
        own = f"{module}.{self.python_name}" if module else self.python_name
        return own, *dotted_names(self.entry.words("aliases"), module)

    @property
    def named(self) -> list[tuple[str, Path]]:
        """The dotted names in Python, each with the path of its key."""
        own: Path = ("python_name",) if self.text("python_name") else self.at_name
        aliases: list[Path] = [("aliases", i) for i in range(len(self.paths) - 1)]
        return list(zip(self.paths, [own, *aliases], strict=True))

    @property
    def internal(self) -> bool:
        """True if Python has no function for the entry."""
        return "internal" in self.entry.words("tags")

    @property
    def label(self) -> str:
        """The entry's name in messages about other entries."""
        return f"op '{self.name}'"

    @property
    def at_name(self) -> Path:
        """The path of the key `name`; empty if the name comes from the signature."""
        return ("name",) if self.text("name") else ()

    @property
    def _in_signature(self) -> str:
        """The pattern of the name in a signature: itself, or an overload in torch's spelling."""
        overload = rf"{re.escape(self.python_name)}\.\w+"
        return rf"(\b{re.escape(self.name)}|\b{overload})(?=\s*\()"

    @property
    def name_span(self) -> Span:
        """The location of the name."""
        if self.at_name:
            return self.entry.span(self.at_name)
        for key in SIGNATURES:
            if found := re.search(self._in_signature, self.text(key)):
                return self.entry.text_span((key,), *found.span())
        return self.entry.span()

    def report(
        self,
        said: Rendered,
        path: Path = (),
        *,
        key: bool = False,
        at: tuple[int, int] | None = None,
        clear: bool = False,
        **more: Any,
    ) -> None:
        """Report a problem at a value of the entry; for an empty path at its name.

        ``key=True``: at the key instead of the value. ``at``: at a slice of it. ``clear``: the
        value can be used despite the error.
        """
        if more.get("severity") != "warning":
            self.fail(() if clear else path)
        span = self.entry.span(path, key=key) if path else self.name_span
        if at:
            span = self.entry.text_span(path, *at, key=key)
            said = self.entry.quoted_in(path, said, key=key)
        self.diags.error(said, span, op=self.name or None, **more)

    def report_in(self, path: Path, said: Rendered, start: int, end: int) -> None:
        """Report a problem inside the string at ``path``."""
        self.report(said, path, at=(start, end))

    def error(
        self, wrong: str, path: Path = (), /, *keys: str, key: bool = False, **about: Any
    ) -> None:
        """Report a message of messages.yaml, or of another ``table``; options as in ``report``."""
        said = about.pop("table", MESSAGES)(wrong, *keys, **about)
        options = ("severity", "at", "clear", "expected", "related")
        more = {name: about[name] for name in options if name in about}
        self.report(said, path, key=key, **more)

    # A warning does not fail the entry.
    warning = partialmethod(error, severity="warning")


@dataclass(frozen=True, eq=False, kw_only=True)
class Context(Named):
    """An entry with its keys and signature."""

    shared: SharedState
    others: Others
    raw: OpEntry
    signature: Signature
    left_out: frozenset[str]  # keys with errors, which are missing in `raw`
    lets: dict[str, Let] = field(default_factory=dict)  # by name, in order
    let_errors: set[tuple[str, str, int]] = field(default_factory=set)  # several formulas have them

    def __post_init__(self) -> None:
        self.failed.update(self.left_out)

    @property
    def settings(self) -> Settings:
        """Package name, namespace and paths."""
        return self.shared.settings

    @property
    def sources(self) -> Sources:
        """The hand-written C++ and Metal sources."""
        return self.shared.sources

    @cached_property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return [output.name for output in self.signature.outputs]

    @cached_property
    def form(self) -> Form:
        """The form of the forward computation."""
        raw = self.raw
        if raw.dispatch is not None:
            return Form.KERNELS
        if raw.composite is not None:
            return Form.COMPOSITE
        return Form.KERNELS if {"eval_cpu", "eval_gpu"} & {*raw.manual} else Form.BIND

    @cached_property
    def elementwise(self) -> bool:
        """True if the entry has kernels but no rule for shapes."""
        shaped = self.raw.shape is not None or bool(self.axes.outputs)
        return self.form is Form.KERNELS and not shaped

    @cached_property
    def axes(self) -> NamedAxes:
        """The named axes of the arrays."""
        return NamedAxes(self.raw.axes, self.signature)

    def keys(self, mapping: str) -> dict[str, str]:
        """Return the keys of a mapping by the names that they contain."""
        given = getattr(self.raw, mapping)
        return {name: key for name, key, _ in listed(given if isinstance(given, dict) else ())}

    def is_known(
        self,
        wrong: str,
        name: str,
        known: Collection[str],
        path: Path,
        key: bool = True,
        at: tuple[int, int] | None = None,
    ) -> bool:
        """Check that a name is one of the known ones; report the message ``wrong`` otherwise."""
        if name not in known:
            about = {"name": name, "guess": did_you_mean(name, known), "known": [*known]}
            self.error(wrong, path, "some" * bool(known), key=key, at=at, **about)
        return name in known

    def known(
        self, wrong: str, names: Iterable[str], known: Collection[str], path: Path
    ) -> list[str]:
        """Return the known keys of the mapping at ``path``; report the others."""
        return [n for n in names if self.is_known(wrong, n, known, (*path, n))]

    def known_in(
        self, wrong: str, given: Iterable[str], known: Collection[str], *above: str | int
    ) -> dict[str, list[str]]:
        """Return the known names in the keys of the mapping at ``above``, by key.

        Report others and duplicates.
        """
        found: dict[str, list[str]] = {}
        seen: set[str] = set()
        for name, key, at in listed(given):
            path = (*above, key)
            if name in seen:
                self.error("twice", path, key=True, at=at, item=name)
            elif self.is_known(wrong, name, known, path, at=at):
                found.setdefault(key, []).append(name)
            seen.add(name)
        return found

    def not_twice(self, items: Sequence[str], path: Path) -> None:
        """Report duplicates in the list at ``path``."""
        seen: set[str] = set()
        for i, item in enumerate(items):
            if item in seen:
                self.error("twice", (*path, i), item=item, clear=True)
            seen.add(item)

    # Formulas

    def scope(
        self, names: Mapping[str, Name], stream: bool = True, others: Others | None = None
    ) -> Scope:
        """Return the scope of a formula of the entry."""
        others = others or self.others
        return Scope(
            names,
            ops=others.signatures,
            namespace=self.settings.namespace,
            overloads=others.overloads,
            stream=stream,
            release=self.settings.mlx,
            lengths=self.axes.lengths,
            degrees=others.degrees,
            pure=others.pure,
            used=self.shared.used,
            lets=self.lets,
            unsized=self.axes.unsized,
        )

    def expanded(self, text: str) -> ast.expr:
        """Return the tree of a valid formula, with the `let`s that it uses."""
        return expanded(text, {name: let.text for name, let in self.lets.items()})

    @cached_property
    def of_formulas(self) -> frozenset[str]:
        """The names that only some formulas of the entry know, such as `grad`."""
        arrays = [arg.name for arg in self.signature.arrays]
        return frozenset([*meanings(arrays, self.output_names), *self.output_names])

    def formula(
        self,
        path: Path,
        formula: Formula,
        want: Want,
        names: Mapping[str, Name],
        stream: bool = True,
        only: Collection[str] = (),
    ) -> Expr | None:
        """Compile a formula of the entry; report problems at their location in it.

        Without a stream, a formula uses shapes, dtypes and attributes, and cannot compute arrays.
        ``only``: report only errors of these codes, in `let`s that the formula uses.
        """
        expr = compile_together([self.task(path, formula, want, names, stream, only)])[0]
        if expr is None and not only:  # also if only the errors of another entry were reported
            self.fail(path)
        return expr

    def task(
        self,
        path: Path,
        formula: Formula,
        want: Want,
        names: Mapping[str, Name],
        stream: bool = True,
        only: Collection[str] = (),
        always: bool = True,
    ) -> Task:
        """Return a formula of the entry to compile; parameters as of ``formula``.

        ``always``: every call of its C++ function computes it.
        """

        def report(said: Rendered, start: int, end: int) -> None:
            if only:
                return
            self.fail(path)
            if not isinstance(formula, str):
                self.report(said, path)
            elif formula[start:end] not in self.shared.broken:  # that entry's errors are reported
                self.report_in(path, said, start, end)

        def report_let(name: str, said: Rendered, start: int, end: int) -> None:
            if only and said.code not in only:
                return
            self.fail(path)
            error = name, said.text, start  # several formulas may have it
            if self.lets[name].text[start:end] in self.shared.broken or error in self.let_errors:
                return
            self.let_errors.add(error)
            self.report_in(("let", name), said, start, end)

        scope = self.scope(names, stream)
        scope = scope._replace(let_report=report_let, only_elsewhere=self.of_formulas)
        if path[0] == "dtype" or path[2:3] == ("template",):
            scope = scope._replace(variables=False)
        scope = scope._replace(shared=path[0] in ("shape", "dispatch", "init"))
        # Formulas other than conditions see broadcast arrays, whose axes have no names.
        if self.elementwise and path[0] not in ("axes", "checks"):
            scope = scope._replace(lengths={})
        return Task(formula, scope, want, report, always)

    def want_outputs(self, needs: Sequence[Need] = ()) -> Want:
        """Return the expected result of a formula for all outputs."""
        return Want.arrays([o.type.kind is Kind.ARRAYS for o in self.signature.outputs], needs)


@dataclass(frozen=True)
class Environment:
    """The names in an entry's formulas, with facts about them."""

    arguments: Arguments
    facts: Mapping[str, Fact] = field(default_factory=dict)  # about the arrays
    results: Sequence[Fact] = ()  # about the outputs
    free: frozenset[str] = frozenset()  # arrays that `checks` do not mention

    def names(self) -> dict[str, Name]:
        """Return the arguments by name."""
        return names_of((p.arg for p in self.arguments.params), self.facts)

    def need(
        self, context: Context, sort: str, name: str, fact: Fact, dtype: str, linear: Sequence[str]
    ) -> Need:
        """Return the requirements on an array with the rank of another."""
        every = context.elementwise and not context.raw.checks
        summed = sort == "gradient" and context.form is not Form.KERNELS
        return Need(sort, name, fact.rank, dtype, linear, summed, self.free, every)
