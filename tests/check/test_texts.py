"""mlxgen never parses its own output: uses of `re` and `.replace` are listed with reasons."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import yaml

import mlxgen

ROOT = Path(mlxgen.__file__).parent
LAYERS = ("check", "command", "formula", "package", "plugins", "render")
FLAGS = {"ASCII", "MULTILINE", "escape"}
# Objects whose `replace` is about files.
FILES = {"os", "made", "write"}


def _is_use(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value.id if isinstance(node.value, ast.Name) else ""
    return (owner == "re" and node.attr not in FLAGS) or (
        node.attr == "replace" and owner not in FILES
    )


def uses(tree: ast.Module) -> Iterator[str]:
    """Yield the functions, methods and constants of a module that use them."""
    for top in tree.body:
        name = getattr(top, "name", "")
        if isinstance(top, ast.Assign):
            name = ast.unparse(top.targets[0])
        parts = top.body if isinstance(top, ast.ClassDef) else [top]
        for part in parts:
            inside = isinstance(top, ast.ClassDef) and isinstance(part, ast.FunctionDef)
            if any(map(_is_use, ast.walk(part))):
                yield f"{name}.{part.name}" if inside else name  # type: ignore[attr-defined]


def test_all_uses_are_listed() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()} {name}"
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        for name in uses(ast.parse(path.read_text("utf-8")))
    }
    text = (Path(__file__).parent / "texts.yaml").read_text(encoding="utf-8")
    assert found == {
        f"{file} {name}" for file, rows in yaml.safe_load(text).items() for name in rows
    }
