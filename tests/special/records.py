"""All records: the lists ``RECORDS`` of the modules reference_<family>.py in this folder."""

from __future__ import annotations

import importlib
from pathlib import Path

from special.reference import Record

FAMILIES = sorted(path.stem for path in Path(__file__).parent.glob("reference_*.py"))


def _records() -> dict[str, Record]:
    found: dict[str, Record] = {}
    for family in FAMILIES:
        for record in importlib.import_module(f"special.{family}").RECORDS:
            assert record.id not in found, f"two records of {record.id}"
            found[record.id] = record
    return found


RECORDS = _records()
