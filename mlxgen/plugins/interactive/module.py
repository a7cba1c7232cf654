"""Builds the operators of `mlxgen.load`: a package in the cache, compiled without CMake.

The given strings become the files of a small project, and its sources are compiled as for `mlxgen
test` (built.py). Errors are reported at their locations in the given strings, both errors in the
entries and compiler errors in the functions.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...command import operators
from ...command.operators import plain_settings, settings_of
from ...diagnostics import Diagnostic, Diagnostics, Related, Span
from ...package import compat, toolchain
from ...package.cache import Cache, folder
from ...package.toolchain import BuildError
from ...package.uses import Compiled, compiled
from ...read.settings import PATHS, Settings
from ..common.process import found_toolchain, local_folder, obtain_common
from .built import Chosen, chosen, compiler_errors
from .request import KIND, LoadError, Request, Say

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


def build(request: Request, key: str, name: str, say: Say) -> Path:
    """Build the package ``name`` and return its folder.

    Raises:
        LoadError: If the operators have an error, or a tool is missing.
    """
    with tempfile.TemporaryDirectory(prefix="mlxgen-") as scratch:
        try:
            project = _Project(request, Path(scratch))
            ops = project.resolve(say)  # reports errors before anything is compiled
            found = found_toolchain(say)
            common = obtain_common(found, say, precompile=False)

            def make(made: Path) -> Iterable[str]:
                project.package(ops, common, found, made / name, say)
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


class _Project:
    """The files of a request as a project, and its build products."""

    def __init__(self, request: Request, scratch: Path) -> None:
        self.request = request
        self.scratch = scratch
        self.diags = Diagnostics()
        self.sources = {
            os.path.realpath(scratch / _PLACES[kind]): (source, _ABOVE[kind].count("\n"))
            for kind, source in request.texts.items()
        }
        self.used: list[Compiled] = []
        self.settings = self._settings()._replace(languages=(), mlx=compat.version("mlx"))

    def _settings(self) -> Settings:
        if self.request.file is not None:
            found = settings_of(None, self.request.file, self.diags)
            if found is None:
                self.fail()
                raise AssertionError
            return found
        for kind, source in self.request.texts.items():
            path = self.scratch / _PLACES[kind]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_ABOVE[kind] + source.text, encoding="utf-8")
        plain = plain_settings(self.scratch / _PLACES["yaml"])
        texts = self.request.texts.items()
        files = tuple((plain.root / _PLACES[kind], source.name) for kind, source in texts)
        called = ((plain.csrc, "cpp"), (plain.metal, "metal"), *files)
        return plain._replace(called=called)

    # ------------------------------------------------------------------------- the package

    def resolve(self, say: Say) -> Chosen:
        """Return the operators; raise errors in the entries."""
        say("generating")
        document, sources = operators.read(self.settings, self.diags)
        if document is not None and self.diags.ok:
            found = chosen(self.settings, document, sources)
            self.used = compiled(self.settings, str(self.settings.mlx), self.diags)
        if not self.diags.ok:
            self.fail()
        return found

    def package(
        self, found: Chosen, common: toolchain.Common, mlx: compat.Toolchain, made: Path, say: Say
    ) -> None:
        """Build the package in the folder ``made``, whose name is that of the module."""
        try:
            built = found.compile(common, common, self.used, True, say)
        except BuildError as error:
            self._refused(str(error))
            raise
        built.package(mlx, made, made.name)
        if len(self.diags):
            (made.parent / "warnings.txt").write_text(self.shown().render_text(), encoding="utf-8")

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

    def _refused(self, output: str) -> None:
        """Report the compiler's errors in the functions, if the output contains any."""
        for said, span, notes in compiler_errors(output, self._is_own):
            said = said._replace(text=self._named(said.text))
            self.diags.error(said, span, notes=tuple(map(self._named, notes)))
        if not self.diags.ok:
            self.fail()

    def _is_own(self, file: str) -> bool:
        path = Path(os.path.realpath(file))
        return str(path) in self.sources or path.is_relative_to(self.settings.csrc)
