"""Resolves the entries of a file to operators (``model.Op``).

Each entry is first read by itself, and the names of all entries are compared (names.py). Each entry
is then resolved: its arguments, formulas, gradients and kernels, which may refer to the signatures
of other entries. One run reports all errors at their locations in the YAML, and omits operators
with errors from the result.

``resolve`` with ``only`` resolves some of the entries. Of the others it reads only the names, and
the signatures of those that are called. ``resolve_changed`` finds out which entries must be
resolved after an edit: an entry's answers about other entries are recorded (others.py).
"""

from __future__ import annotations

import ast
import hashlib
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..diagnostics import Diagnostics, Related, TooMany
from ..formula.compile import compile_formula, is_pure, names_of
from ..formula.facts import degree_of_all
from ..formula.lets import words
from ..formula.source import parsed
from ..model.op import Expr, Fact, Form, Op, Written, camel
from ..model.signature import Signature
from ..read.settings import Settings
from ..read.sources import Sources
from ..read.used import packages
from ..read.yaml import Document
from . import gradients, results
from .arguments import read_arguments
from .context import Context, Named, SharedState
from .defaults import check_defaults
from .entry import check_keys, form_known, read_entry
from .fit import check_manual, check_own_name
from .kernels import match_kernels
from .lets import check_unused_lets
from .names import check_names
from .others import Question, Reads
from .samples import Bounds, check_calls, check_overload, check_samples
from .unused import check_unused

_WRITTEN = {field.name for field in fields(Written)}
_OF_DTYPES = {"dtypes", "dtype"}


