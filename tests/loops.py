"""Generates the loops around scalar functions in C++, without the rest of the operators.

tests/runtime/test_loops.py and benchmarks/apple.py inspect the compiled loops.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import mlxgen
from mlxgen.command.generate import generate
from mlxgen.diagnostics import Diagnostics
from mlxgen.read.settings import load as load_settings

ROOT = Path(__file__).parents[1]
INCLUDE = Path(mlxgen.__file__).parent / "runtime" / "include"

# The flags of CMakeLists.txt for operators. For x86-64 one instruction set is enough.
FLAGS = "-std=c++20 -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fno-sanitize=all -g0"
TARGETS = {
    "arm64": "-target aarch64-macos.14.0 -fveclib=Darwin_libsystem_m",
    "x86-64": "-target x86_64-linux-gnu.2.40 -fveclib=libmvec -mavx2 -mfma -DMLXGEN_PLAIN_LOOPS",
}

# Operators whose loop is scalar with every compiler, and the reasons.
SCALAR = dict.fromkeys(
    """beta_place beta_place_grad_a betainc betainc_grad_a betainc_grad_b betaincc betainccinv
    betaincinv gammainc gammainc_grad_a gammaincc gammainccinv gammaincinv
    exprel_derivative""".split(),  # noqa: SIM905
    "sums a series until it converges",
) | {
    # Of any order, for third and higher derivatives, and boxcox's second ones. A loop of a given
    # number of steps around vectors is not vectorized, and steps up to a largest order with selects
    # would take longer for the lowest one, which is the most frequent. The first derivatives are
    # operators of their own: boxcox_slope takes 5 ns for a number, boxcox_derivative 70 ns.
    **dict.fromkeys(
        ("log1prel_derivative", "boxcox_derivative", "boxcox1p_derivative", "bessel_ratio"),
        "takes as many steps as the order that it is given",
    ),
    # The derivatives are sums of ive and kve; those for orders 0 and 1 have kernels without them.
    **dict.fromkeys(
        ("iv", "ive", "kv", "kve", "ive_derivative", "kve_derivative"),
        "one of several expansions, which take long each",
    ),
}


@dataclass(frozen=True, slots=True)
class Source:
    """The loops of operators in C++, each in its own namespace.

    Attributes:
        includes: The folders of their scalar functions.
        loops: The text of each loop, by operator, type and, if there are two, sign.
    """

    includes: set[str]
    loops: dict[str, str]

    @property
    def text(self) -> str:
        includes = [f'#include "{name}"' for name in sorted(self.includes)]
        head = ['#include "mlxgen/loop.h"', "MLXGEN_BEGIN_INLINED", *includes, "MLXGEN_END_INLINED"]
        return "\n".join([*head, *self.loops.values()])


def _add_loops(source: Source, op: str, generated: str) -> None:
    """Add the loops of an elementwise operator, from its generated file."""
    head = re.search(r"public mlxgen::Elementwise<\w+, (\d+), (\d+)>", generated)
    kernel = re.search(r"^mlxgen::cpu::elementwise<\w+, (.+?)>\(", generated, re.M)
    include = re.search(r'^MLXGEN_BEGIN_INLINED\n#include "(.+)"\nMLXGEN_END', generated, re.M)
    pattern = r"^template <typename T(, bool positive)?>\nauto element\(\) const \{\n.*?^\}\n"
    element = re.search(pattern, generated, re.M | re.S)
    assert head and kernel and include and element, f"{op} is generated in another form now"
    source.includes.add(include[1])
    attributes = "\n".join(re.findall(r"^\w[\w:<> ]* \w+_;$", generated, re.M))
    # A string choice is a number in the loop.
    attributes = attributes.replace("std::string ", "int ")
    body = re.sub(r"mlxgen::choice\([^{]*?(\w+_),\s*\{.*?\}\)", r"\1", element[0])
    types = "float, double" if kernel[1] == "mlxgen::Floating" else kernel[1]
    for dtype in re.findall(r"(?<![\w:])(?:float|double|u?int\d+_t)\b", types):
        for sign in ("true", "false") if element[1] else ("",):
            name = "_".join(filter(None, (op, dtype, sign)))
            source.loops[name] = f"""
namespace {name} {{
struct Op {{
{attributes}
{body}}};
void run(const Op& op, const mlxgen::cpu::Rows& rows) {{
  mlxgen::cpu::each<{dtype}>(
      op.element<{dtype}{sign and ", " + sign}>(), rows,
      std::make_index_sequence<{head[1]}>(), std::make_index_sequence<{head[2]}>());
}}
}}"""


def generate_loops(folder: Path) -> Source:
    """Return the loops of all elementwise operators; generate their sources in the folder."""
    diags = Diagnostics()
    generate(load_settings(ROOT, diags), folder, diags)
    assert diags.ok
    source = Source(set(), {})
    for path in sorted((folder / "src").glob("*.cpp")):
        text = path.read_text(encoding="utf-8")
        if "mlxgen::cpu::elementwise<" in text:
            _add_loops(source, path.stem, text)
    return source


def compile_loops(source: Source, folder: Path, flags: str) -> str:
    """Return the assembly, or another output for the flags, of the `ziglang` package's clang."""
    path, out = folder / "loops.cpp", folder / "loops.s"
    path.write_text(source.text, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "ziglang", "c++", *FLAGS.split(), *flags.split(), str(path)),
        *(f"-I{ROOT / 'csrc'}", f"-I{INCLUDE}", "-S", "-o", str(out)),
    ]
    caches = dict.fromkeys(("ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR"), str(folder))
    env = {**os.environ, **caches}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return out.read_text(encoding="utf-8")
