"""Writes imported entries and the report as YAML that people read.

The same entries give the same bytes. Files are replaced only if all of them can be written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ...command import MESSAGES as COMMAND
from ...diagnostics import COMMAND_LINE, Diagnostics
from . import MESSAGES

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


class Inline(dict[str, Any]):
    """A mapping on one line."""


def _block(dumper: yaml.SafeDumper, value: _Block | Inline) -> yaml.MappingNode:
    flow = isinstance(value, Inline)
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=flow)


def _mapping(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.MappingNode:
    plain = all(not isinstance(item, dict | list) for item in value.values())
    short = plain and sum(len(f"{key}: {item}, ") for key, item in value.items()) < _ROOM - 10
    flow = short and not any(set("[]{},") & set(str(item)) for item in value.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=flow)


_Dumper.add_representer(str, _string)
_Dumper.add_representer(list, _list)
_Dumper.add_representer(dict, _mapping)
_Dumper.add_representer(_Block, _block)
_Dumper.add_representer(Inline, _block)


def _yaml(value: Any) -> str:
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, width=_WIDTH - 12, allow_unicode=True, indent=2
    )


def file(source: str, advice: str, blocks: Iterable[str]) -> str:
    """Return a file of entries.

    Args:
        source: The library and its release: `torch 2.13.0`.
        advice: How to change the entries.
        blocks: The entries, each with its comment.
    """
    return "\n".join([f"{_MARK.decode()} from {source}. {advice}\n", *blocks])


def block(keys: Mapping[str, Any], comment: str) -> str:
    """Return an entry with a comment, one sentence about its origin."""
    lines = _yaml(_Block(keys)).splitlines()
    indented = "".join(f"  {line}".rstrip() + "\n" for line in lines)
    return f"# {comment}\n- {indented[2:]}"


def report(source: str, lines: Sequence[str], outcomes: Mapping[str, Mapping[str, str]]) -> str:
    """Return the report: comments, and a line for the outcome of each function."""
    first, *others = lines
    comments = [f"{_MARK.decode()} from {source}: {first}", *(f"# {line}" for line in others)]
    rows = [f"{name}: {_row(outcome)}" for name, outcome in outcomes.items()]
    return "\n".join([*comments, *rows]) + "\n"


def _row(outcome: Mapping[str, str]) -> str:
    return yaml.safe_dump(dict(outcome), width=10_000, default_flow_style=True).strip()


def may_replace(paths: Iterable[Path], diags: Diagnostics) -> bool:
    """Return whether these files can be replaced; report files that mlxgen did not write."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                start = file.read(len(_MARK) + 1)
        except OSError:  # writing reports it
            continue
        if start and not start.startswith((_MARK, b"//" + _MARK[1:])):
            diags.error(MESSAGES("not_imported", file=os.path.relpath(path)), COMMAND_LINE)
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
            about = {"file": os.path.relpath(path), "reason": error.strerror or error}
            diags.error(COMMAND("unwritable", **about), COMMAND_LINE)
            return False
    for path, made in temporary.items():
        made.replace(path)
    return True
