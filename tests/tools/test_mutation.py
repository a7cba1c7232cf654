"""Mutants of kernels and launchers: the changes, their implementation, and the report."""

import json
import os
import subprocess
import sys

import pytest

from mlxgen.emulator import EmulationError
from mlxgen.emulator.library import INCLUDE, build, compiler
from mlxgen.emulator.translate import translate
from tools.mutation.mutants import Launches, launch_mutants, source_mutants
from tools.mutation.plugin import Outcome
from tools.mutation.report import Equivalent, Report, equivalents, write_page

SOURCE = """\
#include <metal_stdlib>
// ---- "mlx/utils.h", included by test.metal:2
inline int of_mlx(device const int* p) { return p[0]; }
// ---- test.metal again
using namespace metal;
struct Pair { int a[2]; };
inline float helper(device const float* p, int n) {
  return 1 < n ? p[n - 1] : *(p + n);
}
inline float unused(device const float* p) { return p[1]; }
template <typename T>
[[kernel]] void f(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant int& n [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
  threadgroup float sums[32];
  sums[i] = helper(x, of_mlx(0));
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i >= n) {
    return;
  }
  y[i] = static_cast<T>(sums[i ^ 1]);
}
[[kernel]] void g(device float* x [[buffer(0)]]) { x[3] = 1; }
instantiate_kernel("f_float32", f, float)
template [[host_name("f_float16")]] [[kernel]]
decltype(f<half>) f<half>;
"""


def test_what_is_changed_in_kernels():
    mutants = source_mutants(SOURCE, ["f"], ["f_float32"]).mutants
    assert [mutant.name for mutant in mutants] == [
        "helper: < to <= in `return 1 < n ? p[n - 1] : *(p + n);`",
        "helper: [n - 1] one higher in `return 1 < n ? p[n - 1] : *(p + n);`",
        "helper: p + 1 in `return 1 < n ? p[n - 1] : *(p + n);`",
        "f: [i] one higher in `sums[i] = helper(x, of_mlx(0));`",
        "f: threadgroup_barrier removed",
        "f: >= to > in `if (i >= n) {`",
        "f: [i] one higher in `y[i] = static_cast<T>(sums[i ^ 1]);`",
        "f: [i ^ 1] one higher in `y[i] = static_cast<T>(sums[i ^ 1]);`",
        'instantiate_kernel("f_float32", f, float) for half',
        'instantiate_kernel("f_float32", f, float) removed',
        "f_float16 for float",
        "f_float16 removed",
    ]
    assert all(mutant.kernels == ("f_float32",) for mutant in mutants)
    changed = {mutant.name: mutant.source for mutant in mutants}
    assert "p[(n - 1) + 1]" in mutants[1].source
    assert "(true ? void() : threadgroup_barrier(" in changed["f: threadgroup_barrier removed"]
    assert "decltype(f<float>) f<float>;" in changed["f_float16 for float"]
    assert "f_float16" not in changed["f_float16 removed"]


def test_all_changes_in_one_source():
    """Without its switch, no change is active; the instantiations get other names."""
    source = source_mutants(SOURCE, ["f"], ["f_float32", "f_float16"])
    switched = source.text
    for text in (
        "1 < mlxgen_metal::less(mlxgen_metal::is_changed(1)) > n ? p[(n - 1) + mlxgen_metal::is_c",
        "*(p + mlxgen_metal::is_changed(3) + n)",
        "(mlxgen_metal::is_changed(5) ? void() : threadgroup_barrier(mem_flags::mem_threadgroup));",
        "i < mlxgen_metal::at_least(mlxgen_metal::is_changed(6)) > n",
        'instantiate_kernel("f_float32", f, float) instantiate_kernel("f_float32@half", f, half)',
    ):
        assert text in switched
    mutants = {mutant.name: mutant for mutant in source.mutants}
    assert mutants["f_float16 for float"].launch == "f_float16 kernel f_float16@float"
    assert mutants["f_float16 removed"].launch == "f_float16 missing"
    assert mutants["f_float16 removed"].kernels == ("f_float16",)


def test_sizes_of_arrays_have_no_switch():
    """They are compile-time constants of kernels."""
    source = source_mutants(
        "[[kernel]] void f(int n) { float x[8 < 9 ? 1 : 2]; n < 2; }", ["f"], []
    )
    assert "float x[8 < 9 ? 1 : 2]; n < mlxgen_metal::less(" in source.text
    assert [mutant.number for mutant in source.mutants] == [0, 2]
    assert "float x[8 <= 9 ? 1 : 2];" in source.mutants[0].source


