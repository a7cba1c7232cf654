"""Lets the tests import the modules next to them, as the commands of this folder do.

`make test` builds only the operators of selected.txt: all other tests are `extended`. If ATEN_NAMES
is set (tools/metal.py), only the samples of these operators are run.
"""

import os
import sys
from pathlib import Path

import pytest
from evaluation import forget_lost_tasks

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

SELECTED = {*(HERE / "selected.txt").read_text(encoding="utf-8").splitlines()[1:]}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of operators that are not selected."""
    if names := os.environ.get("ATEN_NAMES"):
        items[:] = [item for item in items if _operator(item) in {None, *names.split()}]
    for item in items:
        if item.path.parent == HERE and _operator(item) not in SELECTED:
            item.add_marker(pytest.mark.extended)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Let no test wait for the tasks of an earlier one."""
    forget_lost_tasks()


def _operator(item: pytest.Item) -> str | None:
    """Return the operator whose samples a test uses."""
    callspec = getattr(item, "callspec", None)
    of_samples = callspec and item.path.name == "test_samples.py"
    return callspec.params.get("name") if of_samples else None
