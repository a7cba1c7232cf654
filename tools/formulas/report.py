"""The results of a run over the formulas of a file: the killed and the surviving mutants."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .trial import Formula, Trial, formulas


@dataclass
class Report:
    """The results of a run, with mutants by name."""

    # Checks that killed a mutant, but also fail without one.
    broken: list[str] = field(default_factory=list)
    noticed: int = 0
    equivalent: int = 0
    listed: int = 0
    missed: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)  # listed patterns that match no survivor
    unknown: list[str] = field(default_factory=list)
    unskipped: list[str] = field(default_factory=list)  # listed as skipped, but can be tested

    @property
    def left(self) -> bool:
        """True if something must be fixed."""
        return bool(self.broken or self.missed or self.idle or self.unskipped)

    @classmethod
    def of(
        cls, trial: Trial, listed: Sequence[Mapping[str, Any]], ops: Collection[str] = ()
    ) -> Report:
        """Mutate the formulas of a file, or of some operators, and run its checks.

        Args:
            trial: The operators of the file.
            listed: Equivalent mutants, each item with `mutants` and `why`, as in
                `python -m tools.mutation`.
            ops: Names of operators; all if empty.
        """
        report = cls()
        patterns = {pattern: False for item in listed for pattern in item["mutants"]}
        found = [f for f in formulas(trial.operators) if f.op.name not in trial.skipped]
        changed = [f for f in found if not ops or f.op.name in ops]
        for formula in changed:
            report._try(trial, formula, patterns)
        report.broken = list(trial.broken(ops))
        known = {op for op in trial.operators.ops if not ops}
        report.idle = [p for p, used in patterns.items() if not used and p.split(":")[0] in known]
        report.unskipped = list(trial.wrongly_skipped())
        report.unknown = sorted(set().union(*(trial.guessed[f.op.name] for f in changed)))
        return report

    def _try(self, trial: Trial, formula: Formula, patterns: dict[str, bool]) -> None:
        for mutant in formula.mutants():
            name = f"{formula.place}: {mutant.name}"
            if trial.notices(formula, mutant):
                self.noticed += 1
            elif trial.equivalent(formula, mutant):
                self.equivalent += 1
            elif matching := [p for p in patterns if _matches(p, name)]:
                self.listed += 1
                patterns |= dict.fromkeys(matching, True)
            else:
                self.missed.append(name)

    def text(self) -> str:
        """Describe the results."""
        total = self.noticed + self.equivalent + self.listed + len(self.missed)
        lines = [*(f"fails without a mutant: {what}" for what in self.broken)]
        lines += [f"survived: {name}" for name in self.missed]
        lines += [f"listed, but matches no survivor: {name}" for name in self.idle]
        lines += [
            f"listed as skipped, but not an operator, or one that can be tested: {name}"
            for name in self.unskipped
        ]
        if self.unknown:
            lines.append(f"unknown in Python, replaced by others: {', '.join(self.unknown)}")
        counts = f"{self.noticed} killed, {self.equivalent} equivalent, {self.listed} listed"
        return "\n".join(
            [*lines, f"{total} mutants of formulas: {counts}, {len(self.missed)} survived"]
        )


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
