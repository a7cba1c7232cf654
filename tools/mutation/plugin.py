"""A pytest plugin that runs tests on mutants of Metal kernels and their launchers.

`python -m tools.mutation` uses it. Tests are collected once; then every run is a forked child of
the process, which starts in milliseconds:

1. One child runs all tests, as `mlxgen metal-test` does. It records the launches of each test
   (mutation.h).
2. The mutants follow from these launches (`mutants`); all mutants of a library's source are
   compiled at once. For each mutant, a child runs the tests that launch its kernels until one
   fails; the tests that have killed most mutants run first.
3. Results are cached under all their inputs: the next run tests only new mutants (`_Kept`).

No child inherits threads: MLX starts its threads with the first computation, and the parent
computes nothing. Tests that fail without a mutant are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlxgen.emulator
from mlxgen.emulator.cxx import EmulationError
from mlxgen.emulator.library import build
from mlxgen.emulator.translate import MetalTranslator, translate
from mlxgen.read.preprocess import SourceError

from .mutants import Launches, Mutant, Switched, launch_mutants, source_mutants

OPTIONS = "MLXGEN_METAL_MUTATION"  # the variable with the options, as JSON
RESULTS = "results.json"  # in the folder

_PATIENCE = 10  # extra seconds of CPU time beyond three times that of the tests: an endless loop
_HANGS = 600.0  # seconds of wall time
_PAUSE = 0.005

_OUT_OF_TIME = (signal.SIGXCPU, signal.SIGKILL)

_PASSED, _FAILED, _NOT_COMPILED = 0, 7, 8


@dataclass(frozen=True, slots=True)
class Options:
    """The plugin's options.

    Attributes:
        folder: An empty folder for the results and all intermediate files.
        kept: The folder of cached results.
        ops: The operators whose kernels are mutated; all if empty.
        jobs: Number of mutants that run in parallel.
        sample: Number of random mutants of each operator; 0 for all.
        seed: Seed of the sample.
    """

    folder: str
    kept: str
    ops: tuple[str, ...] = ()
    jobs: int = 2
    sample: int = 0
    seed: int = 0

    def text(self) -> str:
        """Return the options as a string for the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def given(cls) -> Options:
        """Return the options from the environment."""
        values = json.loads(os.environ[OPTIONS])
        return cls(**values | {"ops": tuple(values["ops"])})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for a mutant.

    Attributes:
        op: The operator.
        kind: kernel or launcher.
        name: The change.
        how: The mutant was killed because "checks" of the emulation failed, "results" were wrong,
            the kernel was "endless" (timeout), or the compiler "refused" it; it survived, "missed",
            if all tests passed.
        by: The test that failed.
    """

    op: str
    kind: str
    name: str
    how: str
    by: str


@dataclass(slots=True)
class _Test:
    """The behavior of a test without mutants."""

    number: int
    name: str
    seconds: float
    kernels: set[str] = field(default_factory=set)  # "library kernel"


@dataclass(slots=True)
class _Library:
    """The kernels of one operator: their source, their launches by function, and its tests."""

    op: str
    name: str
    path: Path
    functions: dict[str, str]  # the kernel function of each host name
    launches: dict[str, Launches] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)  # all recorded launches
    tests: list[_Test] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)  # mutants killed by each test

    def mutants(self) -> Iterator[tuple[str, Mutant]]:
        """Yield all mutants with their kind."""
        for mutant in self.changed().mutants:
            yield "kernel", mutant
        for function, launches in self.launches.items():
            same = [name for name, other in self.functions.items() if other == function]
            for mutant in launch_mutants(launches, function, same):
                yield "launcher", mutant

    def changed(self) -> Switched:
        """The mutants of the source."""
        names = sorted(name for launches in self.launches.values() for name in launches.kernels)
        return source_mutants(self.path.read_text(encoding="utf-8"), self.launches, names)

    def tests_of(self, mutant: Mutant) -> list[_Test]:
        """Return the tests that can kill a mutant, the likeliest and shortest first."""
        wanted = {f"{self.name} {kernel}" for kernel in mutant.kernels}
        found = [test for test in self.tests if test.kernels & wanted]
        return sorted(found, key=lambda t: (-self.found[t.name], t.seconds))


class _Kept:
    """The cached results for a library's mutants, valid while all their inputs are unchanged."""

    def __init__(self, folder: str, library: _Library, items: Sequence[Any]) -> None:
        self.path = Path(folder, f"{library.op}.json")
        self.key = self._key(library, items)
        self.outcomes: dict[str, list[str]] = {}
        if self.path.exists():
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["key"] == self.key:
                self.outcomes = kept["outcomes"]

    @staticmethod
    def _key(library: _Library, items: Sequence[Any]) -> str:
        """Hash the kernels, the launches, the tests, and the emulation."""
        tests = [items[test.number] for test in library.tests]
        files = {item.path for item in tests}
        beside = {path for file in files for path in file.parent.glob("*.py")}
        files |= {path for path in beside if not path.name.startswith("test_")}
        digest = hashlib.sha256(library.path.read_bytes())
        for path in (*_emulation(), *sorted(files)):
            digest.update(path.read_bytes())
        for text in (*sorted(library.rows), *sorted(test.name for test in library.tests)):
            digest.update(text.encode())
        return digest.hexdigest()

    def add(self, name: str, how: str, by: str) -> None:
        """Store a result."""
        self.outcomes[name] = [how, by]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"key": self.key, "outcomes": self.outcomes})
        new = self.path.with_suffix(".new")  # written atomically, because the run may be stopped
        new.write_text(text, encoding="utf-8")
        new.replace(self.path)


