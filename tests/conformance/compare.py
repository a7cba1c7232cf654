"""Compares MLX's own tests with MLX's functions and with generated ones in their place.

    python tests/conformance/compare.py PACKAGE FOLDER [FILE...]

Runs the files of ``$MLX_SOURCE/python/tests``, a checkout of MLX's repository, first with MLX, then
with the functions of the package, which must be importable. Each run is a process of its own.
``FOLDER`` keeps the outcomes of MLX for the next time. A test that passes with MLX must pass with
the package too, unless differences.yaml gives a reason; otherwise the exit status is 1.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent
DIFFERENCES = HERE / "differences.yaml"


class Run(NamedTuple):
    """The outcomes of a file of tests."""

    outcomes: Mapping[str, str]
    calls: Mapping[str, int]
    text: str  # what pytest printed


def folder_of_tests() -> Path | None:
    """Return the folder of MLX's tests, if there is one."""
    source = os.environ.get("MLX_SOURCE")
    folder = Path(source).absolute() / "python" / "tests" if source else None
    return folder if folder and (folder / "mlx_tests.py").is_file() else None


def run(test: Path, functions: str, to: Path, arguments: Sequence[str] = ()) -> Run:
    """Run a file of tests in a new process; without an outcome, it ended before its end."""
    to.unlink(missing_ok=True)
    path = [str(HERE.parent), str(test.parent), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MLX_FUNCTIONS": functions,
        "OUTCOMES": str(to.absolute()),
    }
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conformance.plugin"]
    command += ["-c", os.devnull, "--rootdir", str(test.parent), str(test), *arguments]
    done = subprocess.run(
        [sys.executable, *command], env=env, cwd=to.parent, capture_output=True, text=True
    )
    text = done.stdout + done.stderr
    if not to.is_file():
        return Run({}, {}, text)
    found = json.loads(to.read_text(encoding="utf-8"))
    return Run(found["outcomes"], found["calls"], text)


def plain(test: Path, folder: Path) -> Run:
    """Return the outcomes with MLX's own functions, from an earlier time if nothing changed."""
    about = [importlib.metadata.version("mlx"), sys.version, test.read_text(encoding="utf-8")]
    about.append((test.parent / "mlx_tests.py").read_text(encoding="utf-8"))
    key = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
    kept = folder / f"{test.stem}-{key}.json"
    if kept.is_file():
        found = json.loads(kept.read_text(encoding="utf-8"))
        return Run(found["outcomes"], found["calls"], "")
    return run(test, "", kept)


def differing(before: Run, after: Run) -> list[str]:
    """Return the tests that pass with MLX only."""
    passed = [name for name, outcome in before.outcomes.items() if outcome == "passed"]
    return [name for name in passed if after.outcomes.get(name) != "passed"]


def known_differences() -> Mapping[str, str]:
    """Return the reasons by test."""
    found: Any = yaml.safe_load(DIFFERENCES.read_text(encoding="utf-8"))
    return found or {}


def main(package: str, to: str, *names: str) -> int:
    """Compare all files of tests, or those of these names; print the result."""
    tests, folder = folder_of_tests(), Path(to)
    if tests is None:
        print("MLX_SOURCE must be a checkout of MLX's repository, whose tests this runs")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    known, unused = known_differences(), dict(known_differences())
    wrong: list[str] = []
    passed, calls = 0, dict[str, int]()
    for test in sorted(tests.glob("test_*.py")):
        if names and test.name not in names:
            continue
        before = plain(test, folder)
        after = run(test, package, folder / f"{test.stem}.json")
        found = differing(before, after)
        count = sum(outcome == "passed" for outcome in before.outcomes.values())
        passed += count - len(found)
        for name, number in after.calls.items():
            calls[name] = calls.get(name, 0) + number
        here = [name for name in found if name not in known]
        for name in found:
            unused.pop(name, None)
        print(f"{test.name}: {count - len(found)} of {count} pass", flush=True)
        if not before.outcomes:
            wrong.append(f"{test.name}: no outcome with MLX itself\n{before.text[-2000:]}")
        elif here:
            wrong += here
            print(after.text[-6000:])
    called = sum(number > 0 for number in calls.values())
    print(f"{passed} tests pass with {len(calls)} functions replaced, of which they call {called}")
    if names:
        unused = {}
    for name in unused:
        wrong.append(f"{name} passes, or does not exist: remove it from {DIFFERENCES.name}")
    for line in wrong:
        print(f"differs: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
