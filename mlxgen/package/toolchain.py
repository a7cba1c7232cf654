"""Builds the parts that all packages share, once per machine.

The shared parts are nanobind, mlxgen's C++ runtime (runtime/src), and the precompiled headers of
nanobind, mlxgen and MLX.

CMake determines how the compiler is invoked (cmake/toolchain): as for a package or, for
``mlxgen.load``, as for the current process. Each build product is cached under a hash of its
inputs: the commands, the compiler, and the contents of all files. Builds that invoke the compiler
in the same way therefore share the products. A build that invokes it differently, for example with
sanitizers, gets its own.

Each of pip's isolated builds has MLX and nanobind in a different folder. Their headers are
therefore copied next to the precompiled headers, and packages include the copies. In commands,
``{mlx}``, ``{nanobind}`` and ``{mlxgen}`` are placeholders for these folders.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..command.inputs import MLXGEN, contents, digest
from ..diagnostics import install
from . import compat
from .cache import Cache, folder

HERE = Path(__file__).resolve().parent
RUNTIME = MLXGEN / "runtime"

# Environment variables that affect a compiler.
ENVIRONMENT = """CPATH CPLUS_INCLUDE_PATH C_INCLUDE_PATH LIBRARY_PATH GCC_EXEC_PREFIX SDKROOT
    MACOSX_DEPLOYMENT_TARGET""".split()  # noqa: SIM905
# Environment variables that CMake reads for variables that it is not given.
FROM_ENVIRONMENT = ("CXX", "CXXFLAGS", "LDFLAGS", "CMAKE_TOOLCHAIN_FILE")

_PRECOMPILED = {"ops": "mlxgen/cpu.h", "ext": "mlxgen/python.h"}
# For the runtime instead of -O3, for which g++ needs twice the time: its loops need vectorization,
# and nothing there is faster with the rest of -O3. With -O1 loops and calls are slower.
_RUNTIME_FLAGS = """-O2 -fno-inline-functions -ftree-vectorize
    -fvect-cost-model=dynamic""".split()  # noqa: SIM905
_EMULATED = ("mlxgen/formula.h", "mlxgen/metal.h")
_SUBSTITUTES = ("mlx/**/*", "mlxgen_metal/abi.h")  # the emulation's headers in place of MLX's

PRECOMPILED = "precompiled"  # in the cache

Command = list[str]
T = TypeVar("T")


class BuildError(Exception):
    """A tool failed or is missing; the message contains its output."""


class NoCompiler(BuildError):
    """There is no C++ compiler; the message says how to install one."""


class Common(NamedTuple):
    """The shared toolchain after it was built."""

    headers: Path
    precompiled: Path  # ops.h and ext.h, precompiled or not
    runtime: Path
    nanobind: Path | None  # None for emulation
    known: Path  # CMake settings that packages need not detect again
    ops: Command  # compiles operators; the files are appended
    ext: Command  # compiles bindings
    link: Command  # links a module

    @property
    def both(self) -> Command:
        """Compiles operators and bindings together; of equal flags the last ones count."""
        return [*self.ext, *self.ops[len(_program(self.ops)) :]]


class Tools(NamedTuple):
    """The commands that run CMake and Ninja."""

    cmake: Command
    ninja: Command


def obtain(
    mlx: compat.Toolchain,
    machine: str,
    given: Mapping[str, str],
    tools: Callable[[], Tools],
    local: Path,
    say: Callable[[str], None],
    precompile: bool = True,
) -> Common:
    """Return the shared toolchain, from the cache or built now. If the cache is not writable, build
    it in ``local``.

    Args:
        mlx: MLX and nanobind.
        machine: The facts about the machine that probe.py passes to CMake.
        given: CMake variables that determine how the compiler is invoked.
        tools: Returns CMake and Ninja; called only if something must be built.
        local: The build folder if the cache cannot be used.
        say: Called before slow steps.
        precompile: Precompile the headers, unless they are in the cache. This takes longer than
            the compilation of a few files without it.

    Raises:
        BuildError: If something does not compile.
        OSError: If ``local`` is not writable either.
    """
    builder = _Builder(Cache(folder()), mlx, machine, given, tools, say)
    try:
        return builder.common(precompile)
    except NoCompiler:
        raise
    except (BuildError, OSError) as error:
        text = str(error)
        why = text if len(text) < 300 else text[:300] + "..."
        say(f"the cache {builder.cache.root} is not used: {why}")
        return replace(builder, cache=Cache(local)).common(precompile)


@dataclass
class _Builder:
    """Builds the parts that are not cached yet."""

    cache: Cache
    mlx: compat.Toolchain
    machine: str
    given: Mapping[str, str]
    tools: Callable[[], Tools]
    say: Callable[[str], None]

    @property
    def emulated(self) -> bool:
        """True if Metal is emulated."""
        return self.given.get("MLXGEN_EMULATE_METAL", "OFF") == "ON"

    def common(self, precompile: bool) -> Common:
        """Return the shared toolchain."""
        toolchain = self._toolchain()
        found = json.loads((toolchain / "commands.json").read_text(encoding="utf-8"))
        commands: dict[str, Command] = {name: list(words) for name, words in found.items()}
        headers = self._headers()
        with ThreadPoolExecutor() as pool:
            runtime = pool.submit(self._runtime, commands, headers)
            nanobind = None if self.emulated else pool.submit(self._nanobind, commands)
            precompiled = self._precompiled(commands, headers, precompile)
        ops, ext = (
            [*filled(commands[name], _inside(headers)), "-include", str(precompiled / f"{name}.h")]
            for name in _PRECOMPILED
        )
        there = {"mlx": self.mlx.mlx, "nanobind": self.mlx.nanobind, "mlxgen": MLXGEN}
        link = filled(commands["link"], there)
        library = nanobind.result() if nanobind else None
        known = toolchain / "known.cmake"
        return Common(headers, precompiled, runtime.result(), library, known, ops, ext, link)

    # --------------------------------------------------------------------------- commands

    def _toolchain(self) -> Path:
        """Determine how the compiler is invoked."""
        environment = {name: os.environ.get(name) for name in (*ENVIRONMENT, *FROM_ENVIRONMENT)}
        file = self.given.get("CMAKE_TOOLCHAIN_FILE") or environment["CMAKE_TOOLCHAIN_FILE"]
        if used := self.given.get("CMAKE_CXX_COMPILER"):  # CMake has already found the compiler
            used += self.given.get("CMAKE_CXX_COMPILER_ARG1", "")
            environment |= {"CXX": None, "CXXFLAGS": None}
        else:
            environment |= compiler_variables()
            used = environment["CXX"] or str(file)
        named = () if used == file else _identity(_words(used))
        places = (str(self.mlx.mlx), str(self.mlx.nanobind))
        key = digest(
            *(self.given, environment, named, _python()),
            *(line for line in self.machine.splitlines() if not any(p in line for p in places)),
            self.mlx.mlx_version,
            self.mlx.nanobind_version,
            *contents(HERE / "cmake", "*.cmake", "toolchain/*"),
            *([Path(file).read_bytes()] if file and Path(file).is_file() else []),
        )
        about = f"how {used} is called for Python {_python()[0]}"
        return self.cache.obtain("toolchain", key, about, self._ask)

    def _ask(self, made: Path) -> Iterable[str]:
        tools = self.tools()
        with tempfile.TemporaryDirectory(dir=made) as scratch:
            machine, build = Path(scratch) / "machine.cmake", Path(scratch) / "build"
            machine.write_text(self.machine, encoding="utf-8")
            given = {
                "MLXGEN_MACHINE": str(machine),
                "Python_EXECUTABLE": sys.executable,
                "CMAKE_MAKE_PROGRAM": shutil.which(tools.ninja[0]) or tools.ninja[0],
                "CMAKE_SUPPRESS_DEVELOPER_WARNINGS": "ON",
                **self.given,
            }
            source = HERE / "cmake" / "toolchain"
            defined = [f"-D{name}={value}" for name, value in given.items()]
            variables = {} if "CMAKE_CXX_COMPILER" in self.given else compiler_variables()
            configure = [*tools.cmake, "-S", str(source), "-B", str(build), "-G", "Ninja", *defined]
            run(configure, **variables)
            listed = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
            compiled = {Path(item["file"]).name: shlex.split(item["command"]) for item in listed}
            last = run([*tools.ninja, "-C", str(build), "-t", "commands", "_ext"])
            commands = {
                "ops": _without_files(compiled["ops.cpp"]),
                "ext": _without_files(compiled["ext.cpp"]),
                "nanobind": _without_files(compiled["nb_type.cpp"]),
                "link": _linking(last.splitlines()[-1]),
                "ar": [(build / "ar.txt").read_text(encoding="utf-8")],
            }
            known = (build / "known.cmake").read_text(encoding="utf-8")
        places = {"nanobind": self.mlx.nanobind, "mlx": self.mlx.mlx, "mlxgen": MLXGEN}
        template = {name: _template(words, places) for name, words in commands.items()}
        (made / "commands.json").write_text(json.dumps(template), encoding="utf-8")
        (made / "known.cmake").write_text(known, encoding="utf-8")
        return []

    # --------------------------------------------------------------------------- compiling

    @functools.cached_property
    def _sources(self) -> bytes:
        """Hash of all headers."""
        found = [
            *contents(self.mlx.mlx / "include", "**/*"),
            *contents(self.mlx.nanobind / "include", "**/*"),
            *contents(RUNTIME / "include", "**/*"),
            *(contents(MLXGEN / "emulator" / "include", *_SUBSTITUTES) if self.emulated else ()),
        ]
        return digest(*found).encode()

    def _headers(self) -> Path:
        """Return a folder with copies of all headers."""

        def build(made: Path) -> Iterable[str]:
            folders = {
                "mlx/include": self.mlx.mlx / "include",
                "nanobind/include": self.mlx.nanobind / "include",
                "mlxgen/runtime/include": RUNTIME / "include",
                "mlxgen/emulator/include": MLXGEN / "emulator" / "include",
            }
            for inside, source in folders.items():
                shutil.copytree(source, made / inside)
            for name in _PRECOMPILED:
                includes = [_PRECOMPILED[name], *(_EMULATED if self.emulated else ())]
                text = "".join(f"#include <{include}>\n" for include in includes)
                (made / f"{name}.h").write_text(f"#pragma once\n{text}", encoding="utf-8")
            return []

        key = digest(self._sources, _PRECOMPILED, self.emulated)
        about = f"headers of MLX {self.mlx.mlx_version}{', emulated Metal' * self.emulated}"
        return self.cache.obtain("headers", key, about, build)

    def _precompiled(
        self, commands: Mapping[str, Command], headers: Path, precompile: bool
    ) -> Path:
        """Return the folder of ops.h and ext.h, which are precompiled there, or ``headers``."""
        names = [name for name in _PRECOMPILED if name == "ops" or not self.emulated]
        compiler = _identity(_program(commands["ops"]))
        key = digest(headers.name, *(commands[name] for name in names), compiler, _python())
        if not precompile:
            return self.cache.find(PRECOMPILED, key) or headers

        def build(made: Path) -> Iterable[str]:
            self.say("precompiling the headers of MLX, once for this machine")
            suffix = "pch" if "clang" in compiler[0] else "gch"

            def compiled(name: str) -> str:
                header = made / f"{name}.h"
                shutil.copy(headers / header.name, header)
                output = ["-o", f"{header}.{suffix}", "-x", "c++-header", str(header)]
                return self._compile(commands[name], headers, made / f"{name}.d", output)

            return _outside(each(compiled, names), made, headers)

        about = f"precompiled headers of MLX {self.mlx.mlx_version}{self._how(compiler)}"
        return self.cache.obtain(PRECOMPILED, key, about, build)

    def _compile(self, command: Command, headers: Path, listed: Path, more: Command) -> str:
        """Compile with the copied headers; return the make rule of all files that were read."""
        include = f"-I{headers / 'mlxgen' / 'runtime' / 'include'}"
        words = [*filled(command, _inside(headers)), include, "-MD", "-MF", str(listed), *more]
        run(words)
        return listed.read_text(encoding="utf-8")

    def _runtime(self, commands: Mapping[str, Command], headers: Path) -> Path:
        compiler = _identity(_program(commands["ops"]))
        command = list(commands["ops"])
        if "-O3" in command and "clang" not in compiler[0]:
            command += _RUNTIME_FLAGS
        key = digest(headers.name, command, compiler, *contents(RUNTIME / "src", "*.cpp"))

        def build(made: Path) -> Iterable[str]:
            self.say("compiling mlxgen's runtime, once for this machine")
            # All in one: the headers of MLX are read once.
            together, compiled = made / "runtime.cpp", made / "runtime.o"
            sources = sorted((RUNTIME / "src").glob("*.cpp"))
            together.write_text("".join(f'#include "{path}"\n' for path in sources), "utf-8")
            output = ["-c", str(together), "-o", str(compiled)]
            rule = self._compile(command, headers, made / "runtime.d", output)
            self._archive(made, "mlxgen", commands, compiled)
            return _outside([rule], made, headers, RUNTIME)

        about = f"mlxgen's runtime for MLX {self.mlx.mlx_version}{self._how(compiler)}"
        return self.cache.obtain("runtime", key, about, build) / "libmlxgen.a"

    def _nanobind(self, commands: Mapping[str, Command]) -> Path:
        compiler = _identity(_program(commands["nanobind"]))
        root = self.mlx.nanobind
        parts = ("src/*.cpp", "src/*.h", "include/**/*", "ext/**/*")
        command = list(commands["nanobind"])
        if "-O3" in command and "clang" not in compiler[0]:
            command.append("-O1")  # calls are as fast as with -O3; with -O2 and -Os they are slower
        key = digest(command, compiler, _python(), *contents(root, *parts))

        def build(made: Path) -> Iterable[str]:
            self.say("compiling nanobind, once for this machine")
            # One combined source compiles in a third of the time.
            source, compiled = root / "src" / "nb_combined.cpp", made / "nanobind.o"
            run([*filled(command, {"nanobind": root}), "-c", str(source), "-o", str(compiled)])
            self._archive(made, "nanobind", commands, compiled)
            return []

        python = f" and Python {_python()[0]}"
        about = f"nanobind {self.mlx.nanobind_version}{self._how(compiler)}{python}"
        return self.cache.obtain("nanobind", key, about, build) / "libnanobind.a"

    def _how(self, compiler: Sequence[str]) -> str:
        flags = [self.given.get("CMAKE_CXX_FLAGS", ""), self.given.get("CMAKE_BUILD_TYPE", "")]
        told = [word for word in flags if word and word != "Release"]
        told += ["emulated Metal"] * self.emulated
        name = re.sub(r" \(.*?\)", "", compiler[0])
        return f" with {name}{''.join(f', {word}' for word in told)}"

    def _archive(
        self, made: Path, name: str, commands: Mapping[str, Command], compiled: Path
    ) -> None:
        run([*commands["ar"], "qcs", str(made / f"lib{name}.a"), str(compiled)])
        compiled.unlink()


def _outside(rules: Iterable[str], *folders: Path) -> list[str]:
    """Return the files that make rules name and that are in none of the folders."""
    read = {word for text in rules for word in _prerequisites(text)}
    return sorted(p for p in read if not any(map(Path(p).is_relative_to, folders)))


def each(function: Callable[[T], str], items: Iterable[T]) -> Iterator[str]:
    """Yield the results of a function for all items, computed with one thread per processor."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(function, items)


