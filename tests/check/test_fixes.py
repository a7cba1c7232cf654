"""Fixes are correct: after applying them to the cases of test_golden.py, their errors are gone.

All fixes of a file are applied at once, then the file is checked again. Diagnostics with a fix must
be gone, and no new diagnostics may occur, except those listed here.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from sample import project

import mlxgen
from mlxgen.check.file import resolve
from mlxgen.command.fix import fix_files
from mlxgen.diagnostics import Diagnostic, Diagnostics, Fix, applied
from mlxgen.diagnostics.messages import messages
from mlxgen.read.sources import Sources
from mlxgen.read.yaml import Documents

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*.yaml"))
# Errors that a fix reveals in the same entry.
UNCOVERED = {
    "strided_arrays": "the list has the correct name, too; the kernel has no strides",
    "accumulator_in_the_wrong_place": "the output has another type than the kernel",
    "formula_in_braces_without_quotes": "a number in quotes inside of the formula",
    "formula_of_other_languages": "a call of an attribute, after an arrow of C++",
    "formula_with_unknown_attribute": "what the attribute gives is no array",
    "key_called_otherwise": "values of keys that were unknown",
    "key_unknown_beside_formula": "what is wrong with the gradient",
    "key_unknown_word": "values of keys that were unknown",
    "names_that_formulas_make": "formulas that use the argument",
    "names_in_lists": "the name that was meant is there, too",
    "shared_function_that_does_not_fit": "the function that was meant does not fit either",
    "signature_in_block": "the formula that calls by the wrong name",
    "signature_with_name_in_use": "the composite gives one array",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The kernels of the cases."""
    folder = tmp_path_factory.mktemp("fixes")
    for source in (project.HERE, HERE / "mismatches"):
        for part in ("csrc", "kernels"):
            shutil.copytree(source / part, folder / part, dirs_exist_ok=True)
    return Sources(project.settings(folder / "mlx_ops.yaml"), Diagnostics(), None)


def check(text: str, sources: Sources) -> list[Diagnostic]:
    diags = Diagnostics(0)
    document = Documents.parse({"mlx_ops.yaml": text}, diags)
    if document is not None:
        resolve(document, sources.settings, sources, diags)
    return diags.sorted()


def said(items: list[Diagnostic]) -> Counter[tuple[str, str | None, str]]:
    return Counter((item.code, item.op, item.message) for item in items)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_fixes(case: Path, sources: Sources) -> None:
    text = case.read_text(encoding="utf-8")
    before = check(text, sources)
    fixes: list[Fix] = [item.fix for item in before if item.fix]
    if not fixes:
        return
    corrected, done = applied("mlx_ops.yaml", text, fixes)
    after = check(corrected, sources)
    mistakes = said(before)
    if again := [item.fix for item in after if item.fix and said([item]) <= mistakes]:
        corrected, _ = applied("mlx_ops.yaml", corrected, again)  # a mistake is reported once
        after = check(corrected, sources)
    fixed = said([item for item in before if item.fix in done])
    left = said(after)
    assert not fixed & left, f"{corrected}\n{fixed & left}"
    new = said([item for item in after if item.severity == "error"]) - said(before)
    assert bool(new) == (case.stem in UNCOVERED), f"{corrected}\n{new}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the kernels of the cases, without entries."""
    folder = tmp_path_factory.mktemp("project")
    for source in (project.HERE, HERE / "mismatches"):
        for part in ("csrc", "kernels"):
            shutil.copytree(source / part, folder / part, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_check_fix(case: Path, folder: Path, sources: Sources) -> None:
    """All certain fixes are written, once, and no others."""
    path = folder / "mlx_ops.yaml"

    def fixed(raw: bytes) -> tuple[int, bytes]:
        path.write_bytes(raw)
        count = sum(fix_files(project.settings(path)).values())
        assert count or path.read_bytes() == raw
        return count, path.read_bytes()

    raw = case.read_bytes()
    count, after = fixed(raw)
    if count == 0:
        return
    assert fixed(after) == (0, after)
    before, left = check(raw.decode(), sources), check(after.decode(), sources)
    assert [item for item in left if item.fix and item.fix.certain] == []
    errors = [sum(item.severity == "error" for item in items) for items in (before, left)]
    assert errors[1] < errors[0] or case.stem in UNCOVERED
    head, foot = "\ufeff# Größe: 語 😀\n\n".encode(), "\n# ∂x — é\n".encode()
    assert fixed(head + raw + foot) == (count, head + after + foot)
    if b"\r" not in raw:
        windows = raw.replace(b"\n", b"\r\n")
        assert fixed(windows) == (count, after.replace(b"\n", b"\r\n"))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        # Two that are the same key: the second cannot be it any more.
        ("  compsite: x\n  composit: x\n", "  composite: x\n  composit: x\n"),
        # Replacing several lines would lose a comment.
        ("  composite: x\n  axes:\n    x:\n    - B  # batch\n    - T\n", None),
        (
            "  composite: x\n  axes: {x: [B, T]}  # batch\n",
            "  composite: x\n  axes: {x: B T}  # batch\n",
        ),
        # A kernel that is not there may be yet to be written.
        ("  dispatch: squaree\n  grad: none\n", None),
    ],
)
def test_what_is_certain(wrong: str, right: str | None, folder: Path) -> None:
    head, path = '- signature: "f(x: array) -> array"\n', folder / "mlx_ops.yaml"
    path.write_text(head + wrong)
    assert sum(fix_files(project.settings(path)).values()) == (right is not None)
    assert path.read_text() == head + (right or wrong)


