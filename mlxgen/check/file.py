"""Resolves the entries of a project to operators (``model.Op``).

Each entry is first read by itself, and the names of all entries are compared (names.py). Each entry
is then resolved: its arguments, formulas, gradients and kernels, which may refer to the signatures
of other entries. One run reports all errors at their locations in the YAML, and omits operators
with errors from the result.

``resolve`` with ``only`` resolves some of the entries. Of the others it reads only the names, and
the signatures of those that are called. ``resolve_changed`` resolves the entries that an edit
concerns (others.py).
"""

from __future__ import annotations

import ast
import hashlib
import operator
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from typing import Any, NamedTuple

from ..diagnostics import Diagnostics, TooMany
from ..formula.compile import compile_formula, is_pure, names_of
from ..formula.facts import degree_of_all
from ..formula.lets import words
from ..formula.source import parsed
from ..model.op import Expr, Fact, Form, Op, Written, camel
from ..model.signature import Signature
from ..read.settings import Settings
from ..read.sources import Sources
from ..read.used import packages
from ..read.yaml import Documents
from . import gradients, results
from .arguments import read_arguments
from .context import SIGNATURES, Context, Named, SharedState
from .entry import check_keys, form_known, read_entry
from .fit import check_manual, check_own_name
from .initial import initial_values
from .kernels import match_kernels
from .lets import check_unused_lets
from .names import check_names
from .others import File, Item, Others, Reads
from .samples import Bounds, check_calls, check_samples

# The module with the reports about valid operators; the generator imports no plug-in.
RULES = "mlxgen.plugins.rules"

_WRITTEN = {field.name for field in fields(Written)}
_OF_DTYPES = {"dtypes", "dtype"}
_NAMING = ("name", "python_name", "module", "tags", *SIGNATURES)  # keys that callers read

Facts = Sequence[Fact]


def resolve(
    document: Documents,
    settings: Settings,
    sources: Sources,
    diags: Diagnostics,
    only: Collection[str | None] | None = None,
) -> list[Op]:
    """Return the operators that have no errors, in the order of their entries.

    Args:
        document: The parsed YAML.
        settings: Package name, namespace and paths.
        sources: The hand-written C++ and Metal sources.
        diags: Collects errors and warnings.
        only: Names of the entries to resolve (None: entries without a name); all if absent.
    """
    with suppress(TooMany):
        used = packages(settings, diags)
        if used is not None:
            return _File(document, SharedState(settings, sources, diags, used)).resolve(only)
    return []


def resolve_changed(
    document: Documents, sources: Sources, kept: Mapping[str, Reads]
) -> tuple[list[Op], dict[str, Reads]]:
    """Resolve the entries whose text changed, and those that read something that changed.

    Args:
        document: The parsed YAML.
        sources: The hand-written sources, with the settings and diagnostics.
        kept: The entries whose text and shared inputs are those of an earlier run, with what they
            read then.

    Returns:
        The resolved operators, and what all valid entries read, resolved or not.
    """
    with suppress(TooMany):
        used = packages(sources.settings, sources.diags)
        if used is not None:
            state = SharedState(sources.settings, sources, sources.diags, used)
            file = _File(document, state, kept)
            reads = {name: kept[name] for name in kept if file.unchanged(name, kept[name])}
            ops = file.resolve({entry.name for entry in document.entries} - reads.keys())
            return ops, reads | file.reads(ops)
    return [], {}


class Own(NamedTuple):
    """Facts that follow from an entry's own formula."""

    draws: bool  # it draws random numbers, or calls a function that may do so
    calls: Sequence[str] = ()  # other entries

    @classmethod
    def of(cls, expr: Expr) -> Own:
        return cls(bool(expr.impure), sorted(expr.ops))


