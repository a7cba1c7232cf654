"""Messages as data: tables contain the wording, and code refers to it by name.

  name  code  message
      [keys] help
      => replacement text

All three are format templates. The help is the first one with a key that the code passes, else the
one without keys. ``=> text`` is the fix (fix.py) of the help above it; ``~> text`` is a fix that is
not certain. Without either, the fix is the {guess} of the message, if any. # starts a comment.

errors.md explains the codes. Each section has a title, an explanation, an example with the error
and a corrected example. Tests run the examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .fix import Advice, Guess, Help


def rows(table: Path, sign: str = ": ", most: int = -1) -> list[list[str]]:
    """Return the lines of a table without comments, split at a separator."""
    lines = table.read_text(encoding="utf-8").splitlines()
    return [
        [part.strip() for part in line.split(sign, most)]
        for line in lines
        if line and line[0] != "#"
    ]


_SECTION = re.compile(r"^### (?P<code>MG\d{3}): .*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)


@cache
def sections() -> dict[str, str]:
    """Return all codes, in order, and their sections of errors.md."""
    text = (Path(__file__).parent / "errors.md").read_text(encoding="utf-8")
    return {section["code"]: section[0].rstrip() + "\n" for section in _SECTION.finditer(text)}


class Message(NamedTuple):
    """The templates of a message and of its helps, by key."""

    code: str
    text: str
    helps: dict[str, str]
    fixes: dict[str, tuple[str, bool]]  # text, certain

    def filled(self, keys: Iterable[str], about: Mapping[str, object]) -> tuple[str, str, Help]:
        """Fill in the templates; return code, message and help (an ``Advice`` if it has a fix)."""
        key = next((key for key in (*keys, "") if key in self.helps), "")
        text = self.helps[key].format(**about) if key in self.helps else None
        help: Help = text
        guess = about.get("guess")
        if key in self.fixes:
            instead, certain = self.fixes[key]
            help = Advice(text, instead.format(**about), certain)
        elif isinstance(guess, Guess):
            help = guess.advice(text)
        return self.code, self.text.format(**about), help


@cache
def messages(table: Path) -> Mapping[str, Message]:
    """Return the messages of a table by name."""
    found: dict[str, Message] = {}
    helps: dict[str, str] = {}
    fixes: dict[str, tuple[str, bool]] = {}
    keys = [""]
    for line in table.read_text(encoding="utf-8").splitlines():
        keyed = re.fullmatch(r"    (?:\[(.+?)\] )?(.+)", line)
        if fix := re.fullmatch("    ([=~])> ?(.*)", line):
            fixes.update(dict.fromkeys(keys, (fix[2], fix[1] == "=")))
        elif keyed:
            keys = keyed[1].split() if keyed[1] else [""]
            helps.update(dict.fromkeys(keys, keyed[2]))
        elif line and line[0] != "#":
            name, code, text = line.split(maxsplit=2)
            helps, fixes, keys = {}, {}, [""]
            found[name] = Message(code, text, helps, fixes)
    return found