def resolve(
    document: Document,
    settings: Settings,
    sources: Sources,
    diags: Diagnostics,
    only: Collection[str | None] | None = None,
) -> list[Op]:
    """Return the operators of a file that have no errors, in the order of the file.

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
            file = _File(document, SharedState(settings, sources, diags, used))
            return file.resolve(only)
    return []


def resolve_changed(
    document: Document, sources: Sources, reads: Mapping[str, Reads]
) -> tuple[list[Op], dict[str, Reads]]:
    """Resolve the entries whose text changed, or that other entries answer differently.

    Args:
        document: The parsed YAML.
        sources: The hand-written sources, with the settings and diagnostics.
        reads: The questions and answers of each entry whose own text is unchanged.

    Returns:
        The operators of the resolved entries, and the questions and answers of all valid entries.
    """
    with suppress(TooMany):
        used = packages(sources.settings, sources.diags)
        if used is not None:
            state = SharedState(sources.settings, sources, sources.diags, used)
            file = _File(document, state, reads)
            names = (entry.name for entry in document.entries)
            only = {name for name in names if not (name and file.unchanged(name))}
            ops = file.resolve(only)
            return ops, file.all_reads(only, {op.name for op in ops})
    return [], {}


class _File:
    """The entries of a file, which are read on first access, and the answers about them."""

    def __init__(
        self, document: Document, around: SharedState, reads: Mapping[str, Reads] | None = None
    ) -> None:
        self.document, self.around = document, around
        self.entries: dict[str, Named] = {}  # by name, in order
        self._reads = reads or {}  # of earlier runs
        self._unchanged: dict[str, bool] = {}
        self._answers: dict[Question, Any] = {}
        self._cyclic: set[str] = set()
        around.ask = self.answer
        for entry in document.entries:
            if entry.name:
                self.entries.setdefault(entry.name, Named(entry, entry.name, around.diags))
        self._count()

    def _count(self) -> None:
        self._overloads = _overloads(self.entries.values())
        self._classes = {camel(name) for name in self.entries}

    def resolve(self, only: Collection[str | None] | None) -> list[Op]:
        """Return the operators of some entries, or of all; check the names of all entries."""
        around, before = self.around, self.entries
        self.entries = {}
        for entry in self.document.entries:
            named: Named | None = before.get(entry.name or "")
            if only is not None and entry.name not in only:
                named = named and (named if named.entry is entry else replace(named, entry=entry))
            elif not (isinstance(named, Context) and named.entry is entry):
                named = read_entry(entry, around)
            if named is None:
                around.broken |= {entry.name} if entry.name else set()
            elif (known := self.entries.setdefault(named.name, named)) is not named:
                first = Related("it is first defined here", known.name_span)
                named.error("defined_twice", named.at_name, related=[first])
        if not self.document.complete:
            around.broken.update(self.document.names() - self.entries.keys())
        self._count()
        check_names(self.entries, around.settings, around.sources, self.signature)
        names = self.entries
        if only is not None:
            names = {n: named for n, named in self.entries.items() if named.entry.name in only}
        wanted = [self.context(name) for name in [*names]]
        path = self.document.path
        ops = [op for context in wanted if context and (op := _operator(context, path))]
        self._check_cycles(ops)
        return ops

    def context(self, name: str) -> Context | None:
        """Return an entry with its keys and signature, or None if these are missing or invalid."""
        named = self.entries.get(name)
        if named is None or isinstance(named, Context) or name in self.around.broken:
            return named if isinstance(named, Context) else None
        context = read_entry(named.entry, self.around)
        if context is None:
            self.around.broken.add(name)
        else:
            self.entries[name] = context
        return context

    # ------------------------------------------------------------- answers about entries

    def answer(self, question: Question) -> Any:
        """Return the answer to a question of an entry: of the method of that name."""
        if question not in self._answers:
            kind, *about = question
            self._answers[question] = getattr(self, str(kind))(*about)
        return self._answers[question]

    def names(self, kind: str) -> list[str]:
        """Return the names of all entries, or Python names of overloads."""
        return [*(self.entries if kind == "signature" else self._overloads)]

    def signature(self, name: str) -> Signature | None:
        """Return the signature of an entry, or None."""
        context = self.context(name)
        return context.signature if context else None

    def overloads(self, name: str) -> Sequence[str] | None:
        """Return the entries that formulas call by an overloaded Python name, or None."""
        return self._overloads.get(name)

    def hides(self, namespace: str) -> bool:
        """Return whether a class of the package has this name."""
        return namespace in self._classes

    def degrees(self, name: str, *given: Any) -> Sequence[Fact]:
        """Return the facts about an entry's results, given the degrees of its arguments.

        They follow from its composite or the function that it binds. Kernels have no facts.
        """
        question: Question = ("degrees", name, *given)
        self._answers[question] = ()  # for the recursion below: composites may form a cycle
        context, degrees = self.context(name), dict(zip(given[::2], given[1::2], strict=True))
        if context is None:
            return ()
        expr = _composed(context, degrees)
        if not expr and context.raw.jvp == "linear":  # in all of its arrays together
            arrays = [
                Fact(degree=degrees[a.name]) for a in context.signature.arrays if a.name in degrees
            ]
            return [Fact(degree=degree_of_all(arrays, "sum"))] * len(context.signature.outputs)
        return (expr.known or ()) if expr else ()

    def pure(self, name: str) -> bool:
        """Return whether the results depend only on the arguments; bound csrc functions may not."""
        self._answers["pure", name] = False  # for the recursion below
        context = self.context(name)
        if context is None:
            return False
        expr, kernels = _composed(context, {}), context.raw.dispatch or context.raw.manual
        return is_pure(expr, context.others.pure) if expr else bool(kernels)

    # ------------------------------------------------------------- answers of earlier runs

    def unchanged(self, name: str) -> bool:
        """Return whether the text of an entry and all answers to its questions are unchanged."""
        if name not in self._reads:
            return False
        if name not in self._unchanged:
            self._unchanged[name] = False  # for the recursion below
            reads = self._reads[name].items()
            self._unchanged[name] = all(self._holds(question, known) for question, known in reads)
        return self._unchanged[name]

    def _holds(self, question: Question, known: str) -> bool:
        """Return whether the answer to a question is unchanged."""
        kind, name = str(question[0]), str(question[1])
        if kind == "signature" and name in self._reads:
            return True  # it depends on the text alone
        if kind in ("degrees", "pure") and self.unchanged(name):
            return True
        return _hash(self.answer(question)) == known

    def all_reads(self, only: Collection[str | None], valid: Collection[str]) -> dict[str, Reads]:
        """Return the questions and answers of the valid entries.

        An entry that was not resolved may have been asked something new, and have asked others.
        """
        found: dict[str, Reads] = {}
        for name, named in self.entries.items():
            resolved = named.entry.name in only  # None if its signature's key is misspelled
            if name in self._cyclic or (resolved and name not in valid):
                continue
            asked = named.others.questions if isinstance(named, Context) else ()
            new = {question: _hash(self.answer(question)) for question in asked}
            found[name] = new if resolved else {**self._reads[name], **new}
        return found

    def _check_cycles(self, ops: list[Op]) -> None:
        """Report composites that call each other in a cycle."""
        exprs = {op.name: op.forward.expr for op in ops}
        calls: dict[str, Iterable[str]] = {name: e.ops if e else () for name, e in exprs.items()}
        pending = [name for called in calls.values() for name in called]
        for name in pending:  # grows in the loop
            if name not in calls:
                context = self.context(name)  # of an entry that was not resolved
                expr = context and _composed(context, {})
                calls[name] = expr.ops if expr else ()
                pending += calls[name]
        order = list(self.entries)
        while True:
            try:
                return TopologicalSorter(calls).prepare()
            except CycleError as error:
                cycle: list[str] = error.args[1][:0:-1]  # reversed: callers first
            first = cycle.index(min(cycle, key=order.index))
            cycle = [*cycle[first:], *cycle[: first + 1]]
            what = "composites call each other in a cycle: " + " -> ".join(cycle)
            if len(cycle) == 2:
                what = "the composite calls itself"
            self.entries[cycle[0]].error("circle", ("composite",), what=what)
            self._cyclic.update(cycle)
            for name in cycle:
                calls[name] = ()


def _hash(answer: Any) -> str:
    """Return a hash of an answer. The order of sets depends on the process."""
    return hashlib.sha256(repr(_ordered(answer)).encode()).hexdigest()[:16]


def _ordered(value: Any) -> Any:
    """Return a value with its sets as sorted lists."""
    if isinstance(value, frozenset):
        return sorted(value)
    return [_ordered(item) for item in value] if isinstance(value, tuple | list) else value


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


def _composed(context: Context, degrees: Mapping[str, int]) -> Expr | None:
    """Compile the composite of an entry, or the call of the MLX function that it binds."""
    composite = context.raw.composite
    texts = results.bound_texts(context) if composite is None else [composite]
    args = context.signature.args
    facts = {arg.name: Fact(degree=degrees.get(arg.name, 0)) for arg in args}
    names = names_of(args, facts)
    scope = context.scope(names)
    if composite is None:  # the name refers to MLX's function, not to this entry
        scope = scope._replace(ops={}, overloads={}, lets={})
    want = context.want_outputs()
    found = (compile_formula(text, scope, want, lambda *_: None) for text in texts)
    return next(filter(None, found), None)


def _operator(context: Context, path: str) -> Op | None:
    """Return the operator that an entry describes, or None if an error was reported."""
    if not form_known(context):
        return None
    usable = check_keys(context)
    arguments = read_arguments(context)
    check_defaults(context, arguments)
    samples = check_samples(context, arguments)
    check_overload(context, samples)
    if not usable:
        return None
    checks, known = results.checks(context, arguments)
    rules = results.rules(context, known)
    known = results.with_outputs(context, known, rules, checks)
    forward = results.forward(context, known)
    if context.form is not Form.KERNELS:
        known = replace(known, results=(forward.expr and forward.expr.known) or ())
    elif context.failed.isdisjoint(_OF_DTYPES):  # else the dtypes of kernels are unknown
        forward = replace(forward, kernels=match_kernels(context, known, rules, checks))
    derivatives = gradients.derivatives(context, known)
    bounds = check_calls(context, known, samples, rules.shapes, checks)
    check_own_name(context)
    for part in context.raw.manual if context.form is Form.KERNELS else ():
        check_manual(context, part)
    if not context.ok:
        return None
    pure, composed = context.others.pure, context.raw.composite is not None and forward.expr
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
        file=path,
        line=context.entry.line,
    )
    check_unused(context, op)
    check_unused_lets(context, op, known, bounds.lets)
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
