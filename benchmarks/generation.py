"""The time of mlxgen's commands on a large file: from scratch, after an edit, with mistakes.

Whole commands are timed, including the start of Python. Of several runs the minimum is reported,
because other processes only add to a time. The generation of all entries is measured in CPU time,
which depends less on the disk and on other work of the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from .measure import Options, Result, duration
from .synthetic import write_project

SIZES = (250, 2584, 10000)
EDITED = 2584
MISTAKES = 1000
NAME = re.compile(r"^- (?:name: |signature: \"?)(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """A finished command."""

    seconds: float
    user: float  # CPU seconds of the process
    system: float  # CPU seconds of the system for it, mostly to create files
    output: str

    @property
    def processor(self) -> float:
        """The total CPU time."""
        return self.user + self.system


class Project:
    """A synthetic project and its generated files."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self.output = folder / "generated"
        self.yaml = write_project(folder, size, version("mlx"))
        self.text = self.yaml.read_text(encoding="utf-8")

    def mlxgen(self, command: str, *arguments: str) -> Run:
        """Run a command."""
        line = [sys.executable, "-m", "mlxgen", command, "--project", str(self.folder), *arguments]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        before, start = os.times(), time.perf_counter()
        done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
        seconds, after = time.perf_counter() - start, os.times()
        user = after.children_user - before.children_user
        system = after.children_system - before.children_system
        return Run(seconds, user, system, done.stdout + done.stderr)

    def generate(self) -> Run:
        """Generate."""
        return self.mlxgen("generate", "--output", str(self.output))

    def write(self, text: str) -> None:
        """Change the file of entries."""
        self.yaml.write_text(text, encoding="utf-8")

    def sources(self) -> dict[str, int]:
        """Return the modification time of each C++ file."""
        files = (path for path in self.output.rglob("*") if path.suffix in (".h", ".cpp"))
        return {str(path): path.stat().st_mtime_ns for path in files}


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    per_entry = {}
    for size in SIZES[: 1 if options.quick else None]:
        options.progress(f"generate {size:,} entries")
        with tempfile.TemporaryDirectory() as folder:
            result = _from_nothing(Project(Path(folder), size), 1 if size > 5000 else 3)
        per_entry[size] = result.data["processor"] / size
        yield result
    sizes = sorted(per_entry)[1:]
    if len(sizes) > 1:
        growth = per_entry[sizes[-1]] / per_entry[sizes[0]]
        what = f"time per entry of {sizes[-1]:,}, as a multiple of that of {sizes[0]:,}"
        data = {"ratio": growth}
        yield Result("generation", what, f"{growth:.2f}x", "linear: 1x", growth < 1.25, data)
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder), 250 if options.quick else EDITED)
        options.progress(f"edit one of {project.size:,} entries")
        yield from _edits(project)
        options.progress(f"mistakes in {project.size:,} entries")
        yield _mistakes(project)


def _from_nothing(project: Project, times: int) -> Result:
    runs = []
    for _ in range(times):
        shutil.rmtree(project.output, ignore_errors=True)
        runs.append(project.generate())
    best = min(runs, key=lambda run: run.processor)
    written = sum(p.stat().st_size for p in project.output.rglob("*") if p.is_file())
    each = best.processor / project.size
    lines = len(project.text.splitlines())
    return Result(
        "generation",
        f"{project.size:,} entries ({lines:,} lines, {written / 1e6:.1f} MB generated)",
        f"{duration(each)} of CPU time per entry ({duration(best.user)} in all, and "
        f"{duration(best.system)} of the system, to make files)",
        "at most 1 ms" if project.size > 1000 else "",
        each <= 1e-3 if project.size > 1000 else None,
        {"processor": best.processor, "system": best.system, "seconds": best.seconds},
    )


def _edits(project: Project) -> Iterator[Result]:
    """Yield the times of the second run, after several kinds of changes."""
    project.generate()
    text, entries = project.text, f"{project.size:,} entries"
    formula = "    x: scale * grad_wave"
    edits = iter(range(2, 100))

    def edited() -> Run:
        project.write(text.replace(formula, f"    x: {next(edits)} * scale * grad_wave", 1))
        return project.generate()

    yield _command(f"`mlxgen generate`, one of {entries} edited", edited, 0.7)
    yield _command(f"`mlxgen generate` of {entries} again, nothing changed", project.generate, 0.3)
    before = project.sources()
    project.write(f"# A line.\n{project.yaml.read_text(encoding='utf-8')}")
    project.generate()
    rewritten = sum(before.get(path) != at for path, at in project.sources().items())
    yield Result(
        "generation",
        f"a line inserted above {entries}: C++ files that are written again",
        f"{rewritten} of {len(before):,}",
        "none",
        rewritten == 0,
        {"rewritten": rewritten},
    )
    names = NAME.findall(text)
    name = names[len(names) // 2]
    for what in (("show", name), ("list", "--select", name)):
        shown = f"`mlxgen {' '.join(what)}` of {entries}"
        yield _command(shown, lambda what=what: project.mlxgen(*what), 0.5)  # type: ignore[misc]


def _command(what: str, run: Callable[[], Run], most: float) -> Result:
    seconds = min(run().seconds for _ in range(5))
    aim = f"at most {most} s"
    return Result("generation", what, duration(seconds), aim, seconds <= most, {"seconds": seconds})


def _mistakes(project: Project) -> Result:
    """Compare ``mlxgen check`` on a valid file and on one with a wrong name in many entries."""
    broken, count = re.subn(r"(?<=[ (])x(?=[ ),])(?!:)", "xx", project.text, count=MISTAKES)
    times = {}
    for name, text in (("clean", project.text), ("broken", broken)):
        project.write(text)
        runs = [project.mlxgen("check") for _ in range(3)]
        times[name] = min(run.processor for run in runs)
    ratio = times["broken"] / times["clean"]
    return Result(
        "generation",
        f"`mlxgen check` of {project.size:,} entries with {count:,} misspelled names",
        f"{ratio:.2f}x of the time without ({duration(times['clean'])} of CPU time)",
        "at most 2x",
        ratio <= 2,
        {"ratio": ratio, **times},
    )
