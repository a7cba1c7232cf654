"""Reads the operators of the packages of the setting ``uses``, from their ``ops.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from pydantic import BaseModel, Field, ValidationError

from ..diagnostics import Diagnostics
from ..model.op import dotted_names
from ..model.signature import Arg, Default, Output, Signature, Type, split
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
        except (ValidationError, OSError):
            diags.error(MESSAGES("package_of_other_mlxgen", package=use.name), use.span)
            return None
    return operators


# The part of ops.json that formulas need (render/python.py writes it).


class _Arg(BaseModel):
    name: str
    resolved: Type
    has_default: bool
    value: bool | int | float | str | tuple[bool | int | float | tuple[int, ...], ...] | None
    kw_only: bool
    pos_only: bool


class _Output(BaseModel):
    name: str
    resolved: Type


class _Operator(BaseModel):
    name: str
    python_name: str
    module: str
    aliases: list[str]
    args: list[_Arg]
    outputs: list[_Output]
    cpp_name: str
    header: str
    pure: bool
    jvp: str
    doc: str | None
    tags: list[str]


class _Table(BaseModel):
    version: int = Field(alias="schema", ge=SCHEMA, le=SCHEMA)
    operators: list[_Operator]


@lru_cache(16)
def _read(found: Found, *_: int) -> Mapping[str, list[UsedOperator]]:
    """Return the overloads of a package; further arguments tell a changed file apart."""
    overloads: dict[str, list[UsedOperator]] = {}
    for row in _Table.model_validate_json(found.table.read_bytes()).operators:
        if "internal" not in row.tags:
            for name, operator in _named(found, row):
                overloads.setdefault(name, []).append(operator)
    return overloads


def _named(found: Found, row: _Operator) -> Iterator[tuple[str, UsedOperator]]:
    """Yield an operator with each of its dotted names."""
    args = tuple(
        Arg(
            name=arg.name,
            type=arg.resolved,
            default=Default(arg.value, arg.resolved) if arg.has_default else None,
            kw_only=arg.kw_only,
            pos_only=arg.pos_only,
        )
        for arg in row.args
    )
    outputs = tuple(Output(output.name, output.resolved) for output in row.outputs)
    operator = UsedOperator(
        cpp_name=row.cpp_name,
        header=row.header,
        signature=Signature(
            row.name, split(args, [o.name for o in outputs]), outputs, python_name=row.python_name
        ),
        pure=row.pure,
        linear=row.jvp == "linear",
        doc=row.doc or "",
    )
    for name in dotted_names([row.python_name, *row.aliases], row.module):
        yield f"{found.name}.{name}", operator
