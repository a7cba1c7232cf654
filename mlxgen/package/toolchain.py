"""What all packages have in common is compiled once per machine.

That is nanobind, mlxgen's own C++ (runtime/src), and the headers of both and of MLX, precompiled.

CMake says how the compiler is called (cmake/toolchain), for a package or, in load.py, for this
process. What is built with that goes into the cache, each thing under a hash of what it is made
from: the commands, the compiler, and the contents of all files. So whoever calls the compiler in
the same way shares it, and who does not, such as a build with sanitizers, has its own.

MLX and nanobind lie elsewhere in each of pip's isolated builds. Their headers are therefore copied
beside the precompiled ones, and packages use these. In commands ``{mlx}``, ``{nanobind}`` and
``{mlxgen}`` stand for the folders.
"""

from __future__ import annotations

import functools
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
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..command.inputs import MLXGEN, contents, digest
from ..diagnostics import install
from . import compat
from .cache import Cache, folder

HERE = Path(__file__).resolve().parent
RUNTIME = MLXGEN / "runtime"

# What changes how a compiler works, beside what it is told.
ENVIRONMENT = """CPATH CPLUS_INCLUDE_PATH C_INCLUDE_PATH LIBRARY_PATH GCC_EXEC_PREFIX SDKROOT
    MACOSX_DEPLOYMENT_TARGET""".split()  # noqa: SIM905
# What CMake takes from there if it is not told.
FROM_ENVIRONMENT = ("CXX", "CXXFLAGS", "LDFLAGS", "CMAKE_TOOLCHAIN_FILE")

_PRECOMPILED = {"ops": "mlxgen/cpu.h", "ext": "mlxgen/python.h"}
_EMULATED = ("mlxgen/formula.h", "mlxgen/metal.h")

Command = list[str]
T = TypeVar("T")


class BuildError(Exception):
    """A tool failed or is missing; the message has what it said."""


class NoCompiler(BuildError):
    """There is no C++ compiler; the message says how to install one."""


class Common(NamedTuple):
    """What all packages have in common, built."""

    headers: Path
    runtime: Path
    nanobind: Path | None  # not for emulation
    known: Path  # what CMake needs not find out again
    ops: Command  # compiles operators, but for the files
    ext: Command  # compiles bindings
    link: Command  # links a module


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
) -> Common:
    """What all packages have in common: from the cache or, where that cannot be used, built for
    this one.

    Args:
        mlx: MLX and nanobind.
        machine: What probe.py says to CMake of the machine.
        given: CMake's variables: how the compiler is called.
        tools: CMake and Ninja, which are needed for that alone.
        local: Where to build if the cache cannot be used.
        say: Told what takes a while.

    Raises:
        BuildError: If something does not compile.
        OSError: If nothing can be written in ``local`` either.
    """
    shared = Cache(folder())
    try:
        return _Builder(shared, mlx, machine, given, tools, say).common()
    except NoCompiler:
        raise
    except (BuildError, OSError) as error:
        text = str(error)
        why = text if len(text) < 300 else text[:300] + "..."
        say(f"the cache {shared.root} is not used: {why}")
        return _Builder(Cache(local), mlx, machine, given, tools, say).common()


