"""Commands that install the mlxgen that runs, by the origin that pip has recorded."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen.package import origin

FOLDER = Path(mlxgen.__file__).parent
VERSION = mlxgen.__version__


@pytest.mark.parametrize(
    ("record", "requirement"),
    [
        (None, f"mlxgen[build]=={VERSION}"),
        (
            {"url": FOLDER.as_uri(), "dir_info": {"editable": True}},
            f"{FOLDER}[build]",
        ),
        (
            {"url": "file:///a%20b/mlxgen-1-py3-none-any.whl", "archive_info": {}},
            "/a b/mlxgen-1-py3-none-any.whl[build]",
        ),
        (
            {"url": "https://host/mlxgen.whl", "archive_info": {}},
            "mlxgen[build] @ https://host/mlxgen.whl",
        ),
        (
            {
                "url": "https://host/mlxgen",
                "vcs_info": {"vcs": "git", "commit_id": "abc"},
                "subdirectory": "mlxgen",
            },
            "mlxgen[build] @ git+https://host/mlxgen@abc#subdirectory=mlxgen",
        ),
    ],
    ids=["index", "folder", "wheel", "url", "git"],
)
def test_origins(
    record: dict[str, Any] | None, requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return record and json.dumps(record)

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())
    found = origin.find()
    assert found.requirement == requirement
    assert ("no longer exists" in found.about) == requirement.startswith("/a b")


def test_a_folder_in_pythonpath(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    assert origin.find().requirement == f"{FOLDER}[build]"
