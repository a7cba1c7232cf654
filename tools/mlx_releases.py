"""MLX's releases: updates the tables of each release, and tests package builds for it.

::

    python -m tools.mlx_releases                    # compare the tables with what PyPI has
    python -m tools.mlx_releases --write            # store them, and build for the three newest
    python -m tools.mlx_releases check [RELEASE...] # build and test a package with each release

All files are in ``build/mlx``. For a new release of MLX, run ``--write``, then ``check --write``.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rich_click as click

from mlxgen.formula.mlx import PARTS, TABLE, table
from mlxgen.package import compat
from mlxgen.read.settings import OLDEST_MLX, numbers

from .mlx_table import changed, combined, derive, from_mlx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "mlx"
PAGE = ROOT / "docs" / "releases-of-mlx.md"
BEGIN, END = "<!-- releases: written by --write -->\n", "<!-- releases: end -->"
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return the output of a program; if it fails, raise ``ClickException`` with the output."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise click.ClickException(f"{' '.join(map(str, command))} failed:\n{said[-4000:]}")
    return done.stdout


def releases() -> list[str]:
    """Return the releases on PyPI that mlxgen supports, newest first."""
    listed = run(sys.executable, "-m", "pip", "index", "versions", "mlx")
    found = re.findall(r"[\d.]+", listed.partition("Available versions:")[2].splitlines()[0])
    return [release for release in found if numbers(release) >= numbers(OLDEST_MLX)]


def fetched(release: str) -> Path:
    """Return the folder of a release with its headers, stubs and libraries."""
    folder = WORK / release
    if not folder.is_dir():
        half = WORK / f"{release}.half"
        run(sys.executable, *PIP, "install", "--target", half, f"mlx[cpu]=={release}")
        if not (half / "mlx" / "core" / "__init__.pyi").is_file():  # 0.32.0 has no stubs
            stubgen = (sys.executable, "-m", "nanobind.stubgen", "-q", "-r", "-m", "mlx.core")
            run(*stubgen, "-i", half, "-O", half / "mlx")
        half.rename(folder)
    return folder / "mlx"


@click.group(invoke_without_command=True)
@click.option("--write", is_flag=True, help="Store the tables, and name the newest releases.")
@click.pass_context
def main(context: click.Context, write: bool) -> None:
    """Compare mlxgen's facts about MLX's releases with PyPI."""
    if context.invoked_subcommand:
        return
    found = releases()
    tables = [derive(fetched(release)) for release in found]
    for new in tables:
        if numbers(new["mlx"]) > numbers(table().release):
            _tell(new["mlx"], new, from_mlx())
    text, known = combined(tables), [release for release in found if release in compat.MLX]
    if write:
        TABLE.write_text(text, encoding="utf-8")
        for release in set(found) - set(known):
            _add_to_compat(release)
        _pin(found[:3])
    elif text != TABLE.read_text(encoding="utf-8") or known != found:
        raise click.ClickException(f"MLX has changed up to {found[0]}; run this with --write")
    click.echo(f"{len(found)} releases, {found[-1]} to {found[0]}")


def _tell(release: str, new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    """Print the new, changed and removed parts of the API that formulas use."""
    for part in PARTS:
        there, before = changed(old[part], new[part]), old[part]
        for name, value in sorted(there.items()):
            what = "gone" if value is None else "different" if name in before else "new"
            click.echo(f"{release}: {part[:-1]} {name}: {what} {json.dumps(value or '')}")


def _add_to_compat(release: str) -> None:
    """Record the version of nanobind's internals that a release uses."""
    (core,) = fetched(release).glob("core.*.so")
    internals = compat.internals_version(compat.abi_tag(core))
    path = Path(compat.__file__)
    text = path.read_text(encoding="utf-8")
    row = re.compile(rf'(?<=    {internals}: \(\()(("[^)]*")?),?(?=\))')
    text, count = row.subn(lambda m: f'{m[1]}, "{release}"' if m[1] else f'"{release}",', text)
    if not count:
        raise click.ClickException(
            f"MLX {release} uses version {internals} of nanobind's internals, which {path} "
            "lacks: add it, with the releases of nanobind that have NB_INTERNALS_VERSION "
            f"{internals} in src/nb_abi.h"
        )
    path.write_text(text, encoding="utf-8")
    importlib.reload(compat)


