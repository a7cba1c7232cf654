"""A torch that consists of its schema only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxgen.plugins.importers import schema
from mlxgen.plugins.importers.schema import Schema

SCHEMA = Path(__file__).parent / "data" / "native_functions.yaml"
VERSION = "2.99.0"


@pytest.fixture(scope="session")
def torch_schema() -> Schema:
    return schema.read(SCHEMA, VERSION)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder that Python imports torch's schema from, in place of any installed torch."""
    folder = tmp_path / "site"
    native = folder / "torchgen" / "packaged" / "ATen" / "native"
    native.mkdir(parents=True)
    (native / "native_functions.yaml").write_bytes(SCHEMA.read_bytes())
    (folder / "torchgen" / "__init__.py").touch()
    (folder / "torch.py").write_text("class ops:\n    aten = None\n")
    about = folder / f"torch-{VERSION}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n")
    return folder


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, site: Path) -> Run:
    """Return a function that runs `mlxgen import torch` in ``tmp_path`` with this torch."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(site), str(Path(__file__).parents[2])])
        return subprocess.run(
            [sys.executable, "-m", "mlxgen", "import", "torch", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )

    return call
