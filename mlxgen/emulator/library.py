"""Compiles translated kernels and runs them from Python.

A library is a shared object, built from the translated source; it depends on another shared object,
the runtime. Libraries are cached: the file name is a hash of all inputs.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..command.inputs import contents, digest
from ..package import cache
from ..read.preprocess import SourceError
from .cxx import EmulationError, command
from .translate import MAX_BUFFERS, translate

if TYPE_CHECKING:
    import numpy

Schedule = Literal["natural", "ascending", "descending", "seeded"]
SCHEDULES: tuple[Schedule, ...] = ("natural", "ascending", "descending", "seeded")

HERE = Path(__file__).parent
INCLUDE = HERE / "include"

# Kernels compute exactly as written: no fused multiply-adds (but see MLXGEN_METAL_FLAGS in
# docs/emulation.md) and no excess precision. The runtime, not the compiler's libraries, defines the
# functions that the sanitizers call.
_FLAGS = (
    "-std=c++20",
    "-O1",
    "-fPIC",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fsanitize=bounds,thread",
    "-ftrivial-auto-var-init=pattern",
    "-g1",
    "-w",
)
# A cast to a pointer, or a name for a type of pointers. Only casts lead to a component at an
# address that the vector cannot have; the runtime checks all other accesses. The compiler's check
# takes long to compile.
_CAST = re.compile(r"\*\s*(?:const\s*)?[)>]\s*[(&\w]|\b(?:typedef|using)\b[^;{}()]*\*")
_CODES = {
    "bool": 1,
    "int8": 2,
    "uint8": 3,
    "int16": 4,
    "uint16": 5,
    "int32": 6,
    "uint32": 7,
    "int64": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 12,
}
_BFLOAT16 = 11


# ------------------------------------------------------------------------------------ compiling


@functools.lru_cache
def compiler() -> tuple[str, ...]:
    """Return the C++ compiler's command and the flags for kernels.

    Raises:
        EmulationError: If there is no compiler.
    """
    used, version = command()
    flags = list(_FLAGS)
    if "clang" not in version:
        # half rounds at every operation; on arm64, if the processor supports it
        intel = platform.machine() in ("x86_64", "AMD64")
        flags.append("-fexcess-precision=16" if intel else "-march=native")
        flags.append("--param=tsan-instrument-func-entry-exit=0")
    else:
        flags.append("-fsanitize-recover=bounds,alignment")
        flags += ["-mllvm", "-tsan-instrument-func-entry-exit=0"]
    if sys.platform == "linux":
        # Arrays larger than a stack meet the page below it, and not the stack of another thread.
        flags.append("-fstack-clash-protection")
    flags += os.environ.get("MLXGEN_METAL_FLAGS", "").split()
    return (*used, *flags, f"-I{INCLUDE}")


def cache_folder() -> Path:
    """Return the cache of compiled kernels: $MLXGEN_METAL_CACHE, or a part of mlxgen's cache.

    Raises:
        EmulationError: If it cannot be created, or other users can write to it.
    """
    given = os.environ.get("MLXGEN_METAL_CACHE")
    try:
        return cache.private(Path(given) if given else cache.private(cache.folder()) / "metal")
    except OSError as error:
        raise EmulationError(f"the cache cannot be used: {error}") from None


@functools.lru_cache
def support() -> str:
    """Return a hash of all inputs of a library except the kernels."""
    texts = contents(HERE, "include/mlxgen_metal/*.h", "runtime.cpp")
    return digest(*compiler(), command()[1], *texts)


def _run_compiler(arguments: Sequence[str], what: str) -> None:
    relative = f"-fdebug-prefix-map={os.getcwd()}=."  # names in messages as in #line
    done = subprocess.run(
        [*compiler(), relative, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EmulationError(f"{what} does not compile:\n{_readable(done.stderr)}")


def _readable(errors: str, most: int = 12) -> str:
    """Return a compiler's errors without the context, which names the emulation's headers."""
    lines = [line for line in errors.splitlines() if " error: " in line or " fatal " in line]
    return "\n".join((lines or errors.splitlines())[:most])


def _produce(path: Path, arguments: Sequence[str], what: str) -> None:
    """Compile into `path`, which appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        out = os.path.join(folder, path.name)
        _run_compiler([*arguments, "-o", out], what)
        os.replace(out, path)


