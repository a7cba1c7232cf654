"""The cost of a Metal kernel from clang's LLVM IR, without a GPU.

Apple's compiler starts from LLVM IR, as clang does. A kernel is rewritten as OpenCL C++, as for the
check of address spaces (mlxgen.emulator.spaces), and compiled to optimized IR, whose instructions
are counted. The path of a thread through loops and branches is not estimated but executed: the IR
is compiled for this machine with a counter in each basic block, and run for one thread.

Functions of Metal's library are calls here; simdgroup functions return the thread's own value.
clang has no bfloat in OpenCL, so that double replaces it: use other dtypes for counts.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from mlxgen.emulator import spaces

Argument = np.ndarray | np.generic | int | tuple[int, int, int]

_INCLUDE = Path(__file__).resolve().with_name("metal_ir_include")
_CLANG = (sys.executable, "-m", "ziglang", "clang", "-w", "-O3", "-fno-caret-diagnostics")
_OPENCL = (
    *("-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "-target", "spir64"),
    *("-cl-single-precision-constant", "-cl-ext=+all", "-S", "-emit-llvm"),
    "-Wno-c++11-narrowing",  # as in float2(1, 0)
    "-fno-builtin",  # a copy loop must not become memcpy
    *("-mllvm", "-inline-threshold=1000000"),  # Metal inlines everything
)
_DEFINE = re.compile(r"^define [^@]*@(?P<name>[\w.]+)\((?P<params>.*)\)")
_DECLARE = re.compile(r"^declare (?P<result>[^@]*)@(?P<name>[\w.]+)\((?P<params>.*?)\) ")
_OPERATION = re.compile(
    r"\s+(?:%[\w.]+ = )?(?:(?:tail|musttail|notail) )?(?P<opcode>[a-z]+) (?P<rest>.*)"
)
_FLAGS = re.compile(
    r"\b(?:nuw|nsw|exact|disjoint|nneg|samesign|fast|reassoc|nnan|ninf|nsz|arcp|contract|afn"
    r"|volatile|u?[lg][te]|eq|ne|[ou](?:eq|ne|[lg][te])|s[lg][te]|ord|uno) "
)
_TYPE_NAME = r"(?:<[^>]*>|ptr(?: addrspace\(\d\))?|\w+)"
_TYPE = re.compile(r"<(\d+) x (\w+)>|(\w+)")
_BITS = {"half": 16, "float": 32, "double": 64, "ptr": 64}
_DIVISIONS = frozenset({"udiv", "sdiv", "urem", "srem"})
_ARITHMETIC = re.compile(
    r"(?:add|sub|mul|shl|lshr|ashr|and|or|xor|f(?:add|sub|mul|div|rem|neg)|[if]cmp|select)$"
)
_SPACE = re.compile(r"ptr addrspace\((\d)\)")
_LIBRARY = re.compile(r"@_ZN5metal(?:4fast|7precise)?(\d+)(\w+)")


@dataclass
class Counts:
    """Numbers of instructions. Vector instructions count once per lane, but loads and stores once.

    Attributes:
        divisions: Divisions and remainders by number of bits.
        loads, stores: Accesses to device memory by number of bytes.
        shared: Loads and stores of threadgroup memory.
        arithmetic: Operations of at most 32 bits, including comparisons.
        wide: Operations of 64 bits, except offsets of pointers.
        branches: Conditional branches.
        calls: Calls of functions of Metal's library, by name.
    """

    divisions: Counter[int] = field(default_factory=Counter)
    loads: Counter[int] = field(default_factory=Counter)
    stores: Counter[int] = field(default_factory=Counter)
    shared: int = 0
    arithmetic: int = 0
    wide: int = 0
    branches: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts, times: int = 1) -> None:
        """Add another count, multiplied by ``times``."""
        if times == 0:
            return
        for f in fields(self):
            mine, more = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, Counter):
                for key, n in more.items():
                    mine[key] += n * times
            else:
                setattr(self, f.name, mine + more * times)


def count(
    source: str,
    include_dirs: Sequence[str | os.PathLike[str]],
    kernels: Sequence[str],
    constants: Mapping[str, str] | None = None,
) -> dict[str, Counts]:
    """Return the instructions of kernels, each counted once."""
    compiled = Kernels(source, include_dirs, constants)
    return {name: compiled.instructions(name) for name in kernels}


@dataclass
class _Function:
    params: list[str]  # LLVM's types
    blocks: list[int] = field(default_factory=list)  # their numbers in the module


class Kernels:
    """The compiled kernels of some Metal source.

    Args:
        source: The source.
        include_dirs: The folders of its includes.
        constants: Values of its function constants, as written in C++; others are 0.

    Raises:
        RuntimeError: If clang does not accept the source as OpenCL C++.
    """

    def __init__(
        self,
        source: str,
        include_dirs: Sequence[str | os.PathLike[str]],
        constants: Mapping[str, str] | None = None,
    ) -> None:
        opencl = spaces.opencl_source(
            "kernels.metal", [_INCLUDE, *include_dirs], text=source, constants=constants
        )
        text = f'#include "{spaces.HEADER}"\n#include "{_INCLUDE / "library.h"}"\n{opencl.text}\n'
        self._ir = _compile(text, "kernels.cl", _OPENCL)
        self._blocks: list[Counts] = []
        functions = self._read()
        self._symbols: dict[str, str] = {}
        for name, function in opencl.kernels:  # in output order
            last = function.rpartition("::")[2]
            here = re.compile(rf"_Z\w*?{len(last)}{last}")
            taken = self._symbols.values()
            self._symbols[name] = next(f for f in functions if here.match(f) and f not in taken)
        self._functions = {name: functions[symbol] for name, symbol in self._symbols.items()}

    @property
    def names(self) -> list[str]:
        """The kernels' host names."""
        return list(self._functions)

    def instructions(self, kernel: str) -> Counts:
        """Return the instructions of a kernel, each counted once."""
        total = Counts()
        for block in self._functions[kernel].blocks:
            total.add(self._blocks[block])
        return total

    def run(self, kernel: str, arguments: Sequence[Argument]) -> Counts:
        """Return the executed instructions of one thread.

        Args:
            kernel: Its host name.
            arguments: For each parameter an array, a NumPy scalar for a reference, or the thread's
                position: one number or three.
        """
        params = self._functions[kernel].params
        if len(params) != len(arguments):
            raise ValueError(f"{kernel} takes {len(params)} arguments, not {len(arguments)}")
        slots = np.zeros((len(arguments), 16), np.uint8)
        kept = []  # references that keep memory alive until the call ends
        for slot, argument in zip(slots, arguments, strict=True):
            if isinstance(argument, np.ndarray | np.generic):
                kept.append(np.asarray(argument))
                slot[:8].view(np.uint64)[0] = kept[-1].ctypes.data
            else:
                numbers = np.atleast_1d(np.array(argument, np.uint32))
                slot.view(np.uint32)[: len(numbers)] = numbers
        library = ctypes.CDLL(self._executable)
        hits = (ctypes.c_int64 * len(self._blocks)).in_dll(library, "hits")
        ctypes.memset(hits, 0, ctypes.sizeof(hits))
        library[f"run_{list(self._functions).index(kernel)}"](slots.ctypes.data_as(ctypes.c_void_p))
        total = Counts()
        for block, times in zip(self._blocks, hits, strict=True):
            total.add(block, times)
        return total

    def _read(self) -> dict[str, _Function]:
        """Count the instructions of each block, and record the index of each block."""
        functions: dict[str, _Function] = {}
        function: _Function | None = None
        for line in self._ir.splitlines():
            if match := _DEFINE.match(line):
                function = functions[match["name"]] = _Function(_types(match["params"]))
            elif line == "}":
                function = None
            if function is None:
                continue
            if match or re.match(r"[\w.]+:", line):  # a function's first block has no label
                function.blocks.append(len(self._blocks))
                self._blocks.append(Counts())
            elif operation := _OPERATION.match(line):
                _count(operation["opcode"], operation["rest"], self._blocks[-1])
        return functions

    @cached_property
    def _executable(self) -> str:
        """Return a shared object of the IR for this machine; its blocks count their executions."""
        out = [f"@hits = global [{len(self._blocks)} x i64] zeroinitializer"]
        block = -1
        waiting = False  # for the first instruction of a block that is not a phi
        for line in self._ir.splitlines():
            if line.startswith(("target ", "source_filename")):
                continue
            line = line.replace("spir_func ", "")
            if _DEFINE.match(line) or re.match(r"[\w.]+:", line):
                block += 1
                waiting = True
            elif waiting and line.strip() and not re.match(r"\s+%[\w.]+ = phi ", line):
                at = f"getelementptr (i64, ptr @hits, i64 {block})"
                out.append(f"  %hit{block} = load i64, ptr {at}")
                out.append(f"  %more{block} = add i64 %hit{block}, 1")
                out.append(f"  store i64 %more{block}, ptr {at}")
                waiting = False
            out.append(_defined(line, len(out)) if "@llvm." not in line else line)
        for i, (name, function) in enumerate(self._functions.items()):
            out.append(f"define void @run_{i}(ptr %slots) {{")
            given = []
            for k, type in enumerate(function.params):
                out.append(f"  %at{k} = getelementptr i8, ptr %slots, i64 {16 * k}")
                out.append(f"  %value{k} = load {type}, ptr %at{k}")
                given.append(f"{type} %value{k}")
            out.append(f"  call void @{self._symbols[name]}({', '.join(given)})\n  ret void\n}}")
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "kernels.so"
        _compile("\n".join(out) + "\n", "kernels.ll", ("-shared", "-fPIC"), path)
        return os.fspath(path)


