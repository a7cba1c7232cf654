"""Builds operators in the cache, with all that they call, for `mlxgen.load` and `mlxgen test`.

Each generated source is compiled by itself, and the object is cached under a hash of everything
that it contains: its text, the generated headers and the hand-written files that it includes. A
run after an edit therefore compiles what the edit concerns. Composites are short, so that most of
their time is that of reading MLX's headers; several are compiled together.

For the emulation (docs/emulation.md), the kernels' sources are compiled again and linked with its
Metal device. All other objects are the same.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ...check.file import resolve
from ...command import operators
from ...command.inputs import MLXGEN, contents, digest
from ...command.write import put
from ...diagnostics import Diagnostics, Rendered, Span
from ...model.op import Op
from ...package import compat, toolchain
from ...package.toolchain import Common
from ...package.uses import Compiled
from ...read.cpp import Reader
from ...read.preprocess import SourceError, SourceText
from ...read.settings import Settings
from ...read.sources import Sources, near
from ...read.yaml import Documents
from ...render.files import Pieces, package_files, pieces
from ..common.process import link, obtain
from . import MESSAGES
from .inputs import Inputs
from .request import Say

TOGETHER = 16  # composites in one source

_SAID = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:(?P<column>\d+):)? *(?P<text>.*)$")
_ERROR = re.compile(r"(?:fatal )?error: (.*)")
_WITH = re.compile(r"\[with (.+)\]:?$")
# A missing member of a kernel's array, in the words of GCC and Clang.
_VIEW = re.compile(
    r"(?=.*\b(View|Strided|Shape)\b).*(no member|no match for call|call operator|deleted)"
)


def _read(reader: Reader, path: Path) -> list[SourceText]:
    """Return a file and its includes; none if the compiler will report an error in it."""
    try:
        return reader.closure(near(path))
    except SourceError:  # or a header of MLX or of another package
        return []


class Part(NamedTuple):
    """A source that is compiled by itself."""

    kind: str  # ops: composites, kernels, ext
    name: str
    text: str
    files: Collection[Path]  # hand-written, which it includes


@dataclass
class Chosen:
    """Some operators of a project, with all that they call."""

    settings: Settings
    document: Documents
    sources: Sources
    ops: Sequence[Op]

    def _hand_written(self, op: Op) -> set[Path]:
        """Return the hand-written files of an operator."""
        csrc, metal = self.settings.csrc, self.sources.metal.reader
        found = {path for header in op.headers for path in self._closure(csrc / header)}
        if kernel := op.forward.kernel("metal"):
            path = (csrc if kernel.shared else self.settings.metal) / kernel.include
            found |= {Path(source.path).absolute() for source in _read(metal, path)}
        return found

    def _closure(self, path: Path) -> set[Path]:
        """Return a C++ file and the hand-written files that it includes."""
        read = _read(self.sources.cpp.reader, path)
        found = {Path(source.path).absolute() for source in read}
        return {path for path in found if path.is_relative_to(self.settings.csrc)}

    @cached_property
    def _of_files(self) -> Mapping[str, Collection[Path]]:
        """The hand-written files of each operator, with the C++ sources that share a header."""
        name = self.settings.name
        cpp = {path: self._closure(path) for path in sorted(self.settings.csrc.rglob("*.cpp"))}
        names = {
            path: {
                include
                for source in _read(self.sources.cpp.reader, path)
                for include in source.includes
            }
            for path in cpp
        }
        found = {}
        for op in self.ops:
            files, before = self._hand_written(op), -1
            while len(files) != before:
                before = len(files)
                for path, read in cpp.items():
                    if files & read or f"{name}/{op.name}.h" in names[path]:
                        files |= read
            found[op.name] = files
        return found

    @property
    def cpp(self) -> list[Path]:
        """The hand-written C++ sources."""
        found = {path for files in self._of_files.values() for path in files}
        return sorted(path for path in found if path.suffix == ".cpp")

    @cached_property
    def calls(self) -> Mapping[str, set[str]]:
        """The entries that each operator calls, also by hand-written headers and C++ sources."""
        entries_of = cache(self.sources.entries_of)
        found = {}
        for op in self.ops:
            cpp = (str(path) for path in self._of_files[op.name] if path.suffix == ".cpp")
            found[op.name] = op.calls.union(*map(entries_of, (*op.headers, *cpp)))
        return found

    def reached(self, names: Iterable[str]) -> list[Op]:
        """Return some operators and all that they call, in the order of the file."""
        by_name = {op.name: op for op in self.ops}
        seen: set[str] = set()
        pending = list(names)
        while pending:
            last = pending.pop()
            if last in by_name and last not in seen:
                seen.add(last)
                pending += self.calls[last]
        return [op for op in self.ops if op.name in seen]

    def inputs(self, name: str) -> Inputs:
        """Return the inputs of an operator."""
        ops = self.reached([name])
        files = {str(path) for op in ops for path in self._of_files[op.name]}
        return Inputs([op.name for op in ops], sorted(files))

    # ------------------------------------------------------------------------- the package

    def compile(
        self, common: Common, emulated: Common, used: Sequence[Compiled], fast: bool, say: Say
    ) -> Built:
        """Compile the sources that are not in the cache.

        Args:
            common: The shared toolchain.
            emulated: That of the emulation, or the same one, for Metal kernels of this machine.
            used: The packages that the operators call.
            fast: Optimize as an installed package, which takes longer to compile.
            say: Shows slow steps.

        Raises:
            BuildError: If a source does not compile.
            OSError: If no folder can be written.
        """
        made = [pieces(op, self.settings) for op in self.ops]
        texts = {path: text.encode() for path, text in self._files(made, self.settings).items()}
        parts = list(self._parts(made, texts))
        if len(parts) == 2 and emulated is common and common.precompiled == common.headers:
            # The headers are read once.
            text = "\n".join(part.text for part in parts)
            parts = [Part("all", parts[0].name, text, parts[0].files)]
        say(f"compiling {len(made)} operator{'s' * (len(made) != 1)}")
        with TemporaryDirectory(prefix="mlxgen-") as scratch:
            generated = Path(scratch)
            put(generated, texts)
            compiler = _Compiler(self.settings, generated, texts, used, common, emulated, fast)
            objects = list(toolchain.each(compiler.object, parts))
            if emulated is not common:
                objects += [compiler.device(), "-ldl"]
        archives = [emulated.runtime, *([common.nanobind] if common.nanobind else [])]
        return Built(self, made, [*objects, *map(str, archives)], used, common, emulated)

    def _files(self, made: Sequence[Pieces], settings: Settings) -> Mapping[str, str]:
        files = package_files(made, settings, self.sources.metal_text)
        return {path: text for path, text in files.items() if text is not None}

    def python(self, made: Sequence[Pieces], name: str) -> Mapping[str, bytes]:
        """Return the Python files of the package, in which it has the given name."""
        files = self._files(made, self.settings._replace(name=name))
        inside = {path: text for path, text in files.items() if path.startswith("python/")}
        return {path.removeprefix("python/"): text.encode() for path, text in inside.items()}

    def _parts(self, made: Iterable[Pieces], texts: Mapping[str, bytes]) -> Iterable[Part]:
        def source(*names: str) -> str:
            return "\n".join(texts[f"src/{name}.cpp"].decode() for name in names)

        def part(kind: str, *ops: Pieces) -> Part:
            files = {path for op in ops for path in self._of_files[op.name]}
            headers = {path for path in files if path.suffix != ".cpp"}
            return Part(kind, ops[0].name, source(*(op.name for op in ops)), headers)

        # Names of hand-written headers may clash with those of other operators.
        short = [op for op in made if op.composite and not self._of_files[op.name]]
        for i in range(0, len(short), TOGETHER):
            yield part("composites", *short[i : i + TOGETHER])
        for op in made:
            if op not in short:
                yield part("composites" if op.composite else "kernels", op)
        for path in self.cpp:
            yield Part("kernels", path.stem, f'#include "{path}"\n', self._closure(path))
        binds = sorted(path[4:-4] for path in texts if path.startswith("src/bind_"))
        together = [*binds[:1], "module", "dispatch"]
        yield Part("ext", "bindings", source(*together), ())
        for name in binds[1:]:
            yield Part("ext", name, source(name), ())


@dataclass
class Built:
    """Compiled operators."""

    chosen: Chosen
    made: Sequence[Pieces]
    objects: Sequence[str]
    used: Sequence[Compiled]
    common: Common
    emulated: Common

    def package(self, found: compat.Toolchain, folder: Path, name: str) -> None:
        """Link the package, which Python imports by the given name, in an empty folder."""
        put(folder, self.chosen.python(self.made, name))
        link(self.common, found, self.objects, self.used, folder)
        complete(folder, self.chosen.settings, self.emulated, found, self.used)

    def obtain(self, found: compat.Toolchain) -> Path:
        """Return the folder of the package, from the cache or linked now."""
        settings = self.chosen.settings

        def make(made: Path) -> Iterable[str]:
            self.package(found, made / settings.name, settings.name)
            return []

        python = self.chosen.python(self.made, settings.name)
        key = digest(self.objects, self.used, python, settings.version)
        names = ", ".join(op.path for op in self.chosen.ops if not op.entry.internal)
        return obtain("tests", key, f"{names[:60]} of {settings.name}", make) / settings.name


@dataclass
class _Compiler:
    """Compiles the sources of a package."""

    settings: Settings
    generated: Path
    texts: Mapping[str, bytes]
    used: Sequence[Compiled]
    common: Common
    emulated: Common
    fast: bool

    @cached_property
    def _headers(self) -> str:
        """Hash the generated headers; only the emulation reads the source of Metal kernels."""
        found = {path: text for path, text in self.texts.items() if path.startswith("include/")}
        emulates = self.emulated is not self.common
        unread = () if emulates else [path for path in found if "/metal/" in path]
        return digest({path: text for path, text in found.items() if path not in unread})

    def object(self, part: Part) -> str:
        """Return the object of a source."""
        common = self.emulated if part.kind == "kernels" else self.common
        command = {"ext": common.ext, "all": common.both}.get(part.kind, common.ops)
        if common is self.common and part.kind != "ext" and not self.fast:
            command = [*command, "-O1"]
        own = [path.read_bytes() for path in sorted(part.files)]
        used = [(one.name, one.version, str(one.include)) for one in self.used]
        # An object is the same whether or not its headers were precompiled.
        place = str(common.precompiled)
        words = [word.replace(place, str(common.headers)) for word in command]
        key = digest(words, part.text, self._headers, own, used)

        def make(made: Path) -> Iterable[str]:
            source = self.generated / f"{part.kind}_{part.name}.cpp"
            source.write_text(part.text, encoding="utf-8")
            flags = include_flags(self.generated, self.settings, self.common, self.used)
            output = ["-w", "-c", str(source), "-o", str(made / "object.o")]
            toolchain.run([*command, *flags, *output])
            return []

        about = f"{part.name} of {self.settings.name}"
        return str(obtain("objects", key, about, make) / "object.o")

    def device(self) -> str:
        """Return the object of the substitute for MLX's Metal device."""
        compiler = json.dumps(f"'{sys.executable}' -m mlxgen.emulator.compile")
        source = MLXGEN / "emulator" / "device.cpp"
        command = [*self.emulated.ops, f"-DMLXGEN_METAL_COMPILER={compiler}", "-w"]
        include = self.common.headers / "mlxgen" / "runtime" / "include"

        def make(made: Path) -> Iterable[str]:
            output = ["-c", str(source), "-o", str(made / "object.o")]
            toolchain.run([*command, f"-I{include}", *output])
            return []

        key = digest(command, *contents(source.parent, "device.cpp", "include/**/*.h"))
        return str(obtain("objects", key, "the emulated Metal device", make) / "object.o")


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
    shutil.copy(MLXGEN / "package" / "cmake" / "package" / "_load.py", made)
    text = '"""Operators, built by mlxgen."""\n\nfrom ._load import *\n'
    (made / "__init__.py").write_text(text, encoding="utf-8")


