"""Messages and code agree: every message is reported somewhere, with the parameters of its text."""

from __future__ import annotations

import ast
import builtins
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxgen
from mlxgen.diagnostics.messages import Message, messages
from mlxgen.diagnostics.messages import table as read_table

ROOT = Path(mlxgen.__file__).parent
TABLES = sorted(ROOT.rglob("messages.yaml"))
# Functions that render or report a message, and the parameters that they add or use themselves.
ADDED = {
    "MESSAGES": set(),
    "READ": set(),
    "COMMAND": set(),
    "_wrong": set(),
    "Wrong": {"guess", "here"},
    "error": {"key", "name"},
    "warning": {"key"},
    "lacks": {"levels", "values"},
    "is_known": {"name", "guess"},
    "known": {"name", "guess"},
    "known_in": {"name", "guess"},
    "mismatch": set(),
}
ANY = r"[\w+]+"
OPTIONS = {"key", "at", "notes", "severity", "related", "clear", "table", "part", "word"}

# Three words or more, two of them in lower case; N is a value. Other noun phrases than these
# describe values, such as "a list of ints".
SENTENCE = re.compile(
    r"(?!an? |the |one of |this )(?=.*\b[a-z]['a-z]+\b.*\b[a-z]['a-z]+\b)"
    r"[\w'`.,;:(]+( ['`(]?[\w'`]+[,;:.)]*){2,}"
)
# Tables in Python: descriptions of keys for the schema, and the words of kinds.
PYTHON_TABLES = ("read/keys.py", "model/kinds.py")
# Sentences in the code of the layers, with the reason why no table has them.
TEXTS = {
    # Generated code raises them: conditions about axes, and what a shapeless trace would keep.
    "check/axes.py": ["N must be N", "N, as N is."],
    "formula/translator.py": ["uses N as a number"],
    # The column of gradients in the reference of a package.
    "check/gradients.py": ["of the composite"],
    # Names of lists of names.
    "check/arguments.py": ["locals of N", "locals of kernels"],
    "read/names.py": ["not in Metal"],
    # Descriptions of values.
    "formula/values.py": ["pairs of ints", "information on a dtype"],
    "model/signature.py": ["N or string"],
    # The end of a list of diagnostics, which is not a diagnostic.
    "diagnostics/collect.py": ["and NN more"],
    # The build backend shows it without the packages that tables need.
    "diagnostics/install.py": ["MLX is not installed for N: N"],
    # Exceptions of functions for plug-ins.
    "model/languages.py": ["No module named N", "cannot import the language N: N"],
    # Names of functions.
    "model/numbers.py": ["abs all any bool enumerate float int len max min sum tuple zip"],
}


def folder(table: Path) -> Path:
    """Return the folder of the code that reports the messages of a table."""
    return table.parents[1] if table.parent.name == "data" else table.parent


def trees(path: Path) -> Iterator[ast.AST]:
    for file in path.rglob("*.py"):
        yield from ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def strings(path: Path) -> Iterator[str]:
    """Yield a regular expression for each string in the code; f-strings join any templates."""
    for node in trees(path):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else None for p in node.values)
            yield "".join(ANY if part is None else re.escape(str(part)) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.escape(node.value)


def fields(template: str) -> set[str]:
    found = (name for _, name, _, _ in string.Formatter().parse(template) if name)
    return {name.partition(".")[0] for name in found}


def every_field(message: Message) -> set[str]:
    fixes = (text for text, _ in message.fixes.values())
    templates = [message.text, message.note, *message.helps.values(), *fixes]
    return set[str]().union(*map(fields, [*templates, *message.problems.values()]))


def calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the calls with the name of a message, that name, and the function's."""
    for node in trees(path):
        if isinstance(node, ast.Call) and node.args:
            first, function = node.args[0], node.func
            name = getattr(function, "attr", getattr(function, "id", ""))
            if isinstance(first, ast.Constant) and name in ADDED:
                yield str(first.value), name, node


@pytest.mark.parametrize("table", TABLES, ids=lambda table: folder(table).name)
def test_parameters(table: Path) -> None:
    """A call passes all parameters of the text, and no others."""
    listed, found = messages(table), set()
    for name, function, call in calls(folder(table)):
        if name not in listed or function in ("READ", "COMMAND", "mismatch"):
            continue
        given = {keyword.arg for keyword in call.keywords if keyword.arg}
        assert given <= every_field(listed[name]) | OPTIONS, name
        assert "related" not in given or listed[name].note, name
        if all(keyword.arg for keyword in call.keywords):
            assert fields(listed[name].text) <= given | ADDED[function], name
        found.add(name)
    assert len(found) > len(listed) // 3 or len(listed) < 4


@pytest.mark.parametrize("table", TABLES, ids=lambda table: folder(table).name)
def test_every_message_is_reported(table: Path) -> None:
    used = {*strings(folder(table)), *strings(ROOT / "package")}
    names = {*messages(table)}
    if "read" in table.parts:
        names -= {*read_table(table.with_name("syntax.yaml")).values()}
    if "formula" in table.parts:
        names -= {message for message, _ in read_table(table.with_name("signs.yaml")).values()}
        # Types of constants, and the classes of Python's syntax tree.
        names -= {name for name in names if hasattr(builtins, name) or hasattr(ast, name)}
        names = {re.sub("^(gradient|tangent|output)_", "", name) for name in names}
    joined = [text for text in used if ANY in text and re.match("[a-z]+_", text)]
    expression = re.compile("|".join([*joined, *used.intersection(map(re.escape, names))]))
    assert sorted(name for name in names if not expression.fullmatch(name)) == []


def test_every_problem_is_reported() -> None:
    known = {"arrays", "optionals"}  # keys of kinds of arguments
    for table in TABLES:
        problems = {name for message in messages(table).values() for name in message.problems}
        expression = re.compile("|".join(text for text in strings(folder(table)) if len(text) > 1))
        assert {name for name in problems - known if not expression.fullmatch(name)} == set()


def test_parameters_of_mismatches() -> None:
    """A mismatch passes the parameters of its text."""
    path = ROOT / "check"
    problems = messages(path / "messages.yaml")["mismatch_of_kernel"].problems
    for name, function, call in calls(path):
        if function == "mismatch" and all(keyword.arg for keyword in call.keywords):
            assert fields(problems[name]) == {keyword.arg for keyword in call.keywords}, name


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the sentences in code, without docstrings."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "N" for p in node.values]
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant):
            text = str(node.value)
        if node not in skipped and SENTENCE.fullmatch(text):
            yield text


@pytest.mark.parametrize("layer", ["model", "diagnostics", "read", "formula", "check"])
def test_texts_are_in_tables(layer: str) -> None:
    """Code has no sentences; the few others are listed with reasons."""
    found = {}
    for path in sorted((ROOT / layer).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file not in PYTHON_TABLES:
            found[file] = [*texts(ast.parse(path.read_text(encoding="utf-8")))]
    listed = {file: texts for file, texts in TEXTS.items() if file.startswith(f"{layer}/")}
    assert {file: sorted(texts) for file, texts in found.items() if texts} == {
        file: sorted(texts) for file, texts in listed.items()
    }


def test_codes_are_in_tables() -> None:
    """Code reports messages of tables only."""
    code = re.compile(r"[\"']MG\d{3}[\"']")
    files = (path for path in ROOT.rglob("*.py") if code.search(path.read_text(encoding="utf-8")))
    # These tell diagnostics apart.
    assert sorted(path.relative_to(ROOT).as_posix() for path in files) == [
        "check/lets.py",
        "plugins/editor/server.py",
        "read/validate.py",
    ]
