"""What people write that is almost YAML, explained in their terms and at its place.

libyaml says what it could not read, often a line below of what is wrong. A slip is known by its
cure: a line looks like one (slips.txt), and what was no entry is one when it is mended.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from math import inf
from operator import eq, ne
from pathlib import Path
from typing import NamedTuple

from .keys import OpEntry

_LONGEST = 20_000  # of entries that are looked at so closely
_TRIES = 12  # of places that look alike


class Slip(NamedTuple):
    """What is said of it, how it looks, what it is mended to, and help."""

    message: str
    wrong: re.Pattern[str]
    right: str
    help: str

    def mended(self, text: str, column: int, takes: Callable[[int], bool] = lambda _: True) -> str:
        """``text`` with those mended that begin where ``takes`` says so."""
        right = self.right.replace("COLUMN", " " * column)
        return self.wrong.sub(lambda at: at.expand(right) if takes(at.start()) else at[0], text)

    def needed(
        self, text: str, column: int, reach: Callable[[str], float], enough: float
    ) -> re.Match[str] | None:
        """The place that has to be mended: one alone, or the first of those that have to be."""

        def fits(mended: str) -> bool:
            return reach(mended) >= enough

        found = list(islice(self.wrong.finditer(text), _TRIES))
        for at in found:
            if fits(self.mended(text, column, partial(eq, at.start()))):
                return at
        if len(found) < 2 or not fits(self.mended(text, column)):
            return None
        needed = (a for a in found if not fits(self.mended(text, column, partial(ne, a.start()))))
        return next(needed, found[0])


@cache
def _slips() -> list[Slip]:
    text = (Path(__file__).parent / "slips.txt").read_text(encoding="utf-8")
    words = {
        "KEYSTART": "^(?P<start>[ ]*(?:-[ ]+)?)",
        "KNOWN": f"(?:{'|'.join(OpEntry.model_fields)})",
    }
    slips = []
    for record in re.split(r"\n\n+", text.strip())[1:]:
        message, wrong, right, *help = (line.strip() for line in record.splitlines())
        pattern = re.sub("KEYSTART|KNOWN", lambda word: words[word[0]], wrong)
        right = right.removeprefix("=>").strip().replace("BLANK", " ")
        slips.append(Slip(message, re.compile(pattern, re.MULTILINE), right, "".join(help)))
    return slips


def find_slip(entry: str, reach: Callable[[str], float]) -> tuple[str, str | None, int, int] | None:
    """What is wrong with the text of an entry that is none: message, help and place.

    Args:
        entry: The lines of the entry.
        reach: How far (in lines) a text can be read; infinity for entries.
    """
    if len(entry) > _LONGEST:
        return None
    before = reach(entry)
    first = re.match(r"\s*-?\s*", entry)
    column = len(first[0].rpartition("\n")[2]) if first else 0
    for enough in (inf, before + 1):
        for slip in _slips() if enough == inf else _slips()[: -1 if before >= 0 else 0]:
            at = slip.needed(entry, column, reach, enough)
            if at is None:
                continue
            about = {**at.groupdict(), "code": f"{ord(at['at'][:1] or ' '):04X}"}
            help = slip.help.format(**about) or None
            return slip.message.format(**about), help, *at.span("at")
    return None
