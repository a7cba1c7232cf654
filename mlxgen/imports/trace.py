"""Formulas from torch's decompositions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..diagnostics import Diagnostics
from .importer import Derive
from .overloads import Unsupported
from .schema import Overload, Schema
from .table import Table


def deriver(
    names: Sequence[str], schema: Schema, table: Table, overrides: Table, diags: Diagnostics
) -> Derive:
    """Return the function that derives formulas."""

    def derive(overload: Overload) -> tuple[Mapping[str, Any], str]:
        raise Unsupported("no formula in the tables")

    return derive
