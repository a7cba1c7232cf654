"""A release of mlxgen and mlxops, which have one version and one tag.

::

    python -m tools.release 0.2.0           # write the version, and close the changelog's section
    python -m tools.release --check v0.2.0  # whether a tag, the versions and the changelog agree
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import rich_click as click

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r'^(_*version_* = ")([^"]*)"', re.MULTILINE)
PLACES = ("mlxgen/__init__.py", "pyproject.toml")
OPEN = "## Unreleased\n"


def versions(root: Path) -> dict[str, str]:
    """The version in each file that has one."""
    texts = {place: (root / place).read_text(encoding="utf-8") for place in PLACES}
    return {place: found[2] for place, text in texts.items() if (found := VERSION.search(text))}


def problems(root: Path, version: str) -> list[str]:
    """What keeps a version from being released; the versions and the changelog must name it."""
    found = [
        f"{place} has version {there}, not {version}"
        for place, there in versions(root).items()
        if there != version
    ]
    log = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} \(.*\)\n\n- ", log, re.MULTILINE):
        found.append(f"CHANGELOG.md says nothing of {version}")
    return found


def write(root: Path, version: str, today: str) -> None:
    """Set the version; what is unreleased in the changelog becomes its section."""
    log = root / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8")
    if f"{OPEN}\n- " not in text:
        raise click.ClickException(f"CHANGELOG.md has nothing below '{OPEN.strip()}'")
    log.write_text(text.replace(OPEN, f"{OPEN}\n\n## {version} ({today})\n", 1), encoding="utf-8")
    for place in PLACES:
        path = root / place
        text = VERSION.sub(rf'\g<1>{version}"', path.read_text(encoding="utf-8"), count=1)
        path.write_text(text, encoding="utf-8")


@click.command()
@click.argument("version")
@click.option("--check", is_flag=True, help="Write nothing; say what does not fit the version.")
def main(version: str, check: bool) -> None:
    """Write VERSION, or compare a tag with what is written."""
    version = version.removeprefix("v")
    if not re.fullmatch(r"\d+(\.\d+){2}((a|b|rc)\d+)?", version):
        raise click.ClickException(
            f"'{version}' is no version: write one such as 0.2.0 or 0.2.0rc1"
        )
    if not check:
        write(ROOT, version, date.today().isoformat())
    elif found := problems(ROOT, version):
        raise click.ClickException("; ".join(found))


if __name__ == "__main__":
    main()
