"""Resolves the entries of a file to operators (``model.Op``).

Each entry is first read by itself, and the names of all entries are compared (names.py). Each entry
is then resolved: its arguments, formulas, gradients and kernels, which may refer to the signatures
of other entries. One run reports all errors at their locations in the YAML, and omits operators
with errors from the result.

``resolve`` with ``only`` resolves some of the entries. Of the others it reads only the names, and
the signatures of those that are called.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from ..model.op import Expr, Fact, Form, Op, Vmap, Written, camel
from ..model.signature import Signature
from ..read.settings import Settings
from ..read.sources import Sources
from ..read.used import packages
from ..read.yaml import Document
from . import gradients, results
from .arguments import read_arguments
from .batch import check_batch
from .context import Context, Named, SharedState
from .defaults import check_defaults
from .entry import check_keys, form_known, read_entry
from .fit import check_manual, check_own_name
from .kernels import match_kernels
from .lets import check_unused_lets
from .names import check_names
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
        if used is None:
            return []
        file = _File(document, SharedState(settings, sources, diags, used), only)
        check_names(file.entries, settings, sources, file.get)
        wanted = [file.context(name) for name in file.entries if only is None or name in only]
        ops = [op for context in wanted if context and (op := _operator(context, document.path))]
        _check_cycles(ops, file)
        return ops
    return []


class _File(Mapping[str, Signature]):
    """The entries of a file. As a mapping: their signatures by name, read on first access."""

    def __init__(
        self, document: Document, around: SharedState, only: Collection[str | None] | None
    ) -> None:
        self.around, self.only = around, only
        self.entries: dict[str, Named] = {}  # by name, in order
        around.signatures, around.degrees, around.pure = self, self.degrees, self.pure
        self._pure: dict[str, bool] = {}
        self._degrees: dict[tuple[str, frozenset[tuple[str, int]]], Sequence[Fact]] = {}
        for entry in document.entries:
            if only is None or entry.name in only:
                named: Named | None = read_entry(entry, around)
            else:
                named = Named(entry, entry.name, around.diags) if entry.name else None
            if named is None:
                around.broken |= {entry.name} if entry.name else set()
            elif (known := self.entries.setdefault(named.name, named)) is not named:
                first = Related("it is first defined here", known.name_span)
                named.error("defined_twice", named.at_name, related=[first])
        if not document.complete:
            around.broken.update(document.names() - self.entries.keys())
        around.overloads = _overloads(self.entries.values())
        for name in self.entries:
            around.class_names.add(camel(name))

    def __getitem__(self, name: str) -> Signature:
        if context := self.context(name):
            return context.signature
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

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

    def composite_calls(self, name: str) -> Iterable[str]:
        """Return the entries that the composite of an unresolved entry calls."""
        if self.only is None or name in self.only or not (context := self.context(name)):
            return ()  # resolved, or it has errors
        expr = _composed(context, {})
        return expr.ops if expr else ()

    def degrees(self, name: str, given: Mapping[str, int]) -> Sequence[Fact]:
        """Return the facts about an entry's results, given the degrees of its arguments.

        They follow from its composite or the function that it binds. Kernels have no facts.
        """
        key, context = (name, frozenset(given.items())), self.context(name)
        if key in self._degrees or context is None:
            return self._degrees.get(key, ())
        self._degrees[key] = ()  # for the recursion below: composites may form a cycle
        expr = _composed(context, given)
        found: Sequence[Fact] = (expr.known or ()) if expr else ()
        if not expr and context.raw.jvp == "linear":  # in all of its arrays together
            arrays = [
                Fact(degree=given[a.name]) for a in context.signature.arrays if a.name in given
            ]
            found = [Fact(degree=degree_of_all(arrays, "sum"))] * len(context.signature.outputs)
        self._degrees[key] = found
        return found

    def pure(self, name: str) -> bool:
        """Return whether the results depend only on the arguments; bound csrc functions may not."""
        if name not in self._pure and (context := self.context(name)):
            self._pure[name] = False  # for the recursion below
            expr, kernels = _composed(context, {}), context.raw.dispatch or context.raw.manual
            self._pure[name] = is_pure(expr, self.pure) if expr else bool(kernels)
        return self._pure.get(name, False)


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
    if derivatives.vmap is Vmap.BATCH and not context.elementwise and context.ok:
        check_batch(context, arguments, checks, rules, samples.values())
    if not context.ok:
        return None
    pure, composed = context.around.pure, context.raw.composite is not None and forward.expr
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


def _check_cycles(ops: list[Op], file: _File) -> None:
    """Report composites that call each other in a cycle."""
    exprs = {op.name: op.forward.expr for op in ops}
    calls: dict[str, Iterable[str]] = {name: e.ops if e else () for name, e in exprs.items()}
    pending = [name for called in calls.values() for name in called]
    for name in pending:  # grows in the loop
        if name not in calls:
            calls[name] = file.composite_calls(name)
            pending += calls[name]
    order = list(file.entries)
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
        file.entries[cycle[0]].error("circle", ("composite",), what=what)
        for name in cycle:
            calls[name] = ()