def _pin(newest: Sequence[str]) -> None:
    """Name the releases wherever the project's files say which ones it is built for."""
    path = ROOT / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))
    before = project["tool"]["mlxgen"]["mlx"]
    for name in run("git", "ls-files", "*.toml", "*.md", "*.in").splitlines():
        text = old = (ROOT / name).read_text(encoding="utf-8")
        for was, words in zip(_wordings(before), _wordings(newest), strict=True):
            text = text.replace(was, words)
        if text != old:
            (ROOT / name).write_text(text, encoding="utf-8")
    release = newest[0]
    log = ROOT / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8")
    log.write_text(_logged(text, f"- Built for MLX {release}.\n"), encoding="utf-8")


def _logged(text: str, line: str) -> str:
    """Add a line below "Added" in the changelog's unreleased section, instead of an older one."""
    if line in text:
        return text
    before, opened, rest = text.partition("## Unreleased\n\n")
    section, heading, older = rest.partition("\n## ")
    added = re.compile(r"(### Added\n\n)(- Built for MLX [\d.]+\n)?")
    if not added.search(section):
        section = f"### Added\n\n\n{section}"
    section = added.sub(rf"\g<1>{line}", section, count=1)
    return f"{before}{opened}{section}{heading}{older}"


def _wordings(releases: Sequence[str]) -> list[str]:
    """Return the ways in which files name the releases, the newest first."""
    newest = releases[0]
    major, minor, _ = numbers(newest)
    return [
        f"mlx = {json.dumps(releases)}",
        f"mlx>={releases[-1]},<{major}.{minor + 1}",
        f"]<={newest}",
        f"mlx=={newest}",
        f"mlx[cpu]=={newest}",
    ]


@main.command()
@click.argument("which", nargs=-1, metavar="[RELEASE]...")
@click.option("--write", is_flag=True, help="Write the table in docs/releases-of-mlx.md.")
def check(which: Sequence[str], write: bool) -> None:
    """Build a new package for each release; run its tests and those of mlxgen that concern MLX."""
    rows: list[tuple[str, ...]] = []
    failed = []
    for release in which or releases():
        try:
            rows.append((release, *checked(release)))
        except click.ClickException as error:
            failed.append(release)
            click.echo(error.message, err=True)
            rows.append((release, "", "no", "", ""))
        click.echo(" | ".join(rows[-1]))
    if write:
        head = (
            "| MLX | nanobind | tests of a new package | formulas compile | compiles for macOS |\n"
        )
        head += "|---|---|---|---|---|\n"
        lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{head}{lines}{END}{rest.partition(END)[2]}", "utf-8")
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


def checked(release: str) -> tuple[str, ...]:
    """Return the table row of a release."""
    env, package = WORK / f"env-{release}", WORK / f"package-{release}" / "sample"
    python = env / "bin" / "python"
    if not python.is_file():
        run(sys.executable, "-m", "venv", env)
    nanobind = compat.nanobind_requirement(release) if release in compat.MLX else "nanobind"
    tools = ("scikit-build-core>=0.11", "cmake>=3.26", "ninja>=1.11", "hypothesis>=6.100")
    macos = ("macholib>=1.16", "ziglang>=0.17")
    run(python, *PIP, "install", f"mlx[cpu]=={release}", nanobind, *tools, *macos)
    run(python, *PIP, "install", "--editable", f"{ROOT / 'mlxgen'}[test]")
    shutil.rmtree(package.parent, ignore_errors=True)
    package.parent.mkdir()
    run(env / "bin" / "mlxgen", "new", package.name, cwd=package.parent)
    run(python, *PIP, "install", "--no-build-isolation", "--no-deps", package)
    passed = re.findall(r"\d+ passed", run(python, "-m", "pytest", "-q", cwd=package))
    forms = ("tests/formula/test_mlx_api.py", "-k", "every_overload_compiles")
    run(python, "-m", "pytest", "-q", *forms)
    run(env / "bin" / "mlxgen", "metal-check", cwd=package)
    return nanobind.removeprefix("nanobind=="), *passed, "yes", "yes"


if __name__ == "__main__":
    main()
