"""Builds the operators of `mlxgen.load`: a package in the cache, compiled without CMake.

The given strings become the files of a small project, and the generator runs as for any other
project. The C++ is compiled with the commands that all packages share (toolchain.py): operators and
bindings in parallel, then linked into one module. Errors are reported at their locations in the
given strings, both errors in the entries and compiler errors in the functions.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...command import generate as generator
from ...command.operators import plain_settings, settings_of
from ...diagnostics import Diagnostic, Diagnostics, Related, Span
from ...package import compat, toolchain
from ...package.cache import Cache, folder
from ...package.process import found_toolchain, link, local_folder, obtain_common
from ...package.toolchain import BuildError
from ...package.uses import Compiled, compiled
from ...read.settings import PATHS, Settings
from ...read.sources import near
from .request import KIND, LoadError, Request, Say

CMAKE = Path(__file__).resolve().parents[2] / "package" / "cmake"

# The files for the given strings, and the lines that are put above each string.
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
    """Build the package ``name`` and return its folder.

    Raises:
        LoadError: If the operators have an error, or a tool is missing.
    """
    with tempfile.TemporaryDirectory(prefix="mlxgen-") as scratch:
        try:
            project = _Project(request, Path(scratch), name)
            project.generate(say)  # reports errors in the entries before anything is compiled
            found = found_toolchain(say)
            common = obtain_common(found, say, precompile=False)

            def make(made: Path) -> Iterable[str]:
                project.package(common, found, made / name, say)
                _try_import(name, made / name)
                return []

            about = f"{_about(request)}, for MLX {found.mlx_version}"
            try:
                place = Cache(folder()).obtain(KIND, key, about, make)
                if is_unprecompiled(common):
                    start_precompile()
                return place
            except OSError as error:
                print(f"mlxgen: the cache {folder()} is not used: {error}", file=sys.stderr)
                kept = Path(tempfile.mkdtemp(dir=local_folder()))
                make(kept)
                return kept
        except compat.CompatError as error:
            raise LoadError(str(error)) from None
        except (BuildError, OSError) as error:
            raise LoadError(f"the operators could not be built: {error}") from None


# Imports a package in its own process and prints "imported" at the end.
_TRY = """
import json, os, sys
path, name, package = json.loads(sys.argv[1])
sys.path[:] = path
from pathlib import Path
from mlxgen.plugins.interactive.load import imported
imported(name, Path(package))
os.write(2, b"imported")
os._exit(0)
"""
_LONGEST = 120  # seconds that an import may take


def _try_import(name: str, package: Path) -> None:
    """Import the built package in another process.

    The user's C++ may end the process that loads it, for example by a global variable whose
    constructor throws. Every cached package was imported once, so that this costs nothing later.

    Raises:
        LoadError: If the import fails.
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
    advice = "check the C++ code outside of functions, such as constructors of global variables"
    more = f"\n{said[-2000:]}" if said else ""
    raise LoadError(f"the operators are compiled, but loading them {what}: {advice}{more}")


@functools.cache
def start_precompile(emulated: bool = False) -> subprocess.Popen[bytes] | None:
    """Precompile the headers in another process, for the next operators.

    Precompiling takes longer than the first operator without it. The process continues when this
    one ends.
    """
    if not sys.executable:  # Python is embedded in another program
        return None
    code = (
        "import json, sys\n"
        "sys.path[:] = json.loads(sys.argv[1])\n"
        "from mlxgen.plugins.interactive.module import precompile\n"
        f"precompile(emulated={emulated})\n"
    )
    command = [sys.executable, "-c", code, json.dumps(sys.path)]
    nowhere = subprocess.DEVNULL
    with suppress(OSError):
        return subprocess.Popen(
            command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
    return None


def is_unprecompiled(common: toolchain.Common) -> bool:
    """Return whether the cache can keep precompiled headers, but has none."""
    return common.precompiled == common.headers and common.headers.is_relative_to(folder())


def precompile(emulated: bool = False) -> None:
    """Precompile the headers with low priority."""
    os.nice(10)

    def say(text: str, once: bool = False) -> None:
        """Show nothing: no user waits."""

    obtain_common(found_toolchain(say), say, precompile=True, emulated=emulated)


def _about(request: Request) -> str:
    if request.file is not None:
        return str(request.file)
    names = re.findall(r"\bname: *(\w+)", request.texts["yaml"].text)
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5)


def include_flags(
    generated: Path, settings: Settings, common: toolchain.Common, used: Iterable[Compiled]
) -> list[str]:
    """Return the flags with the include folders of a package."""
    folders = [
        *(generated / "include", generated, settings.csrc),
        common.headers / "mlxgen" / "runtime" / "include",
        *(one.include for one in used),
    ]
    return [f"-I{path}" for path in folders]


