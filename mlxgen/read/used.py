"""Reads the operators of the packages of the setting ``uses``, from their ``ops.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..diagnostics import Diagnostics
from ..model.op import dotted_names
from ..model.signature import Arg, Default, Kind, Output, Signature, Type, split
from ..model.used import SCHEMA, UsedOperator
from . import MESSAGES
from .packages import Found, find, missing
from .settings import Settings


def packages(settings: Settings, diags: Diagnostics) -> dict[str, list[UsedOperator]] | None:
    """Return the overloads of the packages that a project uses, in order, by dotted name.

    None if an error was reported.
    """
    operators: dict[str, list[UsedOperator]] = {}
    for use in settings.uses:
        found = find(use.name)
        if found is None:
            missing(use, diags)
            return None
        stat = found.table.stat()
        try:
            operators |= _read(found, stat.st_mtime_ns, stat.st_size)
        except (KeyError, TypeError, ValueError, OSError):
            diags.error(MESSAGES("package_of_other_mlxgen", package=use.name), use.span)
            return None
    return operators


@lru_cache(16)
def _read(found: Found, *_: int) -> Mapping[str, list[UsedOperator]]:
    """Return the overloads of a package; further arguments tell a changed file apart.

    Raises:
        KeyError, TypeError, ValueError: The file was written by another mlxgen.
    """
    table = json.loads(found.table.read_bytes())
    if table["schema"] != SCHEMA:
        raise ValueError(table["schema"])
    overloads: dict[str, list[UsedOperator]] = {}
    for row in table["operators"]:
        if "internal" not in row["tags"]:
            operator = _operator(row)
            for name in dotted_names([row["python_name"], *row["aliases"]], row["module"]):
                overloads.setdefault(f"{found.name}.{name}", []).append(operator)
    return overloads


def _operator(row: Mapping[str, Any]) -> UsedOperator:
    """Return an operator from its row, which render/python.py writes."""
    args = list[Arg]()
    for arg in row["args"]:
        type = _type(arg["resolved"])
        default = Default(_tuples(arg["value"]), type) if arg["has_default"] else None
        marks = {"kw_only": arg["kw_only"], "pos_only": arg["pos_only"]}
        args.append(Arg(arg["name"], type, default, **marks))
    outputs = tuple(Output(output["name"], _type(output["resolved"])) for output in row["outputs"])
    return UsedOperator(
        cpp_name=row["cpp_name"],
        header=row["header"],
        signature=Signature(
            row["name"],
            split(args, [output.name for output in outputs]),
            outputs,
            python_name=row["python_name"],
        ),
        pure=row["pure"],
        linear=row["jvp"] == "linear",
        doc=row["doc"] or "",
    )


def _type(fields: Mapping[str, Any]) -> Type:
    return Type(Kind(fields["kind"]), **{k: _tuples(v) for k, v in fields.items() if k != "kind"})


def _tuples(value: Any) -> Any:
    """Return a value with tuples in place of JSON's lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
