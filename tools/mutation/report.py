"""The results of a mutation run, the list of equivalent mutants, and the page with the results.

Equivalent mutants are listed in a YAML file, with the reason:

    - mutants: ["axpby: launch of *: grid.z one larger"]
      why: its threads write the same values once more

`*` matches any text. The run fails if a mutant survives that is not listed, and if an item of the
list matches no surviving mutant, because a killed mutant is not equivalent.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from mlxgen.emulator.cxx import EmulationError
from mlxgen.emulator.package import EmulatedPackage

from . import plugin
from .plugin import OPTIONS, RESULTS, Options, Outcome

ROOT = Path(__file__).parents[2]  # the folder that contains `tools`

_BEGIN = "<!-- mutants: written by tools.mutation --write -->"
_END = "<!-- mutants: end -->"
_FOUND = ("checks", "results", "endless", "refused")
_COLUMNS = ("mutants", *_FOUND, "equivalent", "missed")
_HEAD = (
    "| operator | part | mutants | killed by checks | by results | timeout | "
    "do not compile | equivalent | survived |"
)
_ROW = re.compile(r"^\| (\w+) \| (kernel|launcher|cpu) \| ([\d |]+) \|$", re.M)
_SURVIVES = ("missed", "endless")  # of an equivalent mutant, which may also time out


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Equivalent mutants, by name with `*` for any text, and the reason."""

    patterns: tuple[str, ...]
    why: str

    def matches(self, outcome: Outcome) -> bool:
        """Return true if the result is for one of these mutants."""
        name = f"{outcome.op}: {outcome.name}"
        return any(
            re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name)
            for pattern in self.patterns
        )


def equivalents(path: Path) -> list[Equivalent]:
    """Return the contents of the file; nothing if it does not exist.

    Raises:
        EmulationError: If the file has another form.
    """
    if not path.exists():
        return []
    form = f"{path}: expected a list of {{mutants: [names], why: text}}"
    try:
        items = yaml.safe_load(path.read_text(encoding="utf-8")) or []
        return [Equivalent(tuple(item["mutants"]), str(item["why"])) for item in items]
    except (yaml.YAMLError, TypeError, KeyError) as error:
        raise EmulationError(form) from error


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run and the expected equivalents."""

    outcomes: tuple[Outcome, ...]
    expected: tuple[Equivalent, ...]

    def reason(self, outcome: Outcome) -> str | None:
        """Return the listed reason why the mutant is equivalent, if no test killed it."""
        if outcome.how not in _SURVIVES:
            return None
        return next((e.why for e in self.expected if e.matches(outcome)), None)

    @property
    def missed(self) -> list[Outcome]:
        """The mutants that survived and are not listed."""
        return [o for o in self.outcomes if o.how == "missed" and self.reason(o) is None]

    @property
    def idle(self) -> list[str]:
        """Listed patterns that match no surviving mutant."""
        return [
            pattern
            for e in self.expected
            for pattern in e.patterns
            if not any(
                o.how in _SURVIVES and Equivalent((pattern,), "").matches(o) for o in self.outcomes
            )
        ]

    def table(self, earlier: str = "") -> str:
        """Return the results as Markdown, with the other operators' rows of an earlier table."""
        here = {(o.op, o.kind) for o in self.outcomes}
        rows = {
            (op, kind): Counter(dict(zip(_COLUMNS, map(int, cells.split("|")), strict=True)))
            for op, kind, cells in _ROW.findall(earlier)
            if (op, kind) not in here
        }
        for o in self.outcomes:
            how = "equivalent" if self.reason(o) is not None else o.how
            rows.setdefault((o.op, o.kind), Counter()).update(("mutants", how))
        total = sum(rows.values(), Counter())
        lines = [_HEAD, f"|---|---|{'--:|' * len(_COLUMNS)}"]
        for (op, kind), count in [*sorted(rows.items()), (("all", ""), total)]:
            lines.append(f"| {op} | {kind} | {' | '.join(str(count[c]) for c in _COLUMNS)} |")
        return "\n".join(lines)

    def summary(self, whole: bool = True) -> str:
        """Summarize the results and all problems; idle patterns only of a whole run."""
        found = sum(o.how in _FOUND and self.reason(o) is None for o in self.outcomes)
        without = sum(self.reason(o) is not None for o in self.outcomes)
        lines = [
            f"{len(self.outcomes)} mutants: {found} killed, {without} equivalent, "
            f"{len(self.missed)} survived"
        ]
        lines += [f"survived: {o.op}: {o.name}" for o in self.missed]
        idle = self.idle if whole else []
        lines += [f"listed, but no mutant of it survived: {pattern}" for pattern in idle]
        return "\n".join(lines)


def run(
    package: EmulatedPackage,
    options: Options,
    expected: Sequence[Equivalent],
    arguments: Sequence[str],
) -> Report:
    """Run the project's tests on mutants; the folders in ``options`` are not used.

    Raises:
        EmulationError: If the tests cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="mlxgen-mutants-") as folder:
        given = replace(options, folder=folder, kept=str(package.folder / "mutants"))
        plugins = ["-p", "mlxgen.emulator.plugin", "-p", plugin.__name__]
        command = [sys.executable, "-m", "pytest", *plugins, "-p", "no:cacheprovider", *arguments]
        env = {**package.environment(), OPTIONS: given.text()}
        env["PYTHONPATH"] += os.pathsep + str(ROOT)
        subprocess.run(command, cwd=package.settings.root, env=env, check=False)
        results = Path(folder, RESULTS)
        if not results.exists():
            raise EmulationError("the mutation run was aborted")
        outcomes = tuple(Outcome(**values) for values in json.loads(results.read_text()))
    return Report(outcomes, tuple(expected))


def write_page(page: Path, report: Report, whole: bool) -> None:
    """Write the table between the page's markers, or at its end if it has none.

    The rows of operators that were not run stay, unless ``whole``.
    """
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = old.partition(_BEGIN)
    earlier, _, after = rest.partition(_END)
    start = before if begin else f"{old.rstrip()}\n\n"
    table = report.table("" if whole else earlier)
    page.write_text(f"{start}{_BEGIN}\n{table}\n{_END}{after if begin else chr(10)}", "utf-8")