def fetch(name: str, release: str, local: Path) -> Path:
    """Return the folder with a release of MLX or nanobind, which pip downloads once to the cache.

    MLX has the library of the CPU, on macOS of Metal. Its headers and exported symbols are those of
    all backends.

    Args:
        name: ``mlx`` or ``nanobind``.
        release: Such as ``0.32.3``.
        local: Where it goes if the cache cannot be written.

    Raises:
        CompatError: If pip cannot get it.
    """
    requirements = [f"{name}=={release}"]
    about = f"the sources of nanobind {release}"
    if name == "mlx":
        library = "mlx-metal" if sys.platform == "darwin" else "mlx-cpu"
        requirements.append(f"{library}=={release}")
        about = f"MLX {release} for Python {sysconfig.get_python_version()}"

    # Nothing is installed for the Python that runs: it may have other releases.
    def build(made: Path) -> Iterable[str]:
        words = ["install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        words += ["--no-deps", "--no-compile", "--target", str(made), *requirements]
        run([sys.executable, "-m", "pip", *words])
        return []

    key = digest(*requirements, sysconfig.get_config_var("EXT_SUFFIX"))
    try:
        try:
            return Cache(folder()).obtain("sources", key, about, build) / name
        except OSError:
            return Cache(local).obtain("sources", key, about, build) / name
    except (BuildError, OSError) as error:
        raise compat.CompatError(str(error).strip().splitlines()[-1]) from None


def tools() -> Tools:
    """Return CMake and Ninja: the ones installed with Python, or else those in PATH.

    Raises:
        BuildError: If one is missing.
    """
    found = []
    for name in Tools._fields:
        beside = Path(sys.executable).with_name(name)
        path = str(beside) if beside.exists() else shutil.which(name)
        if path is None:
            raise BuildError(f"{name} is missing: run {install.pip(name)}")
        found.append([path])
    return Tools(*found)


def run(command: Sequence[str], **more: str) -> str:
    """Return the output of a command. If it fails, raise ``BuildError`` with its output."""
    environment = {k: v for k, v in os.environ.items() if k != "CMAKE_CXX_COMPILER_LAUNCHER"}
    environment |= {"LC_ALL": "C", **more}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment
        )
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip() or f"exit status {done.returncode}"
        raise BuildError(f"{os.path.basename(command[0])} failed:\n{said}")
    return done.stdout