def complete(
    made: Path,
    settings: Settings,
    common: toolchain.Common,
    found: compat.Toolchain,
    used: Iterable[Compiled],
) -> None:
    """Write the Python files of a package that the generator does not write."""
    info = {
        "VERSION": settings.version,
        "MLX_VERSION": found.mlx_version,
        "NANOBIND_VERSION": found.nanobind_version,
        "METAL": "-D_METAL_" in common.ops,
        "USES": {one.name: one.version for one in used},
    }
    lines = "".join(f"{key} = {value!r}\n" for key, value in info.items())
    (made / "_build_info.py").write_text(lines, encoding="utf-8")
    shutil.copy(CMAKE / "package" / "_load.py", made)
    text = '"""Operators, built by mlxgen."""\n\nfrom ._load import *\n'
    (made / "__init__.py").write_text(text, encoding="utf-8")


class _Project:
    """The files of a request as a project, and its build products."""

    def __init__(self, request: Request, scratch: Path, name: str) -> None:
        self.request = request
        self.scratch = scratch
        self.diags = Diagnostics()
        self.generated = scratch / "generated"
        self.sources = {
            os.path.realpath(scratch / _PLACES[kind]): (source, _ABOVE[kind].count("\n"))
            for kind, source in request.texts.items()
        }
        self.used: list[Compiled] = []
        self.original, self.settings = self._settings(name)

    def _settings(self, name: str) -> tuple[Settings, Settings]:
        """Return the project's settings, and these settings with the unique name of the module,
        which the Metal libraries must have too."""
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
        """Write the files and run the generator; raise errors in the entries."""
        say("generating")
        settings = self.settings._replace(mlx=compat.version("mlx"))
        generator.generate(settings, self.generated, self.diags)
        if self.diags.ok:
            self.used = compiled(settings, str(settings.mlx), self.diags)
        if not self.diags.ok:
            self.fail()

    def package(
        self, common: toolchain.Common, found: compat.Toolchain, made: Path, say: Say
    ) -> None:
        """Compile the package in the folder ``made``."""
        shutil.copytree(self.generated / "python", made)
        self._compile(common, found, made, say)
        complete(made, self.settings, common, found, self.used)
        if len(self.diags):
            (made.parent / "warnings.txt").write_text(self.shown().render_text(), encoding="utf-8")

    def _compile(
        self, common: toolchain.Common, found: compat.Toolchain, made: Path, say: Say
    ) -> None:
        every = include_flags(self.generated, self.settings, common, self.used)
        if self.request.file is not None:  # its own C++ includes headers by the original name
            (self.generated / "include" / self.original.name).symlink_to(self.settings.name)
        source = self.generated / "src"
        # For a few operators, one file with the bindings and all other small parts.
        ext = self.generated / "ext.cpp"
        parts = [*sorted(source.glob("bind_*.cpp")), source / "module.cpp", source / "dispatch.cpp"]
        together = parts if len(parts) == 3 else parts[-2:]
        ops = [path for path in sorted(source.glob("*.cpp")) if path not in parts]
        ops += sorted(self.settings.csrc.rglob("*.cpp"))
        count, own = len(ops), common.ext
        if common.precompiled == common.headers and len(ops) == 1 and len(parts) == 3:
            # The headers are read once. Of both commands' flags the last ones count.
            together, ops, own = [*ops, *parts], [], [*common.ext, *common.ops[1:]]
        ext.write_text("".join(f'#include "{path}"\n' for path in together), encoding="utf-8")
        bindings = [ext, *(path for path in parts if path not in together)]
        say(f"compiling {count} operator{'s' * (count != 1)}")
        commands = {path: common.ops for path in ops} | {path: own for path in bindings}

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
        archives = [common.runtime, *([common.nanobind] if common.nanobind else [])]
        link(common, found, [*objects, *map(str, archives)], self.used, made)

    # -------------------------------------------------------------------------- errors

    def fail(self) -> None:
        """Raise the reported errors."""
        shown = self.shown()
        raise LoadError(shown.render_text(), shown.render_text(color=True)) from None

    def shown(self) -> Diagnostics:
        """Return the reported errors with locations in the given strings."""
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
        """Rename the files in a compiler message to the names of the given strings."""
        for kind, source in self.request.texts.items():
            inside = Path(_PLACES[kind])
            for path in (str(self.scratch / inside), str(inside), inside.name):
                text = text.replace(path, source.name)
        return text

    def _refused(self, said: str) -> None:
        """Report the compiler's errors in the functions, if the output contains any."""
        for error in compiler_errors(said, self._is_own):
            notes = tuple(map(self._named, error.notes))
            self.diags.report(error.code, self._named(error.message), error.span, notes=notes)
        if not self.diags.ok:
            self.fail()

    def _is_own(self, file: str) -> bool:
        path = Path(os.path.realpath(file))
        return str(path) in self.sources or path.is_relative_to(self.settings.csrc)


def compiler_errors(said: str, is_own: Callable[[str], bool]) -> Iterator[Diagnostic]:
    """Yield the compiler's errors in the user's files, and errors elsewhere that they cause."""
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
