"""Makes the entries of a list of operators: a formula for each overload, or a reason why not.

A formula comes from an override, else from the base table, else from tracing torch's decomposition
(trace.py). Nothing is guessed: an overload without a formula is rejected with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...diagnostics import Diagnostics, did_you_mean
from ...formula import mlx
from . import MESSAGES, pages
from . import overloads as python
from .overloads import Unsupported
from .schema import Overload, Schema
from .table import Formulas, Row, Table, base_table, load


class Made(NamedTuple):
    """An overload that becomes an entry."""

    overload: Overload  # with the signature of the entry
    formulas: Formulas
    doc: str
    variants: Sequence[str]
    aliases: Sequence[str]


class Merged(NamedTuple):
    """An overload whose calls another one serves."""

    into: str


class Rejected(NamedTuple):
    """An overload without an entry."""

    reason: str


Outcome = Made | Merged | Rejected
# Derives the formulas of an overload; raises ``Unsupported`` with the reason.
Derive = Callable[[Overload], Formulas]


class Imported(NamedTuple):
    """The result of an import, by operator and overload, in the order of the file."""

    version: str
    helpers: Sequence[Row]  # entries that formulas of others call
    operators: Mapping[str, Mapping[str, Outcome]]
    added: Sequence[str]  # operators that the lists lack and formulas call

    @property
    def made(self) -> list[Made]:
        """The entries, in the order of the file."""
        found = (outcome for each in self.operators.values() for outcome in each.values())
        return [outcome for outcome in found if isinstance(outcome, Made)]


def read_tables(paths: Sequence[Path], schema: Schema, diags: Diagnostics) -> tuple[Table, Table]:
    """Return the base table and the overrides; report overrides that cannot be used."""
    overrides = load(paths, "override", diags)
    for row in overrides.values():
        if row.helper:
            continue
        overload = schema.overloads.get(row.overload)
        base = row.overload.partition(".")[0]
        own = [other.name for other in schema.candidates(base)]
        if overload is None or row.overload not in own:
            near = did_you_mean(row.overload, own or schema.overloads)
            about = {"version": schema.version, "name": row.overload, "near": near}
            key, known = "known" if own else "", ", ".join(own)
            diags.error(MESSAGES("unknown_overload", key, known=known, **about), row.span)
    return base_table(diags), overrides


def check_used(overrides: Table, imported: Imported, schema: Schema, diags: Diagnostics) -> None:
    """Report overrides for operators that are not imported."""
    for row in overrides.values():
        base = "" if row.helper else schema.overloads[row.overload].base
        if base and base not in imported.operators:
            diags.error(MESSAGES("not_listed", name=base), row.span, severity="warning")


def make(
    names: Sequence[str], schema: Schema, table: Table, overrides: Table, derive: Derive
) -> Imported:
    """Return the outcome of every overload of the operators, sorted by name.

    The operators are those of the lists, and those that their formulas call.
    """
    rows = table | overrides
    found: dict[str, dict[str, Outcome]] = {}
    helpers: list[Row] = []
    left = {*names}
    while left:
        found |= {
            name: _operator(name, schema, rows, frozenset(overrides), derive) for name in left
        }
        made = [outcome for each in found.values() for outcome in each.values()]
        calling = [outcome.formulas for outcome in made if isinstance(outcome, Made)]
        helpers = _helpers(calling, rows)
        called = frozenset[str]().union(
            *(formulas.calls for formulas in [*calling, *(row.formulas for row in helpers)])
        )
        left = _operators(called, schema) - found.keys() - {row.helper for row in helpers}
    added = sorted(found.keys() - {*names})
    return Imported(schema.version, helpers, {name: found[name] for name in sorted(found)}, added)


def _operators(called: frozenset[str], schema: Schema) -> set[str]:
    """Return those of the called functions that only ATen has."""
    known = mlx.table()
    return {
        name
        for name in called & schema.operators.keys()
        if name not in (*known.python, *known.loops) and known.function(name) is None
    }


def _helpers(calling: list[Formulas], rows: Mapping[str, Row]) -> list[Row]:
    """Return the helpers that the formulas call, directly or through others."""
    left = {row.helper: row for row in rows.values() if row.helper}
    used: dict[str, Row] = {}
    while calling:
        names = frozenset[str]().union(*(each.names for each in calling))
        found = {name: left.pop(name) for name in names & left.keys()}
        used |= found
        calling = [row.formulas for row in found.values()]
    return [used[name] for name in sorted(used)]


def _operator(
    name: str, schema: Schema, rows: Mapping[str, Row], overrides: frozenset[str], derive: Derive
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    made: dict[str, Made] = {}
    underived: list[Overload] = []
    candidates = schema.candidates(name)
    written = [o for o in schema.operators.get(name, ()) if o.name in rows and o not in candidates]
    for overload in [*candidates, *written]:
        row = rows.get(overload.name)
        twin = python.without_generator(overload, schema)
        try:
            if twin and not row:
                outcomes[overload.name] = Merged(twin)
                continue
            if row and row.reject:
                raise Unsupported(row.reject)
            signature = python.signature(python.with_empty_lists(overload, schema))
        except Unsupported as error:
            outcomes[overload.name] = Rejected(str(error))
            continue
        try:
            formulas = row.formulas if row else derive(overload)
        except Unsupported as error:
            outcomes[overload.name] = Rejected(str(error))
            underived.append(signature)
            continue
        variants, aliases = python.variants(overload, schema), python.aliases(overload)
        doc = pages.sentence(overload)
        made[overload.name] = Made(signature, formulas, doc, variants, aliases)
    if name in schema.unread:
        outcomes[name] = Rejected(schema.unread[name])
    kept = [entry.overload for entry in made.values()]
    ordered, merged = python.arrange(kept, overrides)
    merged |= python.served(underived, ordered)
    outcomes |= {overload: Merged(into) for overload, into in merged.items()}
    hidden = dict(python.unreachable(ordered))
    for overload in ordered:
        if first := hidden.get(overload.name):
            outcomes[overload.name] = Rejected(f"'{first}' accepts all of its calls")
        else:
            outcomes[overload.name] = made[overload.name]
    return outcomes
