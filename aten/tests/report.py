"""The report: which operators are right on all recorded samples, and what is left out of the tests.

    python aten/tests/report.py            # print the counts
    python aten/tests/report.py --update   # run all samples; write report.yaml and docs/aten.md

report.yaml has a row for each name of allowlist.txt, and one for each further operator of programs
(models.txt). A row of one word is a status; the others have the status, the reason in one line, and
the samples that are left out: their identities, or ``all``; ``nan`` has those of them where the
result is NaN and torch's is finite. The command keeps the reasons, and a row without one fails
the tests.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import multiprocessing
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import yaml
from comparing import UNSEEN, compare
from samples import Sample, arrays_of, load

ATEN = Path(__file__).resolve().parent.parent
REPORT = ATEN / "report.yaml"
PAGE = ATEN.parent / "docs" / "aten.md"
# Operators that draw random numbers, with a key as a keyword.
RANDOM = {"bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm"}
RANDOM |= {"rrelu_with_noise"}
#: kinds of variants, by a part of their names
PLACES = {
    "0 for": "empty arrays",
    "1 for": "axes of size 1",
    "is 1": "axes of size 1",
    "outside": "axes outside",
    "is shorter": "sizes that differ",
}
#: the kind of a sample that ends the process
ENDS = "the process ends"
#: seconds of a sample, after which its process is ended
LONGEST = 60
#: characters of a line of the page; report.yaml has the whole text
WIDTH = 115
#: most kinds of samples in the report
MOST = 1
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
`aten/tests/samples` has of it, and if it rejects what PyTorch rejects.
`python aten/tests/report.py --update` writes this page.

The samples are PyTorch's own (of OpInfo, its references and errors, and of its modules), in
float32, float16, bfloat16, complex64 and integers, and variants of these: NaN, infinities, zeros,
ones, ties, identity matrices, large and tiny numbers, empty arrays, arrays without axes, axes of
size 1, negative axes, and 100,000 elements in 16 bit. Where PyTorch's result in float64 is not that
in the samples' dtype, both are right, as are both where PyTorch's code for vectors and for single
elements differ. Where its gradient is NaN, or an element and its result are, any gradient is right.
Complex numbers that are not finite are all equal, and any number is right where PyTorch has NaN for
arguments without one. Equal elements that are sorted or selected may exchange their gradients.
Where an argument is broadcast, the results of PyTorch's decomposition are right, too. Calls whose
sizes PyTorch does not check are left out. Calls that convert integers above 2^24 to float64 are not
compared: MLX has float32. Elements of matrix products, inverses and solutions have errors relative
to the largest one; infinite elements of inverses and solutions may have the other sign or be NaN.
The column *NaN* counts the samples for which a result is NaN and PyTorch's is finite.

"""
OTHERS = """
## Further operators

Programs of `torch.export` also call these.

"""
UNSEEN_KINDS = """
## Errors that only PyTorch reports

"""


@dataclass
class Row:
    """The row of a name: its status, the reason, and the samples that are left out."""

    status: str
    reason: str = ""
    left_out: list[str] = field(default_factory=list)
    all_left_out: bool = False
    #: those of the samples that are left out whose results are NaN where torch's are finite
    nan: list[str] = field(default_factory=list)
    #: what differs, and where
    differs: str = ""
    #: those that are not run, because they end the process
    ends: list[str] = field(default_factory=list)

    def leaves_out(self, sample: Sample) -> bool:
        """Return whether a sample is left out."""
        if not self.left_out:
            return self.all_left_out
        return sample.identity in self.left_out


def listed(file: str) -> list[str]:
    """Return the names of a list."""
    lines = (ATEN / file).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def allowed() -> list[str]:
    """Return the names that the package aims at: those of allowlist.txt and of one release."""
    return sorted(listed("allowlist.txt") + listed("releases/2.13.txt"))


def names() -> list[str]:
    """Return the names of both lists."""
    return allowed() + sorted(listed("models.txt"))


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
        status, reason = entry["status"], entry.get("reason", "")
        nan, differs = entry.get("nan", []), entry.get("differs", "")
        ends = entry.get("ends the process", [])
        rows[name] = Row(status, reason, left_out, everything, nan, differs, ends)
    return rows, content.get("counts", {})


def counts(rows: dict[str, Row]) -> dict[str, int]:
    """Return how many names have each status."""
    counted = Counter(rows[name].status for name in allowed())
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
        if row.nan:
            entry["nan"] = row.nan
        if row.differs:
            entry["differs"] = row.differs
        if row.ends:
            entry["ends the process"] = row.ends
        operators[name] = entry
    text = yaml.safe_dump({"counts": counts(rows)}, sort_keys=False)
    text += yaml.safe_dump(
        {"operators": operators}, sort_keys=False, default_flow_style=None, width=100
    )
    REPORT.write_text(HEADER + text)


