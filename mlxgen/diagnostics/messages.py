"""Messages as data: a table has their texts, and the code says which it is and about what.

  name  code  message
      [keys] help
      => text in the place of what is wrong

All are templates of what the message is about. The first help is given that has one of the keys
of what is wrong, else the one without keys. A text after ``=>`` belongs to the help before it: it
is the fix (fix.py). Without one it is the {guess} of the message, if there is one. Lines that begin
with # are comments.

What the codes mean is in errors.md, which is written by hand: every section has a title, an
explanation, an example that has the error and one that has not; the examples are tested.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .fix import Advice


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


class Guess(str):
    """`` (did you mean 'x'?)`` for the end of a message, or an empty text; and x as a fix."""

    instead: str | None

    def __new__(cls, word: str | None, form: str = "{}") -> Guess:
        """Make it of a word; ``form`` is how that stands in the text, such as ``mx.{}``."""
        made = super().__new__(cls, f" (did you mean '{word}'?)" if word else "")
        made.instead = form.format(word) if word else None
        return made


class Message(NamedTuple):
    """Templates of a message and its helps by key."""

    code: str
    text: str
    helps: dict[str, str]
    fixes: dict[str, str]

    def filled(
        self, keys: Iterable[str], about: Mapping[str, object]
    ) -> tuple[str, str, str | None]:
        """Code, message and help about something; the help is ``Advice`` where there is a fix."""
        key = next((key for key in (*keys, "") if key in self.helps), None)
        help = None if key is None else self.helps[key].format(**about)
        guess = about.get("guess")
        instead = guess.instead if isinstance(guess, Guess) else None
        if key in self.fixes:
            instead = self.fixes[key].format(**about)
        help = help if instead is None else Advice(help or "", instead)
        return self.code, self.text.format(**about), help


@cache
def messages(table: Path) -> Mapping[str, Message]:
    """The messages of a table by name."""
    found: dict[str, Message] = {}
    helps: dict[str, str] = {}
    fixes: dict[str, str] = {}
    keys = [""]
    for line in table.read_text(encoding="utf-8").splitlines():
        keyed = re.fullmatch(r"    (?:\[(.+?)\] )?(.+)", line)
        if line.startswith("    =>"):
            fixes.update(dict.fromkeys(keys, line[6:].strip()))
        elif keyed:
            keys = keyed[1].split() if keyed[1] else [""]
            helps.update(dict.fromkeys(keys, keyed[2]))
        elif line and line[0] != "#":
            name, code, text = line.split(maxsplit=2)
            helps, fixes, keys = {}, {}, [""]
            found[name] = Message(code, text, helps, fixes)
    return found
