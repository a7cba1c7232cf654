"""Checks the C++ around Metal kernels for macOS, on a machine without macOS.

The generated code behind `#ifdef _METAL_` calls MLX's Metal backend, which exists only in MLX's
macOS wheel. `check_host` compiles every file with such code for macOS against the headers of that
wheel, with the clang of the `ziglang` package. The wheel's `libmlx.dylib` exports only some of the
functions in its headers, so every symbol that the code needs is compared with the exports.

zig contains the headers of macOS's C and C++ libraries. metal-cpp uses six types of Apple's
frameworks, which `sdk/` declares. The wheel's headers, the precompiled header and the facts about
each object file are cached under a hash of their inputs.

Nothing is linked or run, and no compiler of Apple's is involved.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..command import generate as generator
from ..command import operators
from ..command.inputs import digest
from ..diagnostics import Diagnostics, Span, install
from ..model.op import Op
from ..read.settings import Settings
from ..read.sources import near
from .cxx import MESSAGES
from .library import cache_folder

HERE = Path(__file__).resolve().parent
SDK = HERE / "sdk"
RUNTIME = HERE.parent / "runtime" / "include"

TARGET = "aarch64-macos.14.0"
# pip's names of the systems whose wheels can be used: Apple silicon, from macOS 14 on.
PLATFORMS = ("macosx_14_0_arm64", "macosx_15_0_arm64", "macosx_26_0_arm64")

# The flags of CMakeLists.txt except for warnings and optimization, without zig's additions.
_FLAGS = (
    *("-target", TARGET),
    *("-std=c++20", "-fblocks", "-D_METAL_", "-fPIC", "-O0", "-g0", "-w"),
    *("-fno-sanitize=all", "-fno-stack-protector", "-ferror-limit=5"),
    *("-Xclang", "-fno-pch-timestamp", "-fno-color-diagnostics"),
)
# The name that every source with a Metal kernel defines, in addition to its dtype rules.
_OWN = ("kLibrary",)
UNIT = 24  # maximum number of files that are compiled together
_PRECOMPILED = '#include "mlxgen/cpu.h"\n#include "mlxgen/metal.h"\n'

_ERROR = re.compile(
    r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<text>.*)$"
)
# Functions, variables, type information and virtual tables of MLX, metal-cpp and Foundation.
_THEIRS = re.compile(r"__Z(?:T[A-Z]|GV)?N[rVKRO]*(?:3mlx4core|3MTL|2NS|2CA)")


class HostUnavailable(Exception):
    """A requirement of the check is not available; the message gives the reason."""


# ---------------------------------------------------------------------------------- MLX for macOS


@dataclass(frozen=True, slots=True)
class Wheel:
    """MLX for macOS.

    Attributes:
        version: The release of MLX.
        include: The folder of its headers, which contains `metal_cpp`.
        exports: The mangled names that its libmlx.dylib exports, as object files spell them.
    """

    version: str
    include: Path
    exports: frozenset[str]


def macos_wheel(version: str | None = None) -> Wheel:
    """Return MLX for macOS in the installed MLX's version; it is downloaded once and cached.

    On macOS itself the installed MLX is returned.

    Raises:
        HostUnavailable: If the wheel cannot be downloaded.
    """
    installed = _installed_version()
    version = version or installed
    if version is None:
        raise HostUnavailable(install.no_mlx())
    if sys.platform == "darwin" and version == installed:
        include = operators.mlx_include()
        library = include.parent / "lib" / "libmlx.dylib" if include else None
        if include is not None and library is not None and library.is_file():
            return Wheel(version, include, _symbols(library).defined)
    folder = cache_folder() / f"macos-mlx-{version}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            made = _unpacked(_downloaded(version, Path(temporary)), Path(temporary))
            try:
                os.replace(made, folder)
            except OSError:
                if not folder.is_dir():  # otherwise another process has created it
                    raise
    exports = (folder / "exports.txt").read_text(encoding="utf-8").split("\n")
    return Wheel(version, folder / "include", frozenset(exports))


def _installed_version() -> str | None:
    try:
        return importlib.metadata.version("mlx")
    except importlib.metadata.PackageNotFoundError:
        return None


def _downloaded(version: str, folder: Path) -> Path:
    """Download the wheel mlx-metal, which contains the library and the headers of MLX."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"),
        *("--no-deps", "--only-binary=:all:", "--retries", "1", "--dest", str(folder)),
        *(word for name in PLATFORMS for word in ("--platform", name)),
        f"mlx-metal=={version}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(folder.glob("mlx_metal-*.whl"))
    if done.returncode != 0 or not found:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        errors = [line for line in lines if line.startswith("ERROR")]
        why = (errors or lines)[-1]
        raise HostUnavailable(f"MLX {version} for macOS cannot be downloaded: {why}")
    return found[0]