def page(rows: dict[str, Row]) -> str:
    """Return docs/aten.md."""
    aimed = allowed()
    lines = [INTRODUCTION.format(total=len(aimed))]
    lines += [f"- {status}: {count}\n" for status, count in counts(rows).items()]
    lines += ["\n", *table({name: rows[name] for name in aimed}), OTHERS]
    lines += table({name: row for name, row in rows.items() if name not in aimed})
    lines += [UNSEEN_KINDS, *(f"- {reason}\n" for reason in UNSEEN.values())]
    return "".join(lines)


def table(rows: dict[str, Row]) -> Iterator[str]:
    """Yield the lines of a table of operators."""
    yield "| operator | status | NaN | |\n|---|---|---|---|\n"
    for name, row in rows.items():
        whole = ". ".join(filter(None, [row.reason, row.differs])).replace("|", "\\|")
        reason = textwrap.shorten(whole, WIDTH - len(name) - len(row.status), placeholder=" ..")
        yield f"| `{name}` | {row.status} | {len(row.nan) or ''} | {reason} |\n"


def failure(name: str, sample: Sample) -> Exception | None:
    """Return the exception that comparing with a sample raises, if any."""
    package = importlib.import_module("mlx_aten")
    try:
        function = getattr(package, name)
        if name in RANDOM:
            function = functools.partial(function, key=mx.random.key(0))
        compare(sample, function)
    except Exception as error:
        return error
    return None


def problem(name: str, sample: Sample) -> str:
    """Return what is wrong with a sample in one line, or nothing."""
    error = failure(name, sample)
    return f"{type(error).__name__}: {error}".splitlines()[0] if error else ""


def place(sample: Sample) -> str:
    """Return the kind of a sample: the name of its variant, or its dtype."""
    if sample.origin in ("by hand", "at an edge"):
        return sample.origin
    if sample.origin == "large":
        return "100,000 elements"
    dtype, colon, variant = sample.origin.partition(": ")
    if not colon:
        arrays = arrays_of(sample)
        return arrays[0].dtype if arrays else "numbers"
    for part, kind in PLACES.items():
        if part in variant:
            return kind
    return variant.partition(" in ")[0] + (" in 16 bit" if dtype.endswith("16") else "")


def differences(failures: dict[int, str], samples: list[Sample]) -> str:
    """Return what differs, by kind, and where: ``values: ties and 2 more; NaN: large``."""
    found: dict[str, set[str]] = {}
    for index, kind in failures.items():
        found.setdefault(kind, set()).add(place(samples[index]))
    parts = []
    for kind, places in sorted(found.items()):
        names = sorted(places)
        more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
        parts.append(f"{kind}: {', '.join(names[:MOST])}{more}")
    return "; ".join(parts)


def kind_of(name: str, sample: Sample) -> str:
    """Return the kind of a difference, or ""."""
    error = failure(name, sample)
    kind = getattr(error, "kind", "error") if error else ""
    return f"gradient, {kind}" if getattr(error, "gradient", False) else kind


def all_kinds(name: str, samples: list[Sample]) -> dict[int, str]:
    """Return the kinds of differences by the samples' places.

    The samples run in another process, because one of them may end it.
    """
    found: dict[int, str] = {}
    start = 0
    while start < len(samples):
        receiver, sender = multiprocessing.Pipe(duplex=False)

        def run(first: int = start, to: Any = sender) -> None:
            for index in range(first, len(samples)):
                to.send(kind_of(name, samples[index]))

        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        sender.close()
        try:
            for index in range(start, len(samples)):
                start = index
                if not receiver.poll(LONGEST):
                    process.kill()
                if kind := receiver.recv():
                    found[index] = kind
            start = len(samples)
        except EOFError:
            found[start] = ENDS
            start += 1
        process.join()
    return found


def updated(name: str, old: Row | None, samples: list[Sample]) -> Row:
    """Return a name's row after running its samples."""
    reason = old.reason if old else ""
    known = old.status if old and old.status in ("needs a kernel", "impossible") else ""
    if not samples:
        return Row(known or "no samples", reason)
    kinds = all_kinds(name, samples)
    if not kinds:
        return Row("right")

    def of(*chosen: str) -> list[str]:
        return sorted({samples[i].identity for i, kind in kinds.items() if kind in chosen})

    wrong, nan, ends = of(*kinds.values()), of("NaN", "gradient, NaN"), of(ENDS)
    if any(sample.identity not in wrong for sample in samples if not sample.raises):
        differs = differences(kinds, samples)
        return Row("partly", reason, wrong, nan=nan, differs=differs, ends=ends)
    return Row(known or "needs a kernel", reason, all_left_out=True, nan=nan)


def main() -> None:
    """Print the counts, or run all samples and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="run all samples and write the files")
    rows, _ = read()
    if parser.parse_args().update:
        mx.set_default_device(mx.cpu)
        importlib.import_module("mlx_aten")  # without it, every sample would be wrong
        rows = {name: updated(name, rows.get(name), load(name)) for name in names()}
        write(rows)
        PAGE.write_text(page(rows))
    print(counts(rows))


if __name__ == "__main__":
    main()
