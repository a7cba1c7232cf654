"""Lookup of hand-written functions by name: the files that it parses, and unparsed places."""

import re
from pathlib import Path

import pytest

from mlxgen.command.operators import plain_settings
from mlxgen.diagnostics import Diagnostics
from mlxgen.read.sources import Sources


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "csrc").mkdir()
    (tmp_path / "kernels/metal").mkdir(parents=True)

    def sources(**files: str) -> Sources:
        for name, text in files.items():
            name = re.sub(r"_(?=[^_]*$)", ".", name)
            folder = "kernels/metal" if name.endswith("metal") else "csrc"
            (tmp_path / folder / name).write_text(text)
        return Sources(plain_settings(tmp_path / "mlx_ops.yaml"), Diagnostics(), None)

    return sources


def read(sources: Sources) -> list[str]:
    """Return the files in csrc that were parsed."""
    return [Path(path).name for path in sources.cpp.units]


def test_only_files_that_contain_a_name_are_read(sources) -> None:
    made = sources(a_h="int a();", b_h="int b(int); // a", c_h="int c(")
    assert [f.name for f in made.find("a")] == ["a"]
    assert read(made) == ["a.h", "b.h"]
    assert made.diags.ok and not made.unread
    assert made.find("d", everywhere=False) == [] and made.diags.ok
    assert made.find("d") == [] and made.unread  # c.h may have it
    assert [item.code for item in made.diags.sorted()] == ["MG501"]


def test_all_are_read_once_many_names_are_asked_for(sources) -> None:
    made = sources(**{f"f{i}x_h": f"int f{i}x();" for i in range(30)})
    for i in range(5):
        assert made.find(f"f{i}x")
    assert len(read(made)) == 5
    for i in range(30):
        assert made.find(f"f{i}x")
    assert len(read(made)) == 30


def test_a_kernel_in_a_header(sources, tmp_path) -> None:
    (tmp_path / "kernels/metal/k.h").write_text("kernel void k() {}")
    made = sources(a_metal='#include "k.h"')
    assert [f.name for _, _, f in made.metal.named("k")] == ["k"]


def test_a_declaration_in_a_header_comes_first(sources) -> None:
    made = sources(a_cpp='#include "b.h"\nint n::b() { return 1; }', b_h="namespace n { int b(); }")
    found = made.find("n::b")
    assert [made.header_of(f) for f in found] == ["b.h", None]
    assert [f.is_definition for f in found] == [False, True]


def test_members_that_csrc_defines(sources) -> None:
    made = sources(a_cpp="void A::eval_cpu() { }\nvoid A::eval_gpu();")
    assert made.defines_member("A", "eval_cpu")
    assert not made.defines_member("A", "eval_gpu")
    assert not made.defines_member("B", "eval_cpu")


def test_what_was_not_understood_is_said_of_files_with_the_name(sources) -> None:
    made = sources(a_h="int b();\nint a(int x,, int y);", b_h="int c(int,,);")
    assert made.find("d") == []
    (unread,) = made.unread_places("n::a")
    assert unread.file.endswith("csrc/a.h") and unread.line == 2
    assert made.unread_places("d") == []


def test_metal_functions_with_the_files_that_include_them(sources) -> None:
    made = sources(
        shared_metal="int f();", a_metal='#include "shared.metal"', b_metal="kernel void k() {}"
    )
    assert [(path.name, f.name) for path, _, f in made.metal.named("f")] == [("shared.metal", "f")]
    assert [f.name for _, unit, _ in made.metal.named("k") for f in unit.functions] == ["k"]
    assert len(made.metal.all()) == 3
    assert [path.name for path, _, _ in made.metal.named("f")] == ["a.metal", "shared.metal"]