class Edit(NamedTuple):
    """A replacement in a line, and the code of the message that it follows, if any."""

    line: int
    old: str
    new: str
    code: str = ""


FOLLOWED = {
    case: [Edit(**edit) for edit in edits]
    for case, edits in yaml.safe_load((HERE / "followed.yaml").read_text(encoding="utf-8")).items()
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_advice(case: str, sources: Sources) -> None:
    text = (HERE / "cases" / f"{case}.yaml").read_text(encoding="utf-8")
    before = check(text, sources)
    lines = text.splitlines()
    about = []
    for line, old, new, code in FOLLOWED[case]:
        items = [item for item in before if (item.span.line, item.code) == (line, code)]
        assert not code or (items and items[0].help), f"no help of {code} in line {line}"
        about += items[:1]
        given = lines[line - 1]
        assert old in given, given
        lines[line - 1] = given.replace(old, new)
    corrected = "\n".join(lines) + "\n"
    after = check(corrected, sources)
    assert not said(about) & said(after), f"{corrected}\n{said(about) & said(after)}"
    new_ones = said([i for i in after if i.severity == "error"]) - said(before)
    assert not new_ones, f"{corrected}\n{new_ones}"


# Codes whose helps are not followed here, with reasons.
NOT_FOLLOWED = {
    "MG217": "a hundred arguments want names",
    "MG219": "a signature of such a length wants another operator",
}
# The tested examples of errors.md follow the helps about formulas and kernels.
EXAMPLES = ("MG3", "MG5", "MG6", "MG7", "MG8")


def test_every_help_is_followed(sources: Sources) -> None:
    fixed: set[str] = set()
    advised: set[str] = set()
    for case in CASES:
        for item in check(case.read_text(encoding="utf-8"), sources):
            (fixed if item.fix else advised).add(item.code if item.fix or item.help else "")
    rows = {edit.code for edits in FOLLOWED.values() for edit in edits}
    left = {c for c in advised - rows - fixed - {""} if not c.startswith(EXAMPLES)}
    assert left == NOT_FOLLOWED.keys(), NOT_FOLLOWED.keys() - left


def test_every_refusal_has_a_help() -> None:
    """Every message about the keys, signatures and formulas of an entry has a help."""
    folder = Path(mlxgen.__file__).parent
    codes: set[str] = set()
    for part in ("read/messages.yaml", "check/messages.yaml", "formula/data/messages.yaml"):
        codes |= {m.code for m in messages(folder / part).values() if not m.helps}
    # Of two signatures that differ, either can be wrong; C++ and Metal are not part of an entry.
    left = {code for code in codes if code[:3] not in ("MG0", "MG7")}
    assert left == {"MG218", "MG501"}