class _File(File):
    """The entries of all files, which are read on first access, and facts about them."""

    def __init__(
        self,
        document: Documents,
        shared: SharedState,
        kept: Mapping[str, Reads] | None = None,
    ) -> None:
        self.shared, root = shared, os.path.realpath(shared.settings.root)
        paths = (part.path for part in document.parts)
        self._files = {path: os.path.relpath(os.path.realpath(path), root) for path in paths}
        shared.file = self
        self.entries: dict[str, Named] = {}  # by name, in order
        self._texts: dict[Item, str] = {}
        self._own: dict[str, Own | None] = {}
        self._pure: dict[str, bool] = {}
        self._degrees: dict[tuple[str, frozenset[tuple[str, int]]], tuple[Facts, Others]] = {}
        for entry in document.entries:
            named: Named | None
            if entry.name is None:  # reports this
                named = read_entry(entry, shared)
            else:
                named = Named(entry, entry.name, shared.diags)
            if named and (known := self.entries.setdefault(named.name, named)) is not named:
                named.error("defined_twice", named.at_name, related=[known.name_span])
        if not document.complete:
            shared.broken.update(document.names() - self.entries.keys())
        self._overloads = _overloads(self.entries.values())
        self._classes = {camel(name) for name in self.entries}
        for name, reads in (kept or {}).items():
            if self._digest(reads.items) == reads.digest:
                self._own[name] = Own(reads.draws, reads.calls)

    def resolve(self, only: Collection[str | None] | None) -> list[Op]:
        """Return the operators of some entries, or of all; check the names of all entries."""
        wanted = [name for name in self.entries if only is None or name in only]
        contexts = [context for name in wanted if (context := self.context(name))]
        valid = {name: e for name, e in self.entries.items() if name not in self.shared.broken}
        check_names(valid, self.shared.settings, self.shared.sources, self.signature)
        import_module(RULES).check_names(valid.values(), self.signature)
        ops = []
        for context in contexts:
            if op := _operator(context, self._files[context.entry.document.path]):
                ops.append(op)
                if context.raw.composite is not None and op.forward.expr:
                    self._own[op.name] = Own.of(op.forward.expr)
        self._check_cycles(ops, wanted)
        return ops

    def context(self, name: str) -> Context | None:
        """Return an entry with its keys and signature, or None if these are missing or invalid."""
        named = self.entries.get(name)
        if named is None or isinstance(named, Context) or name in self.shared.broken:
            return named if isinstance(named, Context) else None
        context = read_entry(named.entry, self.shared)
        if context is None:
            self.shared.broken.add(name)
        else:
            self.entries[name] = context
        return context

    # ------------------------------------------------------------- parts that other entries read

    def names(self, part: str) -> Sequence[str]:
        return [*(self.entries if part == "signature" else self._overloads)]

    def signature(self, name: str) -> Signature | None:
        context = self.context(name)
        return context.signature if context else None

    def overload(self, name: str) -> Sequence[str] | None:
        return self._overloads.get(name)

    def has_class(self, name: str) -> bool:
        return name in self._classes

    def degrees(self, name: str, given: Mapping[str, int]) -> tuple[Facts, Others]:
        """Return facts that follow from its composite or the bound function; none for kernels."""
        key = name, frozenset(given.items())
        if key in self._degrees:
            return self._degrees[key]
        inner, context = Others(self), self.context(name)
        self._degrees[key] = (), inner  # for the recursion below: composites may form a cycle
        if context is None:
            return (), inner
        expr = _composed(context, given, inner)
        found: Facts = expr.facts if expr else ()
        if not expr and context.raw.jvp == "linear":  # in all of its arrays together
            arrays = [
                Fact(degree=given[a.name]) for a in context.signature.arrays if a.name in given
            ]
            found = [Fact(degree=degree_of_all(arrays, "sum"))] * len(context.signature.outputs)
        self._degrees[key] = found, inner
        return found, inner

    def pure(self, name: str) -> bool | None:
        reached, pending, valid = {name}, [name], True
        for called in pending:  # grows in the loop
            own = self._own_facts(called)
            valid &= own is not None
            if self._pure.get(called) is False or (own and own.draws):
                self._pure[name] = False
                return False
            if own and called not in self._pure:
                pending += [other for other in own.calls if other not in reached]
                reached.update(own.calls)
        if not valid:
            return None
        self._pure |= dict.fromkeys(reached, True)
        return True

    def _own_facts(self, name: str) -> Own | None:
        """Return the facts about an entry's own formula; None if it has errors."""
        if name not in self._own:
            self._own[name] = None
            if context := self.context(name):
                expr = _composed(context, {}, context.others)
                if expr:
                    self._own[name] = Own.of(expr)
                elif context.raw.composite is None:
                    kernels = context.raw.dispatch or context.raw.manual
                    self._own[name] = Own(draws=not kernels)
        return self._own[name]

    # ------------------------------------------------------------- incremental runs

    def unchanged(self, name: str, reads: Reads) -> bool:
        """Return whether everything is unchanged that an entry read in an earlier run.

        The purity of an entry with errors counts as unchanged, until it has none.
        """
        pure = reads.pure.items()
        return name in self._own and all(self.pure(called) in (was, None) for called, was in pure)

    def reads(self, ops: Iterable[Op]) -> dict[str, Reads]:
        """Return what valid entries read. One that calls an entry with errors is omitted."""
        found = {}
        for op in ops:
            context, own = self.context(op.name), self._own_facts(op.name)
            if context and own and None not in context.others.purity.values():
                items = sorted(context.others.items)
                pure = {name: bool(is_pure) for name, is_pure in context.others.purity.items()}
                found[op.name] = Reads(items, self._digest(items), pure, *own)
        return found

    def _digest(self, items: Iterable[Item]) -> str:
        """Return a hash of some parts."""
        text = "\0".join(self._text(*item) for item in items)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _text(self, part: str, name: str) -> str:
        """Return a string that is equal for two files only if the part is."""
        if (part, name) not in self._texts:
            named = self.entries.get(name)
            if part == "class":
                text = str(self.has_class(name))
            elif part == "overload":
                text = str(self.overload(name))
            elif named is None:
                text = ""
            elif part == "signature":
                text = str([named.entry.words(key) for key in _NAMING])
            else:
                text = named.entry.key
            self._texts[part, name] = text
        return self._texts[part, name]

    def _check_cycles(self, ops: list[Op], wanted: Collection[str]) -> None:
        """Report composites that call each other in a cycle."""
        exprs = {op.name: op.forward.expr for op in ops}
        calls: dict[str, Iterable[str]] = dict.fromkeys(wanted, ())  # entries with errors
        calls |= {name: expr.ops if expr else () for name, expr in exprs.items()}
        pending = [name for called in calls.values() for name in called]
        for name in pending:  # grows in the loop
            if name not in calls:
                own = self._own_facts(name)
                calls[name] = own.calls if own else ()
                pending += calls[name]
        order = list(self.entries)
        while True:
            try:
                return TopologicalSorter(calls).prepare()
            except CycleError as error:
                cycle: list[str] = error.args[1][:0:-1]  # reversed: callers first
            first = cycle.index(min(cycle, key=order.index))
            cycle = [*cycle[first:], *cycle[: first + 1]]
            wrong = "calls_itself" if len(cycle) == 2 else "circle"
            self.entries[cycle[0]].error(wrong, ("composite",), cycle=" -> ".join(cycle))
            for name in cycle:
                calls[name] = ()


