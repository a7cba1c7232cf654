"""Runs the tests of the operators that launch Metal kernels, with the kernels on the CPU.

    python aten/tools/metal.py                # `make aten-metal` runs this
    python aten/tools/metal.py -k scatter     # arguments are pytest's

`mlxgen metal-test` would build all operators of the package twice. This builds, as `mlxgen test`
does, only those that call an operator with a Metal kernel, in mlxgen's cache. Without arguments, a
hand-written kernel that no test launches is an error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.plugins.interactive.built import Chosen, chosen
from mlxgen.plugins.interactive.test import build

ATEN = Path(__file__).resolve().parent.parent
TESTS = [ATEN / "tests" / name for name in ("test_samples.py", "test_kernels.py")]


def users(names: Set[str], calls: Mapping[str, Set[str]]) -> set[str]:
    """Return these entries, and those that call one, directly or not."""
    found = set(names)
    while more := {name for name, called in calls.items() if called & found} - found:
        found |= more
    return found


def selected(diags: Diagnostics) -> tuple[Chosen, set[str]]:
    """Return the operators that the tests need, and the names whose samples are run."""
    settings = operators.settings_of(ATEN, None, diags)
    assert settings is not None
    settings = settings._replace(languages=(), mlx=operators.installed_mlx())
    document, sources = operators.read(settings, diags)
    assert document is not None
    every = chosen(settings, document, sources)
    kernels = {op.name for op in every.ops if op.forward.kernel("metal")}
    launching = users(kernels, every.calls)
    names = {op.python_name for op in every.ops if op.name in launching}
    # A name has several overloads, and test_kernels.py calls other operators, too.
    tested = names.union(re.findall(r"\baten\.(\w+)", TESTS[1].read_text(encoding="utf-8")))
    needed = [op.name for op in every.ops if op.python_name in tested]
    return replace(every, ops=every.reached(needed)), names


def main(arguments: list[str]) -> int:
    """Build the operators, run pytest, and return its exit status."""
    diags = Diagnostics()
    found, names = selected(diags)
    if not diags.ok:
        diags.print(sys.stderr)
        return 1
    package = build(found, True, False, diags)
    path = os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {
        "ATEN_NAMES": " ".join(sorted(names)),
        "MLXGEN_METAL_EMULATION": "1",
        "MLXGEN_METAL_LIBRARY": str(next(package.glob("_ext.*so"))),
        "PYTHONPATH": path,
    }
    lines = [
        f"{op.name} {name}"
        for op in found.ops
        if (kernel := op.forward.kernel("metal")) and kernel.on_demand
        for name in kernel.variants
    ]
    with tempfile.TemporaryDirectory(prefix="mlxgen-") as scratch:
        expected = Path(scratch) / "kernels.txt"
        expected.write_text("\n".join(lines), encoding="utf-8")
        if not arguments:
            environment["MLXGEN_METAL_EXPECTED"] = str(expected)
            arguments = ["--numprocesses=auto", "--dist=worksteal"]
        command = [sys.executable, "-m", "pytest", "-p", "mlxgen.emulator.plugin"]
        command += [*map(str, TESTS), *arguments]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
