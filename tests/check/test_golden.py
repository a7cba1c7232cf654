"""The complete output for each case in cases/, stored next to it.

A case is ``cases/<name>.yaml`` with the kernels of the sample project and of mismatches/, or a
folder ``cases/<name>`` with its own project. After a change of messages, update the outputs and
read the difference::

    UPDATE_GOLDEN=1 pytest tests/check/test_golden.py
    git diff tests/check/cases
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from sample import project

from mlxgen.command.operators import mlx_include
from mlxgen.diagnostics import sections

HERE = Path(__file__).parent
CASES = sorted({path.with_suffix("") for path in (HERE / "cases").iterdir()})


def outcome(case: Path, folder: Path) -> str:
    """Return all diagnostics of a case, as printed."""
    if case.is_dir():
        shutil.copytree(case, folder, dirs_exist_ok=True)
    else:
        for source in (project.HERE, HERE / "mismatches"):
            for part in ("csrc", "kernels"):
                shutil.copytree(source / part, folder / part, dirs_exist_ok=True)
        shutil.copy(case.with_suffix(".yaml"), folder / "mlx_ops.yaml")
    diags = project.run(Path("mlx_ops.yaml"), folder / "out")
    assert len(diags)
    assert (folder / "out").exists() == diags.ok  # there are warnings alone
    return diags.render_text().replace(str(mlx_include()), "<mlx>/include")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_output(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = outcome(case, tmp_path)
    golden = case.with_name(f"{case.name}.txt")
    if "UPDATE_GOLDEN" in os.environ:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_there_are_many() -> None:
    golden = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("cases/*.txt"))
    assert len(CASES) > 100
    # All codes but those of the command line, of files that cannot be read, of settings and of
    # compilers (tests/emulator, tests/package).
    missing = set(sections()) - set(re.findall(r"\[(MG\d{3})\]", golden))
    missing = {c for c in missing - {"MG806"} if c[:4] not in ("MG70", "MG71", "MG81", "MG90")}
    assert missing <= {"MG007", "MG606", "MG607"}