def _shared(path: Path) -> list[str]:
    """Return the flags for a shared object that other shared objects find by its path."""
    name = [f"-Wl,-install_name,{path}"] if sys.platform == "darwin" else []
    # Without -fsanitize, which would link the compiler's runtime instead of ours.
    return ["-fno-sanitize=all", "-shared", *name]


def runtime(folder: Path | None = None) -> Path:
    """Return the shared object that runs kernels, which all libraries need.

    Args:
        folder: The cache of compiled kernels; by default `cache_folder()`.

    Raises:
        EmulationError: If it does not compile.
    """
    path = (folder or cache_folder()) / f"runtime-{support()}.so"
    if not path.exists():
        options = ["-O2", "-ftrivial-auto-var-init=uninitialized", "-pthread"]
        _produce(path, [*_shared(path), *options, str(HERE / "runtime.cpp")], "the runtime")
    return path


def build(text: str, what: str, folder: Path | None = None) -> Path:
    """Return the shared object of translated kernels.

    Args:
        text: C++ from `translate`.
        what: The name of the kernels in errors.
        folder: The cache of compiled kernels; by default `cache_folder()`.

    Raises:
        EmulationError: With the compiler's errors, which point into the Metal source.
    """
    folder = folder or cache_folder()
    path = folder / f"{digest(support(), text)}.so"
    if not path.exists():
        put(path, text, what)
    return path


def put(path: Path, text: str, what: str) -> None:
    """Compile translated kernels into `path`; the arguments and errors are those of `build`."""
    needed = runtime(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        source, objects = Path(temporary) / "kernels.cpp", Path(temporary) / "kernels.o"
        source.write_text(text, encoding="utf-8")
        checks = ["-fsanitize=alignment"] if _CAST.search(text) else []
        _run_compiler([*checks, "-c", str(source), "-o", str(objects)], what)
        _produce(path, [*_shared(path), str(objects), str(needed)], what)


# -------------------------------------------------------------------------------------- running


class _Parameter(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_char_p),
        *[
            (name, ctypes.c_int32)
            for name in ("kind", "index", "code", "size", "reference", "constant", "optional")
        ],
    ]


class _Entry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("run", ctypes.c_void_p),
        ("parameters", ctypes.CFUNCTYPE(ctypes.POINTER(_Parameter))),
        ("count", ctypes.c_int32),
        ("max_threads", ctypes.c_int32),
    ]