class _Builder:
    """Builds what is not in a cache yet."""

    def __init__(
        self,
        cache: Cache,
        mlx: compat.Toolchain,
        machine: str,
        given: Mapping[str, str],
        tools: Callable[[], Tools],
        say: Callable[[str], None],
    ) -> None:
        self.cache = cache
        self.mlx = mlx
        self.machine = machine
        self.given = dict(given)
        self.tools = tools
        self.say = say
        self.emulated = self.given.get("MLXGEN_EMULATE_METAL", "OFF") == "ON"

    def common(self) -> Common:
        """All of it."""
        toolchain = self._toolchain()
        found = json.loads((toolchain / "commands.json").read_text(encoding="utf-8"))
        commands: dict[str, Command] = {name: list(words) for name, words in found.items()}
        with ThreadPoolExecutor(1) as pool:
            nanobind = None if self.emulated else pool.submit(self._nanobind, commands)
            headers = self._headers(commands)
            runtime = self._runtime(commands, headers)
            library = nanobind.result() if nanobind else None
        ops, ext = (
            [*filled(commands[name], _inside(headers)), "-include", str(headers / f"{name}.h")]
            for name in _PRECOMPILED
        )
        there = {"mlx": self.mlx.mlx, "nanobind": self.mlx.nanobind, "mlxgen": MLXGEN}
        link = filled(commands["link"], there)
        return Common(headers, runtime, library, toolchain / "known.cmake", ops, ext, link)

    # --------------------------------------------------------------------------- commands

    def _toolchain(self) -> Path:
        """How the compiler is called."""
        compiler = self.given.get("CMAKE_CXX_COMPILER") or os.environ.get("CXX") or "c++"
        environment = {name: os.environ.get(name) for name in (*ENVIRONMENT, *FROM_ENVIRONMENT)}
        if "CMAKE_CXX_COMPILER" in self.given:  # CMake has looked there before
            environment |= {"CXX": None, "CXXFLAGS": None}
        file = self.given.get("CMAKE_TOOLCHAIN_FILE") or environment["CMAKE_TOOLCHAIN_FILE"]
        places = (str(self.mlx.mlx), str(self.mlx.nanobind))
        key = digest(
            *(self.given, environment, _asked(compiler.split()), _python()),
            *(line for line in self.machine.splitlines() if not any(p in line for p in places)),
            self.mlx.mlx_version,
            self.mlx.nanobind_version,
            *contents(HERE / "cmake", "*.cmake", "toolchain/*"),
            *([Path(file).read_bytes()] if file and Path(file).is_file() else []),
        )
        about = f"how {compiler} is called for Python {_python()[0]}"
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
            run([*tools.cmake, "-S", str(source), "-B", str(build), "-G", "Ninja", *defined])
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
        """Of all headers."""
        found = [
            *contents(self.mlx.mlx / "include", "**/*"),
            *contents(self.mlx.nanobind / "include", "**/*"),
            *contents(RUNTIME / "include", "**/*"),
            *(contents(MLXGEN / "emulator" / "include", "mlx/**/*") if self.emulated else ()),
        ]
        return digest(*found).encode()

    def _headers(self, commands: Mapping[str, Command]) -> Path:
        names = [name for name in _PRECOMPILED if name == "ops" or not self.emulated]
        compiler = _identity(commands["ops"][:1])
        key = digest(
            *(commands[name] for name in names), compiler, _python(), self._sources, _PRECOMPILED
        )

        def build(made: Path) -> Iterable[str]:
            self.say("precompiling the headers of MLX, once for this machine")
            folders = {
                "mlx/include": self.mlx.mlx / "include",
                "nanobind/include": self.mlx.nanobind / "include",
                "mlxgen/runtime/include": RUNTIME / "include",
                "mlxgen/emulator/include": MLXGEN / "emulator" / "include",
            }
            for inside, source in folders.items():
                shutil.copytree(source, made / inside)
            suffix = "pch" if "clang" in compiler[0] else "gch"

            def precompile(name: str) -> str:
                header = made / f"{name}.h"
                includes = [_PRECOMPILED[name], *(_EMULATED if self.emulated else ())]
                text = "".join(f"#include <{include}>\n" for include in includes)
                header.write_text(f"#pragma once\n{text}", encoding="utf-8")
                listed = header.with_suffix(".d")
                runtime = f"-I{made / 'mlxgen' / 'runtime' / 'include'}"
                output = ["-MD", "-MF", str(listed), "-o", f"{header}.{suffix}"]
                words = [*filled(commands[name], _inside(made)), runtime, *output]
                run([*words, "-x", "c++-header", str(header)])
                return listed.read_text(encoding="utf-8")

            read = {word for text in each(precompile, names) for word in _prerequisites(text)}
            return sorted(path for path in read if not Path(path).is_relative_to(made))

        about = f"headers of MLX {self.mlx.mlx_version}{self._how(compiler)}"
        return self.cache.obtain("headers", key, about, build)

    def _runtime(self, commands: Mapping[str, Command], headers: Path) -> Path:
        compiler = _identity(commands["ops"][:1])
        sources = sorted((RUNTIME / "src").glob("*.cpp"))
        key = digest(headers.name, commands["ops"], compiler, *contents(RUNTIME / "src", "*.cpp"))

        def build(made: Path) -> Iterable[str]:
            self.say("compiling mlxgen's runtime, once for this machine")
            include = f"-I{headers / 'mlxgen' / 'runtime' / 'include'}"
            command = [*filled(commands["ops"], _inside(headers)), include]
            command += ["-include", str(headers / "ops.h")]
            self._archive(made, "mlxgen", commands, command, sources)
            return []

        about = f"mlxgen's runtime for MLX {self.mlx.mlx_version}{self._how(compiler)}"
        return self.cache.obtain("runtime", key, about, build) / "libmlxgen.a"

    def _nanobind(self, commands: Mapping[str, Command]) -> Path:
        compiler = _identity(commands["nanobind"][:1])
        root = self.mlx.nanobind
        parts = ("src/*.cpp", "src/*.h", "include/**/*", "ext/**/*")
        key = digest(commands["nanobind"], compiler, _python(), *contents(root, *parts))

        def build(made: Path) -> Iterable[str]:
            self.say("compiling nanobind, once for this machine")
            command = filled(commands["nanobind"], {"nanobind": root})
            # All in one: a third of the time.
            source = root / "src" / "nb_combined.cpp"
            self._archive(made, "nanobind", commands, command, [source])
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
        self,
        made: Path,
        name: str,
        commands: Mapping[str, Command],
        command: Command,
        sources: Iterable[Path],
    ) -> None:
        def compiled(source: Path) -> str:
            out = str(made / f"{source.stem}.o")
            run([*command, "-c", str(source), "-o", out])
            return out

        objects = list(each(compiled, sources))
        run([*commands["ar"], "qcs", str(made / f"lib{name}.a"), *objects])
        for path in objects:
            os.unlink(path)


