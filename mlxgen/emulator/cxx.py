"""The system's C++ compiler and its preprocessor.

MLX declares the instances of its Metal kernels by nested macros, which `read.preprocess` does not
expand. Translated kernels need a compiler anyway, and its preprocessor expands these macros.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..diagnostics import Span
from ..diagnostics.messages import Messages
from ..model.signature import quoted
from ..package import toolchain
from ..read.preprocess import SourceError, SourceText

MESSAGES = Messages(Path(__file__).with_name("messages.yaml"))

# Metal is C++14. The macros of the system's compiler do not exist in Metal.
_PREPROCESS = ("-E", "-x", "c++", "-std=gnu++14", "-undef", "-nostdinc", "-w")
_ERROR = re.compile(r"^(.+?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)", re.MULTILINE)
_HEADER = re.compile(r"[\w-]+(?:[./][\w-]+)*")


class EmulationError(Exception):
    """A kernel that cannot be compiled or run, or that did something invalid."""


@functools.lru_cache
def command() -> tuple[list[str], str]:
    """Return the command of the C++ compiler and its version text.

    Raises:
        EmulationError: If there is no compiler.
    """
    try:
        command = toolchain.compiler()
    except toolchain.NoCompiler as error:
        raise EmulationError(str(error)) from None
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return command, done.stdout


def preprocessed(
    path: str, folders: Sequence[str], text: str | None, defines: Mapping[str, str]
) -> str:
    """Preprocess the Metal file at `path` (or `text`, if given) with the compiler.

    Lines of the form `# 12 "file"` give the origin of the lines below them.

    Raises:
        SourceError: For the first error that the compiler reports.
    """
    source = SourceText(path, unsaved=None if text is None else {os.path.abspath(path): text})
    # If a folder is listed twice, the compiler would use its second name.
    beside = os.path.dirname(path) or "."
    folders = [beside if os.path.realpath(f) == os.path.realpath(beside) else f for f in folders]
    with tempfile.TemporaryDirectory() as empty:
        for name in filter(_HEADER.fullmatch, _left_out(source, folders)):
            header = Path(empty, name)
            header.parent.mkdir(parents=True, exist_ok=True)
            header.touch()
        options = [f"-D{name}={value}" for name, value in defines.items()]
        options += ["-iquote", beside, *(f"-I{f}" for f in folders)]
        done = subprocess.run(
            [*command()[0], *_PREPROCESS, *options, f"-I{empty}", path if text is None else "-"],
            input=None if text is None else f"# 1 {quoted(path)}\n{text}",
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "LC_ALL": "C"},  # messages in English
            check=False,
        )
    if done.returncode:
        found = _ERROR.search(done.stderr)
        file, line, message = found.groups() if found else (path, "1", done.stderr.strip())
        span = Span(os.path.normpath(file), int(line), 1, int(line), 1)
        raise SourceError(MESSAGES("preprocessor", message=message), span)
    return done.stdout


def _left_out(source: SourceText, folders: Sequence[str]) -> Iterator[str]:
    """Yield the angled includes that no folder contains: Metal's own headers."""
    sources = {source.path: source}
    pending = [source]
    while pending:
        source = pending.pop()
        for line in source.directives():
            include = source.include(line) if line[1] == "include" else None
            found = include and include.find(folders, needed=False)
            if include and include.angled and not found:
                yield include.name
            elif found and found not in sources:
                sources[found] = SourceText(found)
                pending.append(sources[found])
