"""The command ``python -m tools.mutation.cpu``: do the tests kill mutants of CPU kernels?

The operator's source is compiled once more, with all mutants of its kernel (``cpp``), and linked
with the rest of the built package. The tests then run as for Metal kernels: each mutant in a forked
child, which runs the tests that reach the mutated place until one fails. A first child runs all
tests without a mutant, and records the places that each test reaches.
"""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import json
import os
import random
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rich_click as click

from mlxgen.command.operators import load
from mlxgen.diagnostics import Diagnostics
from mlxgen.emulator import EmulationError
from mlxgen.read import settings as project_settings

from .cpp import Changed, changed, included
from .plugin import (
    _FAILED,
    _HANGS,
    _PASSED,
    _PATIENCE,
    _PAUSE,
    Outcome,
    _fork,
    _how_ended,
    _Watcher,
)
from .report import ROOT, Report, equivalents, write_page

OPTIONS = "MLXGEN_CPU_MUTATION"  # the variable with the options, as JSON
_CHANGES = Path(__file__).with_name("changes.h")


@dataclass(frozen=True, slots=True)
class Options:
    """The plugin's options: the mutants, the selected ones, and the files for results."""

    op: str
    names: tuple[str, ...]
    functions: tuple[str, ...]
    chosen: tuple[int, ...]
    library: str
    results: str
    key: str
    jobs: int


# -------------------------------------------------------------------------------------- building


class Builder:
    """Libraries of a built package with another source of one operator."""

    def __init__(self, root: Path) -> None:
        diags = Diagnostics()
        settings = project_settings.load(root, diags)
        if settings is None:
            diags.print(sys.stderr)
            sys.exit(1)
        self.settings = settings
        self.build = settings.root / "build"
        self.ops = {op.name: op for op in load(settings, diags)[0]}
        commands = json.loads((self.build / "compile_commands.json").read_text())
        self.commands = {Path(item["file"]): item for item in commands}

    def made(self, name: str, folder: Path) -> tuple[Changed, Path]:
        """Return an operator's mutants, and the library with them."""
        forward = self.ops[name].forward
        kernel = forward.kernel("cpu")
        header = kernel.include if kernel else forward.include
        function = kernel.function if kernel else forward.text.partition("(")[0]
        if not header:
            raise EmulationError(f"{name} has neither a CPU kernel nor a C++ function")
        csrc = self.settings.csrc
        sources = included(Path(header), csrc)
        result = changed(sources, [function.rpartition("::")[2]])
        copy = folder / "csrc"
        shutil.copytree(csrc, copy, dirs_exist_ok=True)
        for path, text in result.texts.items():
            (copy / path).write_text(text, encoding="utf-8")
        source = self.build / "generated" / "src" / f"{name}.cpp"
        # A composite is compiled in a group, and is then defined twice.
        grouped = source not in self.commands
        of_library = (c for c in self.commands.values() if "mlxgen_ops.dir" in c["command"])
        item = next(of_library) if grouped else self.commands[source]
        command = shlex.split(item["command"])
        at = command.index("-o") + 1
        old, new = [] if grouped else [command[at]], str(folder / f"{name}.o")
        command[at], command[command.index("-c") + 1] = new, str(source)
        command = [f"-I{copy}" if part == f"-I{csrc}" else part for part in command]
        command += ["-include", str(_CHANGES), "-O1", "-w"]
        # A source next to a header compiles its functions, for all operators.
        for path in (path.with_suffix(".cpp") for path in sources):
            if other := self.commands.get(csrc / path):
                command += ["-include", str(copy / path)]
                parts = shlex.split(other["command"])
                old.append(parts[parts.index("-o") + 1])
        self._run(command, item["directory"])
        library = "lib/" + next(self.build.glob(f"lib/lib{self.settings.name}.*")).name
        link = subprocess.run(
            ["ninja", "-t", "commands", library], cwd=self.build, capture_output=True, text=True
        ).stdout.splitlines()[-1]
        installed = Path(self._installed())
        package = folder / "package"
        shutil.copytree(installed, package / installed.name, dirs_exist_ok=True)
        made = package / installed.name / library
        made.unlink()
        parts = [
            str(made) if part == library else part
            for part in shlex.split(link.replace(" && :", "").removeprefix(": && "))
        ]
        parts = [part for part in parts if part not in old]
        # Before all others, because the linker takes the first of equal functions.
        parts[parts.index("-o") : parts.index("-o")] = [new, "-Wl,-z,muldefs"]
        self._run(parts, str(self.build))
        beside = package / "mlx"
        if not beside.exists():
            beside.symlink_to(installed.parent / "mlx")
        return result, made

    def _installed(self) -> str:
        program = f"import {self.settings.name} as p; print(p.__path__[0])"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        return done.stdout.strip()

    @staticmethod
    def _run(command: Sequence[str], folder: str) -> None:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise EmulationError(f"the mutants do not compile:\n{done.stderr[:4000]}")


