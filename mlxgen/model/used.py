"""Operators of other packages, as far as formulas that call them need to know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .op import Fact
from .signature import Signature

SCHEMA = 2
"""The version of the fields of ``ops.json``; 2: kinds have stable keys."""


class UsedOperator(NamedTuple):
    """An operator of another package that mlxgen built."""

    cpp_name: str  # qualified
    header: str
    signature: Signature
    pure: bool  # its results depend only on its arguments
    linear: bool  # in all of its arrays together
    doc: str

    def degrees(self, given: Mapping[str, int]) -> Sequence[Fact]:
        """Return the facts about its results, given the degrees of its arguments."""
        degrees = {given[arg.name] for arg in self.signature.arrays if arg.name in given}
        if not self.linear or degrees != {1}:
            return ()
        return [Fact(degree=1)] * len(self.signature.outputs)
