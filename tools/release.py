"""A release of mlxgen and mlxops, which have one version and one tag.

::

    python -m tools.release 0.2.0           # write the version, and close the changelog's section
    python -m tools.release --check v0.2.0  # compare a tag, the versions and the changelog
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
    if not re.search(rf"^## {re.escape(version)} \(.*\)\n\n- ", log, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section for {version}")
    return found


def write(root: Path, version: str, today: str) -> None:
    """Set the version; the changelog's unreleased section becomes its section."""
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
@click.option("--check", is_flag=True, help="Write nothing; report mismatches with the version.")
def main(version: str, check: bool) -> None:
    """Write VERSION, or compare a tag with the files."""
    version = version.removeprefix("v")
    if not re.fullmatch(r"\d+(\.\d+){2}((a|b|rc)\d+)?", version):
        raise click.ClickException(
            f"'{version}' is not a valid version: write one such as 0.2.0 or 0.2.0rc1"
        )
    if not check:
        write(ROOT, version, date.today().isoformat())
    elif found := problems(ROOT, version):
        raise click.ClickException("; ".join(found))


if __name__ == "__main__":
    main()
