"""`mlxgen test`: builds operators of a project in the cache and runs their generated checks.

The cache records the inputs of operators whose checks have passed. Without names, the command tests
the operators whose inputs differ from these. The checks run in another process: if a kernel ends
it, the check is reported, and the checks of the other operators continue in a new process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import rich_click as click

from ...command import operators
from ...command.cli import Failure, Names, command, load, require, settings_of, warn
from ...command.inputs import digest, kernel_files
from ...command.write import put
from ...diagnostics import Diagnostics, install
from ...package.cache import folder, private
from ...package.compat import CompatError
from ...package.toolchain import BuildError
from ...read.settings import Settings
from .inputs import Inputs, base_of
from .load import progress
from .request import LoadError

if TYPE_CHECKING:
    from ...read.yaml import Documents
    from .built import Chosen

PAUSE = 0.3  # seconds between looks at the files
SHOWN = 3  # failures of an operator

_RUN = """
import json, sys
path, given = json.loads(sys.argv[1])
sys.path[:] = path
from mlxgen.plugins.interactive.run_checks import main
main(given)
"""


@command("project", name="test")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--metal", is_flag=True, help="Run the Metal kernels, on the CPU.")
@click.option("--watch", is_flag=True, help="Repeat after each edit, for what it concerns.")
@click.option("--bench", is_flag=True, help="Also time the operators and their composites.")
def test(
    diags: Diagnostics, project: Path | None, names: Names, metal: bool, watch: bool, bench: bool
) -> None:
    """Build operators without installing them, and run their generated checks.

    NAME is an operator or `tag:NAME`. Without a NAME, the operators are tested that changed since
    their checks passed. The build is in mlxgen's cache.
    """
    if metal and bench:
        raise click.UsageError("--bench cannot time emulated kernels: omit --metal")
    run = _Run(project, names, metal, bench)
    try:
        if watch:
            run.watch(diags)
        else:
            require(run.once(diags))
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)


class Tested(NamedTuple):
    """The inputs of an operator that was tested, and their hash."""

    inputs: Inputs
    hash: str


@dataclass
class _Result:
    """The results of an operator's checks."""

    place: str
    passed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)  # the check, and the message
    seconds: float = 0
    launches: int = 0  # of Metal kernels
    timing: tuple[float, float | None, list[list[int]]] | None = None


