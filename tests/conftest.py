"""Small projects to build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write_project(tmp_path: Path) -> Callable[[str], Path]:
    """Make ``tmp_path`` a complete project whose pyproject.toml is the given text."""

    def write(text: str) -> Path:
        for package in ("tiny", "my_ops", "mlxops", "ops"):
            (tmp_path / "python" / package).mkdir(parents=True, exist_ok=True)
            (tmp_path / "python" / package / "__init__.py").touch()
        (tmp_path / "mlx_ops.yaml").touch()
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
        return tmp_path

    return write
