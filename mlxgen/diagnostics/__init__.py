"""Errors are the product: how mlxgen says what is wrong, where, and what to write instead.

Every stage reports to one ``Diagnostics`` collector and goes on, so that a run shows all mistakes
at once, sorted by position. A diagnostic has a stable code (``MG104``), which ``CODES`` explains;
``docs/errors.md`` is rendered from it.

Characteristics of this layer:

- A ``Span`` is a place in a file: 1-based lines and columns in characters, the end exclusive. Spans
  of formulas and signatures reach inside the YAML string they stand in (``Entry.text_span``).
- A code that is not in ``CODES`` cannot be reported: nothing is said that nothing explains.
- Text for people (``render_text``), JSON for editors and CI (``to_json``); colours on terminals.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TextIO

Severity = Literal["error", "warning"]

LINE_BREAK = re.compile(r"\r\n|\r|\n")
"""What ends a line for whoever makes spans: less than for ``str.splitlines``, as in editors."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place in a file: 1-based, columns in characters, the end exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


COMMAND_LINE = Span("command line", 0, 0, 0, 0)
"""Where the names stand that options give."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that is wrong: a code, what it is, where, and what would be right."""

    code: str
    message: str
    span: Span
    severity: Severity = "error"
    help: str | None = None
    notes: tuple[str, ...] = ()
    op: str | None = None

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
        self._sources: dict[str, str] = {}
        self._lines: dict[str, list[str]] = {}

    def error(
        self,
        code: str,
        message: str,
        span: Span,
        *,
        help: str | None = None,
        op: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Report an error; ``code`` must be in ``CODES``."""
        self.add(Diagnostic(code, _one_line(message), span, "error", help, tuple(notes), op))

    def warning(
        self,
        code: str,
        message: str,
        span: Span,
        *,
        help: str | None = None,
        op: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Report something that does not stop the generation; ``code`` must be in ``CODES``."""
        self.add(Diagnostic(code, _one_line(message), span, "warning", help, tuple(notes), op))

    def add(self, diagnostic: Diagnostic) -> None:
        """Take in a diagnostic; ``ValueError`` when its code is not explained in ``CODES``."""
        if diagnostic.code not in CODES:
            raise ValueError(f"diagnostic code {diagnostic.code!r} is not in CODES")
        self._items[diagnostic] = None

    def add_source(self, file: str, text: str) -> None:
        """Keep the text of a file, to be shown under messages (else it is read from the disk)."""
        self._sources[file] = text
        self._lines.pop(file, None)

    @property
    def ok(self) -> bool:
        """No error so far (warnings do not count)."""
        return not any(item.severity == "error" for item in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def sorted(self) -> list[Diagnostic]:
        """All diagnostics by file and position; where equal, in the order they were reported."""
        return sorted(self._items, key=lambda item: item.span)

    def summary(self) -> str:
        """``2 errors, 1 warning``, or an empty string."""
        counts = {"error": 0, "warning": 0}
        for item in self._items:
            counts[item.severity] += 1
        return ", ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in counts.items() if n)

    def to_json(self) -> str:
        """A JSON array with one object a diagnostic, for editors and CI."""
        return json.dumps([_flat(item) for item in self.sorted()], indent=2, ensure_ascii=False)

    def render_text(self, color: bool = False) -> str:
        """All diagnostics for people, each with its line and carets; with ANSI colours if asked."""
        segments = [part for item in self.sorted() for part in self._segments(item)]
        if segments:
            segments.append((f"{self.summary()}\n", "bold"))
        return _ansi(segments) if color else "".join(text for text, _ in segments)

    def print(self, stream: TextIO | None = None) -> None:
        """Write ``render_text`` to ``stream`` (default stderr), coloured on a terminal."""
        out = stream or sys.stderr
        out.write(self.render_text(color=out.isatty() and "NO_COLOR" not in os.environ))

    def _segments(self, item: Diagnostic) -> list[tuple[str, str]]:
        """The text of one diagnostic in pieces, each with its rich style."""
        hue = "bold red" if item.severity == "error" else "bold yellow"
        parts = [
            (f"{item.span}: ", "bold"),
            (f"{item.severity}[{item.code}]", hue),
            (f": {item.text}\n", "bold"),
        ]
        excerpt = self._excerpt(item.span)
        if excerpt:
            source, indent, carets = excerpt
            gutter = f"{item.span.line:>5} | "
            parts += [(gutter, "blue"), (f"{source}\n", "")]
            parts += [(" " * (len(gutter) - 2) + "| ", "blue"), (f"{indent}{carets}\n", hue)]
        if item.help:
            parts += [("help: ", "bold cyan"), (f"{item.help}\n", "")]
        for note in item.notes:
            parts += [("note: ", "bold green"), (f"{note}\n", "")]
        return parts

    def _excerpt(self, span: Span) -> tuple[str, str, str] | None:
        """The line a span begins in, the blanks before it and its carets, by display width."""
        lines = self._lines_of(span.file)
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

    def _lines_of(self, file: str) -> list[str]:
        if file not in self._lines:
            if file not in self._sources:
                try:
                    raw = Path(file).read_bytes()
                except OSError:
                    raw = b""
                self._sources[file] = raw.decode("utf-8-sig", errors="replace")
            self._lines[file] = LINE_BREAK.split(self._sources[file])
        return self._lines[file]


_LINE_LIMIT = 160
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # tabs, and what moves the cursor


def suggest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` was probably meant to be, or None: for "did you mean"."""
    by_lower = {candidate.lower(): candidate for candidate in candidates if candidate != word}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`` (did you mean 'variants'?)`` for the end of a message, or an empty text."""
    near = suggest(word, candidates)
    return f" (did you mean '{near}'?)" if near else ""


def _flat(item: Diagnostic) -> dict[str, object]:
    fields = asdict(item)
    return {**fields.pop("span"), **fields}


def _width(text: str) -> int:
    """Terminal columns of ``text``: wide East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(bool(unicodedata.combining(char)) for char in text)


def _ansi(segments: list[tuple[str, str]]) -> str:
    from rich.console import Console  # only terminals need it, and it takes long to import
    from rich.text import Text

    console = Console(force_terminal=True, color_system="standard", highlight=False)
    with console.capture() as capture:
        console.print(Text.assemble(*segments), end="", soft_wrap=True)
    return capture.get()


# -------------------------------------------------------------------------------------------------
# The codes
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Code:
    """What a code means: documented in docs/errors.md, and its examples are tested."""

    title: str
    explanation: str
    example_bad: str
    example_good: str
    language: str = "yaml"


RANGES: dict[str, str] = {
    "MG0": "The YAML text",
    "MG1": "Entry keys and values",
    "MG2": "Signatures",
    "MG3": "Formulas",
    "MG4": "Gradients and transforms",
    "MG5": "Kernels and dispatch",
    "MG6": "Entries against each other",
    "MG7": "Project settings",
    "MG8": "Metal's rules, and macOS",
}

CODES: dict[str, Code] = {
    # ---- MG0: the YAML text ---------------------------------------------------------------------
    "MG001": Code(
        "Not valid YAML",
        "The text cannot be read as YAML; the message says why. The entry it stands in is left "
        "out, and the others are still checked.",
        "- name: 'add\n  signature: array add(const array& a, const array& b)",
        "- name: 'add'\n  signature: array add(const array& a, const array& b)",
    ),
    "MG002": Code(
        "A tab in the indentation",
        "YAML is indented with spaces only.",
        "- name: add\n\tdoc: Adds.",
        "- name: add\n  doc: Adds.",
    ),
    "MG003": Code(
        "A key is given twice",
        "YAML readers silently keep one of the two values. Remove one.",
        "- name: add\n  doc: Adds.\n  doc: Adds two arrays.",
        "- name: add\n  doc: Adds two arrays.",
    ),
    "MG004": Code(
        "Not a list of entries",
        "A file of operators is a plain list, with one entry for each operator.",
        "ops:\n  - name: add",
        "- name: add",
    ),
    "MG005": Code(
        "Several YAML documents",
        "A line `---` within the file begins another document. A file holds one list of entries.",
        "- name: add\n---\n- name: multiply",
        "- name: add\n- name: multiply",
    ),
    "MG006": Code(
        "An entry is not a mapping",
        "An entry has keys and values. Mostly a colon is missing, or the blank after it.",
        "- name:add",
        "- name: add",
    ),
    "MG007": Code(
        "The file cannot be read",
        "It does not exist, may not be read, or is not encoded in UTF-8.",
        "# an editor saved this file in Latin-1",
        "# save it in UTF-8",
    ),
    "MG008": Code(
        "Nested too deeply",
        "An alias stands inside its own anchor, or the text is nested deeper than any entry can "
        "be.",
        "- name: add\n  args: &args\n    x: *args",
        "- name: add\n  args:\n    x: an array",
    ),
    "MG009": Code(
        "A tag",
        "Tags such as `!!set` or `!mine` ask for types that an entry has no use for.",
        "- name: !op add",
        "- name: add",
    ),
    "MG010": Code(
        "YAML reads a word as a boolean",
        "`yes`, `no`, `on` and `off` are booleans in YAML 1.1, where a name or a formula is "
        "meant. In quotes they are texts.",
        "- name: switch\n  grad:\n    on: grad",
        '- name: switch\n  grad:\n    "on": grad',
    ),
    "MG011": Code(
        "A key is not a text",
        "YAML reads the key as a number, a date, a null or a list, and all keys of an entry are "
        "texts.",
        "- name: add\n  args:\n    1: an array",
        "- name: add\n  args:\n    a: an array",
    ),
    "MG012": Code(
        "A key without a value",
        "The value is empty or null. A missing gradient is written `none` (asking for it is an "
        "error) or `zero`. Between `{` and `}` a comma ends the value: there a formula that has "
        "commas stands in quotes.",
        "- name: mask\n  grad:\n    x: where(m, grad, 0)\n    m:",
        "- name: mask\n  grad:\n    x: where(m, grad, 0)\n    m: none",
    ),
    "MG013": Code(
        "A value needs quotes",
        "Some texts mean something in YAML: `: ` within a value begins another value, and `*`, "
        "`@`, `%` and backquotes cannot begin one.",
        "- signature: add(a: array, b: array) -> array",
        '- signature: "add(a: array, b: array) -> array"',
    ),
    "MG014": Code(
        "A merge of something else than a mapping",
        "`<<: *name` takes in the keys of the mapping that is anchored with `&name`.",
        "- name: add\n  <<: elementwise",
        "- &elementwise\n  name: add\n  vmap: elementwise\n- <<: *elementwise\n  name: subtract",
    ),
    # ---- MG1: entry keys and values (schema.py) -------------------------------------------------
    "MG101": Code(
        "Unknown key",
        "Nothing is accepted and ignored. The message has the key that was probably meant; "
        "`mlxgen schema` prints a JSON Schema with which editors complete keys.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  docs: The exponential.',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  doc: The exponential.',
    ),
    "MG102": Code(
        "A value of the wrong type",
        "The message says what the key takes: text, a number, a list or a mapping. Values are "
        "not converted silently.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  aliases: {g: h}',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  aliases: [g, h]',
    ),
    "MG103": Code(
        "A key is missing",
        "A mapping inside an entry lacks a key that it cannot do without.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  checks: [{that: x.ndim > 0}]',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n'
        "  checks: [{that: x.ndim > 0, else: x must have an axis}]",
    ),
    "MG104": Code(
        "Unknown backend",
        "Kernels are given for `cpu` and `metal`.",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {gpu: scale}\n'
        "  grad: {x: a * grad}",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {metal: scale}\n'
        "  grad: {x: a * grad}",
    ),
    "MG105": Code(
        "Not one of the words that a key takes",
        "Tags, variants, parts written by hand and the rules of vmap, jvp and integers are words "
        "of a closed list, which the message shows.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  tags: [elemntwise]',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  tags: [elementwise]',
    ),
    "MG106": Code(
        "Empty, too few or too many",
        "A list or text has nothing in it, or more than it may. What is not needed is left out.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  deprecated: ""',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  deprecated: use exp',
    ),
    "MG107": Code(
        "No name or no signature",
        "Every entry has a signature, and a name in it or beside it.",
        "- name: f\n  composite: exp(x)",
        '- name: f\n  signature: "(x: array) -> array"\n  composite: exp(x)',
    ),
    "MG108": Code(
        "Two signatures",
        "`signature` says everything. `cpp_signature` and `python_signature` stand together, or "
        "one of them alone.",
        '- signature: "f(x: array) -> array"\n  python_signature: "f(x: array) -> array"\n'
        "  composite: exp(x)",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)',
    ),
    "MG109": Code(
        "Two names",
        "The name in the signature is the entry's `name`, or its `python_name`.",
        '- name: f\n  signature: "g(x: array) -> array"\n  composite: exp(x)',
        '- name: g\n  signature: "g(x: array) -> array"\n  composite: exp(x)',
    ),
    "MG110": Code(
        "Not the name of an operator",
        "A name is a C++ function, with a class, a header and a source called after it, and a "
        "Python function in a module with stubs. Reserved words and names that are in use there "
        "cannot be taken; `python_name` gives Python another name than C++.",
        '- name: lambda\n  signature: "(x: array) -> array"\n  composite: exp(x)',
        '- name: lambda_of\n  signature: "(x: array) -> array"\n  composite: exp(x)',
    ),
    "MG111": Code(
        "A key that means nothing here",
        "Some keys are for operators with kernels only: a composite and a bound function take "
        "their shapes, dtypes, jvp and vmap from MLX's functions. `cpp` is for bound functions.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  vmap: elementwise',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)',
    ),
    "MG112": Code(
        "Documentation of something that does not exist",
        "`args` describes arguments of the signature, and `returns` its outputs.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  args: {y: the exponent}',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  args: {x: the exponent}',
    ),
    "MG113": Code(
        "Unknown dtype",
        "Dtypes are those of MLX, `bool_` or `bool` among them, and its categories such as "
        "`floating`.",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  dtypes: [flaot32]\n  grad: {x: a * grad}",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  dtypes: [float32]\n  grad: {x: a * grad}",
    ),
    "MG114": Code(
        "A sample for an argument that does not exist",
        "The keys of a sample are arguments of the signature.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  samples: {y: {low: 0}}',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  samples: {x: {low: 0}}',
    ),
    "MG115": Code(
        "Not a module path",
        "`module` is the submodule of the package in which Python finds the operator: names "
        "joined by dots.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  module: nn/losses',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  module: nn.losses',
    ),
    "MG116": Code(
        "No array argument",
        "Kernels and gradients are of arrays. What makes arrays from numbers is a composite or a "
        "bound function, without `grad`.",
        '- signature: "f(n: int) -> array"\n  composite: arange(n)\n  grad: none',
        '- signature: "f(n: int) -> array"\n  composite: arange(n)',
    ),
    "MG117": Code(
        "A kernel that returns a list of arrays",
        "The number of arrays that a kernel writes is known from its entry. Name them: "
        "`-> (a: array, b: array)`.",
        '- signature: "halves(x: array) -> list[array]"\n  dispatch: {cpu: halves}\n'
        "  shape: x.shape\n  grad: {x: none}",
        '- signature: "halves(x: array) -> list[array]"\n  composite: split(x, 2)',
    ),
    "MG118": Code(
        "What cannot be a method",
        "`variants: [function, method]` makes the operator a method of `mx.array` too. The array "
        "is its first argument, and the name is one that arrays do not have yet.",
        '- signature: "f(a: float, x: array) -> array"\n  composite: a * x\n'
        "  variants: [function, method]",
        '- signature: "f(x: array, a: float) -> array"\n  composite: a * x\n'
        "  variants: [function, method]",
    ),
    "MG119": Code(
        "An internal operator with a place in Python",
        "The tag `internal` keeps an operator out of Python: other entries' formulas call it. It "
        "has no module, alias or method there.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  tags: [internal]\n'
        "  module: special",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  tags: [internal]',
    ),
    "MG120": Code(
        "Dtypes of an argument that does not exist",
        "`dtypes` is a list for all arrays, or a mapping whose keys are array arguments.",
        '- signature: "take_sum(x: array, ids: array) -> array"\n  dispatch: {cpu: take_sum}\n'
        "  shape: x.shape\n  dtypes: {x: floating, id: int32}\n  grad: {x: none, ids: none}",
        '- signature: "take_sum(x: array, ids: array) -> array"\n  dispatch: {cpu: take_sum}\n'
        "  shape: x.shape\n  dtypes: {x: floating, ids: int32}\n  grad: {x: none}",
    ),
    "MG121": Code(
        "Dtypes that contradict each other",
        "Array arguments are promoted to one dtype, so they share one list of dtypes. An argument "
        "with a single dtype is not promoted: it is converted to that dtype.",
        '- signature: "take_sum(x: array, ids: array) -> array"\n  dispatch: {cpu: take_sum}\n'
        "  shape: x.shape\n  dtypes: {x: floating, ids: [int32, int64]}\n"
        "  grad: {x: none, ids: none}",
        '- signature: "take_sum(x: array, ids: array) -> array"\n  dispatch: {cpu: take_sum}\n'
        "  shape: x.shape\n  dtypes: {x: floating, ids: int32}\n  grad: {x: none}",
    ),
    "MG122": Code(
        "A sample that does not fit",
        "The value is not one of the argument's type, or an array that cannot be made: `low` "
        "above `high`, an unknown dtype, values that are no regular table of numbers.",
        '- signature: "f(x: array, a: float) -> array"\n  composite: a * x\n  samples: {a: big}',
        '- signature: "f(x: array, a: float) -> array"\n  composite: a * x\n  samples: {a: 1e3}',
    ),
    "MG123": Code(
        "A sample without a value that is needed",
        "An argument that is no array and has no default needs a value in every sample.",
        '- signature: "f(x: array, a: float) -> array"\n  composite: a * x\n'
        "  samples: {x: {low: 0}}",
        '- signature: "f(x: array, a: float) -> array"\n  composite: a * x\n'
        "  samples: {x: {low: 0}, a: 2}",
    ),
    "MG124": Code(
        "A rule for an output that does not exist",
        "The keys of `shape` and `dtype` are outputs of the signature; one without a name is "
        "called `out`.",
        '- signature: "halves(x: array) -> (low: array, high: array)"\n'
        "  dispatch: {cpu: halves}\n  shape: {low: x.shape, hihg: x.shape}\n  grad: {x: none}",
        '- signature: "halves(x: array) -> (low: array, high: array)"\n'
        "  dispatch: {cpu: halves}\n  shape: {low: x.shape, high: x.shape}\n  grad: {x: none}",
    ),
    "MG125": Code(
        "An output without a shape",
        "An operator whose kernels are not elementwise says the shape of every output.",
        '- signature: "halves(x: array) -> (low: array, high: array)"\n'
        "  dispatch: {cpu: halves}\n  shape: {low: x.shape}\n  grad: {x: none}",
        '- signature: "halves(x: array) -> (low: array, high: array)"\n'
        "  dispatch: {cpu: halves}\n  shape: x.shape\n  grad: {x: none}",
    ),
    "MG126": Code(
        "A dtype that the kernel cannot have",
        "An elementwise kernel computes in the dtype of its inputs. A kernel over whole arrays "
        "is compiled for each dtype of its inputs, so that an output's dtype is a name, or the "
        "dtype of an argument.",
        '- signature: "halves(x: array) -> (low: array, high: array)"\n'
        "  dispatch: {cpu: halves}\n  shape: x.shape\n"
        "  dtype: float32 if x.ndim > 1 else x.dtype\n  grad: {x: none}",
        '- signature: "halves(x: array) -> (low: array, high: array)"\n'
        "  dispatch: {cpu: halves}\n  shape: x.shape\n  dtype: x.dtype\n  grad: {x: none}",
    ),
    "MG127": Code(
        "The same thing twice in a list",
        "Tags, aliases, variants, dtypes, parts and outputs are listed once.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  tags: [nn, nn]',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  tags: [nn]',
    ),
    "MG128": Code(
        "Not the name of a C++ function",
        "`cpp` names a function, with its namespace: `mlx::core::linalg::norm`, or one of the "
        "hand-written sources. A formula goes under `composite`.",
        '- signature: "f(x: array) -> array"\n  cpp: mlx::core::exp(x)',
        '- signature: "f(x: array) -> array"\n  cpp: mlx::core::exp',
    ),
    "MG129": Code(
        "What integers become",
        "`integers: float32` converts integer inputs to float32, `keep` leaves them as they are, "
        "and `error` refuses them. The kernels must take what comes out.",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  dtypes: [float16]\n  integers: float32\n  grad: {x: a * grad}",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  dtypes: [float16, float32]\n  integers: float32\n  grad: {x: a * grad}",
    ),
    # ---- MG2: signatures ------------------------------------------------------------------------
    "MG201": Code(
        "The signature cannot be understood",
        "A signature is written as in C++ (`array f(const array& x, float a = 1)`), as in Python "
        "(`f(x: array, a: float = 1.0) -> array`) or as in torch (`f(Tensor x, float a=1) -> "
        "Tensor`). The message says what was expected at this place.",
        '- signature: "f(x: array; y: array) -> array"',
        '- signature: "f(x: array, y: array) -> array"',
    ),
    "MG202": Code(
        "The spelling of another language",
        "`cpp_signature` takes the C++ spelling and `python_signature` the Python one; "
        "`signature` takes all three.",
        '- python_signature: "array f(const array& x)"',
        '- signature: "array f(const array& x)"',
    ),
    "MG203": Code(
        "Not a type of an argument",
        "Arguments are arrays, optional arrays, lists of arrays, floats, ints, booleans, strings, "
        "enumerated strings, lists of ints, shapes, axes, dtypes, and optionals of the last nine.",
        '- signature: "f(x: ndarray, n: int | list[int]) -> array"',
        '- signature: "f(x: array, n: list[int]) -> array"',
    ),
    "MG204": Code(
        "A name is used twice",
        "Arguments and outputs have different names, since formulas and kernels name both.",
        '- signature: "f(x: array, x: array) -> array"',
        '- signature: "f(x: array, y: array) -> array"',
    ),
    "MG205": Code(
        "An argument without default after one with",
        "Neither C++ nor Python allows it for arguments that are given by position.",
        '- signature: "f(x: array, a: float = 1.0, y: array) -> array"',
        '- signature: "f(x: array, y: array, a: float = 1.0) -> array"',
    ),
    "MG206": Code(
        "The default does not fit the type",
        "A default is a literal of the argument's type; `None` is one of optional types only.",
        '- signature: "f(x: array, n: int = 1.5) -> array"',
        '- signature: "f(x: array, n: int = 1) -> array"',
    ),
    "MG207": Code(
        "Not a name",
        "Names of operators, arguments and outputs are used in C++ and in Python, so that "
        "neither's reserved words can be names, nor words with a leading or double underscore, "
        "which C++ keeps for itself.",
        '- signature: "f(x: array, lambda: float) -> array"',
        '- signature: "f(x: array, lambd: float) -> array"',
    ),
    "MG208": Code(
        "A name that has a meaning already",
        "Formulas and generated code use some names themselves, `grad`, `result` and `stream` "
        "among them. An argument needs another.",
        '- signature: "f(x: array, grad: array) -> array"',
        '- signature: "f(x: array, slope: array) -> array"',
    ),
    "MG209": Code(
        "What an operator cannot return",
        "An operator returns one array, several (`tuple[array, array]`, with names `(sin: array, "
        "cos: array)`, `std::pair<array, array>`), or one list of arrays.",
        '- signature: "f(x: array) -> (array, int)"',
        '- signature: "f(x: array) -> (array, array)"',
    ),
    "MG210": Code(
        "The default of an array",
        "There are no array literals. An array that may be left out is optional, with the default "
        "`None`.",
        '- signature: "f(x: array, weight: array = 1) -> array"',
        '- signature: "f(x: array, weight: array | None = None) -> array"',
    ),
    "MG211": Code(
        "The strings of an enumerated string",
        "It has one string or more, none of them twice, and its default is one of them.",
        '- signature: \'f(x: array, mode: Literal["sum", "mean"] = "man") -> array\'',
        '- signature: \'f(x: array, mode: Literal["sum", "mean"] = "mean") -> array\'',
    ),
    "MG212": Code(
        "A type or a name is missing",
        "Every argument has both. In the C++ spelling all names may be left out together: the "
        "arguments then have the names of `python_signature`, or are called a, b, c. Outputs have "
        "names all or none.",
        '- signature: "f(x, y) -> array"',
        '- signature: "f(x: array, y: array) -> array"',
    ),
    "MG213": Code(
        "Writing to an argument",
        "MLX's arrays are immutable: operators return new ones. torch's aliases (`Tensor(a!)`) "
        "and non-const references have no counterpart.",
        '- signature: "add_(Tensor(a!) x, Tensor y) -> Tensor(a!)"',
        '- signature: "add(Tensor x, Tensor y) -> Tensor"',
    ),
    "MG214": Code(
        "A variable number of arguments",
        "`*args` and `**kwargs` have no counterpart in C++. A list of arrays has.",
        '- signature: "concat(*arrays: array) -> array"',
        '- signature: "concat(arrays: list[array]) -> array"',
    ),
    "MG215": Code(
        "A misplaced `*`",
        "`*` stands once, before the arguments that are given by keyword only.",
        '- signature: "f(x: array, *) -> array"',
        '- signature: "f(x: array, *, a: float = 1.0) -> array"',
    ),
    "MG216": Code(
        "The stream is not the last argument",
        "Every operator takes a stream as its last argument. It may be written there, and need "
        "not.",
        '- signature: "f(x: array, stream: StreamOrDevice, y: array) -> array"',
        '- signature: "f(x: array, y: array) -> array"',
    ),
    "MG217": Code(
        "Too many arguments without names",
        "Arguments of a nameless C++ signature are called by single letters, of which there are "
        "not enough.",
        "- signature: array(" + ", ".join(["const array&"] * 26) + ")",
        '- signature: "array(const array& x0, const array& x1)"',
    ),
    "MG218": Code(
        "cpp_signature and python_signature disagree",
        "They describe one function: the same number of arguments in the same order, of the same "
        "types and with the same names and defaults where both give them.",
        '- cpp_signature: "array(const array&, float)"\n'
        '  python_signature: "f(x: array, n: int) -> array"',
        '- cpp_signature: "array(const array&, int)"\n'
        '  python_signature: "f(x: array, n: int) -> array"',
    ),
    # ---- MG3: formulas (formula.py) -------------------------------------------------------------
    "MG301": Code(
        "Not a Python expression",
        "A formula is one Python expression. Conditions are written `a if c else b`, `and`, "
        "`or`, `not`, and several lines need no backslash.",
        "- name: f\n  signature: array f(const array& x)\n  composite: exp(x",
        "- name: f\n  signature: array f(const array& x)\n  composite: exp(x)",
    ),
    "MG302": Code(
        "Not part of the language of formulas",
        "Formulas have operators, comparisons, calls, attributes, indices, conditional "
        "expressions, tuples, lists and comprehensions with one `for`. There are no statements, "
        "lambdas, dicts or f-strings.",
        '- name: f\n  signature: array f(const array& x)\n  composite: "(lambda a: exp(a))(x)"',
        "- name: f\n  signature: array f(const array& x)\n  composite: exp(x)",
    ),
    "MG303": Code(
        "Unknown name",
        "A formula knows the arguments of its entry, MLX's dtypes and the constants pi, e, inf "
        "and nan; a gradient also knows grad, grads, result and results.",
        "- name: f\n  signature: array f(const array& x)\n  composite: exp(z)",
        "- name: f\n  signature: array f(const array& x)\n  composite: exp(x)",
    ),
    "MG304": Code(
        "Unknown function",
        "A formula can call MLX's functions, as in `exp(x)`, `mx.exp(x)` or `linalg.norm(x)`, "
        "and the other entries by their Python names.",
        "- name: f\n  signature: array f(const array& x)\n  composite: expp(x)",
        "- name: f\n  signature: array f(const array& x)\n  composite: exp(x)",
    ),
    "MG305": Code(
        "A function that formulas cannot call",
        "Some functions of mlx.core take Python functions, read files or evaluate, or exist in "
        "Python only; the message says which it is.",
        "- name: f\n  signature: array f(const array& x)\n  composite: vmap(x)",
        "- name: f\n  signature: array f(const array& x)\n  composite: exp(x)",
    ),
    "MG306": Code(
        "Wrong arguments",
        "The number, names or kinds (positional only, keyword only) of the arguments do not fit "
        "the function, whose signature is the one in MLX's documentation.",
        '- name: f\n  signature: array f(const array& x)\n  composite: "sum(x, axes=-1)"',
        '- name: f\n  signature: array f(const array& x)\n  composite: "sum(x, axis=-1)"',
    ),
    "MG307": Code(
        "An argument of the wrong kind",
        "The function takes something else there, such as an int rather than an array. What C++ "
        "needs when the graph is built (shapes, axes, dtypes) cannot be an array.",
        '- name: f\n  signature: array f(const array& x)\n  composite: "sum(x, axis=0.5)"',
        '- name: f\n  signature: array f(const array& x)\n  composite: "sum(x, axis=0)"',
    ),
    "MG308": Code(
        "Operands that do not go together",
        "Operators join arrays with arrays and numbers, numbers with numbers, and lists with "
        "lists.",
        "- name: f\n  signature: array f(const array& x)\n  composite: \"x + 'a'\"",
        "- name: f\n  signature: array f(const array& x)\n  composite: x + 1",
    ),
    "MG309": Code(
        "Unknown attribute or method",
        "Arrays have the attributes shape, ndim, size, dtype, T, mT, itemsize, nbytes, real and "
        "imag, and the methods that they have in Python, except those that need their values.",
        "- name: f\n  signature: array f(const array& x)\n  composite: x.item()",
        "- name: f\n  signature: array f(const array& x)\n  composite: x.sum()",
    ),
    "MG310": Code(
        "An index that cannot be",
        "Arrays are indexed by ints, slices, None, `...`, or one array of ints; lists and "
        "shapes by ints and slices.",
        '- name: f\n  signature: array f(const array& x)\n  composite: "x[1.5]"',
        '- name: f\n  signature: array f(const array& x)\n  composite: "x[1]"',
    ),
    "MG311": Code(
        "An argument that may be None",
        "The argument is optional, and what uses it needs a value. Decide with `is not None` "
        "first; in the branch where that holds, the argument counts as given.",
        "- name: f\n  signature: array f(const array& x, const std::optional<array>& w)\n"
        '  composite: "x * w"',
        "- name: f\n  signature: array f(const array& x, const std::optional<array>& w)\n"
        '  composite: "x * w if w is not None else x"',
    ),
    "MG312": Code(
        "Not a condition, or branches that differ",
        "A condition is a bool that is known when the graph is built: of shapes, dtypes and "
        "attributes. Both branches of `a if c else b` give the same kind. Decisions on values "
        "of arrays are made by `where`.",
        '- name: f\n  signature: array f(const array& x)\n  composite: "x if x > 0 else -x"',
        '- name: f\n  signature: array f(const array& x)\n  composite: "where(x > 0, x, -x)"',
    ),
    "MG313": Code(
        "A result of the wrong kind",
        "Composites and gradients give arrays, `shape` a tuple of ints, `dtype` a dtype, checks "
        "a condition, launch geometry ints. A number is made an array by `full_like(x, 2)`.",
        "- name: f\n  signature: array f(const array& x)\n  composite: 2",
        '- name: f\n  signature: array f(const array& x)\n  composite: "full_like(x, 2)"',
    ),
    "MG314": Code(
        "The wrong number of arrays",
        "The formula gives another number of arrays than there are outputs, or arguments that "
        "share it.",
        '- name: f\n  signature: "f(x: array) -> tuple[array, array]"\n  composite: "split(x, 3)"',
        '- name: f\n  signature: "f(x: array) -> tuple[array, array]"\n  composite: "split(x, 2)"',
    ),
    "MG315": Code(
        "An array is computed where none can be",
        "Shapes, dtypes, checks and launch geometry follow from the shapes, dtypes and "
        "attributes of the arguments; nothing is computed for them.",
        "- name: f\n  signature: array f(const array& x)\n  composite: exp(x)\n  checks:\n"
        '    - that: "sum(x) > 0"\n      else: The sum must be positive.',
        "- name: f\n  signature: array f(const array& x)\n  composite: exp(x)\n  checks:\n"
        '    - that: "x.ndim > 0"\n      else: It must have an axis.',
    ),
    "MG316": Code(
        "A string that is none of the choices",
        "The argument is an enumeration, or one that MLX documents as such.",
        '- name: f\n  signature: \'array f(const array& x, enum("fast", "exact") mode)\'\n'
        "  composite: \"x if mode == 'fats' else exp(x)\"",
        '- name: f\n  signature: \'array f(const array& x, enum("fast", "exact") mode)\'\n'
        "  composite: \"x if mode == 'fast' else exp(x)\"",
    ),
    "MG317": Code(
        "A constant out of range",
        "Ints have 64 bits, floats are finite (write inf), strings are printable ASCII.",
        '- name: f\n  signature: array f(const array& x)\n  composite: "x * 1e999"',
        '- name: f\n  signature: array f(const array& x)\n  composite: "x * inf"',
    ),
    "MG318": Code(
        "A formula that is too large",
        "Formulas have at most 10,000 characters, 100 nested parts and 40,000 characters of "
        "C++. Parts can be entries of their own.",
        "- name: f\n  signature: array f(const array& x)\n  composite: " + "-" * 120 + "x",
        '- name: f\n  signature: array f(const array& x)\n  composite: "-x"',
    ),
    "MG319": Code(
        "A comparison with None that decides nothing",
        "The argument is never None here, or always; the condition can go.",
        "- name: f\n  signature: array f(const array& x)\n  composite: x if x is not None else 0",
        "- name: f\n  signature: array f(const array& x)\n  composite: x",
    ),
    "MG320": Code(
        "A name that has a meaning already",
        "An argument has the name of a function that the formula calls, or a loop variable that "
        "of an argument.",
        '- name: f\n  signature: array f(const array& x, float sum)\n  composite: "sum(x) * sum"',
        "- name: f\n  signature: array f(const array& x, float sum)\n"
        '  composite: "mx.sum(x) * sum"',
    ),
    "MG321": Code(
        "A random number without a key",
        "MLX's default key is kept in Python, where `mx.random.seed` sets it, and generated C++ "
        "does not see it.",
        "- name: f\n  signature: array f(const array& x)\n"
        '  composite: "x * random.bernoulli(0.5, x.shape)"',
        "- name: f\n  signature: array f(const array& x, const array& key)\n"
        '  composite: "x * random.bernoulli(0.5, x.shape, key)"',
    ),
    # ---- MG4: gradients and transforms (resolve.py) ---------------------------------------------
    "MG401": Code(
        "The gradient of an argument that does not exist",
        "The keys of `grad` are array arguments, or several of them with commas: `x, y`.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  grad: {y: grad * result}',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  grad: {x: grad * result}',
    ),
    "MG402": Code(
        "The gradient of something that has none",
        "Gradients exist for arrays of real or complex numbers: not for numbers, strings and "
        "shapes, nor for arrays of integers.",
        '- signature: "f(x: array, a: float) -> array"\n  composite: a * x\n'
        "  grad: {x: a * grad, a: sum(grad)}",
        '- signature: "f(x: array, a: float) -> array"\n  composite: a * x\n  grad: {x: a * grad}',
    ),
    "MG403": Code(
        "A gradient is missing",
        "A missing gradient is never taken to be zero. Every array argument of an operator with "
        "kernels has a formula, `none` (not differentiable: asking for it is an error) or `zero`, "
        "unless a `composite` says what the operator computes, from which gradients follow.",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}',
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  grad: {x: a * grad}",
    ),
    "MG404": Code(
        "Two gradients for one argument",
        "An argument stands in one key of `grad`, alone or with others.",
        '- signature: "f(x: array, y: array) -> array"\n  composite: x * y\n'
        '  grad: {x: grad * y, "x, y": "(grad * y, grad * x)"}',
        '- signature: "f(x: array, y: array) -> array"\n  composite: x * y\n'
        '  grad: {"x, y": "(grad * y, grad * x)"}',
    ),
    "MG405": Code(
        "Said in the entry and written by hand",
        "A part listed under `manual` is defined in the hand-written sources; what the entry says "
        "about it would be ignored.",
        '- signature: "by_hand(x: array) -> array"\n  dispatch: {cpu: square}\n'
        "  grad: {x: 2 * x * grad}\n  manual: [vjp]",
        '- signature: "by_hand(x: array) -> array"\n  dispatch: {cpu: square}\n'
        "  grad: {x: 2 * x * grad}",
    ),
    "MG406": Code(
        "A list of arrays beside other arguments in one gradient",
        "A formula for several arguments gives one array for each. The gradient of a list is a "
        "list of its own.",
        '- signature: "f(xs: list[array], y: array) -> array"\n  composite: xs[0] * y\n  grad:\n'
        "    xs, y: (xs, y)",
        '- signature: "f(xs: list[array], y: array) -> array"\n  composite: xs[0] * y\n  grad:\n'
        '    xs: "[zeros_like(x) for x in xs]"\n    y: sum(grad * xs[0])',
    ),
    "MG407": Code(
        "`grad` of several outputs",
        "An operator with several outputs has one cotangent for each: `grad_sin`, or `grads[0]`.",
        '- signature: "f(x: array) -> (a: array, b: array)"\n  composite: (x, 2 * x)\n'
        "  grad: {x: grad}",
        '- signature: "f(x: array) -> (a: array, b: array)"\n  composite: (x, 2 * x)\n'
        "  grad: {x: grad_a + 2 * grad_b}",
    ),
    "MG408": Code(
        "A jvp that cannot be had from the gradient",
        "`jvp: elementwise` puts the tangent in the place of the cotangent. That is right for an "
        "elementwise operator with one output and a formula for every argument.",
        '- signature: "total(x: array) -> array"\n  dispatch: {cpu: total}\n  shape: ()\n  grad:\n'
        "    x: full(x.shape, grad)\n  jvp: elementwise",
        '- signature: "total(x: array) -> array"\n  dispatch: {cpu: total}\n  shape: ()\n  grad:\n'
        "    x: full(x.shape, grad)\n  jvp: linear",
    ),
    "MG409": Code(
        "The jvp of an argument that does not exist",
        "The keys of `jvp` are array arguments; each formula says what the argument's `tangent` "
        "adds to the outputs' tangents.",
        '- signature: "f(x: array) -> array"\n  dispatch: {cpu: square}\n'
        "  grad: {x: 2 * x * grad}\n  jvp: {y: 2 * x * tangent}",
        '- signature: "f(x: array) -> array"\n  dispatch: {cpu: square}\n'
        "  grad: {x: 2 * x * grad}\n  jvp: {x: 2 * x * tangent}",
    ),
    "MG410": Code(
        "The jvp of a list of arrays",
        "A list has no formula in `jvp`. Without `jvp` it follows from the gradient.",
        '- signature: "join(xs: list[array]) -> array"\n  dispatch: {cpu: join}\n'
        '  shape: xs[0].shape\n  grad: {xs: "[grad for x in xs]"}\n  jvp: {xs: tangent}',
        '- signature: "join(xs: list[array]) -> array"\n  dispatch: {cpu: join}\n'
        '  shape: xs[0].shape\n  grad: {xs: "[grad for x in xs]"}',
    ),
    "MG411": Code(
        "A vmap that does not fit",
        "`vmap: elementwise` is for kernels without a `shape` rule. `batch` is for kernels that "
        "treat leading axes as a batch, and `sequential` calls the kernel for one after the other.",
        '- signature: "total(x: array) -> array"\n  dispatch: {cpu: total}\n  shape: ()\n  grad:\n'
        "    x: full(x.shape, grad)\n  vmap: elementwise",
        '- signature: "total(x: array) -> array"\n  dispatch: {cpu: total}\n  shape: ()\n  grad:\n'
        "    x: full(x.shape, grad)\n  vmap: sequential",
    ),
    "MG412": Code(
        "A jvp is missing",
        "`jvp` has a formula for every argument that has a gradient, or `none`: asking for it is "
        "an error. Without `jvp` the rule is derived from the gradient, which is exact.",
        '- signature: "f(x: array, y: array) -> array"\n  dispatch: {cpu: plus}\n'
        "  grad: {x: grad, y: grad}\n  jvp: {x: tangent}",
        '- signature: "f(x: array, y: array) -> array"\n  dispatch: {cpu: plus}\n'
        "  grad: {x: grad, y: grad}\n  jvp: {x: tangent, y: tangent}",
    ),
    # ---- MG5: kernels and dispatch (cxx.py, resolve.py) -----------------------------------------
    "MG501": Code(
        "Hand-written C++ or Metal that cannot be read",
        "The generator reads the declarations of the kernels, and does not guess where it cannot. "
        "Kernels of the file are not looked for in the meantime.",
        "template <typename T>\nT scale(T x, T a {\n  return a * x;\n}",
        "template <typename T>\nT scale(T x, T a) {\n  return a * x;\n}",
        "cpp",
    ),
    "MG502": Code(
        "No such kernel",
        "`dispatch` names a function of the C++ sources (cpu), or a function or `[[kernel]]` of "
        "the .metal files (metal). The message shows a declaration that would fit.",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scael}\n'
        "  grad: {x: a * grad}",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  grad: {x: a * grad}",
    ),
    "MG503": Code(
        "A kernel that does not fit the entry",
        "Its parameters are not the arguments and outputs of the signature, in number, order or "
        "type. An elementwise kernel is a function of numbers; any other is a function of views "
        "on the CPU, and a `[[kernel]]` on Metal whose buffers are named after what they hold.",
        '- signature: "scale(x: array, a: float, b: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  grad: {x: a * grad}",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  grad: {x: a * grad}",
    ),
    "MG504": Code(
        "An argument that kernels cannot take",
        "An elementwise kernel is called with one number of each array: it takes neither lists, "
        "optional arrays or arrays of a dtype of their own, nor strings, shapes and optional "
        "numbers. With a `shape` rule the kernel is a function of whole arrays, which takes most "
        "of them.",
        '- signature: "scale(x: array, a: float | None) -> array"\n  dispatch: {cpu: scale}\n'
        "  grad: {x: grad}",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  grad: {x: a * grad}",
    ),
    "MG505": Code(
        "A launch where nothing is launched",
        "`grid`, `threadgroup`, `constants` and `zero` are for `[[kernel]]`s on Metal. A CPU "
        "kernel has none of them, and the launch around a scalar function is generated.",
        '- signature: "scale(x: array, a: float) -> array"\n'
        "  dispatch: {cpu: {kernel: scale, grid: [x.size]}}\n  grad: {x: a * grad}",
        '- signature: "scale(x: array, a: float) -> array"\n'
        "  dispatch: {cpu: scale}\n  grad: {x: a * grad}",
    ),
    "MG506": Code(
        "A `[[kernel]]` without a grid",
        "The entry says how many threads run a `[[kernel]]`: one to three formulas of ints.",
        '- signature: "total(x: array) -> array"\n  dispatch: {metal: total}\n  shape: ()\n'
        "  grad:\n    x: full(x.shape, grad)",
        '- signature: "total(x: array) -> array"\n'
        "  dispatch: {metal: {kernel: total, grid: [32]}}\n  shape: ()\n  grad:\n"
        "    x: full(x.shape, grad)",
    ),
    "MG507": Code(
        "Zeros for an output that does not exist",
        "`zero` lists outputs that are filled with zeros before the launch; one without a name is "
        "called `out`.",
        '- signature: "total(x: array) -> array"\n'
        "  dispatch: {metal: {kernel: total, grid: [32], zero: [x]}}\n  shape: ()\n  grad:\n"
        "    x: full(x.shape, grad)",
        '- signature: "total(x: array) -> array"\n'
        "  dispatch: {metal: {kernel: total, grid: [32], zero: [out]}}\n  shape: ()\n  grad:\n"
        "    x: full(x.shape, grad)",
    ),
    "MG508": Code(
        "A constant that the kernel does not take",
        "`constants` gives ints to parameters of the `[[kernel]]` that are not called after an "
        "argument or output.",
        '- signature: "total(x: array) -> array"\n'
        "  dispatch: {metal: {kernel: total, grid: [32], constants: {rows: x.ndim}}}\n"
        "  shape: ()\n  grad:\n    x: full(x.shape, grad)",
        '- signature: "total(x: array) -> array"\n'
        "  dispatch: {metal: {kernel: total, grid: [32]}}\n  shape: ()\n  grad:\n"
        "    x: full(x.shape, grad)",
    ),
    "MG509": Code(
        "A `[[kernel]]` that is not instantiated",
        "A template is instantiated for every dtype that the entry allows and Metal has, under "
        "the host name `<kernel>_<dtype>`. The message has the line to add.",
        '- signature: "half_total(x: array) -> array"\n'
        "  dispatch: {metal: {kernel: half_total, grid: [32]}}\n  shape: ()\n  grad: none",
        '- signature: "half_total(x: array) -> array"\n'
        "  dispatch: {metal: {kernel: half_total, grid: [32]}}\n  shape: ()\n  dtypes: float16\n"
        "  grad: none",
    ),
    "MG510": Code(
        "What cannot be bound",
        "An entry without `dispatch` and `composite` binds a function of MLX's C++ API, "
        "`mlx::core::<name>` or what `cpp` names. There is none, or it does not take the "
        "arguments of the signature.",
        '- signature: "f(x: array) -> array"\n  cpp: mlx::core::expp',
        '- signature: "f(x: array) -> array"\n  cpp: mlx::core::exp',
    ),
    "MG511": Code(
        "No such C++ function",
        "A function that the entry names is declared in a header of the hand-written sources.",
        '- signature: "f(x: array) -> array"\n  cpp: my::twise',
        '- signature: "f(x: array) -> array"\n  cpp: my::twice',
    ),
    "MG512": Code(
        "A C++ function that does not fit",
        "A bound function takes the signature's arguments and a stream. A gradient function takes "
        "the arguments, the cotangents, the outputs and a stream, and returns one array for each "
        "gradient. The message shows the declaration.",
        '- signature: "f(x: array, a: float) -> array"\n  cpp: my::twice',
        '- signature: "f(x: array) -> array"\n  cpp: my::twice',
    ),
    "MG513": Code(
        "A part by hand that is not there",
        "What `manual` lists is defined in the hand-written sources, as a member of the "
        "operator's class.",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  manual: [vjp]",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
        "  grad: {x: a * grad}",
    ),
    "MG514": Code(
        "Several functions of one name",
        "Functions of that name stand in several namespaces. Write the namespace: `cpu::scale`.",
        '- signature: "f(x: array) -> array"\n  dispatch: {cpu: twin}\n  grad: {x: grad}',
        '- signature: "f(x: array) -> array"\n  dispatch: {cpu: one::twin}\n  grad: {x: grad}',
    ),
    "MG515": Code(
        "No dtype left",
        "The kernel runs for none of the dtypes that the entry allows: Metal has neither float64 "
        "nor complex numbers, and functions that are no templates compute in their own types.",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {metal: scale}\n'
        "  dtypes: [float64]\n  grad: {x: a * grad}",
        '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {metal: scale}\n'
        "  dtypes: [float32]\n  grad: {x: a * grad}",
    ),
    "MG516": Code(
        "A function that is generated and written by hand",
        "The sources define a function of the operator's name, namespace and arguments, which "
        "generated code defines as well.",
        '- signature: "generated(x: array) -> array"\n  composite: exp(x)',
        '- signature: "g(x: array) -> array"\n  composite: exp(x)',
    ),
    "MG517": Code(
        "A launch that Metal refuses",
        "A grid has threads in every direction, and a threadgroup 1 to 1024 of them in all.",
        '- signature: "total(x: array) -> array"\n'
        "  dispatch: {metal: {kernel: total, grid: [32], threadgroup: [64, 32]}}\n  shape: ()\n"
        "  grad: none",
        '- signature: "total(x: array) -> array"\n'
        "  dispatch: {metal: {kernel: total, grid: [32], threadgroup: [32, 32]}}\n  shape: ()\n"
        "  grad: none",
    ),
    # ---- MG6: entries against each other (resolve.py) -------------------------------------------
    "MG601": Code(
        "An operator is defined twice",
        "Every name stands for one operator: there are no overloads. Optional arguments, defaults "
        "and enumerated strings say the same.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n'
        '- signature: "f(x: array, y: array) -> array"\n  composite: x * y',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n'
        '- signature: "g(x: array, y: array) -> array"\n  composite: x * y',
    ),
    "MG602": Code(
        "Two operators with one name in C++",
        "An operator has a class (`rms_norm` has `RmsNorm`), files and helper functions named "
        "after it, and another would have the same.",
        '- signature: "rms_norm(x: array) -> array"\n  composite: exp(x)\n'
        '- signature: "rmsNorm(x: array) -> array"\n  composite: exp(x)',
        '- signature: "rms_norm(x: array) -> array"\n  composite: exp(x)\n'
        '- signature: "rms_norm2(x: array) -> array"\n  composite: exp(x)',
    ),
    "MG603": Code(
        "Two operators with one name in Python",
        "Names in Python are `python_name`, or else `name`, and `aliases`, each in its `module`.",
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n'
        '- signature: "g(x: array) -> array"\n  composite: exp(x)\n  aliases: [f]',
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n'
        '- signature: "g(x: array) -> array"\n  composite: exp(x)\n  aliases: [h]',
    ),
    "MG604": Code(
        "An operator called like a submodule",
        "A package cannot have a function and a submodule of one name.",
        '- signature: "nn(x: array) -> array"\n  composite: exp(x)\n'
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  module: nn',
        '- signature: "g(x: array) -> array"\n  composite: exp(x)\n'
        '- signature: "f(x: array) -> array"\n  composite: exp(x)\n  module: nn',
    ),
    "MG605": Code(
        "Composites in a circle",
        "A composite that calls itself, directly or through others, never ends. In a formula, "
        "`exp(x)` is the file's own `exp` if there is one, and `mx.exp(x)` always MLX's.",
        '- signature: "exp(x: array) -> array"\n  composite: exp(x)',
        '- signature: "exp(x: array) -> array"\n  composite: mx.exp(x)',
    ),
    "MG606": Code(
        "No such operator or tag",
        "`--select` and `--exclude` take names of operators, and tags as `tag:special`.",
        "mlxgen check --select lgama",
        "mlxgen check --select lgamma",
        "sh",
    ),
    "MG607": Code(
        "The output cannot be written",
        "The output folder, or a file in it, cannot be made or replaced.",
        "mlxgen generate --output README.md",
        "mlxgen generate --output build/generated",
        "sh",
    ),
    # ---- MG7: project settings (the [tool.mlxgen] table) ----------------------------------------
    "MG701": Code(
        "pyproject.toml cannot be read",
        "A project is a folder with a pyproject.toml. Run mlxgen in that folder, or name it with "
        "--project.",
        "# no such file",
        '[project]\nname = "mlxops"\nversion = "0.1.0"',
        "toml",
    ),
    "MG702": Code(
        "pyproject.toml is not valid TOML",
        "The message is the TOML parser's.",
        "[project]\nname = mlxops",
        '[project]\nname = "mlxops"',
        "toml",
    ),
    "MG703": Code(
        "Unknown setting",
        "The table [tool.mlxgen] has the keys name, namespace, yaml, csrc, metal, python and docs.",
        '[tool.mlxgen]\nnamspace = "mlxops"',
        '[tool.mlxgen]\nnamespace = "mlxops"',
        "toml",
    ),
    "MG704": Code(
        "A setting has the wrong type",
        "[tool.mlxgen] is a table; all its settings are texts, and none may be empty.",
        '[tool.mlxgen]\ncsrc = ["csrc"]',
        '[tool.mlxgen]\ncsrc = "csrc"',
        "toml",
    ),
    "MG705": Code(
        "Not a valid name",
        "`name` is imported in Python and names the library; `namespace` is a C++ namespace, "
        "which may be nested with `::`. The names mlx, mlxgen and nanobind are taken. Without the "
        "setting, the distribution's name is used.",
        '[tool.mlxgen]\nname = "my ops"',
        '[tool.mlxgen]\nname = "my_ops"',
        "toml",
    ),
    "MG706": Code(
        "A file of the project is missing",
        "The file with the operators (`yaml`) and the importable package (`python`) must exist.",
        '[tool.mlxgen]\nyaml = "ops/no_such_file.yaml"',
        '[tool.mlxgen]\nyaml = "mlx_ops.yaml"',
        "toml",
    ),
    "MG707": Code(
        "The package's folder and name differ",
        "The importable package is the folder `python`, so its last part is the package's `name`.",
        '[tool.mlxgen]\nname = "mlxops"\npython = "python/ops"',
        '[tool.mlxgen]\nname = "mlxops"\npython = "python/mlxops"',
        "toml",
    ),
    "MG708": Code(
        "A path outside of the project",
        "Paths are relative to pyproject.toml and stay in its folder, so that a source "
        "distribution is complete.",
        '[tool.mlxgen]\ncsrc = "../csrc"',
        '[tool.mlxgen]\ncsrc = "csrc"',
        "toml",
    ),
    "MG709": Code(
        "MLX is not pinned to one release",
        "A package is compiled against one release of MLX, whose C++ interface changes even "
        "between patch releases; its dependencies must therefore say which one. `mlx[cpu]` brings "
        "the backend on Linux and is plain mlx on macOS.",
        '[project]\ndependencies = ["mlx>=0.30"]',
        '[project]\ndependencies = ["mlx[cpu]==0.32.4"]',
        "toml",
    ),
    # ---- MG8: Metal's rules (emulator/rules.py) and macOS (emulator/host.py) --------------------
    "MG801": Code(
        "C++ that Metal does not have",
        "Metal's language has no double, virtual functions, exceptions, dynamic memory, run-time "
        "types, goto, inline assembler or namespace std. Names such as half and kernel are "
        "keywords and cannot be those of variables.",
        "[[kernel]] void scale(device float* x, uint i [[thread_position_in_grid]]) {\n"
        "  double y = x[i];\n  x[i] = 2 * y;\n}",
        "[[kernel]] void scale(device float* x, uint i [[thread_position_in_grid]]) {\n"
        "  float y = x[i];\n  x[i] = 2 * y;\n}",
        "metal",
    ),
    "MG802": Code(
        "Recursion",
        "A Metal function cannot call itself, directly or through others. Overloads of one name "
        "are not looked into.",
        "inline float factorial(int n) {\n  return n < 2 ? 1 : n * factorial(n - 1);\n}",
        "inline float factorial(int n) {\n  float out = 1;\n"
        "  for (int i = 2; i <= n; ++i) {\n    out *= i;\n  }\n  return out;\n}",
        "metal",
    ),
    "MG803": Code(
        "More than 31 buffers",
        "A Metal kernel has at most 31 buffers, counting arrays, shapes, strides and numbers.",
        "[[kernel]] void concatenate(device const float* x0, /* ... */ device const float* x31) {}",
        "[[kernel]] void concatenate(device const float* x, constant int64_t* starts) {}",
        "metal",
    ),
    "MG804": Code(
        "More than 32 KiB of threadgroup memory",
        "What a kernel declares in the threadgroup address space is added up, for each of its "
        "instantiations. Lengths that are only known at the launch are compared there.",
        "threadgroup float tile[96][96];",
        "threadgroup float tile[64][64];",
        "metal",
    ),
    "MG805": Code(
        "No address space",
        "Every pointer and reference says where it points to: `device` for buffers, `constant` for "
        "those that are only read, alike in all threads, `threadgroup` for what a threadgroup "
        "shares, `thread` for variables.",
        "inline void swap(float& x, float& y);",
        "inline void swap(thread float& x, thread float& y);",
        "metal",
    ),
    "MG806": Code(
        "Address spaces that do not fit",
        "A pointer or reference to one address space is given where another one is wanted; there "
        "is no conversion. `mlxgen metal-check` reports it, with the package ziglang.",
        "inline float first(device const float* x) {\n  return x[0];\n}\n"
        "[[kernel]] void f(constant float* x, device float* y) {\n  y[0] = first(x);\n}",
        "inline float first(constant float* x) {\n  return x[0];\n}\n"
        "[[kernel]] void f(constant float* x, device float* y) {\n  y[0] = first(x);\n}",
        "metal",
    ),
    "MG807": Code(
        "Metal's library is not there",
        "Its names are declared in <metal_stdlib>, and are in the namespace metal.",
        "inline float root(float x) {\n  return sqrt(x);\n}",
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "inline float root(float x) {\n  return sqrt(x);\n}",
        "metal",
    ),
    "MG811": Code(
        "Not C++ for macOS",
        "A source that is compiled on macOS does not fit the headers of MLX's macOS wheel. What "
        "the compiler says is in the message; the place is the project's own, where it has one, "
        "and the operator's entry otherwise.",
        "encoder.set_input(x, 0);",
        "encoder.set_input_array(x, 0);",
        "cpp",
    ),
    "MG812": Code(
        "A symbol that MLX does not export",
        "MLX's headers declare more than its library exports, so that code compiles and cannot "
        "be linked on macOS. What is marked `MLX_API` can be used.",
        "bool fast = mlx::core::metal::is_nax_available();",
        "auto& device = mlx::core::metal::device(mlx::core::Device::gpu);",
        "cpp",
    ),
    "MG813": Code(
        "A symbol that MLX defines",
        "The package defines a function or variable that MLX's library has too, so that there "
        "would be two of it. metal-cpp's are defined where MTL_PRIVATE_IMPLEMENTATION is, and "
        "that is in MLX.",
        "#define MTL_PRIVATE_IMPLEMENTATION\n#include <Metal/Metal.hpp>",
        "#include <Metal/Metal.hpp>",
        "cpp",
    ),
}


def explain(code: str) -> str:
    """One code as Markdown: title, explanation, an example that has the error and one that has not.

    Raises ``KeyError`` for a code that does not exist.
    """
    entry = CODES[code.upper()]
    return (
        f"### {code.upper()}: {entry.title}\n\n{entry.explanation}\n\n"
        f"```{entry.language}\n{entry.example_bad.strip(chr(10))}\n```\n\n"
        f"Instead:\n\n```{entry.language}\n{entry.example_good.strip(chr(10))}\n```\n"
    )


def errors_page() -> str:
    """The text of docs/errors.md: all codes by range."""
    parts = [
        "# Errors\n\n"
        "Every message of mlxgen has a code. `mlxgen explain MG104` prints one of these sections.\n"
    ]
    for prefix, title in RANGES.items():
        codes = sorted(code for code in CODES if code.startswith(prefix))
        if codes:
            parts.append(f"## {prefix}xx: {title}\n")
            parts += [explain(code) for code in codes]
    return "\n".join(parts)