STRUCTS = """
struct Step {
  int at;
  int operator()(int i) const { return i < 1; }
};
struct Scan {
  int n;
  Scan(int n_, int m) : n(n_ + 1), other(m) { n = n < 2; }
  template <typename T>
  T read(device const T* x) const { return x[n]; }
  int helper() const { return n < 3; }
  int run() const { return helper(); }
  int unused() const { return n < 4; }
};
struct Other {
  int run() const { return 0 < 5; }
};
inline int read(int i) { return i < 5; }
[[kernel]] void f(device int* x) {
  Scan scan(1, 2);
  Step step;
  x[0] = scan.read(x) + step(0) + scan.run();
}
"""


def test_functions_of_structs():
    """Member functions that a kernel calls, for structs that it names; no free functions."""
    mutants = source_mutants(STRUCTS, ["f"], []).mutants
    assert [mutant.name for mutant in mutants] == [
        "Step: < to <= in `int operator()(int i) const { return i < 1; }`",
        "Scan: < to <= in `Scan(int n_, int m) : n(n_ + 1), other(m) { n = n < 2; }`",
        "read: [n] one higher in `T read(device const T* x) const { return x[n]; }`",
        "helper: < to <= in `int helper() const { return n < 3; }`",
        "f: [0] one higher in `x[0] = scan.read(x) + step(0) + scan.run();`",
    ]


SWITCHED = """#include <metal_stdlib>
using namespace metal;
[[kernel]] void f(
    device const float* x [[buffer(0)]],
    device int* y [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  device const float* from = x + i;
  bool a = from[0] < 1, b = from[0] <= 1, c = from[0] > 1, d = from[0] >= 1;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = a + 2 * b + 4 * c + 8 * d;
}
"""
RUN_SWITCHED = """
import sys
import numpy as np
from mlxgen.emulator.library import Library
x, y = np.array([0, 1, 2, 3], np.float32), np.zeros(3, np.int32)
Library(sys.argv[1]).run("f", [x, y], grid=(3,), threadgroup=(3,), outputs=[1])
print(*y)
"""


@pytest.mark.extended
def test_switched_changes_do_what_they_say(tmp_path, cache):
    path = tmp_path / "test.metal"
    found = source_mutants(SWITCHED, ["f"], ["f"])
    path.write_text(found.text)
    library = build(f'#include "mlxgen_metal/changes.h"\n{translate(path).text}', "test")
    done = {}
    for number, mutant in enumerate([None, *found.mutants]):
        env = {**os.environ, "MLXGEN_METAL_CHANGE": str(number)}
        command = [sys.executable, "-c", RUN_SWITCHED, str(library)]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        what = mutant.name.removeprefix("f: ").split(" in ")[0] if mutant else "nothing"
        done[what] = [*done.get(what, []), run.stdout.strip() or run.stderr.splitlines()[-1]]
    bound = done.pop("[i] one higher")[0]
    assert "access outside of buffer 1 (y)" in bound
    assert done == {
        "nothing": ["3 10 12"],
        "x + 1": ["10 12 12"],
        "[0] one higher": ["2 10 12", "3 8 12", "3 14 12", "11 10 12"],
        "< to <=": ["3 11 12"],
        "<= to <": ["3 8 12"],
        "> to >=": ["3 14 12"],
        ">= to >": ["3 2 12"],
        "threadgroup_barrier removed": ["3 10 12"],
    }


def test_scalar_functions_are_left_alone():
    source = """
    template <typename T> T scalar(T x) { return x < 0 ? -x : x; }
    namespace mlxgen { inline int offset_of(constant const int* shape) { return shape[0]; } }
    [[kernel]] void f_dense(device const float* x, device float* y, uint i) {
      using C = typename mlxgen::Compute<float>::type;
      y[i] = scalar<C>(x[mlxgen::offset_of(0)]);
    }
    """
    names = [mutant.name for mutant in source_mutants(source, ["f_dense"], []).mutants]
    assert any(name.startswith("offset_of") for name in names)
    assert not any(name.startswith("scalar") for name in names)


ROW = {
    "library": "package.f",
    "kernel": "f_float32",
    "grid": [64, 2, 1],
    "group": [32, 1, 1],
    "buffers": [[0, "x", "input", 4], [1, "y", "filled", 4], [2, "n", "bytes", 4]],
}


