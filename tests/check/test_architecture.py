"""The session of docs/architecture.md prints what the page shows."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = str(ROOT / "docs" / "architecture.md")
    result = doctest.testfile(page, module_relative=False, raise_on_error=False)
    assert result.attempted > 25
    assert not result.failed
