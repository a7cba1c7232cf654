"""Executes the examples of docs/run-metal.md."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

from mlxgen.metal import emulate

PAGE = Path(__file__).parents[2] / "docs" / "run-metal.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_page() -> None:
    names: dict[str, Any] = {}
    printed = ""
    found = FENCE.findall(PAGE.read_text(encoding="utf-8"))
    assert [language for language, _ in found] == ["python", "text", "python", "text", "python"]
    for language, code in found:
        if language == "text":
            if sys.platform != "linux":  # the line is not known
                code = code.replace(" at pair_sums.source:3,", "")
            assert printed.split() == code.split()  # the page wraps a message
            continue
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, str(PAGE), "exec"), names)
        printed = out.getvalue()
    with emulate() as metal:
        names["test_one_launch"](metal)