def filled(words: Iterable[str], places: Mapping[str, Path]) -> Command:
    """Return a command with its placeholders replaced by folders."""
    found = list(words)
    for name, place in places.items():
        found = [word.replace(f"{{{name}}}", str(place)) for word in found]
    return found


def _inside(headers: Path) -> dict[str, Path]:
    """Return the folders of the copied headers, by placeholder."""
    return {name: headers / name for name in ("mlx", "nanobind", "mlxgen")}


def _template(words: Iterable[str], places: Mapping[str, Path]) -> Command:
    found = list(words)
    for name, place in places.items():
        found = [word.replace(str(place), f"{{{name}}}") for word in found]
    return found


def _without_files(words: Sequence[str]) -> Command:
    """Return a compiler command without its files.

    These compilations show no warnings, whose computation takes a tenth of their time.
    """
    kept, left = [], iter(words)
    for word in left:
        if word in ("-c", "-o", "-MF", "-MT"):
            next(left)
        elif word not in ("-MD", "-MMD", "-Wall", "-Wextra"):
            kept.append(word)
    return kept


def _linking(line: str) -> Command:
    """Return the linker command, without files, from a line of Ninja."""
    words = shlex.split(line)
    command = [word for word in words if word not in (":", "&&")]
    return [
        word
        for word in _without_files(command)
        if not word.endswith((".o", ".a", ".so", ".dylib")) and not word.startswith("-Wl,-rpath")
    ]


