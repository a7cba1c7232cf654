"""Prose in plain American English: words, spelling, first words of docstrings, line lengths.

rules.yaml lists the words. Markdown, comments and docstrings, and files of messages are read; code
in them is not.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((Path(__file__).parent / "rules.yaml").read_text())
FORBIDDEN = {
    re.compile(rf"(?<![\w`.-]){pattern}(?![\w`(-])", re.IGNORECASE): replacement
    for kind in ("words", "spelling")
    for pattern, replacement in RULES[kind].items()
}
OPENING = re.compile(rf"({'|'.join(RULES['openings'])})\b")
CPP_COMMENT = re.compile(r"//(?! namespace )(.*)")
CODE_SPAN = re.compile(r"``.+?``|`[^`\n]+`|\]\([^)]*\)|https?://\S+|\"[^\"\n]*\"")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1 *$|^ {4,}.*$", re.DOTALL | re.MULTILINE)
LINE = 100
ROW = 140


class Passage(NamedTuple):
    line: int
    text: str


def _files() -> list[str]:
    """Return the files with prose, relative to the root.

    Git knows them; a source distribution has no other files until it is built.
    """
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        names = listed.stdout.splitlines()
    else:
        names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
    built = (".*", "build/*", "mlxgen/build/*", "*.egg-info/*")
    skipped = (*RULES["skipped"], *built)
    suffixes = (".md", ".py", ".h", ".cpp", ".metal", ".yaml")
    return [
        name
        for name in names
        if name.endswith(suffixes)
        and not any(fnmatch(name, pattern) for pattern in skipped)
        and (ROOT / name).is_file()
    ]


def _python(text: str) -> Iterator[Passage]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(token.start[0], token.string)
    for line, docstring, _ in _docstrings(text):
        yield from _lines(line, docstring)


def _docstrings(text: str) -> Iterator[tuple[int, str, bool]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring, isinstance(node, ast.Module)


def _lines(first: int, text: str) -> Iterator[Passage]:
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), first):
        yield Passage(number, line)


def _texts(node: Node) -> Iterator[Passage]:
    """Yield the strings of a YAML file."""
    if isinstance(node, ScalarNode):
        yield Passage(node.start_mark.line + 1, node.value)
    elif isinstance(node, MappingNode):
        for _, value in node.value:
            yield from _texts(value)
    else:
        for item in node.value:
            yield from _texts(item)


def _prose(name: str) -> Iterator[Passage]:
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        yield from _python(text)
    elif name.endswith((".h", ".cpp", ".metal")):
        for number, line in enumerate(text.splitlines(), 1):
            for match in CPP_COMMENT.finditer(line):
                yield Passage(number, match[1])
    elif name.endswith("messages.yaml"):
        yield from _texts(yaml.compose(text, yaml.SafeLoader))
    elif name.endswith(".yaml"):
        for number, line in enumerate(text.splitlines(), 1):
            if "#" in line:
                yield Passage(number, line.partition("#")[2])
    else:
        yield from _lines(1, text)


def problems(name: str) -> list[str]:
    """Problems of one file, each with its line."""
    found = []
    for line, text in _prose(name):
        prose = CODE_SPAN.sub("``", text)
        for pattern, replacement in FORBIDDEN.items():
            if match := pattern.search(prose):
                found.append(f"{name}:{line}: {match[0]!r} (instead: {replacement})")
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        found += [
            f"{name}:{line}: a docstring begins with {match[0]!r}"
            for line, docstring, _ in _docstrings(text)
            if (match := OPENING.match(docstring))
        ]
    if name.endswith(".md"):
        for number, row in enumerate(text.splitlines(), 1):
            limit = ROW if row.lstrip().startswith("|") else LINE
            if len(row) > limit and " " in row.strip()[: limit - 20]:
                found.append(f"{name}:{number}: {len(row)} characters (at most {limit})")
    return found


@pytest.mark.parametrize("name", _files())
def test_prose_follows_the_rules(name: str) -> None:
    assert not problems(name)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".py", '"""Whether it fits."""\n'),
        (".py", "x = 1  # held to the entry, beside it\n"),
        (".md", "The colour.\n"),
        (".md", "word " * 30 + "\n"),
        (".h", "// computed anew\n"),
        (".yaml", "x: 1 # a slip\n"),
        ("messages.yaml", "x:\n  help: >-\n    this is\n    a slip\n"),
    ],
)
def test_problems_are_found(
    suffix: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"page{suffix}").write_text(text)
    monkeypatch.setitem(problems.__globals__, "ROOT", tmp_path)
    assert problems(f"page{suffix}")


def test_code_is_not_prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(problems.__globals__, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("`beside` and\n```\nbeside\n```\n| " + "row " * 30 + "|\n")
    assert not problems("page.md")


if __name__ == "__main__":
    import sys

    for file in _files():
        if not sys.argv[1:] or any(fnmatch(file, pattern) for pattern in sys.argv[1:]):
            print(*problems(file), sep="\n", end="\n" if problems(file) else "")
