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
        return f"{self.file}:{self.line}:{self.column}"


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
        self.add(Diagnostic(code, message, span, "error", help, tuple(notes), op))

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
        self.add(Diagnostic(code, message, span, "warning", help, tuple(notes), op))

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
        line = lines[span.line - 1].replace("\t", " ").rstrip()
        start = min(span.column - 1, len(line))
        end = len(line) if span.end_line > span.line else min(span.end_column - 1, len(line))
        shown_from = 0
        if len(line) > _LINE_LIMIT:  # show the part of a long line around the span
            shown_from = max(0, min(start - _LINE_LIMIT // 4, len(line) - _LINE_LIMIT))
            line = line[: shown_from + _LINE_LIMIT]
            end = min(end, len(line))
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


def suggest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` was probably meant to be, or None: for "did you mean"."""
    by_lower = {candidate.lower(): candidate for candidate in candidates if candidate != word}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


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
    # ---- MG4: gradients and transforms (resolve.py) ---------------------------------------------
    # ---- MG5: kernels and dispatch (cxx.py, resolve.py) -----------------------------------------
    # ---- MG6: entries against each other (resolve.py) -------------------------------------------
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
