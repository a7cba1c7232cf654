"""Lets the tests import the modules next to them, as the commands of this folder do.

`make test` builds only the operators of selected.txt: all other tests are `extended`.
"""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

SELECTED = {*(HERE / "selected.txt").read_text(encoding="utf-8").splitlines()[1:]}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of operators that are not selected."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        name = callspec.params.get("name") if callspec else None
        selected = item.path.name == "test_samples.py" and name in SELECTED
        if item.path.parent == HERE and not selected:
            item.add_marker(pytest.mark.extended)
