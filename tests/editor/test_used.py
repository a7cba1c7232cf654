"""Completion of operators of other packages, which `uses` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxgen.plugins.editor.cursor import Cursor, items
from mlxgen.plugins.editor.project import Project

ROWS = """{"schema": 2, "operators": [
{"name": "cube", "python_name": "cube", "module": "extra", "aliases": ["third"], "args":
[{"name": "x", "resolved": {"kind": "array"}, "has_default": false, "value": null, "kw_only": false,
"pos_only": false}], "outputs": [{"name": "out", "resolved": {"kind": "array"}}], "cpp_name":
"o::c", "header": "o/c.h", "pure": true, "jvp": "", "doc": null, "tags": []}]}"""


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site" / "helpful").mkdir(parents=True)
    (tmp_path / "site" / "helpful" / "ops.json").write_text(ROWS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "python" / "p").mkdir(parents=True)
    (tmp_path / "python" / "p" / "__init__.py").touch()
    settings = '[project]\nname = "p"\n[tool.mlxgen]\nuses = ["helpful"]\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    start = '- name: f\n  signature: "f(array x) -> array"\n  composite: '
    (tmp_path / "mlx_ops.yaml").write_text(start + "x\n")
    project = Project(tmp_path / "mlx_ops.yaml", {})

    def offered(formula: str) -> dict[str, str]:
        project.check(start + formula)
        cursor = Cursor.at(start + formula, len(start + formula))
        assert cursor is not None
        return {item.name: item.kind for item in items(cursor, project)}

    assert offered("hel")["helpful"] == "Module"
    assert offered("helpful.")["extra"] == "Module"
    found = offered("helpful.extra.c")
    assert found["cube"] == found["third"] == "Function" and "extra" not in found
