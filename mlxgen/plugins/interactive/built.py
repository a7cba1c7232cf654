"""Builds some operators of a project in the cache, with all that they call, for `mlxgen test`.

Each generated source is compiled by itself, and the object is cached under a hash of everything
that it contains: its text, the generated headers and the hand-written files that it includes. A
run after an edit therefore compiles what the edit concerns. Composites are short, so that most of
their time is that of reading MLX's headers; several are compiled together.

With `metal`, the kernels' sources are compiled for the emulation (docs/emulation.md) and linked
with its Metal device. All other objects are the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from ...diagnostics import Diagnostics
from ...model.op import Op
from ...package import compat, process, toolchain
from ...package.toolchain import BuildError, Common
from ...package.uses import Compiled, compiled
from ...read.cpp import Reader
from ...read.preprocess import SourceError, SourceText
from ...read.settings import Settings
from ...read.sources import Sources, near
from ...read.yaml import Documents
from ...render.files import Pieces, package_files, pieces
from . import module
from .inputs import Inputs
from .request import Say

TOGETHER = 16  # composites in one source


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
        """The entries that each operator calls, also by hand-written headers."""
        entries_of = cache(self.sources.entries_of)
        return {op.name: op.calls.union(*map(entries_of, op.headers)) for op in self.ops}

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

    def build(self, metal: bool, fast: bool, say: Say, diags: Diagnostics) -> Path:
        """Build the package and return its folder.

        Args:
            metal: Emulate the Metal kernels.
            fast: Optimize as an installed package, which takes longer to compile.
            say: Shows slow steps.
            diags: Collects errors in hand-written code.

        Raises:
            BuildError: If a tool is missing, or generated code does not compile.
            CompatError: If MLX or nanobind is missing, or they do not match.
            OSError: If no folder can be written.
        """
        found = process.found_toolchain(say)
        used = compiled(self.settings, found.mlx_version, diags)
        common = process.obtain_common(found, say, precompile=False)
        emulated = process.obtain_common(found, say, False, emulated=True) if metal else common
        for one in {id(one): one for one in (common, emulated)}.values():
            if module.is_unprecompiled(one):
                module.start_precompile(emulated=one is not common)
        made = [pieces(op, self.settings) for op in self.ops]
        files = package_files(made, self.settings, self.sources.metal_text)
        texts = {path: text.encode() for path, text in files.items() if text is not None}
        with TemporaryDirectory(prefix="mlxgen-") as scratch:
            generated = Path(scratch)
            put(generated, texts)
            compiler = _Compiler(self, generated, texts, used, common, emulated, metal, fast)
            try:
                return compiler.package(list(self._parts(made, texts)), found, say)
            except BuildError as error:
                own = self.settings.csrc
                for item in module.compiler_errors(
                    str(error), lambda file: Path(file).resolve().is_relative_to(own)
                ):
                    diags.repeat(item)
                raise

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
class _Compiler:
    """Compiles the sources of a package, and links them."""

    chosen: Chosen
    generated: Path
    texts: Mapping[str, bytes]
    used: Sequence[Compiled]
    common: Common
    emulated: Common
    metal: bool
    fast: bool

    def package(self, parts: Sequence[Part], found: compat.Toolchain, say: Say) -> Path:
        """Return the folder of the built package."""
        settings, count = self.chosen.settings, len(self.chosen.ops)
        say(f"compiling {count} operator{'s' * (count != 1)}")
        objects = list(toolchain.each(self._object, parts))
        archives = [str(self.emulated.runtime), str(self.common.nanobind)]
        more = [self._device(), "-ldl"] if self.metal else []
        python = {path: text for path, text in self.texts.items() if path.startswith("python/")}

        def make(made: Path) -> Iterable[str]:
            package = made / settings.name
            put(package, {path.removeprefix("python/"): text for path, text in python.items()})
            process.link(self.common, found, [*objects, *more, *archives], self.used, package)
            module.complete(package, settings, self.emulated, found, self.used)
            return []

        key = digest(objects, archives, more, self.used, python, settings.version)
        names = ", ".join(op.path for op in self.chosen.ops if not op.entry.internal)
        return (
            process.obtain("tests", key, f"{names[:60]} of {settings.name}", make) / settings.name
        )

    @cached_property
    def _headers(self) -> str:
        """Hash the generated headers; only the emulation reads the source of Metal kernels."""
        found = {path: text for path, text in self.texts.items() if path.startswith("include/")}
        unread = () if self.metal else [path for path in found if "/metal/" in path]
        return digest({path: text for path, text in found.items() if path not in unread})

    def _object(self, part: Part) -> str:
        common = self.emulated if part.kind == "kernels" else self.common
        command = common.ext if part.kind == "ext" else common.ops
        if common is self.common and part.kind != "ext" and not self.fast:
            command = [*command, "-O1"]
        own = [path.read_bytes() for path in sorted(part.files)]
        used = [(one.name, one.version, str(one.include)) for one in self.used]
        key = digest(command, part.text, self._headers, own, used)

        def make(made: Path) -> Iterable[str]:
            source = self.generated / f"{part.kind}_{part.name}.cpp"
            source.write_text(part.text, encoding="utf-8")
            flags = module.include_flags(
                self.generated, self.chosen.settings, self.common, self.used
            )
            output = ["-w", "-c", str(source), "-o", str(made / "object.o")]
            toolchain.run([*command, *flags, *output])
            return []

        about = f"{part.name} of {self.chosen.settings.name}"
        return str(process.obtain("objects", key, about, make) / "object.o")

    def _device(self) -> str:
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
        about = "the emulated Metal device"
        return str(process.obtain("objects", key, about, make) / "object.o")


def chosen(
    settings: Settings,
    document: Documents,
    sources: Sources,
    names: Collection[str],
    likely: Collection[str],
) -> Chosen:
    """Resolve entries and those that they call; report errors in the sources' diagnostics.

    Args:
        settings: The project.
        document: Its entries.
        sources: Its hand-written files.
        names: The entries.
        likely: Entries that these called before, so that one pass resolves all.
    """
    wanted: set[str | None] = {*names, *likely}
    while True:
        unsaid = Diagnostics()  # the last pass reports again what earlier ones report
        ops = resolve(document, settings, sources, unsaid, wanted)
        found = Chosen(settings, document, sources, ops)
        called = document.names() & {*chain(*found.calls.values())}
        if called <= wanted or not unsaid.ok:
            break
        wanted |= called
    sources.diags.add(unsaid)
    found = Chosen(settings, document, sources, found.reached(names))
    operators.check_metal(found.ops, sources, sources.diags)
    return found
