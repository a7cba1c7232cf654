"""Estimates the time per element on Apple's M1, for development without one.

The clang of the `ziglang` package compiles the loops of all elementwise operators for macOS on
arm64, with the flags of CMakeLists.txt. The innermost loop is extracted from the assembly, and
llvm-mca simulates a hundred iterations of it on two processors: LLVM's `apple-m1`, and Arm's
Neoverse V1, which has as many vector units as an M1. docs/benchmarks.md discusses the results.

For comparison, the same function is measured for one number at a time, as the C library's functions
work.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loops import TARGETS, Source, compile_loops, generate_loops

from .measure import Options, Result

GHZ = 3.2
AIM = 3.0  # ns per element of float32, in the loops of these operators
AIMED = """lgamma digamma erf erfc erfcx erfinv erfcinv ndtr log_ndtr ndtri i0 i0e""".split()  # noqa: SIM905
PROCESSORS = ("apple-m1", "neoverse-v1")
UNITS = 4  # vector units of an M1
ONE_BY_ONE = "-fno-vectorize -fno-slp-vectorize -DMLXGEN_INDEPENDENT="
TURNS = 100
CLOSE = 1.1  # cycles relative to the busy cycles of a kind of units, below which they are too few

_FUNCTION = re.compile(r"^_\w+:.*?^\t\.cfi_endproc$", re.M | re.S)
_BLOCK = re.compile(r"^(?=LBB|; %bb)", re.M)
_STORE = re.compile(r"^\tst(?:ur|np|p|r)\t(.*?), \[(?!sp|x29)", re.M)
_BYTES = {"q": 16, "d": 8, "x": 8, "s": 4, "w": 4, "h": 2, "b": 1}
_CALL = re.compile(r"^\tbl\t_(\w+)$", re.M)
_VECTOR = re.compile(r"^\t(?!mov|ld|st)\w+\.\d+[bhsd]\t", re.M)
_KINDS = {
    **{"CyUnitVM": "multipliers", "CyUnitV": "vector units", "CyUnitLS": "memory"},
    **{"V1UnitV": "vector units", "V1UnitL": "memory"},
}


@dataclass(frozen=True)
class Loop:
    """The innermost loop of an operator.

    Attributes:
        text: Its assembly.
        elements: The number of elements per iteration.
    """

    text: str
    elements: float

    @property
    def calls(self) -> list[str]:
        """The functions that it calls, which the estimates do not include."""
        return sorted(set(_CALL.findall(self.text)))

    @property
    def least(self) -> float:
        """Cycles per element if all vector units always have work, and copies are free."""
        return len(_VECTOR.findall(self.text)) / UNITS / self.elements


@dataclass(frozen=True)
class Estimate:
    """Cycles per element, and their cause: too few units of a kind, the number of instructions that
    can begin in a cycle (`width`), or waiting for results (`latency`)."""

    cycles: float
    bound: str


def innermost(source: Source, assembler: str) -> dict[str, Loop]:
    """Return the loops that store their results, by operator and type."""
    found: dict[str, Loop] = {}
    for function in _FUNCTION.findall(assembler):
        head = function.partition(":")[0]
        for name in source.loops:
            # In a function of loop.h around the operator's element, unless it is inlined.
            if f"{len(name)}{name}2Op" in head or f"{len(name)}{name}3run" in head:
                loops = [_loop(text, name, source.loops[name]) for text in _turns(function)]
                longest = max(filter(None, loops), key=lambda loop: len(loop.text), default=None)
                if longest and len(longest.text) > len(found[name].text if name in found else ""):
                    found[name] = longest
    return found


def _turns(function: str) -> Iterator[str]:
    """Yield the innermost loops of a function: the blocks that clang's comments mark."""
    blocks = _BLOCK.split(function)
    for header in blocks:
        if "Inner Loop Header" in header:
            inside = f"Header={header.partition(':')[0][1:]} "
            yield "".join(block for block in blocks if block is header or inside in block)


def _loop(text: str, name: str, source: str) -> Loop | None:
    stored = 0
    for registers in _STORE.findall(text):
        stored += sum(_BYTES[register[0]] for register in registers.split(", "))
    outputs = int(re.findall(r"make_index_sequence<(\d+)>", source)[1])
    size = 4 if "_float" in name else 8
    if not stored:
        return None
    return Loop(text, stored / size / outputs)


