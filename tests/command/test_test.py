"""`mlxgen test`: its table, the operators that it chooses, and what ends it.

The tests share the project, so that its operators are compiled once: the first test builds all of
them, and each later one what it edits.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import builds
import pytest
from click.testing import CliRunner, Result

from mlxgen.__main__ import cli
from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.plugins.interactive.built import chosen

PROJECT = """
[project]
name = "proved"
version = "1"
[tool.mlxgen]
name = "proved"
"""
YAML = """
- name: soft
  signature: "soft(array x) -> array"
  dispatch: {cpu: soft, metal: soft}
  composite: x / (1 + abs(x))
  grad: {x: grad / square(1 + abs(x))}
- name: cube
  signature: "cube(array x) -> array"
  dispatch: {cpu: cube}
  composite: cubed(x)
  grad: {x: 3 * square(x) * grad}
- signature: >-
    cubed(array x) -> array
  composite: x * x * x
  tags: [internal]
- name: plus_one
  signature: "plus_one(array x) -> array"
  composite: x + 1
"""
FILES = {
    "pyproject.toml": PROJECT,
    "mlx_ops.yaml": YAML,
    "python/proved/__init__.py": "",
    "csrc/soft.h": """#pragma once
#include "mlxgen/scalar.h"
namespace proved::cpu {
template <typename T> T soft(T x) { return x / (1 + mlxgen::math::fabs(x)); }
} // namespace proved::cpu
""",
    "csrc/cube.h": """#pragma once
#include <cstdlib>
#include "scale.h"
namespace proved::cpu {
template <typename T> T cube(T x) { return x * x * x * T(scale()); }
} // namespace proved::cpu
""",
    "csrc/one.h": "#pragma once\nnamespace proved { float one(); }\n",
    "csrc/one.cpp": '#include "one.h"\nnamespace proved { float one() { return 1; } }\n',
    "csrc/scale.h": "#pragma once\nnamespace proved { float scale(); }\n",
    "csrc/scale.cpp": """#include "scale.h"
#include "one.h"
namespace proved { float scale() { return one(); } }
""",
    "kernels/metal/soft.metal": """#include <metal_stdlib>
template <typename T> T soft(T x) { return x / (1 + metal::fabs(x)); }
""",
}
PARTIAL = """template <typename T>
[[kernel]] void partial(
    device const T* x, device T* y, device T* out, uint i [[thread_position_in_grid]]) {
  y[i] = x[i];
  if (i % 2 == 0) out[i] = x[i];
}
template <typename T> T soft"""
PARTIAL_YAML = """
- &partial
  signature: "partial(array x) -> (array y, array out)"
  dispatch: {metal: {kernel: partial, grid: [x.size]}}
  axes: {"x, y, out": ...}
  grad: none
- <<: *partial
  name: with_memory
  signature: "with_memory(array x) -> (array y, array out)"
  unused: {out: memory of the kernel}
"""


class Project:
    """A project whose files are restored after each test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def restore(self) -> None:
        for name, text in FILES.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)

    def edit(self, name: str, before: str, after: str) -> None:
        path = self.folder / name
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after))

    def test(self, *arguments: str, status: int = 0) -> str:
        found: Result = CliRunner().invoke(
            cli, ["test", "--project", str(self.folder), *arguments], catch_exceptions=True
        )
        assert found.exit_code == status, found.output
        return found.output


def rows(text: str) -> dict[str, list[str]]:
    """Return the first line of each row of the table, by operator."""
    found = re.findall(r"^│ (\S.*?) *│(.*)│$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("│")] for name, cells in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proved")


@pytest.fixture
def project(folder: Path) -> Iterator[Project]:
    made = Project(folder)
    made.restore()
    yield made
    made.restore()


@pytest.mark.extended
def test_only_changed_operators(project: Project) -> None:
    """Without names: all at first, then those that an edit of an entry or of a kernel concerns."""
    text = project.test()
    assert rows(text).keys() == {"soft", "cube", "plus_one"}
    assert all(re.fullmatch(r"[1-9]\d* passed", cells[0]) for cells in rows(text).values())
    assert "nothing changed" in project.test()

    project.edit("mlx_ops.yaml", "grad: {x: grad /", "grad: {x: 2 * grad /")
    text = project.test(status=1)
    assert rows(text).keys() == {"soft"}
    assert re.fullmatch(r"\d+ of \d+ failed", rows(text)["soft"][0])
    assert re.search(r"vjp of 'x': .* x\[\d, \d\] = \S+ is \S+, but \S+ by finite", text), text
    project.restore()
    assert "nothing changed" in project.test()

    project.edit("mlx_ops.yaml", "composite: x * x * x", "composite: square(x) * x")
    assert rows(project.test()).keys() == {"cube"}  # it calls the entry
    project.edit("csrc/one.cpp", "return 1;", "return 2;")
    text = project.test(status=1)
    assert rows(text).keys() == {"cube"}  # its header's source includes another header
    assert "failed" in rows(text)["cube"][0]


def test_operators_that_a_source_calls(project: Project) -> None:
    """They are built too, because the source of a header is."""
    project.edit("csrc/scale.cpp", "#include", '#include "proved/plus_one.h"\n#include')
    diags = Diagnostics()
    settings = operators.settings_of(project.folder, None, diags)
    document, sources = operators.read(settings, diags)
    found = chosen(settings, document, sources, ["cube"])
    assert diags.ok
    assert {op.name for op in found.ops} == {"cube", "cubed", "plus_one"}


