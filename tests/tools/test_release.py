"""python -m tools.release: versions, changelog and tag agree, or mismatches are reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import pytest

from tools.release import PLACES, ROOT, problems, versions, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the files of this project that contain its version."""
    for name in (*PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    log = "# Changes\n\n## Unreleased\n\n- More.\n\n## 0.0.1 (2026-01-01)\n\n- First.\n"
    (tmp_path / "CHANGELOG.md").write_text(log, encoding="utf-8")
    return tmp_path


def test_both_packages_have_one_version() -> None:
    found = versions(ROOT)
    assert set(found) == set(PLACES)
    assert len(set(found.values())) == 1


def test_release(root: Path) -> None:
    assert problems(root, "9.8.7") == [
        *(f"{place} has version {there}, not 9.8.7" for place, there in versions(root).items()),
        "CHANGELOG.md has no section for 9.8.7",
    ]
    write(root, "9.8.7", "2026-02-03")
    assert not problems(root, "9.8.7")
    log = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## Unreleased\n\n\n## 9.8.7 (2026-02-03)\n\n- More.\n\n## 0.0.1" in log
    for place in PLACES:  # only the version has changed
        old = (ROOT / place).read_text(encoding="utf-8")
        new = (root / place).read_text(encoding="utf-8")
        assert new == old.replace(
            f'version{"__" if "init" in place else ""} = "{versions(ROOT)[place]}"',
            f'version{"__" if "init" in place else ""} = "9.8.7"',
            1,
        )
    with pytest.raises(click.ClickException, match="nothing below '## Unreleased'"):
        write(root, "9.8.8", "2026-02-04")
    assert not problems(root, "9.8.7")
