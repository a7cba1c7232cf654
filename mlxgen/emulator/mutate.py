"""Changes kernels one place at a time, to see whether tests notice.

    python -m mlxgen.emulator.mutate kernels/metal/segment.metal -- python -m pytest tests/metal -x

runs the command once for each mutant, with MLXGEN_METAL_KERNELS set to a copy of the kernels'
folder that holds it, and lists those that the command does not fail for. Mutants: each barrier
removed, each index of an array or pointer one higher, each comparison that bounds an index
loosened (`<` to `<=`), and each instantiation of another dtype.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..tokens import Token, lex, read_source

_BARRIERS = ("threadgroup_barrier", "simdgroup_barrier")
_TYPES = {"float": "half", "half": "float", "bfloat16_t": "half", "bfloat": "half"}
_TIMEOUT = 30  # seconds: a loop without end counts as caught


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed source: what was done, at which line, and the whole text."""

    what: str
    line: int
    text: str


def mutants(path: str | os.PathLike[str]) -> Iterator[Mutant]:
    """The mutants of one Metal file, in the order of its text."""
    name = os.fspath(path)
    text = read_source(name)
    lexed = lex(name, text)
    inside = {i for start, stop in lexed.directives for i in range(start, stop)}
    tokens = lexed.tokens
    depth = 0
    for i, token in enumerate(tokens):
        if i in inside:
            continue
        depth += (token.text == "{") - (token.text == "}")
        line = token.span.line
        if token.text in _BARRIERS and depth:
            end = _closing(tokens, i + 1)
            changed = text[: token.offset] + text[tokens[end].end :]
            yield Mutant(f"{token.text} removed", line, changed)
        elif token.text == "[" and depth and _is_index(tokens, i):
            end = _closing(tokens, i)
            inner = text[token.end : tokens[end].offset]
            changed = f"{text[: token.end]}({inner}) + 1{text[tokens[end].offset :]}"
            yield Mutant(f"[{inner}] shifted", line, changed)
        elif token.text == "<" and depth and token.before == " ":
            changed = text[: token.offset] + "<=" + text[token.end :]
            yield Mutant("< loosened", line, changed)
        elif not depth and token.text in _TYPES and tokens[i + 1].text == ")":
            changed = text[: token.offset] + _TYPES[token.text] + text[token.end :]
            yield Mutant(f"instantiated for {_TYPES[token.text]}", line, changed)


def _closing(tokens: Sequence[Token], i: int) -> int:
    depth = 0
    for j in range(i, len(tokens)):
        depth += tokens[j].text in ("(", "[") and 1
        depth -= tokens[j].text in (")", "]") and 1
        if depth == 0:
            return j
    return len(tokens) - 1


def _is_index(tokens: Sequence[Token], i: int) -> bool:
    """Whether the `[` at `i` subscripts: no attribute, and no array's declaration."""
    before, after = tokens[i - 1], tokens[i + 1]
    if before.kind != "name" or after.text == "[" or after.text == "]":
        return False
    return not (i >= 2 and tokens[i - 2].kind == "name" and tokens[i - 2].text != "return")


def survivors(path: Path, command: Sequence[str]) -> list[Mutant]:
    """The mutants of a file for which the command ends with status 0; prints as it goes."""
    found = []
    for mutant in mutants(path):
        with tempfile.TemporaryDirectory() as folder:
            kernels = Path(folder) / path.parent.name
            shutil.copytree(path.parent, kernels)
            (kernels / path.name).write_text(mutant.text, encoding="utf-8")
            environment = {**os.environ, "MLXGEN_METAL_KERNELS": str(kernels)}
            try:
                done = subprocess.run(
                    command, env=environment, capture_output=True, timeout=_TIMEOUT, check=False
                )
                caught = done.returncode != 0
                mark = "caught" if caught else "NOT CAUGHT"
            except subprocess.TimeoutExpired:
                caught, mark = True, f"runs for more than {_TIMEOUT} s"
        print(f"{path.name}:{mutant.line}: {mutant.what}: {mark}", flush=True)
        if not caught:
            found.append(mutant)
    return found


def main(arguments: Sequence[str]) -> int:
    """The command; its status is 1 if a mutant was not caught."""
    if "--" not in arguments:
        print(__doc__)
        return 2
    split = arguments.index("--")
    left = [m for name in arguments[:split] for m in survivors(Path(name), arguments[split + 1 :])]
    print(f"{len(left)} mutants not caught")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