def tried(
    builder: Builder, name: str, sample: int, seed: int, jobs: int, arguments: Sequence[str]
) -> list[Outcome]:
    """Return the results for an operator's mutants, all or a sample of them."""
    with tempfile.TemporaryDirectory(prefix="mlxgen-cpu-") as temporary:
        folder = Path(temporary)
        made, library = builder.made(name, folder)
        names, functions = made.names, made.functions
        numbers = range(1, len(names) + 1)
        count = min(sample, len(names)) or len(names)
        chosen = sorted(random.Random(seed).sample(numbers, count))
        kept = builder.build / "mutants"
        kept.mkdir(exist_ok=True)
        key = hashlib.sha256(Path(folder, f"{name}.o").read_bytes()).hexdigest()
        results = kept / f"{name}.json"
        options = Options(
            name,
            tuple(names),
            tuple(functions),
            tuple(chosen),
            str(library),
            str(results),
            key,
            jobs,
        )
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tools.mutation.cpu",
            "-p",
            "no:cacheprovider",
            "-q",
        ]
        paths = [str(library.parents[2]), str(ROOT), *sys.path]
        env = {**os.environ, OPTIONS: json.dumps(asdict(options))}
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        subprocess.run([*command, "-n0", *arguments], cwd=builder.settings.root, env=env)
        found = json.loads(results.read_text()) if results.exists() else {}
        if found.get("key") != key:
            raise EmulationError(f"the mutation run of {name} was aborted")
        called = set(found["called"])
        if left := sorted({functions[n - 1] for n in chosen} - called):
            click.echo("\n".join([f"{name}: left out, because no test reaches it:", *left]))
        chosen = [n for n in chosen if functions[n - 1] in called]
        return [
            Outcome(name, "cpu", names[n - 1], *found["outcomes"][names[n - 1]]) for n in chosen
        ]


# -------------------------------------------------------------------------------------- running


