"""Checks the address spaces of Metal kernels, which C++ lacks but OpenCL C++ has.

The preprocessed source is rewritten as OpenCL C++: `device` becomes `__global`, `threadgroup`
`__local`, `constant` `__constant` and `thread` `__private`; instantiations remain. The clang of the
`ziglang` package then reads it with `opencl/metal.h` in place of Metal's library. Its errors about
address spaces are errors of the kernel. Its other errors are reported as not checked, because
neither the language nor the library is exactly Metal's.

`rules.py` finds pointers without an address space; OpenCL lets them point anywhere.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..diagnostics import Span
from ..model.dtypes import METAL_TYPES
from ..model.op import Kernel, Op
from ..read.preprocess import OWN_INCLUDES, SourceError
from ..read.sources import Sources, near
from ..render.cpp import metal_type
from ..render.files import metal_element
from .cxx import MESSAGES
from .translate import MetalTranslator

HEADER = Path(__file__).resolve().parent / "opencl" / "metal.h"

_SPACES = {
    "device": "__global",
    "threadgroup": "__local",
    "constant": "__constant",
    "thread": "__private",
}
_METAL = {new: old for old, new in _SPACES.items()} | {"__generic": "(any)"}
# Keywords of OpenCL that are ordinary names in Metal.
_TAKEN = re.compile(r"(?:local|global|generic|read_only|write_only|read_write|pipe|uniform)$")
_ATOMIC = re.compile(r"atomic_(?:int|uint|bool|float|ulong)$")
_VECTOR = re.compile(r"(?:bool|u?char|u?short|u?int|u?long|half|bfloat|float)[234]$")
_TYPE = re.compile(
    r"(?:bool|u?char|u?short|u?int|u?long|half|bfloat|float)[234]?$|(?:u?int\d+|size|ptrdiff)_t$"
)
_COMMAND = (
    *("clang", "-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "-target", "spir64"),
    *("-cl-single-precision-constant", "-cl-ext=+all", "-fsyntax-only", "-w"),
    *("-ferror-limit=100", "-fno-color-diagnostics", "-fno-caret-diagnostics"),
)
_LINE = re.compile(
    r"(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): (?P<kind>(?:fatal )?error|note): (?P<text>.*)$"
)
_SPACE = re.compile(r"__(?:global|local|constant|private|generic)\b")
_POINTER_ITSELF = re.compile(r"(\*|&) ?__private'")  # the address space of the pointer itself


@dataclass(frozen=True, slots=True)
class SpaceCheck:
    """The result for a file.

    Attributes:
        errors: Mismatched address spaces.
        unknown: Parts that could not be read as OpenCL C++ and may contain further errors.
    """

    errors: tuple[SourceError, ...]
    unknown: tuple[SourceError, ...]


def available() -> bool:
    """Return true if the compiler is installed."""
    return importlib.util.find_spec("ziglang") is not None


@dataclass(frozen=True, slots=True)
class OpenCL:
    """A Metal file as OpenCL C++.

    Attributes:
        text: The source, without an include of `HEADER`.
        kernels: The host name and the function of each kernel, in output order.
    """

    text: str
    kernels: tuple[tuple[str, str], ...]


def opencl_source(
    path: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    *,
    text: str | None = None,
    constants: Mapping[str, str] | None = None,
) -> OpenCL:
    """Convert a Metal file (or `text`, if given) to OpenCL C++, with values of function constants.

    Raises:
        SourceError: If the source cannot be parsed.
    """
    writer = _Writer(path, include_dirs, text=text)
    writer.values = constants or {}
    kernels = tuple((name, instance.function) for name, instance in writer.instances.items())
    return OpenCL(writer.rewritten(), kernels)


def check_spaces(
    path: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    *,
    text: str | None = None,
) -> SpaceCheck:
    """Return the mismatched address spaces of a Metal file (or of `text`, if given).

    Raises:
        SourceError: If the source cannot be parsed.
    """
    source = f'#include "{HEADER}"\n{opencl_source(path, include_dirs, text=text).text}\n'
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "kernels.cl"
        file.write_text(source, encoding="utf-8")
        command = [sys.executable, "-m", "ziglang", *_COMMAND, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return SpaceCheck((), ())
    return _sorted_out(done.stderr)


def check_project(
    ops: Sequence[Op], sources: Sources, jobs: int | None = None
) -> list[SourceError]:
    """Return the mismatched address spaces in the Metal source that operators use.

    Errors in a generated kernel are reported at the operator's entry.
    """
    checks = read_project(ops, sources, jobs)
    return [error for path in checks for error in checks[path].errors]


def read_project(
    ops: Sequence[Op], sources: Sources, jobs: int | None = None
) -> dict[Path, SpaceCheck]:
    """Check each file of Metal source that operators use.

    Each file is read once, together with the kernels that are generated around its scalar
    functions, so that these functions are instantiated.
    """
    settings = sources.settings
    groups: dict[Path, list[Op]] = {}
    for op in ops:
        kernel = op.forward.kernel("metal")
        if kernel is not None:
            folder = settings.csrc if kernel.shared else settings.metal
            shown = os.path.relpath(folder / kernel.include)
            path = folder / kernel.include if shown.startswith("..") else Path(shown)
            groups.setdefault(path, []).append(op)

    def check(path: Path) -> SpaceCheck:
        text = f'#include "{path.name}"\n{runtime_source("elementwise")}'
        starts: list[tuple[int, Op]] = []
        text += instantiations(filter(None, (op.forward.kernel("metal") for op in groups[path])))
        for op in groups[path]:
            kernel = op.forward.kernel("metal")
            if kernel is not None and kernel.scalar:
                starts.append((text.count("\n") + 1, op))
                type = METAL_TYPES[kernel.dtypes[-1]][0]  # 16 bits are computed in float
                dense, strided = f"dense<{type}, int, 2>", f"strided<{type}, int, 0, 2>"
                names = {f"{op.name}_dense": dense, f"{op.name}_strided": strided}
                text += f"namespace of_{op.name} {{{kernels_around(op, kernel, names)}}}\n"
        generated = os.fspath(path.with_name(f"{path.name} and the kernels generated from it"))
        done = check_spaces(generated, sources.metal_includes, text=text)
        found = []
        for error in done.errors:
            if error.span.file == generated and starts:
                op = [op for line, op in starts if line <= error.span.line][-1]
                file = near(sources.settings.root / op.file)
                error = SourceError(error.said, Span(file, op.line, 1, op.line, 1))
            found.append(error)
        return SpaceCheck(tuple(found), done.unknown)

    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        return dict(zip(groups, pool.map(check, groups), strict=True))


def instantiations(kernels: Iterable[Kernel]) -> str:
    """Return the distinct instantiations by the launchers of such Metal kernels."""
    made: dict[str, str] = {}
    for kernel in kernels:
        for name, arguments in kernel.variants.items():
            made[name] = _instantiation(name, f"{kernel.function}<{', '.join(arguments)}>")
    return "".join(made.values())


def kernels_around(op: Op, kernel: Kernel, variants: Mapping[str, str]) -> str:
    """Return the kernels around a scalar function, as the operators' runtime generates them; they
    need `runtime_source("elementwise")`.

    Args:
        op: The operator.
        kernel: Its Metal kernel.
        variants: The instantiation for each host name, such as ``dense<float, int, 2>``.
    """
    outputs = ["to"] if len(op.outputs) == 1 else [f"to_{o.name}" for o in op.outputs]
    names = {
        "IN  |": [(p.cpp, "") for p in op.arguments.arrays],
        "OUT |": [(name, "") for name in outputs],
        "ATTR|": [(p.cpp, metal_type(p)) for p in op.arguments.attributes],
    }
    lines: list[str] = []
    buffers = 0
    for line in runtime_source("kernels").splitlines():
        buffers *= "[[kernel]]" not in line
        text = line[5:] if line[:5] in names else line
        for i, (name, type) in enumerate(names.get(line[:5], [("@", "TYPE")])):
            made = text.replace("CONSTANT", str(1000 + i)).replace("TYPE", type).replace("@", name)
            made = made.replace("#", str(i)).replace("INDEX", str(buffers))
            buffers += "INDEX" in text
            made = made.replace("NAME", op.name).replace("STATEMENT", metal_element(op))
            if made.strip().startswith(")") and lines[-1].endswith(","):
                lines[-1] = lines[-1][:-1] + made.strip()
            else:
                lines.append(made)
    for name, instance in variants.items():
        lines.append(_instantiation(name, f"{op.name}_{instance}"))
    return "\n".join(lines) + "\n"


def _instantiation(name: str, instance: str) -> str:
    return f'template [[host_name("{name}")]] [[kernel]]\ndecltype({instance}) {instance};\n'


def runtime_source(name: str) -> str:
    """Return Metal source that the operators' runtime embeds: common functions or kernels."""
    text = (Path(OWN_INCLUDES).parent / "src" / "metal.cpp").read_text(encoding="utf-8")
    return "".join(re.findall(rf'{name}_source = R"metal\((.*?)\)metal"', text, re.DOTALL))


