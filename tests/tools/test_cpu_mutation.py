"""Mutants of CPU kernels: the mutated places, one source for all mutants, and their effects."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mlxgen.emulator.library import compiler
from tools.mutation.cpp import changed, included

SOURCE = b"""\
#include <algorithm>
template <int size>
struct Box {
  float data[size + 1];
  float at(int i) const { return data[i]; }
};
inline float unused(float x) { return -x; }
constexpr int twice(int x) { return 2 * x; }
inline float helper(const float* p, int n) {
  constexpr int first = 1 - 1;
  float sum = 0;
  for (int i = first; i < n; i += 1) {
    sum += p[i] * 3;
  }
  return n == 0 ? -sum : std::max(sum, 5.0f);
}
template <typename T>
float kernel(Box<2> box, T n) {
  return box.at(1) - helper(box.data, n) / 2;
}
"""
COMPOSED = b"""\
mx::array composed(mx::array a, mx::array b) {
  return mx::add(mx::multiply(a, b), a);
}
"""
MAIN = """
#include "source.h"
#include <cstdio>
#include <cstdlib>
int main(int, char** words) {
  const int two = 2;
  auto four = [=] { return two * mlxgen_changes::twice(0, two); };
  static_assert(sizeof(four) == 1, "other sources have the same lambda without a capture");
  mlxgen_change = std::atoi(words[1]);
  std::printf("%g", kernel(Box<2>{{1, 2, 4}}, 2));
}
"""


def test_what_is_changed(tmp_path: Path) -> None:
    result = changed({Path("source.h"): SOURCE}, ["kernel"])
    assert result.names == [
        "at: [i] one higher in `float at(int i) const { return data[i]; }`",
        "helper: <= for < in `for (int i = first; i < n; i += 1) {`",
        "helper: the other sign of `p[i] * 3` in `sum += p[i] * 3;`",
        "helper: `3` doubled in `sum += p[i] * 3;`",
        "helper: [i] one higher in `sum += p[i] * 3;`",
        "helper: != for == in `return n == 0 ? -sum : std::max(sum, 5.0f);`",
        "helper: without the sign of `sum` in `return n == 0 ? -sum : std::max(sum, 5.0f);`",
        "helper: std::min in `return n == 0 ? -sum : std::max(sum, 5.0f);`",
        "kernel: the other sign of `helper(box.data, n) / 2` in "
        "`return box.at(1) - helper(box.data, n) / 2;`",
        "kernel: `2` doubled in `return box.at(1) - helper(box.data, n) / 2;`",
    ]
    (tmp_path / "source.h").write_text(result.texts[Path("source.h")])
    (tmp_path / "main.cpp").write_text(MAIN)
    header = Path(__file__).parents[2] / "tools" / "mutation" / "changes.h"
    command = [compiler()[0], "-std=c++20", "-include", str(header), "main.cpp", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    run = [
        float(subprocess.check_output([tmp_path / "main", str(number)]))
        for number in range(len(result.names) + 1)
    ]
    # The sum is 9, the result 2 - 9 / 2.
    assert run == [-2.5, -0.5, -8.5, -0.5, -7, -7, 6.5, -2.5, -0.5, 6.5, -0.25]


def test_branches_of_constants() -> None:
    source = b"""\
MLXGEN_MULTIVERSION int branches(int x) {
  if constexpr (wide) {
    return x + 1;
  } else {
    x -= 2;
  }
  return -x;
}
"""
    result = changed({Path("a.h"): source}, ["branches"])
    assert result.functions == [
        "a.h:2: branches, constexpr",
        "a.h:4: branches, constexpr",
        "a.h:1: branches",
    ]
    assert result.texts[Path("a.h")].startswith("MLXGEN_MULTIVERSION int branches(int x) {")


def test_comparisons_are_no_templates() -> None:
    source = b"bool inside(int x, int n) { return x < n && n >= 0; }\n"
    result = changed({Path("a.h"): source}, ["inside"])
    assert [name.partition(" in ")[0] for name in result.names] == [
        "inside: || for &&",
        "inside: <= for <",
        "inside: > for >=",
    ]


def test_operations_of_mlx() -> None:
    result = changed({Path("source.h"): COMPOSED}, ["composed"])
    line = "`return mx::add(mx::multiply(a, b), a);`"
    assert result.names == [
        f"composed: mx::subtract in {line}",
        f"composed: mx::divide in {line}",
    ]
    text = result.texts[Path("source.h")]
    multiplied = "(mlxgen_changes::is(2) ? mx::divide(a, b) : mx::multiply(a, b))"
    assert text.count(f"mx::subtract({multiplied}, a) : mx::add({multiplied}, a)") == 1


def test_headers_that_are_included(tmp_path: Path) -> None:
    (tmp_path / "nn").mkdir()
    (tmp_path / "nn" / "a.h").write_text('#include "b.h"\n#include <vector>\n#include "x/y.h"\n')
    (tmp_path / "nn" / "b.h").write_text('#include "c.h"\n')
    (tmp_path / "c.h").write_text("")
    found = included(Path("nn/a.h"), tmp_path)
    assert {str(path) for path in found} == {"nn/a.h", "nn/b.h", "c.h"}
