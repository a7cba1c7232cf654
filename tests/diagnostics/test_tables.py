"""The tables of mlxgen are valid, and the files that are written from them are up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mlxgen.package.backend import tomllib
from tools.tables import KINDS, SCHEMAS, read, tables, written

WRITTEN = dict(written())  # all tables are read


def test_tables() -> None:
    """Every layer with messages has a table, and every kind of table is used."""
    found = dict(tables())
    assert len(found) >= 9 and {*map(id, found.values())} == {*map(id, KINDS.values())}
    messages = {path.parent.name for path, kind in found.items() if kind is KINDS["messages"]}
    assert messages == {
        "check",
        "command",
        "common",
        "data",
        "emulator",
        "importers",
        "interactive",
        "metal",
        "read",
        "rules",
    }
    assert {*SCHEMAS.iterdir()} <= WRITTEN.keys()


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: "-".join(path.parts[-2:]))
def test_written_files_are_up_to_date(path: Path) -> None:
    """Run ``python -m tools.tables`` after changing a table or a model."""
    assert path.read_text(encoding="utf-8") == WRITTEN[path]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("messages", "a: {code: MG1, text: wrong, help: write}"),
        ("messages", "a: {code: MG001, text: wrong}"),
        ("messages", "a: {code: MG001, text: wrong, help: [{for: key, text: write}]}"),
        ("messages", "a: {code: MG001, text: wrong, help: [{fix: x}]}"),
        ("messages", "a: {code: MG001, text: wrong, help: [yes]}"),
        ("messages", "a: {code: MG001, text: wrong, help: write, fix: x}"),
        ("messages", "a: {code: MG001, text: wrong, help: [write, other]}"),
        ("messages", "a: &a {code: MG001, text: wrong, help: write}\na: *a"),
        ("elsewhere", "grad: {same: [gradient, no]}"),
        ("reserved", "cpp: {it is a keyword: [do, true]}"),
        ("reserved", "c: {it is a keyword: [do]}"),
        ("generated_names", "local: [x]"),
        ("metal_names", "types: [bool]"),
        ("signs", "quote: {quote: null}"),
        ("words", "inf: INF"),
    ],
)
def test_mistakes(kind: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"validation error|given twice|two helps"):
        KINDS[kind].form(read(path, KINDS[kind].model))


def test_texts_as_written(tmp_path: Path) -> None:
    """A message in JSON has each help by its keys, and its fix."""
    help: list[Any] = [{"for": ["a", "b"], "text": "write {x}", "fix": "", "certain": False}, "d"]
    path = tmp_path / "messages.yaml"
    path.write_text(yaml.safe_dump({"wrong": {"code": "MG001", "text": "wrong", "help": help}}))
    model, form = KINDS["messages"]
    assert form(read(path, model))["wrong"] == {
        "code": "MG001",
        "text": "wrong",
        "helps": {"a": "write {x}", "b": "write {x}", "": "d"},
        "fixes": {"a": ("", False), "b": ("", False)},
    }


def test_packages_contain_their_files() -> None:
    """The distribution has all packages of mlxgen, with their tables and templates."""
    mlxgen = SCHEMAS.parents[1] / "mlxgen"
    text = (mlxgen / "pyproject.toml").read_text(encoding="utf-8")
    settings = tomllib.loads(text)["tool"]["setuptools"]

    def folder(package: str) -> Path:
        return mlxgen.parent.joinpath(*package.split("."))

    folders = {path.parent for path in mlxgen.rglob("__init__.py")}
    assert folders == set(map(folder, settings["packages"]))
    files = {path for kind in ("json", "yaml", "j2") for path in mlxgen.rglob(f"*.{kind}")}
    for package, patterns in settings["package-data"].items():
        files -= {path for pattern in patterns for path in folder(package).glob(pattern)}
    assert not files
