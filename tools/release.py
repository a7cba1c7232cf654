"""A release of mlxgen and mlxops, which have one version and one tag.

::

    python -m tools.release 0.2.0           # write the version, and close the changelog's section
    python -m tools.release --check v0.2.0  # compare a tag, the versions and the changelog

The files contain no address of the repository until the first release, which has the option
``--address URL``. It makes the links of the packages' descriptions absolute, because an index shows
these pages without the other files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path

import rich_click as click

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r'^(_*version_* = ")([^"]*)"', re.MULTILINE)
PLACES = ("mlxgen/__init__.py", "pyproject.toml")
OPEN = "## Unreleased\n"

ADDRESS = re.compile(r'^REPOSITORY = "(.*)"$', re.MULTILINE)
SETTING = "mlxgen/package/origin.py"
PROJECTS = ("pyproject.toml", "mlxgen/pyproject.toml")
DESCRIPTIONS = ("python/README.md", "mlxgen/README.md")
URLS = re.compile(r"^\[project\.urls\].*\n(?:\w+ = .*\n)*", re.MULTILINE)
CITATION = "CITATION.cff"
CODE = re.compile(r"^repository-code: .*\n", re.MULTILINE)


def address(root: Path) -> str:
    """Return the repository's address, or "" before the first release."""
    found = ADDRESS.search((root / SETTING).read_text(encoding="utf-8"))
    assert found
    return found[1]


def fill(root: Path, new: str) -> None:
    """Write the address of the repository into all files that contain it.

    Args:
        root: The folder of the repository.
        new: The address, such as ``https://github.com/OWNER/NAME``.
    """
    old = address(root)
    urls = f"""[project.urls]
Documentation = "{new}/tree/main/docs"
Source = "{new}"
Issues = "{new}/issues"
Changes = "{new}/blob/main/CHANGELOG.md"
"""
    links = f"]({old}/blob/main/" if old else "](../"
    citation = f"repository-code: {new}\n"
    _edit(root / SETTING, lambda text: ADDRESS.sub(f'REPOSITORY = "{new}"', text))
    for name in PROJECTS:
        _edit(root / name, lambda text: URLS.sub(lambda _: urls, text))
    for name in DESCRIPTIONS:
        _edit(root / name, lambda text: text.replace(links, f"]({new}/blob/main/"))
    _edit(root / CITATION, lambda text: CODE.sub("", text) + citation)


def versions(root: Path) -> dict[str, str]:
    """Return the version in each file that has one."""
    texts = {place: (root / place).read_text(encoding="utf-8") for place in PLACES}
    return {place: found[2] for place, text in texts.items() if (found := VERSION.search(text))}


def problems(root: Path, version: str) -> list[str]:
    """Return the reasons why a version cannot be released: wrong versions, no changelog section."""
    found = [
        f"{place} has version {there}, not {version}"
        for place, there in versions(root).items()
        if there != version
    ]
    log = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} \(.*\)\n\n\S", log, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section for {version}")
    if not address(root):
        found.append(f"{SETTING} has no address of the repository: use --address once")
    return found


def _edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


def write(root: Path, version: str, today: str) -> None:
    """Set the version; the changelog's unreleased section becomes its section."""
    log = root / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8")
    if not re.search(rf"^{OPEN}\n+(?!## )\S", text, re.MULTILINE):
        raise click.ClickException(f"CHANGELOG.md has nothing below '{OPEN.strip()}'")
    log.write_text(text.replace(OPEN, f"{OPEN}\n\n## {version} ({today})\n", 1), encoding="utf-8")
    for place in PLACES:
        _edit(root / place, lambda text: VERSION.sub(rf'\g<1>{version}"', text, count=1))


@click.command()
@click.argument("version")
@click.option("--check", is_flag=True, help="Write nothing; report mismatches with the version.")
@click.option("--address", "url", metavar="URL", help="Write the repository's address, too.")
def main(version: str, check: bool, url: str | None) -> None:
    """Write VERSION, or compare a tag with the files."""
    version = version.removeprefix("v")
    if not re.fullmatch(r"\d+(\.\d+){2}((a|b|rc)\d+)?", version):
        raise click.ClickException(
            f"'{version}' is not a valid version: write one such as 0.2.0 or 0.2.0rc1"
        )
    if not check:
        write(ROOT, version, date.today().isoformat())
        if url:
            fill(ROOT, url.rstrip("/"))
    elif found := problems(ROOT, version):
        raise click.ClickException("; ".join(found))


if __name__ == "__main__":
    main()