def test_crash(project: Project) -> None:
    """The check in which a kernel ends the process is named; the other operators go on."""
    project.edit("csrc/cube.h", "{ return x", "{ if (x > 0) std::abort(); return x")
    text = project.test("cube", "plus_one", status=1)
    assert re.search(r"sample of cube: the process ended with SIGABRT", text), text
    assert re.fullmatch(r"[1-9]\d* passed", rows(text)["plus_one"][0])
    assert rows(text).keys() == {"cube", "plus_one"}


def test_crash_in_a_preparation(project: Project) -> None:
    """A gradient is traced to see which checks apply. The other operators go on."""
    header = """#pragma once
#include <cstdlib>
#include "mlx/mlx.h"
namespace proved {
inline std::vector<mlx::core::array> plus_one_vjp(
    const mlx::core::array& x, const std::vector<mlx::core::array>& cotangents,
    const std::vector<mlx::core::array>& outputs, mlx::core::StreamOrDevice s) {
  std::abort();
}
} // namespace proved
"""
    (project.folder / "csrc" / "plus_one.h").write_text(header)
    grad = "composite: x + 1\n  grad: {x: {function: plus_one_vjp}}"
    project.edit("mlx_ops.yaml", "composite: x + 1", grad)
    text = project.test("soft", "plus_one", "cube", status=1)
    (project.folder / "csrc" / "plus_one.h").unlink()
    assert re.search(r"the preparation of vjp: the process ended with SIGABRT", text), text
    assert "1 of 1 failed" in rows(text)["plus_one"][0]
    assert all(re.fullmatch(r"[1-9]\d* passed", rows(text)[name][0]) for name in ("soft", "cube"))


def test_crash_of_the_import(project: Project) -> None:
    project.edit("csrc/one.cpp", "namespace", "static int table = (throw 1, 1);\nnamespace")
    text = re.sub(r"[│\s]+", " ", project.test("cube", status=1))
    assert "cannot be tested: importing the package fails: the process ended with SIGABRT" in text


def test_metal(project: Project) -> None:
    """An error in a Metal kernel, which the CPU does not run, is found by --metal only."""
    project.edit("kernels/metal/soft.metal", "(1 + metal", "(2 + metal")
    assert "passed" in project.test("soft")
    text = project.test("soft", "--metal", status=1)
    assert re.search(r"\d+ of \d+ failed", rows(text)["soft"][0])
    assert int(rows(text)["soft"][1]) > 0  # launches
    assert "on Metal" in text or "by the composite" in text


@pytest.mark.extended
def test_elements_that_a_metal_kernel_does_not_write(project: Project) -> None:
    """Without a composite, only the emulation can find them. Memory of a kernel may have them."""
    project.edit("kernels/metal/soft.metal", "template <typename T> T soft", PARTIAL)
    project.edit("mlx_ops.yaml", "- name: plus_one\n", PARTIAL_YAML + "- name: plus_one\n")
    text = project.test("partial", "with_memory", "--metal", status=1)
    assert re.fullmatch(r"[1-9]\d* passed", rows(text)["with_memory"][0])
    message = "no thread writes 6 of the 12 elements of buffer 2 (out), first element 1"
    assert f"sample: partial_float32: {message}" in re.sub(r"\s+", " ", text)


def test_bench(project: Project) -> None:
    shape, ours, composite, ratio = rows(project.test("plus_one", "--bench"))["plus_one"][2:]
    assert shape.startswith("(3, ") and float(ours) > 0
    assert float(composite) / float(ours) == pytest.approx(float(ratio), rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["sofd"], 1, r"MG606.*'sofd' \(did you mean 'soft'\?\)"),
        (["cubed"], 1, r"cubed is internal and has no checks: .* such as cube"),
        (["soft", "--metal", "--bench"], 2, "omit --metal"),
    ],
)
def test_mistakes(project: Project, arguments: list[str], status: int, said: str) -> None:
    text = re.sub(r"[│\s]+", " ", project.test(*arguments, status=status))
    assert re.search(said, text), text


def test_errors_in_kernels(project: Project) -> None:
    """Errors in an entry and of the compiler are at their places, without a traceback."""
    project.edit("mlx_ops.yaml", "grad: {x: grad /", "grad: {x: gard /")
    assert "mlx_ops.yaml:6:13: error[MG303]" in project.test("soft", status=1)
    project.restore()
    project.edit("csrc/cube.h", "return x * x", "return y * x")
    text = project.test("cube", status=1)
    assert re.search(r"cube\.h:5:\d+: error\[MG814\]: .*'y'", text), text


def test_no_compiler(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    text = re.sub(r"[│\s]+", " ", project.test("soft", status=1))
    assert "cannot be tested: there is no C++ compiler '/nowhere/g++', which CXX names" in text


def test_watch_and_interrupt(project: Project, tmp_path: Path) -> None:
    """Each edit tests what it concerns. Ctrl-C ends the command and leaves no files."""
    line = [sys.executable, "-u", "-m", "mlxgen", "test", "soft", "plus_one", "--watch"]
    environment = builds.environment() | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        line,
        cwd=project.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Shells let background jobs ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout

        def until_waiting() -> str:
            lines = []
            for text in process.stdout or ():
                lines.append(text)
                if text.startswith("waiting"):
                    return "".join(lines)
            pytest.fail("".join(lines))

        assert rows(until_waiting()).keys() == {"soft", "plus_one"}
        project.edit("mlx_ops.yaml", "composite: x + 1", "composite: 1 + x")
        assert rows(until_waiting()).keys() == {"plus_one"}
        project.edit("csrc/soft.h", "(1 + mlx", "(4 + mlx")
        time.sleep(1.5)  # it reads or compiles
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait() == 130, rest
    assert "Traceback" not in rest and "interrupted" in rest
    assert not list(tmp_path.glob("mlxgen-*"))