class _Writer(MetalTranslator):
    """Writes Metal as OpenCL C++."""

    values: Mapping[str, str] = {}  # of function constants; the default is 0

    def rewritten(self) -> str:
        """Return the source as OpenCL C++.

        Instantiations remain, because they alone reveal the address spaces of templates.
        """
        self._rewrite_all()
        return self.written()

    def _rewrite(self, i: int) -> int:
        token = self.tokens[i]
        text = token.text
        if token.kind == "name" and text != "coherent":
            if text == "threadgroup" and self.is_storage(i):
                return self._storage(i)
            if text == "metal" and self.text(i + 1) == "::" and _TYPE.match(self.text(i + 2)):
                self.skip(i, i + 2)  # types are global here
            elif text in _SPACES:
                self.new[i] = _SPACES[text]
            elif text == "kernel":
                self.new[i] = ""
            elif _TAKEN.match(text):
                self.new[i] = f"{text}_"
            elif _ATOMIC.match(text):
                self.new[i] = f"mlxgen_{text}"
            elif _VECTOR.match(text) and self.text(i + 1) == "(" and self.text(i - 1) != "operator":
                self.new[i] = f"mlxgen_metal::make<{text}>"
            elif text == "vec" and self.text(i + 1) == "<":
                close = self.angle(i + 1)
                start = i - 2 if self.texts[i - 2 : i] == ["metal", "::"] else i
                is_call = close is not None and self.text(close + 1) == "("
                if close is not None and is_call and self.text(start - 1) != "operator":
                    self.new[start] = f"mlxgen_metal::make<{self.texts[start]}"
                    self.after[close] = ">"
            return i + 1
        if self.texts[i : i + 3] == ["[", "[", "function_constant"]:
            self.after[i - 1] = f" = {self.values.get(self.text(i - 1), '{}')}"
        return super()._rewrite(i)

    def _shared_reference(self, alias: str, name: str) -> str:
        return f" __local {alias}& {name} = mlxgen_metal::shared<{alias}>();"


