"""docs/cli.md has every command, option and environment variable, and true examples.

UPDATE_GOLDEN=1 writes the output of the examples into the page.
"""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mlxgen.__main__ import COMMANDS, cli
from mlxgen.command.inputs import MLXGEN
from mlxgen.diagnostics import sections
from mlxgen.package import backend, rebuild, toolchain
from mlxgen.plugins.cache import command as cache
from mlxgen.plugins.describe.command import say
from mlxgen.plugins.interactive import request

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
SESSION = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
# Modules that read variables whose names are in these tuples.
TUPLES = {
    "package/backend.py": backend._TOLD,
    "plugins/interactive/request.py": (),
    "package/toolchain.py": (*toolchain.ENVIRONMENT, *toolchain.FROM_ENVIRONMENT),
}


def _commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in COMMANDS}
    return {name: command for name, command in found.items() if command}


def test_every_command_has_a_section_and_a_row() -> None:
    others = {"Common options", "Environment variables"}
    assert SECTIONS.keys() - others == COMMANDS.keys()
    rows = re.findall(r"^\| \[`(\S+)`\]\(#(\S+)\) \|", TEXT, re.MULTILINE)
    assert rows == [(name, name) for name in SECTIONS if name not in others]


def _options(command: click.Command) -> list[click.Option]:
    """The options of a command, or each option of the commands of a group."""
    found = {}
    context = click.Context(command)
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    for one in [command.get_command(context, name) for name in names] or [command]:
        for param in one.params:
            if isinstance(param, click.Option):
                found.setdefault(tuple(param.opts), param)
    return list(found.values())


def _long(text: str) -> set[str]:
    """The options in the prose of a section."""
    return set(re.findall(r"--[a-z][\w-]*", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))


@pytest.mark.parametrize("name", COMMANDS)
def test_section_has_all_options(name: str) -> None:
    prose, common = SECTIONS[name], SECTIONS["Common options"]
    options = _options(_commands()[name])
    assert _long(prose) == {opt for o in options for opt in o.opts if opt.startswith("--")}
    for option in options:
        assert all(f"`{opt}" in prose + common for opt in option.opts), option
        if isinstance(option.type, click.Choice):
            assert all(re.search(rf"[` ]{c}`", prose + common) for c in option.type.choices)


def test_common_options_are_shared() -> None:
    used = [opt for c in _commands().values() for option in _options(c) for opt in option.opts]
    for option in _long(SECTIONS["Common options"]) - {"--help"}:
        assert used.count(option) > 1


def _read_by_python(path: Path) -> Iterator[str]:
    """Names of variables that a module reads; "" for one in a variable."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(ast.Attribute(value, "get" | "setdefault" | "pop"), [name, *_]):
                pass
            case ast.Call(ast.Attribute(ast.Name("os"), "getenv") as value, [name, *_]):
                pass
            case ast.Subscript(value, name, ast.Load()):
                pass
            case ast.Compare(name, [ast.In() | ast.NotIn()], [value]):
                pass
            case ast.keyword("envvar", name):
                value = ast.parse("os.environ", mode="eval").body
            case _:
                continue
        if ast.unparse(value) in ("os.environ", "os.getenv"):
            yield name.value if isinstance(name, ast.Constant) else ""


def test_every_variable_is_listed() -> None:
    package = ROOT / "mlxgen"
    read = set[str]()
    for path in package.rglob("*.py"):
        names = set(_read_by_python(path))
        assert ("" in names) == (path.relative_to(package).as_posix() in TUPLES), path
        read |= names - {""}
    for names in TUPLES.values():
        read |= {*names}
    for pattern in ("*.h", "*.cpp"):
        for path in package.rglob(pattern):
            code = path.read_text(encoding="utf-8")
            read |= {*re.findall(r'getenv\("(\w+)"\)', code)}
            if "getenv(variable)" in code:
                read |= {*re.findall(r'"([A-Z_]+)"', code.partition("getenv(variable)")[0])}
    lines = re.findall(
        r"^(?:\| |- )(`.+?)(?: \||:)", SECTIONS["Environment variables"], re.MULTILINE
    )
    listed = [name for line in lines for name in re.findall(r"`(\w+)`", line)]
    assert sorted(listed) == sorted(read)


def test_kinds_of_the_cache() -> None:
    found = {rebuild.KIND, request.KIND, toolchain.PRECOMPILED, *cache._OTHERS}
    for path in (ROOT / "mlxgen").rglob("*.py"):
        found |= {*re.findall(r'obtain\("(\w+)"', path.read_text(encoding="utf-8"))}
    rows = re.findall(r"^\| (`.+?) \|", SECTIONS["cache"], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == found


def test_examples(tmp_path: Path) -> None:
    folder = tmp_path

    def run(line: str) -> str:
        nonlocal folder
        command, _, count = line.partition(" | head -")
        program, *arguments = shlex.split(command)
        if program == "cd":
            folder /= arguments[0]
            return ""
        assert program == "mlxgen"
        done = subprocess.run(
            [sys.executable, "-m", "mlxgen", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        text = done.stdout.replace(sys.executable, "python3").replace(
            str(MLXGEN), "/path/to/mlxgen"
        )
        return "".join(text.splitlines(keepends=True)[: int(count) if count else None])

    def session(found: re.Match[str]) -> str:
        lines = [line for line in found[1].splitlines() if line.startswith("$ ")]
        return "".join(f"{line}\n{run(line[2:])}" for line in lines)

    page = SESSION.sub(session, TEXT)
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page, encoding="utf-8")
    else:
        assert page == TEXT


def test_explanations_are_wrapped_on_narrow_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that is narrower than the page cuts nothing off."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    say(sections()["MG606"], "markdown")
    shown = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    assert shown.split() == sections()["MG606"].split()
