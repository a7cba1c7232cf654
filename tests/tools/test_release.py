"""python -m tools.release: versions, changelog and tag agree, or mismatches are reported."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from mlxgen.package.backend import tomllib
from tools import mlx_releases, release
from tools.release import PLACES, ROOT, problems, versions, write

ADDRESS = "https://example.org/owner/name"
FILLED = (release.SETTING, *release.PROJECTS, *release.DESCRIPTIONS, release.CITATION)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the files of this project that contain its version."""
    for name in (*PLACES, *FILLED, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
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
        "mlxgen/package/origin.py has no address of the repository: use --address once",
    ]
    write(root, "9.8.7", "2026-02-03")
    (root / release.SETTING).write_text(f'REPOSITORY = "{ADDRESS}"\n', encoding="utf-8")
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


def test_headings_in_the_changelog(root: Path) -> None:
    log = "# Changes\n\n## Unreleased\n\n### Breaking\n\n- More.\n"
    (root / "CHANGELOG.md").write_text(log, encoding="utf-8")
    write(root, "9.8.7", "2026-02-03")
    assert not [text for text in problems(root, "9.8.7") if "CHANGELOG" in text]


def test_address(root: Path) -> None:
    """One command writes the address into all files; a second one replaces it."""
    before = {name: (root / name).read_text(encoding="utf-8") for name in FILLED}
    assert release.address(root) == "" and "../" in before["python/README.md"]
    for url in (ADDRESS, "https://example.org/other/place"):
        release.fill(root, url)
        texts = {name: (root / name).read_text(encoding="utf-8") for name in FILLED}
        assert release.address(root) == url
        for text in texts.values():
            assert url in text
            assert "](../" not in text and ("example.org" not in text.replace(url, ""))
        for name in release.PROJECTS:
            old, new = tomllib.loads(before[name]), tomllib.loads(texts[name])
            assert old["project"]["urls"] == {}
            assert new["project"].pop("urls")["Source"] == url
            del old["project"]["urls"]
            assert old == new
        assert texts[release.CITATION].endswith(f"\nrepository-code: {url}\n")


def test_no_page_names_a_place_that_does_not_exist() -> None:
    """Before the first release: no repository or site of ours, and no entry in an index."""
    known = {"ml-explore", "OWNER"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    ending = (".md", ".toml", ".cff", ".yml", ".in", ".py", ".ipynb")
    for name in listed.splitlines():
        path = ROOT / name
        if not name.endswith(ending) or not path.is_file() or path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"github\.com/([\w-]+)/", text)) <= known, name
        # With an extra, pip adds its requirements to an installation.
        for line in (
            re.findall(r"pip (?:install|download) [^&\n]*", text) if path.suffix == ".md" else ()
        ):
            ours = re.search(r"""[\s"'](?:mlxgen|mlxgen-ops|mlx_aten)(?=["'\s]|$)""", line)
            assert not ours or "--no-index" in line, f"{name}: {line}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "### Added\n\n- Built for MLX 0.1.0.\n- A\n",
            "### Added\n\n- Built for MLX 0.2.0.\n- A\n",
        ),
        (
            "### Breaking\n\n- B\n\n### Added\n\n- A\n",
            "### Breaking\n\n- B\n\n### Added\n\n- Built for MLX 0.2.0.\n- A\n",
        ),
        ("### Fixed\n\n- F\n", "### Added\n\n- Built for MLX 0.2.0.\n\n### Fixed\n\n- F\n"),
    ],
)
def test_a_new_release_of_mlx_in_the_changelog(old: str, new: str) -> None:
    around = "# Changes\n\n## Unreleased\n\n{}\n## 0.0.1\n\n### Added\n\n- Built for MLX 0.0.9.\n"
    line = "- Built for MLX 0.2.0.\n"
    assert mlx_releases._logged(around.format(old), line) == around.format(new)
    assert mlx_releases._logged(around.format(new), line) == around.format(new)
