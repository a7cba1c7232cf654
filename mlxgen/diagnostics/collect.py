"""The collector of messages, and how they are shown: as text, in colours, and as JSON.

Every stage reports here and goes on, so that one run shows all mistakes, sorted by position.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from .codes import sections
from .span import Span, Text


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that is wrong, or may be: a code, what it is, where, and what would be right."""

    code: str
    message: str
    span: Span
    help: str | None = None
    notes: tuple[str, ...] = ()
    op: str | None = None
    severity: str = "error"

    @property
    def text(self) -> str:
        """The message with the operator it is about: ``op 'axpby': unknown key 'varients'``."""
        return f"op '{self.op}': {self.message}" if self.op else self.message


def _one_line(message: str) -> str:
    """With the line breaks and the like of names that it quotes as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)


class Diagnostics:
    """Collects what all stages report; the same thing said twice is kept once."""

    def __init__(self) -> None:
        self._items: dict[Diagnostic, None] = {}
        self._sources: dict[str, Text] = {}

    def error(
        self,
        code: str,
        message: str,
        span: Span,
        *,
        help: str | None = None,
        op: str | None = None,
        notes: Sequence[str] = (),
        severity: str = "error",
    ) -> None:
        """Report an error; ``ValueError`` when errors.md does not explain its code."""
        if code not in sections():
            raise ValueError(f"diagnostic code {code!r} is not in errors.md")
        item = Diagnostic(code, _one_line(message), span, help, tuple(notes), op, severity)
        self._items[item] = None

    def warning(self, code: str, message: str, span: Span, **more: Any) -> None:
        """Report, in the same way, what may be right and is probably not; nothing fails for it."""
        self.error(code, message, span, severity="warning", **more)

    def add(self, other: Diagnostics) -> None:
        """Report all that another collector has."""
        self._items |= other._items

    def add_source(self, file: str, text: str) -> None:
        """Keep the text of a file, to be shown under messages (else it is read from the disk)."""
        self._sources[file] = Text(file, text)

    @property
    def ok(self) -> bool:
        """No error so far."""
        return all(item.severity != "error" for item in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def sorted(self) -> list[Diagnostic]:
        """All diagnostics by file and position; where equal, in the order they were reported."""
        return sorted(self._items, key=lambda item: item.span)

    def summary(self) -> str:
        """``2 errors, 1 warning``, or an empty string."""
        counts = Counter(item.severity for item in self.sorted())
        return ", ".join(f"{n} {what}{'s' * (n > 1)}" for what, n in sorted(counts.items()))

    def to_json(self) -> str:
        """A JSON array with one object a diagnostic, for editors and CI."""
        items = [asdict(item) for item in self.sorted()]
        flat = [{**item.pop("span"), **item} for item in items]
        return json.dumps(flat, indent=2, ensure_ascii=False)

    def render_text(self, color: bool = False) -> str:
        """All diagnostics for people, each with its line and carets; with ANSI colours if asked."""
        segments = [part for item in self.sorted() for part in self._segments(item)]
        if segments:
            segments.append((f"{self.summary()}\n", "bold"))
        if not color:
            return "".join(text for text, _ in segments)
        from rich.console import Console  # only terminals need it, and it takes long to import
        from rich.text import Text

        console = Console(force_terminal=True, color_system="standard", highlight=False)
        with console.capture() as capture:
            console.print(Text.assemble(*segments), end="", soft_wrap=True)
        return capture.get()

    def print(self, stream: TextIO | None = None) -> None:
        """Write ``render_text`` to ``stream`` (default stderr), coloured on a terminal."""
        out = stream or sys.stderr
        out.write(self.render_text(color=out.isatty() and "NO_COLOR" not in os.environ))

    def _segments(self, item: Diagnostic) -> list[tuple[str, str]]:
        """The text of one diagnostic in pieces, each with its rich style."""
        color = "bold red" if item.severity == "error" else "bold yellow"
        parts = [
            (f"{item.span}: ", "bold"),
            (f"{item.severity}[{item.code}]", color),
            (f": {item.text}\n", "bold"),
        ]
        if excerpt := self._excerpt(item.span):
            source, indent, carets = excerpt
            parts += [(f"{item.span.line:>5} | ", "blue"), (f"{source}\n", "")]
            margin = " " * max(5, len(str(item.span.line)))
            parts += [(f"{margin} | ", "blue"), (f"{indent}{carets}\n", color)]
        if item.help:
            parts += [("help: ", "bold cyan"), (f"{item.help}\n", "")]
        for note in item.notes:
            parts += [("note: ", "bold green"), (f"{note}\n", "")]
        return parts

    def _excerpt(self, span: Span) -> tuple[str, str, str] | None:
        """The line a span begins in, the blanks before it and its carets, by display width."""
        if span.file not in self._sources:
            try:
                raw = Path(span.file).read_bytes()
            except OSError:
                raw = b""
            self.add_source(span.file, raw.decode("utf-8-sig", errors="replace"))
        lines = self._sources[span.file].lines
        if not 1 <= span.line <= len(lines):
            return None
        line = _CONTROL.sub(" ", lines[span.line - 1]).rstrip()
        start = min(span.column - 1, len(line))
        end = len(line) if span.end_line > span.line else min(span.end_column - 1, len(line))
        shown_from = 0
        if len(line) > _LINE_LIMIT:  # show the part of a long line around the span
            shown_from = max(0, min(start - _LINE_LIMIT // 4, len(line) - _LINE_LIMIT))
            line = line[: shown_from + _LINE_LIMIT]
        before, marked = line[shown_from:start], line[start:end]
        dots = "..." if shown_from else ""
        carets = "^" + "~" * (_width(marked) - 1)
        return dots + line[shown_from:], " " * _width(dots + before), carets


_LINE_LIMIT = 160
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # tabs, and what moves the cursor


def _width(text: str) -> int:
    """Terminal columns of ``text``: wide East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
