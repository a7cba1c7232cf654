"""`mlxgen import torch` with torch: any operators can be imported, the page's examples are true.

torch is in this environment or in that of ``ATEN_TORCH``, a Python of the same release: `make aten`
sets it to ``TORCH``. Without torch, the tests are skipped.
"""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import report

ROOT = report.ATEN.parent
PAGE = (ROOT / "docs" / "aten-import.md").read_text(encoding="utf-8")
FIND = (
    "import sys, torch\n"
    "print(*sys.version_info[:2], *torch.__version__.split('.')[:2], torch.__path__[0])"
)


@functools.cache
def installed() -> tuple[str, str]:
    """Return the folder that Python imports torch from, and torch's release, or ""."""
    python = os.environ.get("ATEN_TORCH") or sys.executable
    found = subprocess.run([python, "-c", FIND], capture_output=True, text=True, check=False)
    parts = found.stdout.strip().split(" ", 4)
    if found.returncode or parts[:2] != [str(part) for part in sys.version_info[:2]]:
        return "", ""
    return str(Path(parts[4]).parent), ".".join(parts[2:4])


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mlxgen in a folder, with torch."""
    site, _ = installed()
    if not site:
        pytest.skip("torch is not installed: set ATEN_TORCH to the Python of another environment")
    paths = os.pathsep.join([site, str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "mlxgen", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("seed", range(4))
def test_subsets(tmp_path: Path, seed: int, count: int) -> None:
    """The operators that formulas call are added, so that the entries pass the check."""
    _, release = installed()
    names = random.Random(f"{seed} {count}").sample(report.listed("allowlist.txt"), count)
    (tmp_path / "names.txt").write_text("\n".join(names))
    for part in ("csrc", "kernels", "python"):
        shutil.copytree(report.ATEN / part, tmp_path / part)
    # complex.yaml has overloads of operators that subsets lack.
    settings = (report.ATEN / "pyproject.toml").read_text().replace(', "complex.yaml"', "")
    (tmp_path / "pyproject.toml").write_text(settings)
    tables = [*(report.ATEN / "overrides").glob("*.yaml"), report.ATEN / f"releases/{release}.yaml"]
    overrides = [part for path in tables for part in ("--overrides", str(path))]
    arguments = ("--allow", "names.txt", *overrides, "-o", "aten.yaml", "--report", "report.yaml")
    done = run(tmp_path, "import", "torch", *arguments)
    assert done.returncode == 0, done.stderr
    if "- signature" in (tmp_path / "aten.yaml").read_text():
        checked = run(tmp_path, "check", "aten.yaml")
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The entries and the report of the operators that the page shows."""
    folder = tmp_path_factory.mktemp("examples")
    (listed,) = re.findall(r"```text\n(# allowlist.txt\n.*?)```", PAGE, re.DOTALL)
    others = {name.partition(".")[0] for name in re.findall(r"^([\w.]+): \{", PAGE, re.MULTILINE)}
    (folder / "allowlist.txt").write_text(listed + "\n".join(others))
    arguments = ("--allow", "allowlist.txt", "-o", "aten.yaml", "--report", "report.yaml")
    done = run(folder, "import", "torch", *arguments)
    assert done.returncode == 0, done.stderr
    return (folder / "aten.yaml").read_text(), (folder / "report.yaml").read_text()


def test_entry_of_the_page(examples: tuple[str, str]) -> None:
    (entry,) = re.findall(r"```yaml\n(# .*?- signature: leaky_relu.*?)```", PAGE, re.DOTALL)
    start, end = entry.split("  doc: ")  # which has an address that the page shortens
    assert f"{start}  doc: " in examples[0] and end.partition("\n")[2] in examples[0]


def test_report_of_the_page(examples: tuple[str, str]) -> None:
    (lines,) = re.findall(r"```yaml\n(gelu: .*?)```", PAGE, re.DOTALL)
    assert set(lines.splitlines()) <= set(examples[1].splitlines())


@pytest.mark.parametrize("number", [0, 1])
def test_overrides_of_the_page(tmp_path: Path, number: int) -> None:
    text = re.findall(r"```yaml\n((?:# overrides.yaml\n)?(?:relu:|\"half).*?)```", PAGE, re.DOTALL)
    (tmp_path / "overrides.yaml").write_text(text[number])
    names = [line.partition(":")[0] for line in text[number].splitlines() if line[:1].isalpha()]
    (tmp_path / "names.txt").write_text("\n".join(names))
    arguments = ("--allow", "names.txt", "--overrides", "overrides.yaml", "-o", "aten.yaml")
    done = run(tmp_path, "import", "torch", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "From the overrides, overrides.yaml." in (tmp_path / "aten.yaml").read_text()
    checked = run(tmp_path, "check", "aten.yaml")
    assert checked.returncode == 0, checked.stderr
