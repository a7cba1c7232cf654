"""Collects diagnostics and shows them as text, in color or as JSON.

Every stage reports here and continues, so that one run shows all mistakes, sorted by position. The
number of diagnostics shown is limited. After a larger number of errors, processing stops.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple, TextIO

from ..model.cpp import Declaration
from .fix import Advice, Fix
from .messages import Rendered, sections
from .span import Span, Text


class Related(NamedTuple):
    """A second location that a message refers to, and a note about it."""

    message: str
    span: Span


class Diagnostic(NamedTuple):
    """An error or a warning: its code, message, location, help and fix."""

    code: str
    message: str
    span: Span
    help: str | None = None
    notes: tuple[str, ...] = ()
    op: str | None = None
    severity: str = "error"
    related: tuple[Related, ...] = ()
    fix: Fix | None = None
    expected: Declaration | None = None

    @property
    def text(self) -> str:
        """The message with its operator: ``op 'axpby': unknown key 'varients'``."""
        return f"op '{self.op}': {self.message}" if self.op else self.message


class TooMany(Exception):
    """Raised at the error limit, to stop processing."""


_ENOUGH = 1000
_QUOTED = re.compile(r"(?<!\w)(['\"]).*?\1(?!\w)", re.DOTALL)


def one_line(text: str, most: int = 80) -> str:
    """Shorten long quotations, and escape line breaks and other control characters."""

    def cut(quoted: re.Match[str]) -> str:
        return quoted[0] if len(quoted[0]) <= most else f"{quoted[0][: most - 4]}...{quoted[1]}"

    text = _QUOTED.sub(cut, text)
    text = text if len(text) <= 10 * most else text[: 10 * most] + "..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Diagnostics:
    """The diagnostics of all stages, without duplicates.

    At most ``limit`` errors and ``limit`` warnings are shown (0: all); more are collected.
    """

    def __init__(self, limit: int = 50) -> None:
        self.limit = limit
        self._left = max(limit, _ENOUGH) if limit else inf  # errors until TooMany
        self._items: dict[Diagnostic, None] = {}
        self._sources: dict[str, Text] = {}

    def error(
        self,
        said: Rendered,
        span: Span,
        *,
        op: str | None = None,
        notes: Sequence[str] = (),
        severity: str = "error",
        related: Sequence[Span | Related] = (),
        expected: Declaration | None = None,
    ) -> None:
        """Report an error or, with ``severity="warning"``, a warning, which does not fail the run.

        ``related`` are the locations of the message's note. Raises ``ValueError`` if errors.md does
        not explain the code.
        """
        code, message, help, note = said
        if code not in sections():
            raise ValueError(f"diagnostic code {code!r} is not in errors.md")
        advice, instead, certain = help if isinstance(help, Advice) else (help, None, False)
        # Several lines may contain comments, which the fix would remove.
        certain &= span.line == span.end_line
        fix = Fix(span, instead, certain) if instead is not None else None
        advice, op = (advice and one_line(advice, 400)) or None, op and one_line(f"'{op}'")[1:-1]
        noted = (place if isinstance(place, Related) else Related(note, place) for place in related)
        places = tuple(Related(one_line(place.message), place.span) for place in noted)
        about = tuple(notes), op, severity, places, fix, expected
        self.repeat(Diagnostic(code, one_line(message), span, advice, *about))

    def repeat(self, item: Diagnostic) -> None:
        """Report a diagnostic of another collector, possibly at a new location."""
        self._items[item] = None
        self._left -= item.severity == "error"
        if self._left <= 0:
            raise TooMany

    def add(self, other: Diagnostics) -> None:
        """Add all diagnostics of another collector."""
        self._items |= other._items

    def add_source(self, file: str, text: str) -> None:
        """Store the text of a file for excerpts; without it, excerpts are read from the disk."""
        self._sources[file] = Text(file, text)

    @property
    def ok(self) -> bool:
        """True if no error has been reported."""
        return all(item.severity != "error" for item in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def sorted(self) -> list[Diagnostic]:
        """Return all diagnostics by file and position, then in the order of the reports."""
        return sorted(self._items, key=lambda item: item.span)

    def summary(self) -> str:
        """Return the counts, such as ``2 errors, 1 warning``, or an empty string."""
        counts = sorted(Counter(item.severity for item in self._items).items())
        return self._more_than + ", ".join(f"{n} {what}{'s' * (n > 1)}" for what, n in counts)

    @property
    def _more_than(self) -> str:
        return "" if self._left > 0 else "more than "

    def _shown(self) -> list[Diagnostic]:
        """Return the first errors and warnings, and a note with the number of the others."""
        shown: list[Diagnostic] = []
        left: list[Diagnostic] = []
        counts = Counter[str]()
        for item in self.sorted():
            counts[item.severity] += 1
            kept = not self.limit or counts[item.severity] <= self.limit
            (shown if kept else left).append(item)
        if left:
            message = f"and {self._more_than}{len(left)} more"
            help = "use `--max-errors 0` to show all"
            shown.append(Diagnostic("", message, left[0].span, help, severity="note"))
        return shown

    def to_json(self) -> str:
        """Return a JSON array with one object per diagnostic, for editors and CI."""
        flat = []
        for shown in self._shown():
            item = shown._asdict()
            fix, expected = item.pop("fix"), item.pop("expected")
            if fix:
                item["fix"] = {**fix.span._asdict(), "text": fix.text, "certain": fix.certain}
            if expected:
                item["expected"] = str(expected)
            item["related"] = [
                {**place.span._asdict(), "message": place.message} for place in shown.related
            ]
            flat.append({**item.pop("span")._asdict(), **item})
        return json.dumps(flat, indent=2, ensure_ascii=False)

    def render_text(self, color: bool = False) -> str:
        """Return all diagnostics as text, each with its source line; optionally in ANSI colors."""
        segments = [part for item in self._shown() for part in self._segments(item)]
        if segments:
            segments.append((f"{self.summary()}\n", "bold"))
        if not color:
            return "".join(text for text, _ in segments)
        from rich.console import Console  # slow to import, and only terminals need it
        from rich.text import Text

        console = Console(force_terminal=True, color_system="standard", highlight=False)
        with console.capture() as capture:
            console.print(Text.assemble(*segments), end="", soft_wrap=True)
        return capture.get()

    def print(self, stream: TextIO | None = None) -> None:
        """Write ``render_text`` to ``stream`` (default stderr), in color on a terminal."""
        out = stream or sys.stderr
        out.write(self.render_text(color=out.isatty() and "NO_COLOR" not in os.environ))

    def _segments(self, item: Diagnostic) -> list[tuple[str, str]]:
        """Return the text of one diagnostic as segments, each with its rich style."""
        color = "bold red" if item.severity == "error" else "bold yellow"
        parts = [
            (f"{item.span}: ", "bold"),
            (f"{item.severity}[{item.code}]" if item.code else item.severity, color),
            (f": {item.text}\n", "bold"),
        ]
        parts += self._shown_at(item.span, color)
        for place in item.related:
            parts += [(f"{place.span}: ", "bold"), ("note", "bold green")]
            parts += [(f": {place.message}\n", ""), *self._shown_at(place.span, "bold green")]
        if item.help:
            parts += [("help: ", "bold cyan"), (f"{item.help}\n", "")]
        for note in item.notes:
            parts += [("note: ", "bold green"), (f"{note}\n", "")]
        return parts

    def _shown_at(self, span: Span, color: str) -> list[tuple[str, str]]:
        """Return the segments of the first line of a span, with carets under it."""
        excerpt = self._excerpt(span)
        if excerpt is None:
            return []
        source, indent, carets = excerpt
        margin = " " * max(5, len(str(span.line)))
        return [
            *((f"{span.line:>5} | ", "blue"), (f"{source}\n", "")),
            *((f"{margin} | ", "blue"), (f"{indent}{carets}\n", color)),
        ]

    def _excerpt(self, span: Span) -> tuple[str, str, str] | None:
        """Return the first line of a span, its indentation and its carets, by display width."""
        if span.file not in self._sources:
            try:
                path = Path(span.file)
                raw = path.read_bytes() if path.is_file() else b""  # a pipe never ends
            except OSError:
                raw = b""
            self.add_source(span.file, raw.decode("utf-8-sig", errors="replace"))
        lines = self._sources[span.file].lines
        if not 1 <= span.line <= len(lines) or lines == [""]:
            return None
        line = lines[span.line - 1].rstrip()
        start = min(span.column - 1, len(line))
        end = len(line) if span.end_line > span.line else min(span.end_column - 1, len(line))
        first = 0
        if len(line) > _LINE_LIMIT:  # a long line is shown only around the span
            first = max(0, min(start - _LINE_LIMIT // 4, len(line) - _LINE_LIMIT))
        shown = _CONTROL.sub(" ", line[first : first + _LINE_LIMIT])
        dots = "..." if first else ""
        before, marked = shown[: start - first], shown[start - first : end - first]
        carets = "^" + "~" * (_width(marked) - 1)
        return dots + shown, " " * _width(dots + before), carets


_LINE_LIMIT = 160
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # characters that move the cursor


def _width(text: str) -> int:
    """Return the terminal columns of ``text``: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