class _Runner:
    """Runs the tests of one collected session on mutants."""

    def __init__(self, session: Any, options: Options) -> None:
        self.items = session.items
        self.config = session.config
        self.options = options
        self.folder = Path(options.library).parents[3]
        self.found = Counter[int]()
        self.seconds: dict[int, float] = {}
        self.reached: dict[int, list[int]] = {}  # tests by number of the place

    def _watcher(self) -> _Watcher:
        self.config.pluginmanager.unregister(
            self.config.pluginmanager.get_plugin("terminalreporter")
        )
        watcher = _Watcher()
        self.config.pluginmanager.register(watcher)
        return watcher

    def _record(self) -> int:
        library = ctypes.CDLL(self.options.library)
        places = (ctypes.c_char * 16384).in_dll(library, "mlxgen_reached")
        watcher = self._watcher()
        tests = []
        for number, item in enumerate(self.items):
            ctypes.memset(places, 0, len(places))
            following = self.items[number + 1] if number + 1 < len(self.items) else None
            failures, seconds = watcher.run(item, following)
            if failures:
                print("left out, because it fails without a mutant:", item.nodeid)
                continue
            tests.append([number, seconds, [n for n, hit in enumerate(places.raw) if hit]])
        (self.folder / "record.json").write_text(json.dumps(tests))
        return 0

    def run(self) -> None:
        """Test all selected mutants, and store each result immediately."""
        _, status = os.waitpid(_fork(self._record, self.folder / "record.log"), 0)
        if status or not (self.folder / "record.json").exists():
            raise EmulationError((self.folder / "record.log").read_text()[-4000:])
        for test, seconds, places in json.loads((self.folder / "record.json").read_text()):
            self.seconds[test] = seconds
            for place in places:
                self.reached.setdefault(place, []).append(test)
        outcomes = self._kept()
        self._write(outcomes)
        waiting = [n for n in self.options.chosen if self.options.names[n - 1] not in outcomes]
        running: dict[int, tuple[int, float]] = {}
        while waiting or running:
            while waiting and len(running) < self.options.jobs:
                number = waiting.pop(0)
                if number not in self.reached:
                    self._keep(outcomes, number, "missed", "no test reaches it")
                    continue
                running[self._start(number)] = number, time.monotonic() + _HANGS
            time.sleep(_PAUSE)
            for child, (number, until) in list(running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                endless = not ended and time.monotonic() > until
                if endless:
                    os.kill(child, 9)
                    ended, status = os.waitpid(child, 0)
                if ended:
                    del running[child]
                    how, by = _how_ended(self.folder / str(number), status, endless)
                    self.found[int(by or -1)] += 1
                    self._keep(outcomes, number, how, self.items[int(by)].nodeid if by else "")

    def _kept(self) -> dict[str, list[str]]:
        path = Path(self.options.results)
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept.get("key") != self.options.key:
            return {}
        # Survivors are tried again, because there may be new tests.
        return {name: how for name, how in kept["outcomes"].items() if how[0] != "missed"}

    def _keep(self, outcomes: dict[str, list[str]], number: int, how: str, by: str) -> None:
        name = self.options.names[number - 1]
        outcomes[name] = [how, by]
        print(f"{how:8s} {self.options.op}: {name} [{by}]", flush=True)
        self._write(outcomes)

    def _write(self, outcomes: dict[str, list[str]]) -> None:
        new = Path(self.options.results).with_suffix(".new")
        called = sorted({self.options.functions[n - 1] for n in self.reached})
        kept = {"key": self.options.key, "called": called, "outcomes": outcomes}
        new.write_text(json.dumps(kept))
        new.replace(self.options.results)

    def _start(self, number: int) -> int:
        tests = sorted(self.reached[number], key=lambda t: (-self.found[t], self.seconds[t]))
        limit = _PATIENCE + int(3 * sum(self.seconds[test] for test in tests))
        folder = self.folder / str(number)
        folder.mkdir()

        def work() -> int:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.disable()  # a signal is an ordinary result
            ctypes.c_int.in_dll(ctypes.CDLL(self.options.library), "mlxgen_change").value = number
            watcher = self._watcher()
            for k, test in enumerate(tests):
                following = self.items[tests[k + 1]] if k + 1 < len(tests) else None
                if watcher.run(self.items[test], following)[0]:
                    found = {"test": str(test), "how": "results"}
                    (folder / "found.json").write_text(json.dumps(found))
                    return _FAILED
            return _PASSED

        return _fork(work, folder / "log")


def pytest_runtestloop(session: Any) -> bool | None:
    """Run the tests on mutants instead of once."""
    if OPTIONS not in os.environ:
        return None
    given = json.loads(os.environ[OPTIONS])
    lists = {key: tuple(given[key]) for key in ("names", "functions", "chosen")}
    options = Options(**{**given, **lists})
    _Runner(session, options).run()
    return True


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--op", "ops", multiple=True, required=True, help="Mutate this operator's kernel.")
@click.option("--sample", default=0, help="Number of random mutants of each operator; 0: all.")
@click.option("--seed", default=0, help="Seed of the sample.")
@click.option("--jobs", default=os.cpu_count() or 1, help="Number of mutants that run in parallel.")
@click.option(
    "--write",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results to this Markdown page; rows of other operators stay.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(
    ops: tuple[str, ...],
    sample: int,
    seed: int,
    jobs: int,
    page: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Mutate the C++ of CPU kernels, one place at a time, and run the tests.

    Fails if a mutant survives that tests/mutants_cpu.yaml does not list. ARGUMENTS are pytest's.
    """
    builder = Builder(Path.cwd())
    outcomes: list[Outcome] = []
    for name in ops:
        try:
            outcomes += tried(builder, name, sample, seed, jobs, arguments)
        except EmulationError as error:
            sys.exit(f"{name}: {error}")
    expected = equivalents(builder.settings.root / "tests" / "mutants_cpu.yaml")
    report = Report(tuple(outcomes), tuple(expected))
    if page is not None:
        write_page(page, report, whole=False)
    lines = [line for line in report.summary().splitlines() if not line.startswith("listed,")]
    click.echo("\n".join(lines))
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main(prog_name="python -m tools.mutation.cpu")