def _prerequisites(rule: str) -> list[str]:
    """Return the prerequisites of a make rule: the words after the colon."""
    return shlex.split(rule.replace("\\\n", " ").partition(":")[2])


def compiler() -> Command:
    """Return the command of the C++ compiler: the same one for all builds.

    CXX names it. Otherwise it is the first in PATH of Python's own compiler, which
    scikit-build-core would use, and the compilers that CMake would use.

    Raises:
        NoCompiler: If it cannot be run.
    """
    if named := os.environ.get("CXX"):
        try:
            _identity(_words(named))
        except BuildError as error:
            shown = f"there is no C++ compiler '{named}', which CXX names ({str(error).strip()})"
            raise NoCompiler(f"{shown}: change CXX, or {install.compiler()}") from None
        return _words(named)
    pythons = _words(sysconfig.get_config_var("CXX") or "")
    for command in (_program(pythons), ["c++"], ["g++"], ["clang++"]):
        if command and shutil.which(command[0]):
            return command
    raise NoCompiler(f"there is no C++ compiler: {install.compiler()}")


def compiler_variables() -> dict[str, str]:
    """Return the environment variables by which CMake uses this compiler.

    Raises:
        NoCompiler: If it cannot be run. A toolchain file would name another.
    """
    if os.environ.get("CMAKE_TOOLCHAIN_FILE"):
        return {}
    return {"CXX": " ".join(compiler())}


def _words(command: str) -> Command:
    """Return the words of a command; like CMake, a path may contain spaces."""
    return [command] if shutil.which(command) else shlex.split(command)


def _program(command: Sequence[str]) -> Command:
    """Return the words before the first option, such as ``ccache g++``."""
    return list(itertools.takewhile(lambda word: not word.startswith("-"), command))


@functools.cache
def _said(path: str, command: tuple[str, ...], time: int) -> tuple[str, ...]:
    first = (run([*command, "--version"]).splitlines() or [""])[0]
    return (first, path, str(time))


def _identity(command: Sequence[str]) -> tuple[str, ...]:
    """Return a compiler's identity: its version and its file."""
    path = os.path.realpath(shutil.which(command[0]) or command[0])
    time = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
    return _said(path, tuple(command), time)


def _python() -> tuple[str, ...]:
    """Return the Python version and ABI that a module is compiled for."""
    version = ".".join(map(str, sys.version_info[:3]))
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return (version, str(suffix), sysconfig.get_path("include"))
