"""Executes the examples of docs/train.md, and compares the list in docs/train-reference.md."""

import re
from pathlib import Path

import mlxops

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "train.md"


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
    """The reference lists all operators of mlxops.nn."""
    page = (DOCS / "train-reference.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == {
        name for name in dir(mlxops.nn) if not name.startswith("_")
    }