class _Constant(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("index", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("value", ctypes.c_void_p),
        ("defined", ctypes.c_void_p),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        *[(name, ctypes.c_int32) for name in ("bound", "bytes", "output", "code", "fill", "whole")],
        ("offset", ctypes.c_uint64),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_int32),
        ("by_threadgroups", ctypes.c_int32),
        ("grid", ctypes.c_uint64 * 3),
        ("group", ctypes.c_uint64 * 3),
        ("arguments", _Argument * MAX_BUFFERS),
        ("shared_sizes", ctypes.c_uint64 * MAX_BUFFERS),
        ("schedule", ctypes.c_int32),
        ("align_start", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
    ]


class _LibraryTable(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("entries", ctypes.POINTER(_Entry)),
        ("entry_count", ctypes.c_int32),
        ("constants", ctypes.POINTER(_Constant)),
        ("constant_count", ctypes.c_int32),
    ]


class Bfloat16:
    """An array of uint16 that contains bfloat16 numbers, a type that NumPy lacks."""

    def __init__(self, bits: numpy.ndarray[Any, Any]) -> None:
        self.bits = bits


class Library:
    """The kernels of one Metal file, compiled for the CPU."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._handle = ctypes.CDLL(os.fspath(path))
        self._handle.mlxgen_metal_library.restype = ctypes.POINTER(_LibraryTable)
        self._handle.mlxgen_metal_launch.argtypes = [
            ctypes.POINTER(_LibraryTable),
            ctypes.POINTER(_Launch),
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]
        self._table = self._handle.mlxgen_metal_library().contents
        entries = [self._table.entries[i] for i in range(self._table.entry_count)]
        self._entries = {entry.name.decode(): i for i, entry in enumerate(entries)}

    @property
    def kernels(self) -> tuple[str, ...]:
        """The host names."""
        return tuple(self._entries)

    def set_constants(self, values: Mapping[int | str, bool | int | float]) -> None:
        """Set the values of function constants, by index or name.

        Raises:
            EmulationError: For a constant that the file does not declare.
        """
        for key, value in values.items():
            for i in range(self._table.constant_count):
                constant = self._table.constants[i]
                if key in (constant.index, constant.name.decode()):
                    break
            else:
                raise EmulationError(f"the file declares no function constant {key}")
            kinds: dict[int, Any] = {
                1: ctypes.c_bool,
                6: ctypes.c_int32,
                7: ctypes.c_uint32,
                12: ctypes.c_float,
            }
            if constant.code not in kinds:
                raise EmulationError(f"function constant {key} has an unknown type")
            kinds[constant.code].from_address(constant.value).value = value
            ctypes.c_int32.from_address(constant.defined).value = 1

    def run(
        self,
        kernel: str,
        arguments: Sequence[Any],
        *,
        grid: Sequence[int],
        threadgroup: Sequence[int],
        outputs: Sequence[int],
        by_threadgroups: bool = False,
        fill: bool = True,
        schedule: Schedule = "natural",
        seed: int = 0,
        align_start: bool = False,
        threadgroup_memory: Mapping[int, int] | None = None,
        seconds: float = 0,
    ) -> None:
        """Run a kernel over NumPy arrays; it writes the arrays in `outputs`.

        Args:
            kernel: The host name.
            arguments: For each buffer index a C-contiguous array, a `Bfloat16`, a NumPy scalar (as
                by set_bytes) or None (unbound).
            grid: Threads (`dispatch_threads`), or threadgroups with `by_threadgroups`.
            threadgroup: Its size.
            outputs: The indices of the arrays that the kernel writes.
            fill: Fill outputs with NaN bytes first, and report elements that no thread writes.
            schedule: The order in which threads run.
            seed: The seed of the schedule "seeded".
            align_start: Put the guard page before each buffer, not after it.
            threadgroup_memory: Bytes for each threadgroup(i) parameter.
            seconds: The time limit of the launch; 0 for $MLXGEN_METAL_TIMEOUT, or 60.

        Raises:
            EmulationError: If the kernel does something invalid; the message names the thread.
        """
        import numpy as np

        if kernel not in self._entries:
            raise EmulationError(f"there is no kernel {kernel}, only {list(self._entries)}")
        launch = _Launch()
        launch.entry = self._entries[kernel]
        launch.by_threadgroups = by_threadgroups
        launch.grid[:] = [*grid, 1, 1][:3]
        launch.group[:] = [*threadgroup, 1, 1][:3]
        launch.schedule = SCHEDULES.index(schedule)
        launch.seed = seed
        launch.align_start = align_start
        launch.seconds = seconds
        for index, size in (threadgroup_memory or {}).items():
            launch.shared_sizes[index] = size
        keep: list[Any] = []
        for i, value in enumerate(arguments):
            if value is None:
                continue
            slot = launch.arguments[i]
            if isinstance(value, Bfloat16):
                array, slot.code = value.bits, _BFLOAT16
            elif isinstance(value, np.ndarray):
                array, slot.code = value, _CODES.get(value.dtype.name, 0)
            else:
                array = np.array(value)
                slot.bytes, slot.code = True, _CODES.get(array.dtype.name, 0)
            if not array.flags.c_contiguous:
                raise EmulationError(f"argument {i} is not C-contiguous")
            keep.append(array)
            slot.bound = True
            slot.data = slot.start = array.ctypes.data
            slot.size = array.nbytes
            slot.output = i in outputs
            slot.fill = slot.whole = fill and i in outputs
        self._launch(launch)

    def _launch(self, launch: _Launch) -> None:
        message = ctypes.create_string_buffer(4096)
        table, reference = ctypes.byref(self._table), ctypes.byref(launch)
        if self._handle.mlxgen_metal_launch(table, reference, message, len(message)):
            raise EmulationError(message.value.decode(errors="replace"))


def load_metal(
    path: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    *,
    text: str | None = None,
    defines: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
) -> Library:
    """Translate, compile and load a Metal file; the arguments are those of `translate`.

    Raises:
        EmulationError: If the file cannot be read, translated or compiled.
    """
    try:
        translation = translate(path, include_dirs, text=text, defines=defines, only=only)
    except SourceError as error:
        raise EmulationError(str(error)) from error
    return Library(build(translation.text, os.fspath(path)))