def _unpacked(wheel: Path, folder: Path) -> Path:
    """Return a folder with the wheel's headers and the names that its library exports."""
    out = folder / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inside = name.removeprefix("mlx/")
            if ".." in inside.split("/"):
                continue  # a place outside of the folder
            if inside.startswith("include/") or inside == "lib/libmlx.dylib":
                target = out / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    library = out / "lib" / "libmlx.dylib"
    exports = sorted(_symbols(library).defined)
    (out / "exports.txt").write_text("\n".join(exports), encoding="utf-8")
    shutil.rmtree(library.parent)
    return out


# --------------------------------------------------------------------------------------- symbols


@dataclass(frozen=True, slots=True)
class Symbols:
    """The external symbols of a Mach-O file, mangled.

    Attributes:
        undefined: The symbols that it needs.
        defined: The symbols that it defines.
        strong: The defined symbols that no other file may define.
    """

    undefined: frozenset[str]
    defined: frozenset[str]
    strong: frozenset[str]


def _symbols(path: Path) -> Symbols:
    try:
        from macholib.MachO import MachO  # type: ignore[import-untyped]
        from macholib.SymbolTable import SymbolTable  # type: ignore[import-untyped]
    except ImportError as error:
        raise HostUnavailable("macholib is not installed: pip install macholib") from error

    table = SymbolTable(MachO(str(path)))
    weak = 0x80  # N_WEAK_DEF
    return Symbols(
        frozenset(name.decode() for _, name in table.undefsyms),
        frozenset(name.decode() for _, name in table.extdefsyms),
        frozenset(name.decode() for entry, name in table.extdefsyms if not entry.n_desc & weak),
    )


def demangled(symbol: str) -> str:
    """Return the C++ name of a symbol, or the symbol if it cannot be demangled."""
    for name in ("libstdc++.so.6", "libc++.1.dylib", "libc++.so.1"):
        try:
            function = ctypes.CDLL(name).__cxa_demangle
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_char_p  # never freed: few names, only if a check fails
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        found: bytes | None = function(symbol.removeprefix("_").encode(), None, None, None)
        return found.decode() if found else symbol
    return symbol


# ------------------------------------------------------------------------------------- compiling


@dataclass(frozen=True, slots=True)
class HostMessage:
    """An error of the compiler; `file` is empty if it has no location."""

    file: str
    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """The result of compiling a source file."""

    errors: tuple[HostMessage, ...]
    undefined: frozenset[str] = frozenset()
    strong: frozenset[str] = frozenset()


