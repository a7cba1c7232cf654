"""Executes the example of docs/linalg.md, and compares its table with the module."""

import doctest
import re
from pathlib import Path

import mlxops

PAGE = Path(__file__).parents[2] / "docs" / "linalg.md"


def test_example():
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
    test = doctest.DocTestParser().get_doctest(code, {}, PAGE.name, str(PAGE), 0)
    assert doctest.DocTestRunner().run(test).failed == 0 and test.examples


def test_functions():
    """The page lists all functions of mlxops.linalg."""
    table = re.findall(r"^\| (`.*?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == {
        name for name in dir(mlxops.linalg) if not name.startswith("_")
    }
