"""Calls MLX's functions from Python, C and Rust, and compares the results as bytes.

    python tests/conformance/languages.py PACKAGE FOLDER

The package must be importable, and built with the languages C and Rust. The calls are the samples
of its generated checks: each function whose arguments need no other values than arrays and numbers,
and one call of each function that they contain. ``FOLDER`` has the programs.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import mlx.core as mx

sys.path.insert(0, str(Path(__file__).parents[1]))

from c import calls as in_c
from rust import calls as in_rust
from rust.crate import cargo, passed

# Without a key, each call draws other numbers.
RANDOM = "random"


def calls(package: ModuleType) -> Iterator[in_c.Call]:
    """Yield the samples in float32 and float16, of functions with the same result in each call."""
    for subject in in_c.subjects(package):
        if subject.op["module"] == RANDOM:
            continue
        for dtype in (mx.float32, mx.float16):
            if subject.has_dtype(str(dtype).rpartition(".")[2]):
                label = f"{subject.path}-{subject.number} {dtype}"
                values = subject.keywords(subject.draw(dtype))
                yield in_c.Call(label, subject.op, subject.case.function, values)


def main(name: str, folder: Path) -> None:
    """Compare the languages."""
    if missing := [command for command in ("gcc", "cargo") if shutil.which(command) is None]:
        print(f"C and Rust are not compared, because {' and '.join(missing)} cannot be found")
        return
    package = importlib.import_module(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program, crate = in_c.Program(package), in_rust.Program(name)
    for call in calls(package):
        program.add(call)
        crate.add(call)
    in_c.compile_c(program.source(), folder, package)
    in_c.require_same(program, in_c.run(program, folder))

    place = folder / "crate"
    shutil.copytree(in_c.folder_of(package) / "rust", place)
    (place / "tests").mkdir()
    (place / "tests" / "calls.rs").write_text(crate.source(), encoding="utf-8")
    (place / "given").write_bytes(b"".join(crate.arrays))
    files = {"CALLS_GIVEN": str(place / "given"), "CALLS_WRITTEN": str(place / "written")}
    library = {f"{name.upper()}_DIR": str(in_c.folder_of(package))}
    passed(cargo(place, "test", "--test", "calls", **library, **files))
    in_c.require_same(crate, (place / "written").read_bytes())
    named = {call.op["name"] for call in program.calls}
    print(f"{len(program.calls)} calls of {len(named)} functions: equal in all languages")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute())
