"""clang vectorises the loops of elementwise operators, for arm64 and for x86-64.

g++ compiles mlxops on Linux, and most users have an arm64 Mac. Here the clang of the `ziglang`
package compiles every loop around a scalar function, without the rest of the operator, and records
what its vectoriser did.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import mlxgen
from mlxgen.command.generate import generate
from mlxgen.diagnostics import Diagnostics
from mlxgen.read.settings import load as load_settings

ROOT = Path(__file__).parents[2]
INCLUDE = Path(mlxgen.__file__).parent / "runtime" / "include"

# As CMakeLists.txt compiles operators. For x86-64 one instruction set is enough.
FLAGS = "-std=c++20 -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fno-sanitize=all -g0"
TARGETS = {
    "arm64": "-target aarch64-macos.14.0 -fveclib=Darwin_libsystem_m",
    "x86-64": "-target x86_64-linux-gnu.2.40 -fveclib=libmvec -mavx2 -mfma -DMLXGEN_PLAIN_LOOPS",
}

# Operators whose loop is scalar, with every compiler.
SCALAR = dict.fromkeys(
    """betainc betainc_grad_a betainc_grad_b betaincc betainccinv betaincinv gammainc
    gammainc_grad_a gammaincc gammainccinv gammaincinv exprel_derivative""".split(),  # noqa: SIM905
    "sums a series until it converges",
) | {
    "log1prel_derivative": "takes as many steps as the order that it is given",
    **dict.fromkeys(("iv", "ive", "kv", "kve"), "one of several expansions, which take long each"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """The loops of operators, in C++: each in a namespace of its own.

    Attributes:
        includes: where their scalar functions are.
        loops: the text of each, by operator, type and, where there are two, sign.
    """

    includes: set[str]
    loops: dict[str, str]

    @property
    def text(self) -> str:
        includes = [f'#include "{name}"' for name in sorted(self.includes)]
        head = ['#include "mlxgen/loop.h"', "MLXGEN_BEGIN_INLINED", *includes, "MLXGEN_END_INLINED"]
        return "\n".join([*head, *self.loops.values()])


def add_loops(source: Source, op: str, generated: str) -> None:
    """Those of an elementwise operator, of which the generated file is given."""
    head = re.search(r"public mlxgen::Elementwise<\w+, (\d+), (\d+)>", generated)
    kernel = re.search(r"^mlxgen::cpu::elementwise<\w+, (.+?)>\(", generated, re.M)
    include = re.search(r'^MLXGEN_BEGIN_INLINED\n#include "(.+)"\nMLXGEN_END', generated, re.M)
    pattern = r"^template <typename T(, bool positive)?>\nauto element\(\) const \{\n.*?^\}\n"
    element = re.search(pattern, generated, re.M | re.S)
    assert head and kernel and include and element, f"{op} is generated in another form now"
    source.includes.add(include[1])
    attributes = "\n".join(re.findall(r"^\w[\w:<> ]* \w+_;$", generated, re.M))
    types = "float, double" if kernel[1] == "mlxgen::Floating" else kernel[1]
    for dtype in re.findall(r"(?<![\w:])(?:float|double|u?int\d+_t)\b", types):
        for sign in ("true", "false") if element[1] else ("",):
            name = "_".join(filter(None, (op, dtype, sign)))
            source.loops[name] = f"""
namespace {name} {{
struct Op {{
{attributes}
{element[0]}}};
void run(const Op& op, const mlxgen::cpu::Rows& rows) {{
  mlxgen::cpu::each<{dtype}>(
      op.element<{dtype}{sign and ", " + sign}>(), rows,
      std::make_index_sequence<{head[1]}>(), std::make_index_sequence<{head[2]}>());
}}
}}"""


def widths(source: Source, flags: str, folder: Path) -> dict[str, list[int]]:
    """How many elements each loop takes at a time, in each version of it that is vectorised."""
    path, record = folder / "loops.cpp", folder / "record.yaml"
    path.write_text(source.text, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "ziglang", "c++", *FLAGS.split(), *flags.split()),
        *(
            f"-I{ROOT / 'csrc'}",
            f"-I{INCLUDE}",
            str(path),
            "-S",
            "-emit-llvm",
            "-o",
            str(folder / "loops.ll"),
        ),
        *("-fsave-optimization-record", f"-foptimization-record-file={record}"),
        "-foptimization-record-passes=loop-vectorize",
    ]
    caches = dict.fromkeys(("ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR"), str(folder))
    env = {**os.environ, **caches}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = {name: [] for name in source.loops}
    for entry in record.read_text(encoding="utf-8").split("--- ")[1:]:
        place, _, rest = entry.partition("Function:")
        width = re.search(r"VectorizationFactor: '(\d+)'", rest)
        # Other loops are within scalar functions, and in loop.h the one for signs.
        if entry.startswith("!Passed") and "loop.h" in place and width:
            function = rest.partition("\n")[0]
            (name,) = [n for n in found if f"{len(n)}{n}" in function]
            found[name].append(int(width[1]))
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("generated")
    diags = Diagnostics()
    generate(load_settings(ROOT, diags), folder, diags)
    assert diags.ok
    source = Source(set(), {})
    for path in sorted((folder / "src").glob("*.cpp")):
        text = path.read_text(encoding="utf-8")
        if "mlxgen::cpu::elementwise<" in text:
            add_loops(source, path.stem, text)
    assert len(source.loops) > 200
    return source


@pytest.mark.parametrize("target", TARGETS)
def test_loops_are_vectorised(target: str, source: Source, tmp_path: Path) -> None:
    found = widths(source, TARGETS[target], tmp_path)
    scalar = {name for name, versions in found.items() if not versions}
    known = {name for name in found for op in SCALAR if re.fullmatch(rf"{op}_(float|double)", name)}
    assert len(known) == 2 * len(SCALAR)
    assert not scalar - known, f"these are scalar: {sorted(scalar - known)}"
    assert not known - scalar, f"these are vectorised now: {sorted(known - scalar)}"


def test_others_are_noticed(source: Source, tmp_path: Path) -> None:
    """A call that is not inlined."""
    text = source.loops["erf_float"].replace("mlxops::special::", "")
    text = text.replace("namespace erf_float", "namespace opaque")
    opaque = text.replace("struct Op", "template <typename T> T erf(T);\nstruct Op")
    loops = {"opaque": opaque, "erf_float": source.loops["erf_float"]}
    found = widths(Source(source.includes, loops), TARGETS["arm64"], tmp_path)
    assert found["opaque"] == []
    assert found["erf_float"] != []


def test_several_instruction_sets(source: Source, tmp_path: Path) -> None:
    """On Linux x86-64: SSE2, AVX2 and AVX-512, which hold 2, 4 and 8 numbers in double."""
    loops = {"erf_double": source.loops["erf_double"]}
    flags = TARGETS["x86-64"].partition(" -mavx2")[0]
    found = widths(Source(source.includes, loops), flags, tmp_path)
    assert sorted(set(found["erf_double"])) == [2, 4, 8]