def _overloads(entries: Collection[Named]) -> dict[str, list[str]]:
    """Return the entries that formulas call by a Python name, in order, for overloaded names.

    If several submodules have functions of that name, it means those of the package itself.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for entry in entries:
        if not entry.internal:
            of_name = found.setdefault(entry.python_name, {})
            of_name.setdefault(entry.paths[0], []).append(entry.name)
    groups = {name: of.get(name, next(iter(of.values()))) for name, of in found.items()}
    return {name: group for name, group in groups.items() if group != [name]}


def _composed(context: Context, degrees: Mapping[str, int], others: Others) -> Expr | None:
    """Compile the composite of an entry, or the call of the MLX function that it binds.

    What it reads of other entries is recorded in ``others``. Their purity has no part in the facts.
    """
    composite = context.raw.composite
    texts = results.bound_texts(context) if composite is None else [composite]
    args = context.signature.args
    facts = {arg.name: Fact(degree=degrees.get(arg.name, 0)) for arg in args}
    names = names_of(args, facts)
    scope = context.scope(names, others=others)._replace(pure=lambda _: False)
    if composite is None:  # the name refers to MLX's function, not to this entry
        scope = scope._replace(ops={}, overloads={}, lets={})
    want = context.want_outputs()
    found = (compile_formula(text, scope, want, lambda *_: None) for text in texts)
    return next(filter(None, found), None)


def _operator(context: Context, file: str) -> Op | None:
    """Return the operator that an entry describes, or None if an error was reported."""
    if not form_known(context):
        return None
    usable = check_keys(context)
    arguments = read_arguments(context)
    samples = check_samples(context, arguments)
    if not usable:
        return None
    checks, env = results.checks(context, arguments)
    rules = results.rules(context, env)
    rules = replace(rules, initial=initial_values(context, env, rules))
    env = results.with_outputs(context, env, rules, checks)
    forward = results.forward(context, env)
    if context.form is not Form.KERNELS:
        env = replace(env, results=forward.expr.facts if forward.expr else ())
    elif context.failed.isdisjoint(_OF_DTYPES):  # else the dtypes of kernels are unknown
        forward = replace(forward, kernels=match_kernels(context, env, rules, checks))
    derivatives = gradients.derivatives(context, env)
    bounds = check_calls(context, env, samples)
    check_own_name(context)
    for part in context.raw.manual if context.form is Form.KERNELS else ():
        check_manual(context, part)
    if not context.ok:
        return None
    composed = context.raw.composite is not None and forward.expr
    pure = context.others.pure
    op = Op(
        entry=_written(context, bounds),
        name=context.name,
        python_name=context.python_name,
        signature=context.signature,
        axes={name: [axes.names for axes in of] for name, of in context.axes.of.items()},
        arguments=arguments,
        checks=checks,
        output_rules=rules,
        forward=forward,
        derivatives=derivatives,
        pure=is_pure(composed, pure) if composed else pure(context.name),
        file=file,
        line=context.entry.line,
    )
    import_module(RULES).check(context, op, samples)
    check_unused_lets(context, op, env, bounds.lets)
    return op if context.ok else None


def _written(context: Context, bounds: Bounds) -> Written:
    """Return the documentation of an entry; bounds that are formulas are numbers in its samples."""
    written = Written(**context.raw.model_dump(include=_WRITTEN, exclude_defaults=True))
    for (*path, end), (formula, number) in bounds.found.items():
        given: Any = reduce(operator.getitem, path, written.samples)
        given[end] = number
        given.setdefault("bounds", {})[end] = formula
    text = written.composite
    if not (text and context.lets) or words(parsed(text)).isdisjoint(context.lets):
        return written
    return replace(written, composite=ast.unparse(context.expanded(text)))