def _compile(text: str, name: str, options: Sequence[str], to: Path | None = None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(text, encoding="utf-8")
        command = [*_CLANG, *options, os.fspath(file), "-o", os.fspath(to or "-")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def _types(params: str) -> list[str]:
    """Return LLVM's parameter types without their attributes."""
    return re.findall(rf"(?:^|, )({_TYPE_NAME})", params)


def _size(type: str) -> tuple[int, int]:
    """Return the number of lanes and the bits of each."""
    match = _TYPE.match(type)
    if match is None:  # an array or a structure
        return 1, 0
    scalar = match[2] or match[3]
    bits = int(scalar[1:]) if re.fullmatch(r"i\d+", scalar) else _BITS.get(scalar, 0)
    return int(match[1] or 1), bits


def _count(opcode: str, rest: str, to: Counts) -> None:
    rest = _FLAGS.sub("", rest)
    lanes, bits = _size(rest)
    if opcode in _DIVISIONS:
        to.divisions[bits] += lanes
    elif opcode in ("load", "store"):
        space = _SPACE.search(rest)
        size = lanes * max(bits, 8) // 8
        if space and space[1] == "1":
            (to.loads if opcode == "load" else to.stores)[size] += 1
        elif space and space[1] == "3":
            to.shared += 1
    elif _ARITHMETIC.match(opcode):
        if opcode == "select":
            lanes, bits = _size(rest.partition(", ")[2])
        if bits > 32:
            to.wide += lanes
        else:
            to.arithmetic += lanes
    elif opcode == "switch" or (opcode == "br" and rest.startswith("i1 ")):
        to.branches += 1
    elif opcode == "call":
        if match := _LIBRARY.search(rest):
            to.calls[match[2][: int(match[1])]] += 1
        elif "@llvm." in rest and not re.search(r"@llvm\.(assume|lifetime|experimental)", rest):
            to.arithmetic += lanes


def _defined(line: str, number: int) -> str:
    """Define a declared function: it returns its first argument, or else 0, or some memory."""
    match = _DECLARE.match(line)
    if match is None:
        return line
    result = re.findall(rf"{_TYPE_NAME}$", match["result"].strip())[0]
    params = _types(match["params"])
    head = f"define internal {result} @{match['name']}({', '.join(params)}) {{"
    if result == "void":
        return f"{head} ret void }}"
    if _SPACE.match(result):
        memory = f"@memory{number} = internal global [32768 x i8] zeroinitializer, align 16\n"
        cast = f"addrspacecast (ptr @memory{number} to {result})"
        return f"{memory}{head} ret {result} {cast} }}"
    value = "%0" if params[:1] == [result] else "zeroinitializer"
    return f"{head} ret {result} {value} }}"
