"""Messages as data: a table has their texts, and the code says which it is and about what.

  name  code  message
      [keys] help
      => text in the place of what is wrong

All are templates of what the message is about. The first help is given that has one of the keys
of what is wrong, else the one without keys. A text after ``=>`` belongs to the help before it: it
is the fix (fix.py); after ``~>`` one that is not certain. Without one it is the {guess} of the
message, if there is one. Lines that begin with # are comments.

What the codes mean is in errors.md, which is written by hand: every section has a title, an
explanation, an example that has the error and one that has not; the examples are tested.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .fix import Advice, Guess, Help


def rows(table: Path, sign: str = ": ", most: int = -1) -> list[list[str]]:
    """The lines of a table that are no comments, in the parts between a sign."""
    lines = table.read_text(encoding="utf-8").splitlines()
    return [
        [part.strip() for part in line.split(sign, most)]
        for line in lines
        if line and line[0] != "#"
    ]


_SECTION = re.compile(r"^### (?P<code>MG\d{3}): .*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)


@cache
def sections() -> dict[str, str]:
    """All codes, in order, and their sections of errors.md."""
    text = (Path(__file__).parent / "errors.md").read_text(encoding="utf-8")
    return {section["code"]: section[0].rstrip() + "\n" for section in _SECTION.finditer(text)}


class Message(NamedTuple):
    """Templates of a message and its helps by key."""

    code: str
    text: str
    helps: dict[str, str]
    fixes: dict[str, tuple[str, bool]]  # and whether they are certain

    def filled(self, keys: Iterable[str], about: Mapping[str, object]) -> tuple[str, str, Help]:
        """Code, message and help about something; the help is ``Advice`` where there is a fix."""
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
    """The messages of a table by name."""
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
