"""Both source distributions are ready for an index: complete, with metadata that it accepts."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tools.release import address

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distributions of mlxgen and mlxgen-ops."""
    folder = tmp_path_factory.mktemp("dist")
    for where in (ROOT / "mlxgen", ROOT):
        command = [sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(where)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def files(dist: Path, name: str) -> dict[str, bytes]:
    (path,) = dist.glob(f"{name}-[0-9]*.tar.gz")
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.isfile()]
        return {
            member.name.partition("/")[2]: found.read()
            for member in members
            if (found := archive.extractfile(member)) is not None
        }


def test_twine_accepts_them(dist: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["mlxgen", "mlxgen_ops"])
def test_pages_of_the_index(dist: Path, name: str) -> None:
    """Links are absolute after the first release, and those into the repository name its files."""
    metadata = email.message_from_bytes(files(dist, name)["PKG-INFO"])
    urls = dict(text.split(", ") for text in metadata.get_all("Project-URL", []))
    page = metadata.get_payload()
    assert isinstance(page, str)
    links = re.findall(r"\]\(([^)]+)\)", page)
    blob = f"{urls['Source']}/blob/main/" if "Source" in urls else "../"
    inside = [link.removeprefix(blob) for link in links if link.startswith(blob)]
    others = [link for link in links if not link.startswith(blob)]
    assert inside and all((ROOT / path.partition("#")[0]).is_file() for path in inside)
    assert all(link.startswith("https://") for link in others)
    assert urls.get("Source", "") == address(ROOT)
    assert metadata["Author"] and metadata.get_all("Classifier")


def test_sources_are_complete(dist: Path) -> None:
    """The distributions have all files of the repository and nothing that was built."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this is no repository: only git knows its files")
    tracked = {path for path in listed.stdout.split() if not path.startswith(".")}
    found = set(files(dist, "mlxgen_ops"))
    assert tracked <= found
    assert not [path for path in found if path.startswith(("build/", ".venv/", "dist/"))]
    inside = {path.removeprefix("mlxgen/") for path in tracked if path.startswith("mlxgen/")}
    assert inside <= set(files(dist, "mlxgen"))
