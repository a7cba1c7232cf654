"""The results of checks: a table in a notebook, text elsewhere."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from .compare import Mismatch

COLUMNS = ("operator", "check", "argument", "element", "got", "expected")
ROWS = 20
"""The maximum number of failures in the output."""


@dataclass(frozen=True)
class Failure:
    """A failed check.

    Attributes:
        operator: The function's name.
        check: The name of the check.
        message: The error, in a sentence.
        argument: The argument with the wrong gradient, or "".
        element: The element with the largest error, or "".
        got: Its value.
        expected: The expected value.
        error: The exception, if the function raised one.
    """

    operator: str
    check: str
    message: str
    argument: str = ""
    element: str = ""
    got: str = ""
    expected: str = ""
    error: Exception | None = None

    @classmethod
    def of(cls, operator: str, check: str, error: Exception) -> Failure:
        """Convert an exception."""
        if isinstance(error, Mismatch):
            parts = error.argument, error.element, error.got, error.expected
            return cls(operator, check, error.message, *parts)
        first, *more = str(error).strip().splitlines() or [""]
        if first.endswith(":") and more:  # such as the first error of a compiler
            first = f"{first} {more[0].strip()}"
        text = first if isinstance(error, AssertionError) else f"{type(error).__name__}: {first}"
        return cls(operator, check, text, error=error)


@dataclass(frozen=True, repr=False)
class Report:
    """The result of checks: true if none failed.

    Attributes:
        passed: The number of checks that passed.
        failures: The failed checks, the most basic ones first.
        notes: Further remarks.
    """

    passed: int
    failures: Sequence[Failure] = ()
    notes: Sequence[str] = ()

    def __bool__(self) -> bool:
        return not self.failures

    @property
    def summary(self) -> str:
        """The result in one line."""
        count = self.passed + len(self.failures)
        if self.failures:
            return f"{len(self.failures)} of {count} checks failed"
        return f"{count} check{'s' * (count != 1)} passed"

    def _rows(self) -> list[list[str]]:
        """Return a row for each failure: the values of an element or else the message."""
        rows = []
        for f in self.failures[:ROWS]:
            values = [f.element, f.got, f.expected] if f.got else [f.message]
            rows.append([f.operator, f.check, f.argument, *values])
        return rows

    @property
    def _more(self) -> str:
        hidden = len(self.failures) - ROWS
        return f"and {hidden} more" if hidden > 0 else ""

    def __repr__(self) -> str:
        lines = [self.summary]
        if self.failures:
            rows = [list(COLUMNS), *self._rows()]
            whole = [row for row in rows if len(row) == len(COLUMNS)]
            widths = [max(len(row[i]) for row in whole) for i in range(len(COLUMNS))]
            for i in range(3):
                widths[i] = max(widths[i], *(len(row[i]) for row in rows))
            lines.append("")
            for row in rows:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
                lines.append("  ".join(cells).rstrip())
            lines += [self._more] * bool(self._more)
            first = self.failures[0]
            lines += ["", f"{first.operator}: {first.message}"]
        lines += self.notes
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        text = html.escape
        parts = [f"<p><b>{text(self.summary)}</b></p>"]
        if self.failures:
            head = "".join(f"<th>{name}</th>" for name in COLUMNS)
            body = []
            for row, failure in zip(self._rows(), self.failures, strict=False):
                cells = [f"<td>{text(cell)}</td>" for cell in row]
                if len(row) < len(COLUMNS):
                    cells[-1] = f'<td colspan="3" style="text-align: left">{text(row[-1])}</td>'
                body.append(f'<tr title="{text(failure.message)}">{"".join(cells)}</tr>')
            table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
            first = self.failures[0]
            parts += [
                f"<table>{table}</table>",
                *([f"<p>{self._more}</p>"] if self._more else []),
                f"<p>{text(f'{first.operator}: {first.message}')}</p>",
            ]
        parts += [f"<p>{text(note)}</p>" for note in self.notes]
        return "".join(parts)