def chosen(
    settings: Settings,
    document: Documents,
    sources: Sources,
    names: Collection[str] | None = None,
    likely: Collection[str] = (),
) -> Chosen:
    """Resolve entries and those that they call; report errors in the sources' diagnostics.

    Args:
        settings: The project.
        document: Its entries.
        sources: Its hand-written files.
        names: The entries; None for all.
        likely: Entries that these called before, so that one pass resolves all.
    """
    wanted: set[str | None] = {*(names or ()), *likely}
    while names is not None:
        unsaid = Diagnostics()  # the last pass reports again what earlier ones report
        ops = resolve(document, settings, sources, unsaid, wanted)
        found = Chosen(settings, document, sources, ops)
        called = document.names() & {*chain(*found.calls.values())}
        if called <= wanted or not unsaid.ok:
            break
        wanted |= called
    if names is None:
        ops = resolve(document, settings, sources, sources.diags)
    else:
        sources.diags.add(unsaid)
        ops = found.reached(names)
    found = Chosen(settings, document, sources, ops)
    operators.check_metal(found.ops, sources, sources.diags)
    return found


def compiler_errors(
    output: str, is_own: Callable[[str], bool]
) -> Iterator[tuple[Rendered, Span, tuple[str, ...]]]:
    """Yield the compiler's errors in the user's files, and errors elsewhere that they cause.

    Each has its location and its notes.
    """
    led: Span | None = None
    types = ""
    for line in output.splitlines():
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
            said = MESSAGES("not_compiled", "view" * bool(_VIEW.match(error[1])), message=error[1])
            yield said, place, tuple(notes)
        led, types = None, ""