@dataclass
class _Run:
    """The arguments of the command, and its last results."""

    project: Path | None
    names: Names
    metal: bool
    bench: bool
    tested: dict[str, Tested] = field(default_factory=dict)  # also if checks failed

    def watch(self, diags: Diagnostics) -> None:
        """Test again after each edit."""
        gc.enable()  # `mlxgen` disables it
        while True:
            before = self._times()
            try:
                self.once(diags)
            except Failure:
                diags.print(sys.stderr)
            except click.ClickException as error:
                error.show()
            click.echo("waiting for an edit (Ctrl-C ends)")
            while self._times() == before:
                time.sleep(PAUSE)
            diags = Diagnostics(diags.limit)

    def _times(self) -> list[tuple[str, int]]:
        """Return the modification times of all files of the project that can matter."""
        settings = operators.settings_of(self.project, None, Diagnostics())
        root = (self.project or Path.cwd()).resolve()
        paths = [settings.root / "pyproject.toml", *settings.files] if settings else []
        paths += kernel_files(settings) if settings else [root / "pyproject.toml"]
        found = []
        for path in paths:
            with suppress(OSError):  # an editor replaces it
                found.append((str(path), path.stat().st_mtime_ns))
        return found

    def once(self, diags: Diagnostics) -> bool:
        """Run the checks; return false if one failed."""
        settings = settings_of(diags, self.project)
        settings = settings._replace(languages=(), mlx=operators.installed_mlx())
        if not all(map(find_spec, ("numpy", "pytest"))):
            missing = install.pip("numpy", "pytest")
            raise click.ClickException(f"the generated checks need NumPy and pytest: run {missing}")
        try:
            return self._test(settings, diags)
        except (BuildError, CompatError, LoadError) as error:
            if diags.ok:
                raise click.ClickException(f"the operators cannot be tested: {error}") from None
            raise Failure from None
        finally:
            progress("")

    def _test(self, settings: Settings, diags: Diagnostics) -> bool:
        from .built import chosen

        document, sources = operators.read(settings, diags)
        require(document is not None and diags.ok)
        assert document is not None
        base, green = base_of(settings), _Green(settings, self.metal)

        def unchanged(known: Mapping[str, Tested]) -> set[str]:
            return {name for name, of in known.items() if of.inputs.hash(document, base) == of.hash}

        entries = self._named(document, settings, diags)
        done = unchanged(self.tested) | (set() if self.names else unchanged(green.known))
        entries = [name for name in entries if name not in done]
        if not entries:
            click.echo("nothing changed since the checks passed")
            return True
        if not self.names and not self.tested:
            many = f"{len(entries)} operators" if len(entries) > 1 else entries[0]
            click.echo(f"testing {many}, whose checks have not passed since the last change")
        old = [of for name, of in (green.known | self.tested).items() if name in entries]
        likely = {name for of in old for name in of.inputs.entries} & document.names()
        found = chosen(settings, document, sources, entries, likely)
        require(diags.ok)
        inputs = {name: found.inputs(name) for name in entries}
        now = {name: Tested(of, of.hash(document, base)) for name, of in inputs.items()}
        package = build(found, self.metal, self.bench, diags)
        results = {name: _Result(name) for name in entries}
        self._check(package, results)
        self.tested |= now
        passed = (name for name, of in results.items() if of.passed and not of.failures)
        green.keep(now, {*passed})
        progress("")
        warn(diags, "text")
        self._print([results[name] for name in entries])
        return not any(result.failures for result in results.values())

    def _named(self, document: Documents, settings: Settings, diags: Diagnostics) -> list[str]:
        """Return the named entries, or all that have checks."""
        public = [e for e in document.entries if e.name and "internal" not in e.words("tags")]
        if not self.names:
            return [str(entry.name) for entry in public]
        names = set(self.names)
        called = [(entry, operators.called(entry)) for entry in document.entries]
        if unknown := names - {name for _, of in called for name in of}:
            load(diags, settings.root, settings.yaml, tuple(sorted(unknown)))
        found = [entry for entry, of in called if not names.isdisjoint(of)]
        if chosen := [str(entry.name) for entry in found if entry in public]:
            return chosen
        if not found:
            raise click.ClickException(f"no operator has {' or '.join(sorted(names))}")
        users = [str(other.name) for other in public if f"{found[0].name}(" in other.text]
        advice = f": test an operator that calls it, such as {users[0]}" if users else ""
        raise click.ClickException(f"{found[0].name} is internal and has no checks{advice}")

    # ------------------------------------------------------------------------- the checks

    def _check(self, package: Path, results: Mapping[str, _Result]) -> None:
        """Run the checks of the operators, in one process or, after a crash, in several."""
        left = list(results)
        while left:
            ended, name, what, next_ones = False, "", "", left
            for event in self._events(package, left):
                ended |= "end" in event
                if "unusable" in event:
                    raise LoadError(f"importing the package fails: {event['unusable']}")
                if "preparing" in event:
                    name, what = event["op"], f"the preparation of {event['preparing']}"
                    next_ones = [other for other in left if other != name]
                elif "check" in event:
                    next_ones = left[left.index(event["op"]) + 1 :]
                    name, what = event["op"], f"{event['check']} of {event['place']}"
                    results[name].place = event["place"].partition("-")[0]
                    progress(what)
                elif "timing" in event:
                    results[event["op"]].timing = event["timing"]
                elif "op" in event:
                    _add(results[event["op"]], event)
                elif "died" in event and not ended:
                    if not name:
                        raise LoadError(f"importing the package fails: {event['died']}")
                    results[name].failures.append((what, event["died"]))
            left = [] if ended else next_ones

    def _events(self, package: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the events of a process that runs checks; the last one is its death."""
        reader, writer = os.pipe()
        given = {"pipe": writer, "name": package.name, "package": str(package)}
        given |= {"operators": names, "metal": self.metal, "bench": self.bench}
        environment = dict(os.environ)
        if self.metal:
            library = next(package.glob("_ext.*so"))
            environment |= {"MLXGEN_METAL_EMULATION": "1", "MLXGEN_METAL_LIBRARY": str(library)}
            environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        line = [sys.executable, "-c", _RUN, json.dumps([sys.path, given])]
        with subprocess.Popen(
            line,
            pass_fds=[writer],
            env=environment,
            start_new_session=True,  # Ctrl-C ends this process, which ends the other one
        ) as process:
            os.close(writer)
            try:
                with os.fdopen(reader, encoding="utf-8") as lines:
                    yield from map(json.loads, lines)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        yield {"died": _death(process.returncode)}

    # ------------------------------------------------------------------------- the table

    def _print(self, results: Sequence[_Result]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        columns = ["operator", "checks", *["launches"] * self.metal, "seconds"]
        columns += ["shapes", "ms", "composite ms", "ratio"] if self.bench else []
        failed = any(result.failures for result in results)
        table = Table(*columns, *["failures"] * failed)
        for result in results:
            count = result.passed + len(result.failures)
            cell = Text(f"{result.passed} passed", "green")
            if result.failures:
                cell = Text(f"{len(result.failures)} of {count} failed", "red")
            cells = [Text(result.place), cell, *[Text(str(result.launches))] * self.metal]
            cells.append(Text(f"{result.seconds:.1f}"))
            if self.bench:
                cells += map(Text, _times(result))
            if failed:
                lines = [f"{check}: {message}" for check, message in result.failures[:SHOWN]]
                more = len(result.failures) - SHOWN
                lines += [f"and {more} more"] if more > 0 else []
                cells.append(Text("\n".join(lines)))
            table.add_row(*cells)
        Console(width=None if sys.stdout.isatty() else 160).print(table)


def _add(result: _Result, event: Mapping[str, Any]) -> None:
    """Add the result of a check."""
    result.seconds += event["seconds"]
    result.launches += event["launches"]
    if failure := event["failure"]:
        number = failure["operator"].partition("-")[2]
        of_sample = f" of sample {number}" if number else ""
        result.failures.append((f"{failure['check']}{of_sample}", failure["message"]))
    else:
        result.passed += 1


def _times(result: _Result) -> list[str]:
    if result.timing is None:
        return ["", "", "", ""]
    ours, composite, shapes = result.timing
    shown = ", ".join(str(tuple(shape)) for shape in shapes)
    compared = (
        ["none", ""] if composite is None else [f"{composite:.3g}", f"{composite / ours:.2f}"]
    )
    return [shown, f"{ours:.3g}", *compared]


def _death(status: int) -> str:
    """Return the reason why a process ended before its checks."""
    if status < 0:
        number = -status
        name = signal.Signals(number).name if number in {*signal.Signals} else str(number)
        return f"the process ended with {name}"
    return f"the process ended with status {status}; standard error shows the reason"


def build(found: Chosen, metal: bool, fast: bool, diags: Diagnostics) -> Path:
    """Build the package of operators in the cache and return its folder.

    Args:
        found: The operators.
        metal: Emulate the Metal kernels.
        fast: Optimize as an installed package, which takes longer to compile.
        diags: Collects errors in hand-written code.

    Raises:
        BuildError: If a tool is missing, or generated code does not compile.
        CompatError: If MLX or nanobind is missing, or they do not match.
        OSError: If no folder can be written.
    """
    from ...package.uses import compiled
    from ..common.process import found_toolchain, obtain_common
    from . import module
    from .built import compiler_errors

    mlx = found_toolchain(progress)
    used = compiled(found.settings, mlx.mlx_version, diags)
    common = obtain_common(mlx, progress, precompile=False)
    emulated = obtain_common(mlx, progress, False, emulated=True) if metal else common
    try:
        return found.compile(common, emulated, used, fast, progress).obtain(mlx)
    except BuildError as error:
        own = found.settings.csrc
        for said, span, notes in compiler_errors(
            str(error), lambda file: Path(file).resolve().is_relative_to(own)
        ):
            diags.error(said, span, notes=notes)
        raise
    finally:
        for one in {id(one): one for one in (common, emulated)}.values():
            if module.is_unprecompiled(one):
                module.start_precompile(emulated=one is not common)


class _Green:
    """The operators of a project whose checks have passed, with their inputs then."""

    def __init__(self, settings: Settings, metal: bool) -> None:
        self.folder = folder() / "green"
        self.name = f"{digest(str(settings.yaml), settings.name, metal)}.json"
        self.known: dict[str, Tested] = {}
        with suppress(OSError, ValueError, TypeError, AttributeError):  # none is known
            found = json.loads((self.folder / self.name).read_text(encoding="utf-8"))
            self.known = {name: Tested(Inputs(*of), key) for name, (of, key) in found.items()}

    def keep(self, now: Mapping[str, Tested], passed: set[str]) -> None:
        """Record the operators whose checks passed.

        Others keep the inputs with which they passed before, in case that an edit is undone.
        """
        for name, of in now.items():
            if name in passed:
                self.known[name] = of
            elif name in self.known and self.known[name].hash == of.hash:
                del self.known[name]
        with suppress(OSError):  # the next run tests all of them
            private(private(folder()) / "green")
            put(self.folder, {self.name: json.dumps(self.known).encode()})
