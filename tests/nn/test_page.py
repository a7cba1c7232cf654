"""Executes the examples of docs/train.md."""

import re
from pathlib import Path

import mlxops

PAGE = Path(__file__).parents[2] / "docs" / "train.md"


def test_examples():
    text = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    for code in examples:
        if "(model" in code:  # of another library
            continue
        exec(compile(code, str(PAGE), "exec"), names)
        if "layers.LSTM" in code:
            assert names["hidden"].shape == names["cell"].shape == (8, 100, 256)
            assert (names["y"].shape, names["state"].shape) == ((8, 100, 128), (8, 128))


def test_operators():
    """The page lists all operators of mlxops.nn."""
    table = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == {
        name for name in dir(mlxops.nn) if not name.startswith("_")
    }