def _sorted_out(output: str) -> SpaceCheck:
    """Return the compiler's errors with their notes, without errors in MLX's headers."""
    groups: list[list[re.Match[str]]] = []
    for line in output.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        if match["kind"] != "note":
            groups.append([match])
        elif groups:
            groups[-1].append(match)
    errors: list[SourceError] = []
    unknown: list[SourceError] = []
    for first, *notes in groups:
        if "/mlx/backend/" in first["file"] or first["file"] == str(HEADER):
            continue
        about = next((m["text"] for m in (first, *notes) if _is_mismatch(m["text"])), None)
        row = int(first["line"])
        span = Span(first["file"], row, 1, row, 1000)  # columns refer to the rewritten line
        message = _in_metal(first["text"])
        if about is None:
            unknown.append(SourceError(MESSAGES("not_opencl", message=message), span))
            continue
        if about is not first["text"]:
            message += f": {_in_metal(about.removeprefix('candidate function not viable: '))}"
        errors.append(SourceError(MESSAGES("mismatch", message=message), span))
    return SpaceCheck(tuple(errors), tuple(unknown))


def _is_mismatch(text: str) -> bool:
    """Return true if a message concerns two of Metal's address spaces."""
    named = set(_SPACE.findall(_POINTER_ITSELF.sub(r"\1'", text)))
    return "__generic" not in named and (len(named) > 1 or "changes address space" in text)


def _in_metal(text: str) -> str:
    """Return a message of the compiler in Metal's terms."""
    text = _SPACE.sub(lambda match: _METAL[match[0]], _POINTER_ITSELF.sub(r"\1'", text))
    return re.sub(r"\bdouble(?=[234]?\b)", "bfloat", text)  # what metal.h has in its place
