"""Builds what `mlxgen.load` is given: a package in the cache, compiled without CMake.

The texts become the files of a small project, which is generated as any other. Its C++ is compiled
with the commands that all packages have in common (toolchain.py), the operators and the bindings at
the same time, and linked to one module. What is wrong is reported where it stands in the texts: in
the entries, and in the functions that the compiler refuses.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ..command import generate as generator
from ..command.operators import plain_settings, settings_of
from ..diagnostics import Diagnostic, Diagnostics, Related, Span
from ..read.settings import PATHS, Settings
from ..read.sources import near
from . import compat, probe, toolchain
from .cache import Cache, folder
from .request import KIND, LoadError, Request, Say
from .toolchain import BuildError

HERE = Path(__file__).resolve().parent

# Where the texts lie, and what stands above them there.
_PLACES = {
    "yaml": PATHS["yaml"],
    "cpp": f"{PATHS['csrc']}/functions.h",
    "metal": f"{PATHS['metal']}/kernels.metal",
}
_ABOVE = {
    "yaml": "",
    "cpp": '#pragma once\n#include "mlxgen/scalar.h"\n',
    "metal": "#include <metal_stdlib>\nusing namespace metal;\n",
}

_SAID = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:(?P<column>\d+):)? *(?P<text>.*)$")
_ERROR = re.compile(r"(?:fatal )?error: (.*)")
_WITH = re.compile(r"\[with (.+)\]:?$")


def build(request: Request, key: str, name: str, say: Say) -> Path:
    """The folder in which the package ``name`` is, newly built.

    Raises:
        LoadError: What is wrong, or missing.
    """
    with tempfile.TemporaryDirectory(prefix="mlxgen-") as scratch:
        try:
            project = _Project(request, Path(scratch), name)
            project.generate(say)  # a mistake there is said before anything is compiled
            found = compat.find(lambda name, release: _fetch(name, release, say))
            common = _common(found, say)

            def make(made: Path) -> Iterable[str]:
                project.package(common, found, made / name, say)
                _try_import(name, made / name)
                return []

            about = f"{_about(request)}, for MLX {found.mlx_version}"
            try:
                return Cache(folder()).obtain(KIND, key, about, make)
            except OSError as error:
                print(f"mlxgen: the cache {folder()} is not used: {error}", file=sys.stderr)
                kept = Path(tempfile.mkdtemp(dir=_local()))
                make(kept)
                return kept
        except compat.CompatError as error:
            raise LoadError(str(error)) from None
        except (BuildError, OSError) as error:
            raise LoadError(f"the operators could not be built: {error}") from None


def _fetch(name: str, release: str, say: Say) -> Path:
    say(f"fetching {name} {release}, which fits the installed MLX")
    return toolchain.fetch(name, release, _local())


# Imports a package in a process of its own, and says so at the end.
_TRY = """
import json, os, sys
path, name, package = json.loads(sys.argv[1])
sys.path[:] = path
from pathlib import Path
from mlxgen.package.load import imported
imported(name, Path(package))
os.write(2, b"imported")
os._exit(0)
"""
_LONGEST = 120  # seconds that an import may take


def _try_import(name: str, package: Path) -> None:
    """Import what was just built in another process.

    The user's C++ may end the process that loads it: a global variable whose constructor throws
    does. What is in the cache has been imported once, so that this costs nothing later.

    Raises:
        LoadError: With what happened there.
    """
    if not sys.executable:  # Python is embedded in another program
        return
    given = json.dumps([sys.path, name, str(package)])
    command = [sys.executable, "-c", _TRY, given]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_LONGEST)
    except subprocess.TimeoutExpired:
        what = f"does not end within {_LONGEST} seconds"
        said = ""
    else:
        said = done.stderr.decode(errors="replace").strip()
        if said.endswith("imported"):
            return
        what = "fails"
        if done.returncode < 0:
            number = -done.returncode
            known = number in {*signal.Signals}
            what = f"ends the process ({signal.Signals(number).name if known else number})"
        elif "Traceback" in said:
            said = said.splitlines()[-1]
    advice = (
        "look at what the C++ does outside of functions, as constructors of global variables do"
    )
    more = f"\n{said[-2000:]}" if said else ""
    raise LoadError(f"the operators are compiled, but loading them {what}: {advice}{more}")


@functools.cache
def _local() -> Path:
    """For what the cache cannot take, as long as this process runs."""
    folder = Path(tempfile.mkdtemp(prefix="mlxgen-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _common(found: compat.Toolchain, say: Say) -> toolchain.Common:
    """What packages have in common."""
    machine = probe.to_cmake(probe.of_machine(found))
    given = {"CMAKE_BUILD_TYPE": "Release"}
    if os.environ.get("CXX") is None and "CMAKE_TOOLCHAIN_FILE" not in os.environ:
        # As scikit-build-core: what Python was built with.
        usual = (sysconfig.get_config_var("CXX") or "").partition(" ")[0]
        paths = map(shutil.which, filter(None, (usual, "c++", "g++", "clang++")))
        if path := next(filter(None, paths), None):
            given["CMAKE_CXX_COMPILER"] = path
            given["CMAKE_CXX_FLAGS"] = os.environ.get("CXXFLAGS", "")
    return toolchain.obtain(found, machine, given, toolchain.tools, _local(), say)


def _about(request: Request) -> str:
    if request.file is not None:
        return str(request.file)
    names = re.findall(r"\bname: *(\w+)", request.texts["yaml"].text)
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5)


class _Project:
    """The files of a request as a project, and what becomes of them."""

    def __init__(self, request: Request, scratch: Path, name: str) -> None:
        self.request = request
        self.scratch = scratch
        self.diags = Diagnostics()
        self.generated = scratch / "generated"
        self.sources = {
            os.path.realpath(scratch / _PLACES[kind]): (source, _ABOVE[kind].count("\n"))
            for kind, source in request.texts.items()
        }
        self.original, self.settings = self._settings(name)

    def _settings(self, name: str) -> tuple[Settings, Settings]:
        """As the project has them; and with a name of its own, which Metal's libraries, too, must
        have."""
        if self.request.file is not None:
            found = settings_of(None, self.request.file, self.diags)
            if found is None:
                self.fail()
                raise AssertionError
            return found, found._replace(name=name)
        for kind, source in self.request.texts.items():
            path = self.scratch / _PLACES[kind]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_ABOVE[kind] + source.text, encoding="utf-8")
        plain = plain_settings(self.scratch / _PLACES["yaml"])
        texts = self.request.texts.items()
        files = tuple((plain.root / _PLACES[kind], source.name) for kind, source in texts)
        called = ((plain.csrc, "cpp"), (plain.metal, "metal"), *files)
        return plain, plain._replace(name=name, namespace=name, called=called)

    # ------------------------------------------------------------------------- the package

    def generate(self, say: Say) -> None:
        """Write its files; what is wrong with the entries is raised."""
        say("generating")
        settings = self.settings._replace(mlx=compat.version("mlx"))
        generator.generate(settings, self.generated, self.diags)
        if not self.diags.ok:
            self.fail()

    def package(
        self, common: toolchain.Common, found: compat.Toolchain, made: Path, say: Say
    ) -> None:
        """Compile it in the folder ``made``."""
        shutil.copytree(self.generated / "python", made)
        self._compile(common, found, made, say)
        info = {
            "VERSION": self.settings.version,
            "MLX_VERSION": found.mlx_version,
            "NANOBIND_VERSION": found.nanobind_version,
            "METAL": "-D_METAL_" in common.ops,
        }
        lines = "".join(f"{key} = {value!r}\n" for key, value in info.items())
        (made / "_build_info.py").write_text(lines, encoding="utf-8")
        shutil.copy(HERE / "cmake" / "package" / "_load.py", made)
        text = '"""Operators, built by mlxgen.load."""\n\nfrom ._load import *\n'
        (made / "__init__.py").write_text(text, encoding="utf-8")
        if len(self.diags):
            (made.parent / "warnings.txt").write_text(self.shown().render_text(), encoding="utf-8")

    def _compile(
        self, common: toolchain.Common, found: compat.Toolchain, made: Path, say: Say
    ) -> None:
        includes = [
            *(self.generated / "include", self.generated, self.settings.csrc),
            common.headers / "mlxgen" / "runtime" / "include",
        ]
        if self.request.file is not None:  # whose own C++ knows the headers by another name
            (self.generated / "include" / self.original.name).symlink_to(self.settings.name)
        every = [f"-I{path}" for path in includes]
        source = self.generated / "src"
        # One of each for a few operators: the bindings, and all else that is small.
        ext = self.generated / "ext.cpp"
        parts = [*sorted(source.glob("bind_*.cpp")), source / "module.cpp", source / "dispatch.cpp"]
        together = parts if len(parts) == 3 else parts[-2:]
        ext.write_text("".join(f'#include "{path}"\n' for path in together), encoding="utf-8")
        bindings = [ext, *(path for path in parts if path not in together)]
        ops = [path for path in sorted(source.glob("*.cpp")) if path not in parts]
        ops += sorted(self.settings.csrc.rglob("*.cpp"))
        commands = {path: common.ops for path in ops} | {path: common.ext for path in bindings}
        say(f"compiling {len(ops)} operator{'s' * (len(ops) != 1)}")

        def compiled(item: tuple[int, Path]) -> str:
            number, path = item
            out = str(self.scratch / f"{number}.o")
            toolchain.run([*commands[path], *every, "-w", "-c", str(path), "-o", out])
            return out

        try:
            objects = list(toolchain.each(compiled, enumerate(commands)))
        except BuildError as error:
            self._refused(str(error))
            raise
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        module = made / f"_ext{suffix}"
        libraries = sorted((found.mlx / "lib").glob("libmlx.*"))[:1]
        archives = [common.runtime, *([common.nanobind] if common.nanobind else [])]
        toolchain.run(
            [
                *(*common.link, "-o", str(module), *objects),
                *map(str, [*archives, *libraries]),
                f"-Wl,-rpath,{found.mlx_core.parent / 'lib'}",
            ]
        )
        compat.compare(found.mlx_core, module)

    # -------------------------------------------------------------------------- what is wrong

    def fail(self) -> None:
        """Raise what was reported."""
        shown = self.shown()
        raise LoadError(shown.render_text(), shown.render_text(color=True)) from None

    def shown(self) -> Diagnostics:
        """What was reported, at its places in the texts."""
        if not self.sources:
            return self.diags
        found = Diagnostics()
        for source, _ in self.sources.values():
            found.add_source(source.name, "\n" * source.above + (source.whole or source.text))
        for item in self.diags.sorted():
            found.repeat(self._moved(item))
        return found

    def _moved(self, item: Diagnostic) -> Diagnostic:
        return item._replace(
            span=self._moved_span(item.span),
            fix=item.fix and replace(item.fix, span=self._moved_span(item.fix.span)),
            related=tuple(
                Related(place.message, self._moved_span(place.span)) for place in item.related
            ),
        )

    def _moved_span(self, span: Span) -> Span:
        place = self.sources.get(os.path.realpath(span.file))
        if place is None:
            return span
        source, above = place
        by = source.above - above
        return Span(source.name, span.line + by, span.column, span.end_line + by, span.end_column)

    def _named(self, text: str) -> str:
        """A message of the compiler, with the texts' names for their files."""
        for kind, source in self.request.texts.items():
            inside = Path(_PLACES[kind])
            for path in (str(self.scratch / inside), str(inside), inside.name):
                text = text.replace(path, source.name)
        return text

    def _refused(self, said: str) -> None:
        """Report what the compiler says of the functions; none where it says nothing of them."""
        for error in _errors(said, self._is_own):
            notes = tuple(map(self._named, error.notes))
            self.diags.error("MG814", self._named(error.message), error.span, notes=notes)
        if not self.diags.ok:
            self.fail()

    def _is_own(self, file: str) -> bool:
        path = Path(os.path.realpath(file))
        return str(path) in self.sources or path.is_relative_to(self.settings.csrc)


def _errors(said: str, is_own: Callable[[str], bool]) -> Iterator[Diagnostic]:
    """The compiler's errors in the user's files, and those of others that these lead to."""
    led: Span | None = None
    types = ""
    for line in said.splitlines():
        found = _SAID.match(line)
        if found is None:
            continue
        file, text = found["file"], found["text"]
        number, column = int(found["line"]), int(found["column"] or 1)
        span = Span(near(Path(file)), number, column, number, column + 1)
        if instance := _WITH.search(text):
            types = instance[1]
        error = _ERROR.match(text)
        if error is None:
            if is_own(file) and "note:" not in text:
                led = span  # required from here
            continue
        place = span if is_own(file) else led
        if place is not None:
            notes = [f"with {types}"] if types else []
            if place is not span:
                notes.append(f"in {Path(file).name}:{number}")
            yield Diagnostic("MG814", error[1], place, None, tuple(notes))
        led, types = None, ""
