"""No name in an entry can clash with a name that generated code uses itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sample import project

import mlxgen
from mlxgen.check.arguments import HELPERS, LOCALS, OF_ARRAYS, OF_ELEMENTS
from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.emulator.source import lex
from mlxgen.read.names import RESERVED, cpp_names

RUNTIME = Path(mlxgen.__file__).parent / "runtime"


def identifiers(source: str) -> set[str]:
    """Return the unqualified names in C++ text, without members and parts of qualified names."""
    texts = ["", *(token.text for token in lex(source)), "", ""]
    found = set()
    attribute = False
    for before, text, after in zip(texts, texts[1:], texts[2:], strict=False):
        if (before, text) == ("[", "["):
            attribute = after not in ("]", "&", "=", "this")
        elif (before, text) == ("]", "]"):
            attribute = False
        alone = before not in (".", "->", "::") and after != "::"
        if alone and not attribute and re.fullmatch(r"[A-Za-z_]\w*", text):
            found.add(text)
    return found


def own(op) -> set[str]:
    """Return the names derived from the entry: its arguments, outputs, class and functions."""
    names = {
        "ops",
        op.name,
        op.class_name,
        f"k{op.class_name}Library",
        "metal_kernels",
        "metal_shared_h",
        *op.calls,
    }
    names |= {f"{op.name}_{part}" for part in HELPERS}
    names |= {f"const_{name}" for kernel in op.forward.kernels for name, _ in kernel.constants}
    names |= {f"template_{t.name}" for kernel in op.forward.kernels for t in kernel.templates}
    names |= {*op.entry.let}
    names |= {length.cpp for length in op.arguments.lengths.values()}
    for p in op.arguments.params:
        names |= {p.cpp, p.name, p.member, p.present, f"{p.cpp}_size_"}
        names |= {p.rule} - {"kDtypes"}
        names |= {f"has_{p.cpp}", f"{p.cpp}_size", f"{p.cpp}_dtype", f"{p.cpp}_given"}
    for output in op.outputs:
        names |= {output.name, f"to_{output.name}", f"value_{output.name}"}
        names |= {f"value_to_{output.name}"}
    return names


def in_metal() -> set[str]:
    """Return names in the Metal kernels that the runtime generates around scalar functions."""
    text = (RUNTIME / "src" / "metal.cpp").read_text(encoding="utf-8")
    source = text.partition('kernels_source = R"metal(')[2].partition(')metal"')[0]
    # without line markers and insertions after arguments (@) or the operator
    source = re.sub(
        r"^(IN  |OUT |ATTR)\||@\w*|\b[A-Z]{4,}\w*(?<!AXES)", "", source, flags=re.MULTILINE
    )
    return identifiers(source)


# Functions of primitives that none of their bodies calls: a local variable may have these names.
MEMBERS = {"jvp", "override", "run_metal", "state", "task", "vjp"}
# In scopes with these names there are no arguments.
ELSEWHERE = {"nanobind", "nb", "root"}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> dict[frozenset[str], set[str]]:
    """Return the names that generated sources use for any entry, by the names that arguments of
    operators of a form cannot have there."""
    output = tmp_path_factory.mktemp("names")
    assert project.run(project.YAML, output).ok
    ops, _ = operators.load(project.settings(project.YAML), Diagnostics())
    found: dict[frozenset[str], set[str]] = {LOCALS: set(), OF_ARRAYS: set(), OF_ELEMENTS: set()}
    for op in ops:
        kernels = OF_ELEMENTS if op.elementwise else OF_ARRAYS
        names = found[kernels if op.has_primitive else LOCALS]
        for path in (f"src/{op.name}.cpp", f"include/ops/{op.name}.h"):
            text = (output / path).read_text()
            loops = {f"{name}_" for name in re.findall(r"\bfor (\w\w+) in", text)}
            loops |= set(re.findall(r"\bfor (\w) in", text))
            names |= identifiers(text) - own(op) - loops - MEMBERS
    bound: set[str] = set()
    for path in (output / "src").glob("bind_*.cpp"):
        bound |= identifiers(path.read_text())
    bound -= set().union(*(own(op) for op in ops)) | ELSEWHERE
    for names in found.values():
        names |= {name for name in bound if not name.startswith(("bind_", "module_"))}
    found[OF_ELEMENTS] |= in_metal()
    return found


def test_locals_are_complete(used: dict[frozenset[str], set[str]]) -> None:
    # An argument with one of these names gets a suffix in C++.
    for reserved, names in used.items():
        usable = {name for name in names if cpp_names([name]) == [name]}
        assert usable - reserved - set(RESERVED) == set()


def test_locals_are_not_more_than_that(used: dict[frozenset[str], set[str]]) -> None:
    for reserved in used:
        others = set().union(*used.values()) if reserved is not LOCALS else used[LOCALS]
        assert reserved - others - {*RESERVED, "out"} == set()  # own() has the output `out`