def _emulation() -> list[Path]:
    """Return the source files of the emulation and of the mutants."""
    emulator = Path(mlxgen.emulator.__file__).parent
    own = Path(__file__).parent.glob("*.py")
    files = [path for what in ("*.py", "*.cpp", "include/**/*.h") for path in emulator.glob(what)]
    return sorted([*own, *files])


# ------------------------------------------------------------------------------------- children


class _Watcher:
    """Collects the failures of the tests that run in this process."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failures.append(str(report.longreprtext))

    def run(self, item: Any, following: Any) -> tuple[list[str], float]:
        """Run a test; return its failures and its CPU time in seconds."""
        self.failures, start = [], time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return self.failures, time.process_time() - start


def _fork(work: Callable[[], int], log: Path) -> int:
    """Run a function in a child, whose output goes to a file; return the child's process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        status = work()
    finally:
        os._exit(status)


class _Server:
    """Runs the tests of one collected session on mutants."""

    def __init__(self, session: Any, options: Options) -> None:
        self.items: list[Any] = session.items
        self.config = session.config
        self.options = options
        self.folder = Path(options.folder)
        self.terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        self.prebuilt = Path(os.environ["MLXGEN_METAL_PREBUILT"])
        self.switched: dict[str, Path] = {}  # libraries with all mutants

    def say(self, text: str) -> None:
        """Print a message for the user."""
        self.terminal.write_line(text)
        self.terminal.flush()

    def _watcher(self) -> _Watcher:
        """In a child, replace the terminal reporter."""
        self.config.pluginmanager.unregister(self.terminal)
        watcher = _Watcher()
        self.config.pluginmanager.register(watcher)
        return watcher

    # -- recording

    def record(self) -> list[_Library]:
        """Run all tests once; return the libraries whose kernels they launch."""
        log = self.folder / "record.log"
        child = _fork(self._record, log)
        _, status = os.waitpid(child, 0)
        path = self.folder / "record.json"
        if status or not path.exists():
            raise EmulationError(f"the tests cannot be run:\n{log.read_text()[-4000:]}")
        recorded = json.loads(path.read_text())
        if not recorded["launches"]:
            raise EmulationError("no test launches a Metal kernel of these operators")
        self.say(
            f"{len(recorded['tests'])} tests launch kernels"
            + "".join(
                f"\nleft out, because it fails without a mutant: {name}"
                for name in recorded["failing"]
            )
        )
        return self._libraries(recorded)

    def _record(self) -> int:
        trace = self.folder / "trace"
        trace.touch()
        os.environ["MLXGEN_METAL_TRACE"] = str(trace)
        watcher = self._watcher()
        tests, failing = [], []
        rows: dict[str, Any] = {}
        with trace.open() as lines:
            for number, item in enumerate(self.items):
                following = self.items[number + 1] if number + 1 < len(self.items) else None
                failures, seconds = watcher.run(item, following)
                launched = [line for line in lines.read().splitlines() if line]
                if failures:
                    failing.append(item.nodeid)
                elif launched:
                    new = [rows.setdefault(line, json.loads(line)) for line in set(launched)]
                    kernels = sorted({f"{row['library']} {row['kernel']}" for row in new})
                    tests.append([number, item.nodeid, seconds, kernels])
        recorded = {"tests": tests, "failing": failing, "launches": list(rows.values())}
        (self.folder / "record.json").write_text(json.dumps(recorded))
        return 0

    def _libraries(self, recorded: dict[str, Any]) -> list[_Library]:
        libraries: dict[str, _Library] = {}
        for row in recorded["launches"]:
            name = row["library"]
            op = name.partition(".")[2]  # after the package
            if self.options.ops and op not in self.options.ops:
                continue
            if name not in libraries:
                path = self.prebuilt / f"{name}.metal"
                found = MetalTranslator(path).instances.items()
                functions = {name: i.function.split("::")[-1] for name, i in found}
                libraries[name] = _Library(op, name, path, functions)
            library = libraries[name]
            library.rows.append(json.dumps(row))
            function = library.functions[row["kernel"]]
            library.launches.setdefault(function, Launches()).add(row)
        for number, nodeid, seconds, kernels in recorded["tests"]:
            test = _Test(number, nodeid, seconds, set(kernels))
            for name in {kernel.split()[0] for kernel in test.kernels} & set(libraries):
                libraries[name].tests.append(test)
        return sorted(libraries.values(), key=lambda library: library.op)

    # -- mutants

    def run(self) -> list[Outcome]:
        """Return the results for all mutants, in order."""
        work: list[tuple[_Library, _Kept, str, Mutant]] = []
        for library in self.record():
            kept = _Kept(self.options.kept, library, self.items)
            drawn = list(library.mutants())
            if 0 < self.options.sample < len(drawn):
                numbers = range(len(drawn))
                chosen = random.Random(self.options.seed).sample(numbers, self.options.sample)
                drawn = [drawn[number] for number in sorted(chosen)]
            work += [(library, kept, kind, mutant) for kind, mutant in drawn]
        new = [n for n, (_, kept, _, mutant) in enumerate(work) if mutant.name not in kept.outcomes]
        self.say(f"{len(work)} mutants, {len(work) - len(new)} of them cached")
        self._compile({work[n][0].name: work[n][0] for n in new}.values())
        running: dict[int, tuple[int, float]] = {}  # by process: number and deadline
        waiting = new[::-1]
        while waiting or running:
            while waiting and len(running) < self.options.jobs:
                number = waiting.pop()
                library, _, _, mutant = work[number]
                running[self._start(number, library, mutant)] = number, time.monotonic() + _HANGS
            time.sleep(_PAUSE)
            for child, (number, until) in list(running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                endless = not ended and time.monotonic() > until
                if endless:
                    os.kill(child, signal.SIGKILL)
                    ended, status = os.waitpid(child, 0)
                if ended:
                    del running[child]
                    library, kept, _, mutant = work[number]
                    how, by = _how_ended(self.folder / str(number), status, endless)
                    kept.add(mutant.name, how, by)
                    library.found[by] += 1
                    self.say(f"{how:8s} {library.op}: {mutant.name}")
        return [
            Outcome(library.op, kind, mutant.name, *kept.outcomes[mutant.name])
            for library, kept, kind, mutant in work
        ]

    def _compile(self, libraries: Collection[_Library]) -> None:
        """Compile each library with all its mutants; if that fails, compile them one by one."""
        self.say(f"Compiling the mutants of {len(libraries)} operators")

        def compile_all(library: _Library) -> None:
            path = self.folder / f"{library.name}.metal"
            path.write_text(library.changed().text, encoding="utf-8")
            try:
                text = f'#include "mlxgen_metal/changes.h"\n{translate(path).text}'
                self.switched[library.name] = build(text, os.fspath(path))
            except (EmulationError, SourceError) as error:
                self.say(f"{library.op}: the mutants compile only one by one: {error}")

        with ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(compile_all, libraries))

    def _start(self, number: int, library: _Library, mutant: Mutant) -> int:
        tests = library.tests_of(mutant)
        seconds = _PATIENCE + int(3 * sum(test.seconds for test in tests))
        folder = self.folder / str(number)
        folder.mkdir()

        def work() -> int:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            return self._try(folder, library, mutant, tests)

        return _fork(work, folder / "log")

    def _try(self, folder: Path, library: _Library, mutant: Mutant, tests: Sequence[_Test]) -> int:
        """In a child: run tests until one fails."""
        launch = mutant.launch
        if mutant.source is not None:
            switchable = mutant.number or launch
            made = self.switched.get(library.name) if switchable else None
            if made is None:
                launch = None
                path = folder / f"{library.name}.metal"
                path.write_text(mutant.source, encoding="utf-8")
                try:
                    made = build(translate(path).text, os.fspath(path))
                except (EmulationError, SourceError) as error:
                    (folder / "failure").write_text(str(error))
                    return _NOT_COMPILED
            else:
                os.environ["MLXGEN_METAL_CHANGE"] = str(mutant.number)
            self._put_in_place(folder / "libraries", library, made)
        if launch is not None:
            os.environ["MLXGEN_METAL_MUTATE"] = launch
        watcher = self._watcher()
        for k, test in enumerate(tests):
            following = self.items[tests[k + 1].number] if k + 1 < len(tests) else None
            failures, _ = watcher.run(self.items[test.number], following)
            if failures:
                text = "\n".join(failures)
                checks = "[metal emulation]" in text or "emulated Metal kernels" in text
                found = {"test": test.name, "how": "checks" if checks else "results"}
                (folder / "found.json").write_text(json.dumps(found))
                (folder / "failure").write_text(text)
                return _FAILED
        return _PASSED

    def _put_in_place(self, folder: Path, library: _Library, made: Path) -> None:
        """Replace the recorded library with this compiled one."""
        folder.mkdir()
        for path in self.prebuilt.iterdir():
            if path.name != f"{library.name}.so":
                (folder / path.name).symlink_to(path)
        (folder / f"{library.name}.so").symlink_to(made)
        os.environ["MLXGEN_METAL_PREBUILT"] = str(folder)


def _how_ended(folder: Path, status: int, endless: bool) -> tuple[str, str]:
    """Return the end of a child that ran a mutant's tests, and the test that killed the mutant."""
    if endless or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in _OUT_OF_TIME):
        return "endless", ""
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        if code == _PASSED:
            return "missed", ""
        if code == _NOT_COMPILED:
            return "refused", ""
        if code == _FAILED:
            found = json.loads((folder / "found.json").read_text())
            return found["how"], found["test"]
        raise EmulationError(
            f"a mutant's tests cannot be run:\n{(folder / 'log').read_text()[-4000:]}"
        )
    return "checks", ""  # a signal ended it


def pytest_runtestloop(session: Any) -> bool | None:
    """Run the tests on mutants instead of once."""
    if OPTIONS not in os.environ:
        return None
    options = Options.given()
    server = _Server(session, options)
    try:
        outcomes = server.run()
    except EmulationError as error:
        server.say(str(error))
        session.testsfailed = 1
        return True
    text = json.dumps([asdict(outcome) for outcome in outcomes])
    (server.folder / RESULTS).write_text(text)
    return True