def estimate(loops: Mapping[str, Loop], processor: str, mca: str) -> dict[str, Estimate]:
    """Return llvm-mca's estimate for each loop."""
    text = "".join(
        f"; LLVM-MCA-BEGIN {name}\n{loop.text}; LLVM-MCA-END\n" for name, loop in loops.items()
    )
    for label in sorted(set(re.findall(r"\bLBB\w+$", text, re.M))):  # jumps out of a loop
        if f"\n{label}:" not in text:
            text += f"{label}:\n"
    command = [mca, "-mtriple=arm64-apple-macos14", f"-mcpu={processor}", f"-iterations={TURNS}"]
    done = subprocess.run([*command, "-json"], input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")
    answer = json.loads(done.stdout)
    resources = [name.partition("\0")[0].rstrip(".") for name in answer["TargetInfo"]["Resources"]]
    found = {}
    for region in answer["CodeRegions"]:
        loop, summary = loops[region["Name"]], region["SummaryView"]
        cycles = summary["TotalCycles"] / TURNS
        width = summary["TotaluOps"] / TURNS / summary["DispatchWidth"]
        use = [
            (info["ResourceUsage"], resources[info["ResourceIndex"]])
            for info in region["ResourcePressureView"]["ResourcePressureInfo"]
            if info["InstructionIndex"] == len(region["Instructions"])
        ]
        most, unit = max(use, default=(0, ""))
        if cycles > CLOSE * max(most, width):
            bound = "latency"
        elif width > most:
            bound = "width"
        else:
            bound = next((kind for key, kind in _KINDS.items() if unit.startswith(key)), unit)
        found[region["Name"]] = Estimate(cycles / loop.elements, bound)
    return found


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group; if llvm-mca is missing, print a message and yield none."""
    mca = shutil.which("llvm-mca-19") or shutil.which("llvm-mca")
    if mca is None:
        print("python -m benchmarks apple needs llvm-mca, of the package llvm-19.", file=sys.stderr)
        return
    options.progress("generate and compile the loops")
    with tempfile.TemporaryDirectory() as folder:
        source = generate_loops(Path(folder))
        kept = {
            name: text
            for name, text in source.loops.items()
            if re.search("_(float|double)(_|$)", name)
            and (not options.only or _operator(name) in options.only)
        }
        source = Source(source.includes, kept)
        target = TARGETS["arm64"]
        vector = innermost(source, compile_loops(source, Path(folder), target))
        scalar = innermost(source, compile_loops(source, Path(folder), f"{target} {ONE_BY_ONE}"))
    options.progress("simulate them")
    estimates = {cpu: estimate(vector, cpu, mca) for cpu in PROCESSORS}
    alone = estimate(scalar, PROCESSORS[0], mca)
    for name, first in estimates[PROCESSORS[0]].items():
        yield _result(name, vector[name], first, estimates[PROCESSORS[1]][name], alone.get(name))


def _operator(name: str) -> str:
    return re.split("_(?:float|double)", name)[0]


def _result(
    name: str, loop: Loop, first: Estimate, second: Estimate, alone: Estimate | None
) -> Result:
    operator, dtype, sign = re.split("_(float|double)", name)
    what = f"`{operator}` {'float32' if dtype == 'float' else 'float64'}"
    ns = first.cycles / GHZ
    cells = {
        "apple-m1: cycles": f"{first.cycles:.1f}",
        "ns": f"{ns:.1f}",
        "bound by": first.bound,
        "one by one": f"{alone.cycles:.1f}" if alone else "",
        "neoverse-v1: cycles": f"{second.cycles:.1f}",
        "by": second.bound,
        "4 units": f"{loop.least:.1f}",
        "without calls of": ", ".join(loop.calls),
    }
    met = ns <= AIM if operator in AIMED and dtype == "float" else None
    data = {"cycles": first.cycles, "neoverse-v1": second.cycles, "least": loop.least}
    return Result(
        "apple", what + ", positive" * (sign == "_true"), "", met=met, data=data, cells=cells
    )
