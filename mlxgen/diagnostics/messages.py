"""Messages as data: tables contain the wording, and code refers to it by name.

Tables are YAML files (messages.yaml, names.yaml, ...). ``python -m tools.tables`` checks them, and
writes JSON files of the same names, because cached runs wait for neither PyYAML nor pydantic.

errors.md explains the codes. Each section has a title, an explanation, an example with the error
and a corrected example. Tests run the examples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

from .fix import Advice, Guess, Help


@cache
def table(path: Path) -> Any:
    """Return the contents of a table."""
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


_SECTION = re.compile(r"^### (?P<code>MG\d{3}): .*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)


@cache
def sections() -> dict[str, str]:
    """Return all codes, in order, and their sections of errors.md."""
    text = (Path(__file__).parent / "errors.md").read_text(encoding="utf-8")
    return {section["code"]: section[0].rstrip() + "\n" for section in _SECTION.finditer(text)}


class Rendered(NamedTuple):
    """A message whose templates are filled in."""

    code: str
    text: str
    help: Help
    note: str = ""  # about a second location


# Reports a message at a slice of a string.
Report = Callable[[Rendered, int, int], None]


class _Templates(Formatter):
    """Fills in templates, with the wording of lists, numbers and articles.

    ``{names}`` joins a list by commas, and ``{names:or}`` has "or" before its last item.
    ``{count:array}`` is a number with its noun, such as ``1 array`` or ``2 arrays``, and
    ``{type:a}`` a noun with its article, such as ``an int``.
    """

    def format_field(self, value: Any, spec: str) -> str:
        """Return the text of a parameter."""
        if type(value) in (list, tuple):  # a named tuple has its own string
            items = list(map(str, value))
            if spec:
                items[-2:] = [f" {spec} ".join(items[-2:])]
            return ", ".join(items)
        if spec == "a":
            return f"{'an' if str(value)[0] in 'aeio' else 'a'} {value}"
        if isinstance(value, int) and spec.isalpha():
            return f"{value} {spec}{'s' * (value != 1)}"
        return format(value, spec)


def _filled(template: str, about: Mapping[str, object]) -> str:
    return _Templates().vformat(template, (), about)


class Message(NamedTuple):
    """The templates of a message and of its helps by key, which is empty for the default."""

    code: str
    text: str
    helps: dict[str, str]
    fixes: dict[str, tuple[str, bool]]  # text, certain
    note: str = ""
    problems: Mapping[str, str] = {}  # values of the parameter `problem`, by name

    def filled(self, keys: Iterable[str], about: Mapping[str, object]) -> Rendered:
        """Fill in the templates, with the help of the first key that has one, else the default."""
        if self.problems:
            about = {**about, "problem": _filled(self.problems[str(about["problem"])], about)}
        key = next((key for key in (*keys, "") if key in self.helps), "")
        text = _filled(self.helps[key], about) if key in self.helps else None
        help: Help = text
        guess = about.get("guess")
        if key in self.fixes:
            instead, certain = self.fixes[key]
            help = Advice(text, _filled(instead, about), certain)
        elif isinstance(guess, Guess):
            help = guess.advice(text)
        return Rendered(self.code, _filled(self.text, about), help, _filled(self.note, about))


@cache
def messages(path: Path) -> Mapping[str, Message]:
    """Return the messages of a table by name."""
    return {name: Message(**row) for name, row in table(path).items()}


class Messages(NamedTuple):
    """The messages of a table, which is read when the first one is needed."""

    path: Path

    def __call__(self, name: str, /, *keys: str, **about: object) -> Rendered:
        """Return a message with its parameters, and the first of its helps for the keys."""
        return messages(self.path)[name].filled(keys, about)