def each(function: Callable[[T], str], items: Iterable[T]) -> Iterator[str]:
    """What a function gives for each, computed by as many threads as there are processors."""
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
    return _fetch(requirements, about, local) / name


def _fetch(requirements: Sequence[str], about: str, local: Path) -> Path:
    """Return the folder into which pip installed packages.

    Nothing is installed for the Python that runs: it may have other releases.
    """

    def build(made: Path) -> Iterable[str]:
        words = ["install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        words += ["--no-deps", "--no-compile", "--target", str(made), *requirements]
        run([sys.executable, "-m", "pip", *words])
        return []

    key = digest(*requirements, sysconfig.get_config_var("EXT_SUFFIX"))
    try:
        try:
            return Cache(folder()).obtain("sources", key, about, build)
        except OSError:
            return Cache(local).obtain("sources", key, about, build)
    except (BuildError, OSError) as error:
        raise compat.CompatError(str(error).strip().splitlines()[-1]) from None


def tools() -> Tools:
    """CMake and Ninja, as they are installed beside Python, or found in PATH.

    Raises:
        BuildError: If one is missing.
    """
    found = []
    for name in Tools._fields:
        beside = Path(sys.executable).with_name(name)
        path = str(beside) if beside.exists() else shutil.which(name)
        if path is None:
            raise BuildError(f"{name} is missing: run {install.pip('mlxgen[build]')}")
        found.append([path])
    return Tools(*found)


def run(command: Sequence[str], **more: str) -> str:
    """What a command prints. Raises ``BuildError`` with what it says when it fails."""
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
    """A command with the folders that stand for others."""
    found = list(words)
    for name, place in places.items():
        found = [word.replace(f"{{{name}}}", str(place)) for word in found]
    return found


def _inside(headers: Path) -> dict[str, Path]:
    """Where the folders are that the headers were copied to."""
    return {name: headers / name for name in ("mlx", "nanobind", "mlxgen")}


def _template(words: Iterable[str], places: Mapping[str, Path]) -> Command:
    found = list(words)
    for name, place in places.items():
        found = [word.replace(str(place), f"{{{name}}}") for word in found]
    return found


def _without_files(words: Sequence[str]) -> Command:
    """A compiler's command without what it compiles."""
    kept, left = [], iter(words)
    for word in left:
        if word in ("-c", "-o", "-MF", "-MT"):
            next(left)
        elif word not in ("-MD", "-MMD"):
            kept.append(word)
    return kept


def _linking(line: str) -> Command:
    """The linker's command, without files, from a line of Ninja's."""
    words = shlex.split(line)
    command = [word for word in words if word not in (":", "&&")]
    return [
        word
        for word in _without_files(command)
        if not word.endswith((".o", ".a", ".so", ".dylib")) and not word.startswith("-Wl,-rpath")
    ]


def _prerequisites(rule: str) -> list[str]:
    """What a make rule names after the colon."""
    return shlex.split(rule.replace("\\\n", " ").partition(":")[2])


def _asked(command: Sequence[str]) -> tuple[str, ...]:
    """The identity of the compiler that is asked for; ``NoCompiler`` if it cannot be run."""
    try:
        return _identity(command)
    except BuildError as error:
        whose = ", which CXX names," if os.environ.get("CXX", "").split() == [*command] else ""
        shown = f"no C++ compiler{whose} can be run here ({str(error).strip()})"
        raise NoCompiler(f"{shown}: {install.compiler()}") from None


@functools.cache
def _said(path: str, command: tuple[str, ...], time: int) -> tuple[str, ...]:
    first = (run([*command, "--version"]).splitlines() or [""])[0]
    return (first, path, str(time))


def _identity(command: Sequence[str]) -> tuple[str, ...]:
    """What tells a compiler from others: its version, and the file that it is."""
    path = os.path.realpath(shutil.which(command[0]) or command[0])
    time = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
    return _said(path, tuple(command), time)


def _python() -> tuple[str, ...]:
    """What a module is compiled for."""
    version = ".".join(map(str, sys.version_info[:3]))
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return (version, str(suffix), sysconfig.get_path("include"))
