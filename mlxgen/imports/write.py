"""Writes entries and the report as YAML that people read.

The same entries give the same bytes. Each entry says where its formula comes from, so that the
difference between two releases of torch can be read. Files are replaced only if all of them can be
written.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ..diagnostics import COMMAND_LINE, Diagnostics
from .importer import Imported, Made, Merged, Outcome, Rejected
from .overloads import cpp_name
from .table import Origin, Row

_WIDTH = 100
_MARK = b"# Written by mlxgen import"
_ROOM = 80  # for a string next to its key


class _Dumper(yaml.SafeDumper):
    """Writes short lists on one line, and long strings folded."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    tag = "tag:yaml.org,2002:str"
    if "\n" in value:
        return dumper.represent_scalar(tag, value, style="|")
    return dumper.represent_scalar(tag, value, style=">" if len(value) > _ROOM else None)


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.SequenceNode:
    plain = all(not isinstance(item, dict | list) for item in value)
    short = plain and sum(len(str(item)) + 2 for item in value) < _ROOM
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=short)


class _Block(dict[str, Any]):
    """A mapping with a line for each key."""


def _block(dumper: yaml.SafeDumper, value: _Block) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=False)


def _mapping(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.MappingNode:
    plain = all(not isinstance(item, dict | list) for item in value.values())
    short = plain and sum(len(f"{key}: {item}, ") for key, item in value.items()) < _ROOM - 10
    flow = short and not any(set("[]{},") & set(str(item)) for item in value.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=flow)


_Dumper.add_representer(str, _string)
_Dumper.add_representer(list, _list)
_Dumper.add_representer(dict, _mapping)
_Dumper.add_representer(_Block, _block)


def _yaml(value: Any) -> str:
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, width=_WIDTH - 12, allow_unicode=True, indent=2
    )


def entries(imported: Imported) -> str:
    """Return the file of entries."""
    head = (
        f"{_MARK.decode()} from torch {imported.version}. Edit the overrides instead of this file."
    )
    helpers = map(_helper, imported.helpers)
    return "\n".join([f"{head}\n", *helpers, *map(_entry, imported.made)])


def _helper(row: Row) -> str:
    keys = _Block({"signature": row.overload, **row.keys})
    keys.setdefault("doc", "Part of other operators.")
    keys.setdefault("tags", ["internal"])
    return _block_of(keys, row.origin)


def _entry(made: Made) -> str:
    overload = made.overload
    keys = _Block({"signature": str(overload), **made.keys})
    if usable := cpp_name(overload.name):
        keys = _Block({"name": usable, "python_name": overload.base, **keys})
    keys.setdefault("doc", made.doc)
    if list(made.variants) != ["function"]:
        keys.setdefault("variants", list(made.variants))
    if made.aliases:
        keys["aliases"] = [*made.aliases, *keys.get("aliases", ())]
    return _block_of(keys, made.origin)


def _block_of(keys: _Block, origin: Origin) -> str:
    """Return an entry with the comment about its origin."""
    lines = _yaml(keys).splitlines()
    indented = "".join(f"  {line}".rstrip() + "\n" for line in lines)
    return f"# {origin.sentence}\n- {indented[2:]}"


def report(imported: Imported) -> str:
    """Return the report: a line for each overload, by operator."""
    outcomes = [list(each.values()) for each in imported.operators.values()]
    counts = Counter(type(outcome) for each in outcomes for outcome in each)
    whole = sum(any(isinstance(outcome, Made) for outcome in each) for each in outcomes)
    lines = [
        f"{_MARK.decode()} from torch {imported.version}: the outcome of each overload.",
        f"# Operators: {len(outcomes)}; with an entry: {whole}.",
        f"# Overloads: {counts.total()}; entries: {counts[Made]}, merged: {counts[Merged]}, "
        f"rejected: {counts[Rejected]}.",
    ]
    rows = {
        name: _outcome(outcome)
        for each in imported.operators.values()
        for name, outcome in each.items()
    }
    return "\n".join(lines) + "\n" + "".join(f"{name}: {row}\n" for name, row in rows.items())


def _outcome(outcome: Outcome) -> str:
    match outcome:
        case Made():
            row = {"from": str(outcome.origin)}
        case Merged(into):
            row = {"merged": into}
        case Rejected(reason):
            row = {"rejected": reason}
    return yaml.safe_dump(row, width=10_000, default_flow_style=True).strip()


def may_replace(paths: Iterable[Path], diags: Diagnostics) -> bool:
    """Return whether these files can be replaced; report files that mlxgen did not write."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                start = file.read(len(_MARK))
        except OSError:  # writing reports it
            continue
        if start not in (b"", _MARK):
            shown = os.path.relpath(path)
            message = f"refusing to overwrite {shown}, which `mlxgen import` did not write"
            help = "move the file, or choose another name"
            diags.error("MG607", message, COMMAND_LINE, help=help)
            return False
    return True


def replace(files: Mapping[Path, str], diags: Diagnostics) -> bool:
    """Write all files or none; return False and report an error if that is impossible."""
    temporary: dict[Path, Path] = {}
    for path, text in files.items():
        temporary[path] = path.with_name(f".{path.name}.new")
        try:
            temporary[path].write_bytes(text.encode())
        except OSError as error:
            for made in temporary.values():
                with suppress(OSError):
                    made.unlink(missing_ok=True)
            shown = os.path.relpath(path)
            message = f"cannot write {shown}: {error.strerror or error}"
            diags.error("MG607", message, COMMAND_LINE)
            return False
    for path, made in temporary.items():
        made.replace(path)
    return True


def summary(imported: Imported) -> Iterator[str]:
    """Yield the lines that the command prints."""
    every = [each.values() for each in imported.operators.values()]
    whole = sum(any(isinstance(outcome, Made) for outcome in each) for each in every)
    count = len(imported.made)
    yield f"torch {imported.version}: {count} entries for {whole} of {len(every)} operators"