class HostCompiler:
    """Compiles C++ for macOS against MLX's macOS headers.

    Args:
        wheel: MLX for macOS.
        include_dirs: The package's include folders; those of MLX and mlxgen are added.

    Raises:
        HostUnavailable: If `ziglang` is not installed, or MLX's own headers do not compile.
    """

    def __init__(self, wheel: Wheel, include_dirs: Sequence[Path]) -> None:
        if importlib.util.find_spec("ziglang") is None:
            raise HostUnavailable("ziglang is not installed: pip install ziglang")
        self._folder = cache_folder() / "host"
        self._folder.mkdir(parents=True, exist_ok=True)
        system = (wheel.include, wheel.include / "metal_cpp", SDK)
        self._command = (
            *(sys.executable, "-m", "ziglang", "c++", *_FLAGS, f"-I{RUNTIME}"),
            *(word for path in system for word in ("-isystem", str(path))),
        )
        self._includes = tuple(f"-I{path}" for path in include_dirs)
        texts = [path.read_bytes() for path in sorted([*SDK.rglob("*.h"), *RUNTIME.rglob("*.h")])]
        zig = importlib.metadata.version("ziglang")
        described = [" ".join(self._command), wheel.version, zig, _PRECOMPILED]
        self._key = digest(*described, *texts)
        self._exports = wheel.exports
        self._precompiled = self._precompile()

    def _run(self, arguments: Sequence[str]) -> tuple[HostMessage, ...]:
        """Run the compiler and return its errors. zig's own cache is a temporary folder."""
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            done = subprocess.run(
                [*self._command, *arguments],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "ZIG_LOCAL_CACHE_DIR": scratch, "ZIG_GLOBAL_CACHE_DIR": scratch},
            )
        if done.returncode == 0:
            return ()
        found = [_ERROR.match(line) for line in done.stderr.splitlines()]
        messages = tuple(
            HostMessage(m["file"], int(m["line"]), int(m["column"]), m["text"]) for m in found if m
        )
        return messages or (HostMessage("", 0, 0, done.stderr.strip()[-2000:]),)

    def _precompile(self) -> Path:
        """Precompile the headers that all generated sources share; they take most of the time."""
        path = self._folder / f"{self._key}.pch"
        if not path.is_file():
            header = self._folder / f"{self._key}.h"
            header.write_text(_PRECOMPILED, encoding="utf-8")
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                made = Path(scratch) / path.name
                errors = self._run(["-x", "c++-header", str(header), "-o", str(made)])
                if errors:
                    first = errors[0]
                    raise HostUnavailable(
                        "MLX's macOS headers do not compile here: "
                        f"{first.file}:{first.line}: {first.text}"
                    )
                os.replace(made, path)
            _prune(self._folder, "*.pch", 8)
            _prune(self._folder, "*.json", 4000)
        return path

    def compile(self, source: Path) -> Compiled:
        """Compile a file, or return the cached result if its text and includes are unchanged."""
        known = self._known(source)
        if known is not None:
            return known
        result, includes = self._compile(source)
        if not result.errors:
            self._store(source, result, includes)
        return result

    def compile_all(
        self, sources: Mapping[Path, Collection[str]], jobs: int
    ) -> Mapping[Path, Compiled]:
        """Compile files, many at once: most of the time of one is that of MLX's headers.

        Args:
            sources: The files, with the names that each defines in its unnamed namespace.
            jobs: The number of parallel compilers.
        """
        results = {source: self._known(source) for source in sources}
        new = [source for source, result in results.items() if result is None]
        size = min(UNIT, -(-len(new) // jobs)) or 1
        units = [new[i : i + size] for i in range(0, len(new), size)]
        with ThreadPoolExecutor(jobs) as pool:
            for found in pool.map(lambda unit: self._compile_unit(unit, sources), units):
                results.update(found)
        return {source: result for source, result in results.items() if result is not None}

    def _compile_unit(
        self, unit: Sequence[Path], names: Mapping[Path, Collection[str]]
    ) -> dict[Path, Compiled]:
        """Compile files as one, or each by itself if there is a mistake in one of them."""
        if len(unit) > 1:
            lines = []
            for number, source in enumerate(unit):
                lines += [f"#define {name} {name}_{number}" for name in names[source]]
                lines.append(f'#include "{source}"')
                lines += [f"#undef {name}" for name in names[source]]
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                together = Path(scratch) / "unit.cpp"
                together.write_text("\n".join(lines) + "\n", encoding="utf-8")
                found, includes = self._compile(together)
            is_right = found.undefined <= self._exports and not found.strong & self._exports
            if not found.errors and is_right:
                # What all need is more than what one needs, but MLX has all of it.
                for source in unit:
                    self._store(source, found, includes - {str(path) for path in unit})
                return dict.fromkeys(unit, found)
        return {source: self.compile(source) for source in unit}

    def _known(self, source: Path) -> Compiled | None:
        """Return the cached result if the file's text and includes are unchanged."""
        known = self._record(source)
        if known.is_file():
            data = json.loads(known.read_text(encoding="utf-8"))
            if all(_file_digest(path) == found for path, found in data["includes"].items()):
                return Compiled((), frozenset(data["undefined"]), frozenset(data["strong"]))
        return None

    def _record(self, source: Path) -> Path:
        described = " ".join([self._key, *self._includes, str(source)])
        return self._folder / f"{digest(described, source.read_bytes())}.json"

    def _compile(self, source: Path) -> tuple[Compiled, frozenset[str]]:
        """Compile a file; return the result and the files that it includes."""
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            out, includes = Path(scratch) / "out.o", Path(scratch) / "out.d"
            errors = self._run(
                [
                    *("-include-pch", str(self._precompiled), *self._includes),
                    *("-MMD", "-MF", str(includes), "-c", str(source), "-o", str(out)),
                ]
            )
            if errors:
                return Compiled(errors), frozenset()
            symbols = _symbols(out)
            read = includes.read_text(encoding="utf-8").replace("\\\n", " ").split()[1:]
        undefined = frozenset(filter(_THEIRS.match, symbols.undefined))
        strong = frozenset(filter(_THEIRS.match, symbols.strong))
        return Compiled((), undefined, strong), frozenset(read) - {str(source)}

    def _store(self, source: Path, result: Compiled, includes: Iterable[str]) -> None:
        data = {
            "includes": {path: _file_digest(path) for path in sorted(includes)},
            "undefined": sorted(result.undefined),
            "strong": sorted(result.strong),
        }
        known = self._record(source)
        temporary = known.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(data), encoding="utf-8")
        os.replace(temporary, known)


def _prune(folder: Path, pattern: str, most: int) -> None:
    """Remove the oldest files that earlier versions of a project left in the cache."""
    found = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
    for path in found[: max(0, len(found) - most)]:
        path.unlink(missing_ok=True)


def _file_digest(path: str) -> str:
    try:
        return digest(Path(path).read_bytes())
    except OSError:
        return ""


# -------------------------------------------------------------------------------------- checking


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The checked files, and MLX for macOS."""

    files: tuple[Path, ...]
    wheel: Wheel


def check_host(
    settings: Settings,
    folder: Path,
    diags: Diagnostics,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    jobs: int | None = None,
) -> HostCheck:
    """Check the host code of a project's Metal kernels, and its hand-written sources, for macOS.

    Args:
        settings: The project.
        folder: The folder for generated sources.
        diags: Collects errors (MG811 to MG813), and errors that stop the generation.
        include: Names or ``tag:name`` of operators; all if empty.
        exclude: Names or ``tag:name`` to leave out.
        jobs: Number of parallel compilers; by default the number of processors.

    Raises:
        HostUnavailable: If MLX for macOS or the compiler is not available.
    """
    wheel = macos_wheel()
    ops, _ = operators.load(settings, diags)
    chosen = operators.select(ops, include, exclude, diags) if diags.ok else []
    if not diags.ok or generator.generate(settings, folder, diags) is None:
        return HostCheck((), wheel)
    sources: dict[Path, Op | None] = {
        folder / "src" / f"{op.name}.cpp": op
        for op in chosen
        if op.forward.kernel("metal") is not None
    }
    launching = RUNTIME.parent / "src" / "metal.cpp"
    sources.update(dict.fromkeys([*sorted(settings.csrc.rglob("*.cpp")), launching]))
    compiler = HostCompiler(wheel, [folder / "include", folder, settings.csrc])
    jobs = jobs or os.cpu_count() or 1
    names = {source: [*_OWN, *_rules(op)] for source, op in sources.items() if op}
    results = {**compiler.compile_all(names, jobs)}
    others = [source for source in sources if source not in results]
    with ThreadPoolExecutor(jobs) as pool:
        results.update(zip(others, pool.map(compiler.compile, others), strict=True))
    reporter = _Reporter(settings, folder, wheel, diags)
    own = frozenset[str]().union(*(result.strong for result in results.values()))
    for source, result in results.items():
        reporter.report(source, sources[source], result, own)
    return HostCheck(tuple(sources), wheel)


def _rules(op: Op) -> list[str]:
    return [rule.name for rule in op.arguments.rules]


class _Reporter:
    """Reports errors with the operator and the location at which a user can fix them."""

    def __init__(self, settings: Settings, folder: Path, wheel: Wheel, diags: Diagnostics) -> None:
        self._settings = settings
        self._folder = folder
        self._wheel = wheel
        self._diags = diags
        self._package = "".join(f"{len(n)}{n}" for n in settings.namespace.split("::"))

    def report(self, source: Path, op: Op | None, result: Compiled, own: Iterable[str]) -> None:
        mlx, name = f"MLX {self._wheel.version} for macOS", op.name if op else None
        for message in result.errors:
            place, notes = self._place(message, source, op), self._notes(message)
            said = MESSAGES("not_for_macOS", mlx=mlx, message=message.text)
            self._diags.error(said, place, op=name, notes=notes)
        missing = result.undefined - self._wheel.exports - frozenset(own)
        for symbol in sorted(missing):
            if f"N{self._package}" not in symbol:
                said = MESSAGES("not_exported", symbol=demangled(symbol), mlx=mlx)
                self._diags.error(said, self._entry(source, op), op=name)
        for symbol in sorted(result.strong & self._wheel.exports):
            said = MESSAGES("defined_twice", symbol=demangled(symbol), mlx=mlx)
            self._diags.error(said, self._entry(source, op), op=name)

    def _entry(self, source: Path, op: Op | None) -> Span:
        if op is None:
            return Span(os.path.relpath(source), 1, 1, 1, 1)
        return Span(near(self._settings.root / op.file), op.line, 1, op.line, 1000)

    def _place(self, message: HostMessage, source: Path, op: Op | None) -> Span:
        """Return the location in a file of the project; the entry for any other file."""
        path = Path(message.file).resolve()
        generated = self._folder.resolve()
        root = self._settings.root.resolve()
        if message.file and path.is_relative_to(root) and not path.is_relative_to(generated):
            place = (message.line, message.column, message.line, message.column + 1)
            return Span(os.path.relpath(path), *place)
        return self._entry(source, op)

    def _notes(self, message: HostMessage) -> tuple[str, ...]:
        """Return the line to which the compiler's message refers."""
        try:
            lines = Path(message.file).read_text(encoding="utf-8").splitlines()
        except OSError:
            return ()
        path = Path(message.file)
        if path.resolve().is_relative_to(self._wheel.include.resolve()):
            shown = path.resolve().relative_to(self._wheel.include.resolve()).as_posix()
        else:
            shown = path.name
        return (f"{shown}:{message.line}: {lines[message.line - 1].strip()}",)