def test_what_is_changed_in_launches():
    launches = Launches()
    launches.add(ROW)
    mutants = launch_mutants(launches, "f", ["f_float16", "f_float32"])
    assert {mutant.name.removeprefix("launch of f: "): mutant.launch for mutant in mutants} == {
        "buffer 0 (x) not bound": "f_float32 drop 0",
        "buffer 0 (x) bound the other way (input, output)": "f_float32 role 0",
        "buffer 1 (y) not bound": "f_float32 drop 1",
        "buffer 1 (y) bound the other way (input, output)": "f_float32 role 1",
        "buffer 1 (y) not filled before": "f_float32 unfilled 1",
        "buffer 2 (n) not bound": "f_float32 drop 2",
        "buffer 2 (n) of twice the size": "f_float32 resize 2 2 1",
        "buffer 2 (n) of half the size": "f_float32 resize 2 1 2",
        "buffer 2 (n) with other numbers": "f_float32 value 2",
        "buffers 0 (x) and 1 (y) exchanged": "f_float32 swap 0 1",
        "buffers 0 (x) and 2 (n) exchanged": "f_float32 swap 0 2",
        "buffers 1 (y) and 2 (n) exchanged": "f_float32 swap 1 2",
        "grid.x one larger": "f_float32 grid 0 1",
        "grid.x one smaller": "f_float32 grid 0 -1",
        "grid.y one larger": "f_float32 grid 1 1",
        "grid.y one smaller": "f_float32 grid 1 -1",
        "grid.z one larger": "f_float32 grid 2 1",
        "threadgroup.x doubled": "f_float32 group 0 2 1",
        "threadgroup.x halved": "f_float32 group 0 1 2",
        "threadgroup.y doubled": "f_float32 group 1 2 1",
        "the grid in threadgroups, not threads": "f_float32 by_groups 0",
        "launch of f_float32: f_float16 instead": "f_float32 kernel f_float16",
    }


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Do not cache compiled kernels."""
    monkeypatch.setenv("MLXGEN_METAL_CACHE", str(tmp_path / "cache"))


HARNESS = """
#include <cstdio>
#include "mlxgen_metal/mutation.h"
using namespace mlxgen_metal;
const Parameter* parameters() {
  static const Parameter out[] = {
      {"x", "", buffer, 0, float32, 4, 0, 1, 0}, {"n", "", buffer, 1, int32, 4, 1, 1, 0}};
  return out;
}
int main() {
  Entry entries[] = {
      {"f_float32", nullptr, parameters, 2, 0}, {"f_float16", nullptr, parameters, 2, 0}};
  Library library{abi_version, entries, 2, nullptr, 0};
  Launch launch{};
  Bytes bytes;
  bytes[1] = std::make_shared<std::vector<uint8_t>>(std::vector<uint8_t>{255, 0, 0, 0});
  uint8_t x[8] = {};
  launch.arguments[0] = {x, x, 8, 1, 0, 0, float32, 0};
  launch.arguments[1] = {bytes[1]->data(), bytes[1]->data(), 4, 1, 1, 0, int32, 0};
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = launch.group[i] = 2;
  }
  trace(launch, library, "package.f");
  mutate(launch, bytes, library);
  const auto& n = launch.arguments[1];
  printf("%d", launch.entry);
  for (const auto& a : {launch.arguments[0], n}) {
    printf(" %d:%d:%d", a.bound, int(a.size), a.output);
  }
  printf(" %d", n.bytes ? n.data[0] + 256 * n.data[1] : -1);
  for (int i = 0; i < 3; ++i) {
    printf(" %d/%d", int(launch.grid[i]), int(launch.group[i]));
  }
  printf(" %d\\n", launch.by_threadgroups);
}
"""


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """Build a program that records and mutates a launch of f_float32 with set_bytes(255)."""
    folder = tmp_path_factory.mktemp("mutation")
    (folder / "main.cpp").write_text(HARNESS)
    command = [compiler()[0], "-std=c++20", f"-I{INCLUDE}", "main.cpp", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)

    def run(change):
        trace = folder / "trace"
        trace.unlink(missing_ok=True)
        env = {**os.environ, "MLXGEN_METAL_MUTATE": change, "MLXGEN_METAL_TRACE": str(trace)}
        done = subprocess.run(folder / "main", env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip(), json.loads(trace.read_text())

    return run


@pytest.mark.extended
@pytest.mark.parametrize(
    "change, wanted",
    [
        ("other drop 0", "0 1:8:0 1:4:0 255 2/2 2/2 2/2 0"),
        ("f_float32 drop 0", "0 0:0:0 1:4:0 255 2/2 2/2 2/2 0"),
        ("f_float16,f_float32 swap 0 1", "0 1:4:0 1:8:0 -1 2/2 2/2 2/2 0"),
        ("f_float32 role 0", "0 1:8:1 1:4:0 255 2/2 2/2 2/2 0"),
        ("f_float32 resize 1 1 2", "0 1:8:0 1:2:0 255 2/2 2/2 2/2 0"),
        ("f_float32 value 1", "0 1:8:0 1:4:0 256 2/2 2/2 2/2 0"),
        ("f_float32 grid 1 -1", "0 1:8:0 1:4:0 255 2/2 1/2 2/2 0"),
        ("f_float32 group 2 2 1", "0 1:8:0 1:4:0 255 2/2 2/2 2/4 0"),
        ("f_float32 by_groups 0", "0 1:8:0 1:4:0 255 2/2 2/2 2/2 1"),
        ("f_float32 kernel f_float16", "1 1:8:0 1:4:0 255 2/2 2/2 2/2 0"),
    ],
)
def test_changes_of_a_launch(harness, change, wanted):
    got, traced = harness(change)
    assert got == wanted
    assert traced == {
        "library": "package.f",
        "kernel": "f_float32",
        "grid": [2, 2, 2],
        "group": [2, 2, 2],
        "buffers": [[0, "x", "input", 4], [1, "n", "bytes", 4]],
    }


def outcome(name, how, op="f"):
    return Outcome(op, "launcher", name, how, "")


def test_report(tmp_path):
    path = tmp_path / "mutants.yaml"
    path.write_text('- {mutants: ["*: grid.[x] *", "f: never"], why: the kernel stops them}\n')
    expected = equivalents(path)
    assert expected == [Equivalent(("*: grid.[x] *", "f: never"), "the kernel stops them")]
    outcomes = (
        outcome("grid.[x] one larger", "missed"),
        outcome("grid.[x] one larger", "endless", "g"),
        outcome("grid.x one larger", "missed"),
        outcome("swap", "checks"),
        outcome("grid.[x] doubled", "results"),
    )
    report = Report(outcomes, tuple(expected))
    assert report.missed == [outcomes[2]]
    assert report.idle == ["f: never"]
    assert report.summary().splitlines() == [
        "5 mutants: 2 killed, 2 equivalent, 1 survived",
        "survived: f: grid.x one larger",
        "listed, but no mutant of it survived: f: never",
    ]
    assert "listed" not in report.summary(whole=False)
    assert report.table().splitlines()[2:] == [
        "| f | launcher | 4 | 1 | 1 | 0 | 0 | 1 | 1 |",
        "| g | launcher | 1 | 0 | 0 | 0 | 0 | 1 | 0 |",
        "| all |  | 5 | 1 | 1 | 0 | 0 | 2 | 1 |",
    ]


def test_a_list_of_another_form(tmp_path):
    path = tmp_path / "mutants.yaml"
    assert equivalents(path) == []
    path.write_text("- mutants: [a]\n")
    with pytest.raises(EmulationError, match=r"mutants.yaml: expected a list of \{mutants"):
        equivalents(path)


def test_page(tmp_path):
    """Rows of operators that were not run stay, unless all were requested."""

    def write(op, how, whole):
        write_page(page, Report((outcome("swap", how, op),), ()), whole)
        text = page.read_text()
        assert text.startswith("# Title\n\nText.\n")
        return [line for line in text.splitlines() if line.startswith(("| f ", "| g ", "| all "))]

    page = tmp_path / "page.md"
    page.write_text("# Title\n\nText.\n")
    f, g = (
        "| f | launcher | 1 | 1 | 0 | 0 | 0 | 0 | 0 |",
        "| g | launcher | 1 | 0 | 1 | 0 | 0 | 0 | 0 |",
    )
    assert write("g", "results", True) == [g, "| all |  | 1 | 0 | 1 | 0 | 0 | 0 | 0 |"]
    with page.open("a") as file:
        file.write("\nMore.\n")
    assert write("f", "missed", False)[1:] == [g, "| all |  | 2 | 0 | 1 | 0 | 0 | 0 | 1 |"]
    both = "| all |  | 2 | 1 | 1 | 0 | 0 | 0 | 0 |"
    assert write("f", "checks", False) == [f, g, both]
    assert write("f", "checks", True) == [f, both.replace("2 | 1 | 1", "1 | 1 | 0")]
    assert page.read_text().endswith("\nMore.\n")
