"""Executes the examples of docs/train.md."""

import re
from pathlib import Path

import mlxops

PAGE = Path(__file__).parents[2] / "docs" / "train.md"


def test_example():
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})


def test_operators():
    """The page lists all operators of mlxops.nn."""
    table = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == {
        name for name in dir(mlxops.nn) if not name.startswith("_")
    }
