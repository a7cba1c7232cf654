"""The files of `mlxgen import torch`, and the line that it prints.

Each entry says where its formula comes from, so that the difference between two releases of torch
can be read.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..common import entries as write
from .importer import Imported, Made, Merged, Outcome, Rejected
from .overloads import cpp_name
from .table import Row


def entries(imported: Imported) -> str:
    """Return the file of entries."""
    blocks = [*map(_helper, imported.helpers), *map(_entry, imported.made)]
    return write.file(_source(imported), "Edit the overrides instead of this file.", blocks)


def _source(imported: Imported) -> str:
    return f"torch {imported.version}"


def _helper(row: Row) -> str:
    keys = {"signature": row.overload, **row.keys}
    keys.setdefault("doc", "Part of other operators.")
    keys.setdefault("tags", ["internal"])
    return write.block(keys, row.origin.sentence)


def _entry(made: Made) -> str:
    overload = made.overload
    keys: dict[str, Any] = {"signature": str(overload), **made.formulas.keys}
    if usable := cpp_name(overload.name):
        keys = {"name": usable, "python_name": overload.base, **keys}
    keys.setdefault("doc", made.doc)
    if list(made.variants) != ["function"]:
        keys.setdefault("variants", list(made.variants))
    if made.aliases:
        keys["aliases"] = [*made.aliases, *keys.get("aliases", ())]
    return write.block(keys, made.formulas.origin.sentence)


def report(imported: Imported) -> str:
    """Return the report: a line for each overload, by operator."""
    outcomes = [list(each.values()) for each in imported.operators.values()]
    counts = Counter(type(outcome) for each in outcomes for outcome in each)
    whole = sum(any(isinstance(outcome, Made) for outcome in each) for each in outcomes)
    rows = {
        name: _outcome(outcome)
        for each in imported.operators.values()
        for name, outcome in each.items()
    }
    lines = [
        "the outcome of each overload.",
        f"Operators: {len(outcomes)}; with an entry: {whole}.",
        f"Overloads: {counts.total()}; entries: {counts[Made]}, merged: {counts[Merged]}, "
        f"rejected: {counts[Rejected]}.",
    ]
    if imported.added:
        lines.append(f"Added, because formulas call them: {', '.join(imported.added)}.")
    return write.report(_source(imported), lines, rows)


def _outcome(outcome: Outcome) -> dict[str, str]:
    match outcome:
        case Made():
            return {"from": str(outcome.formulas.origin)}
        case Merged(into):
            return {"merged": into}
        case Rejected(reason):
            return {"rejected": reason}


def summary(imported: Imported) -> str:
    """Return the line that the command prints."""
    every = [each.values() for each in imported.operators.values()]
    whole = sum(any(isinstance(outcome, Made) for outcome in each) for each in every)
    count = len(imported.made)
    added = f"; added: {', '.join(imported.added)}" if imported.added else ""
    return f"{_source(imported)}: {count} entries for {whole} of {len(every)} operators{added}"
