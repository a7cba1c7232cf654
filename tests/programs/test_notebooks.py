"""The notebooks in examples/ run from top to bottom; they contain their own assertions."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))


@pytest.mark.extended
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    if "mlx_aten" in path.read_text(encoding="utf-8"):
        pytest.importorskip("mlx_aten")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), (
        "the repository holds no outputs"
    )
    NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    written = [output.text for output in outputs if output.get("name") == "stderr"]
    assert not written


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
