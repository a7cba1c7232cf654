"""The report: which operators are right on all recorded samples, and what is left out of the tests.

    python aten/tests/report.py            # print the counts
    python aten/tests/report.py --update   # run all samples; write report.yaml and docs/aten.md

report.yaml has a row for each name of allowlist.txt. A row of one word is a status; the others have
the status, the reason in one line, and the samples that are left out: their places in the file of
the name, or ``all``. The command keeps the reasons, and a row without one fails the tests.
"""

from __future__ import annotations

import argparse
import functools
import importlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import yaml
from comparing import compare
from samples import Sample, load

ATEN = Path(__file__).resolve().parent.parent
REPORT = ATEN / "report.yaml"
PAGE = ATEN.parent / "docs" / "aten.md"
# Operators that draw random numbers, with a key as a keyword.
RANDOM = {"bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm"}
RANDOM |= {"rrelu_with_noise"}
STATUSES = ("right", "partly", "needs a kernel", "impossible", "no samples")
HEADER = """\
# Each operator of allowlist.txt: right on all recorded samples, or what is left out and why.
# `python aten/tests/report.py --update` writes this file and docs/aten.md, and keeps the reasons.
"""
INTRODUCTION = """\
# Operators of ATen

[aten/](../aten/README.md) is the package `mlx_aten`: operators of ATen, the library of PyTorch's
operators, for MLX. The table has all {total} names that it aims at. An operator is *right* if its
results and its gradients equal PyTorch's, within PyTorch's tolerances, on all samples that
`aten/tests/samples` has of it. `python aten/tests/report.py --update` writes
this page.

"""


@dataclass
class Row:
    """The row of a name: its status, the reason, and the samples that are left out."""

    status: str
    reason: str = ""
    left_out: list[int] = field(default_factory=list)
    all_left_out: bool = False

    def leaves_out(self, index: int) -> bool:
        """Return whether a sample is left out."""
        return self.all_left_out or index in self.left_out


def allowed() -> list[str]:
    """Return the names of allowlist.txt."""
    lines = (ATEN / "allowlist.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def read() -> tuple[dict[str, Row], dict[str, int]]:
    """Return the rows of report.yaml, and the counts that it states."""
    content = yaml.safe_load(REPORT.read_text()) if REPORT.exists() else {}
    rows = {}
    for name, entry in content.get("operators", {}).items():
        if isinstance(entry, str):
            rows[name] = Row(entry)
            continue
        samples = entry.get("left out", [])
        everything = samples == "all"
        left_out = [] if everything else samples
        rows[name] = Row(entry["status"], entry.get("reason", ""), left_out, everything)
    return rows, content.get("counts", {})


def counts(rows: dict[str, Row]) -> dict[str, int]:
    """Return how many names have each status."""
    counted = Counter(row.status for row in rows.values())
    return {status: counted[status] for status in STATUSES if counted[status]}


def write(rows: dict[str, Row]) -> None:
    """Write report.yaml."""
    operators: dict[str, Any] = {}
    for name, row in rows.items():
        if not (row.reason or row.left_out or row.all_left_out):
            operators[name] = row.status
            continue
        entry: dict[str, Any] = {"status": row.status, "reason": row.reason}
        if row.all_left_out or row.left_out:
            entry["left out"] = "all" if row.all_left_out else row.left_out
        operators[name] = entry
    text = yaml.safe_dump({"counts": counts(rows)}, sort_keys=False)
    text += yaml.safe_dump(
        {"operators": operators}, sort_keys=False, default_flow_style=None, width=100
    )
    REPORT.write_text(HEADER + text)


def page(rows: dict[str, Row]) -> str:
    """Return docs/aten.md."""
    lines = [INTRODUCTION.format(total=len(rows))]
    lines += [f"- {status}: {count}\n" for status, count in counts(rows).items()]
    lines += ["\n| operator | status | |\n|---|---|---|\n"]
    for name, row in rows.items():
        reason = row.reason.replace("|", "\\|")
        lines.append(f"| `{name}` | {row.status} | {reason} |\n")
    return "".join(lines)


def problem(name: str, sample: Sample) -> str:
    """Return what is wrong with a sample in one line, or nothing."""
    package = importlib.import_module("mlx_aten")
    function = getattr(package, name, None)
    if function is None:
        return "mlx_aten has no such function"
    if name in RANDOM:
        function = functools.partial(function, key=mx.random.key(0))
    try:
        compare(sample, function)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def updated(name: str, old: Row | None, samples: list[Sample]) -> Row:
    """Return a name's row after running its samples."""
    reason = old.reason if old else ""
    if not samples:
        kept = (
            old.status if old and old.status in ("needs a kernel", "impossible") else "no samples"
        )
        return Row(kept, reason)
    wrong = [index for index, sample in enumerate(samples) if problem(name, sample)]
    if not wrong:
        return Row("right")
    if len(wrong) < len(samples):
        return Row("partly", reason, wrong)
    status = (
        old.status if old and old.status in ("needs a kernel", "impossible") else "needs a kernel"
    )
    return Row(status, reason, all_left_out=True)


def main() -> None:
    """Print the counts, or run all samples and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="run all samples and write the files")
    rows, _ = read()
    if parser.parse_args().update:
        mx.set_default_device(mx.cpu)
        importlib.import_module("mlx_aten")  # without it, every sample would be wrong
        rows = {name: updated(name, rows.get(name), load(name)) for name in allowed()}
        write(rows)
        PAGE.write_text(page(rows))
    print(counts(rows))


if __name__ == "__main__":
    main()
