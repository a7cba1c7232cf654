"""Executes the examples of docs/run-metal.md, and of the import in docs/metal-kernel.md."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlxgen.__main__ import cli
from mlxgen.metal import emulate

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "run-metal.md"
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


@pytest.mark.extended
def test_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "metal-kernel.md").read_text(encoding="utf-8")
    (program, command, entry, *_) = FENCE.findall(text.partition("## Import kernels\n")[2])
    Path("program.py").write_text(program[1])
    done = CliRunner().invoke(cli, command[1].split()[1:])
    assert done.output == "1 entry for 1 of 1 kernels\n"
    assert Path("ops.yaml").read_text().partition("\n\n")[2] == entry[1]
    assert CliRunner().invoke(cli, ["check", "ops.yaml"]).output == "1 operator, no errors\n"
