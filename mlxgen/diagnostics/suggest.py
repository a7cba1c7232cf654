"""What somebody probably meant to write: for "did you mean".

elsewhere.txt has words that other languages and libraries use, each line after our own.

The measure is difflib's ratio, which takes 20 us a pair, and a file with a thousand unknown names
has thousands of candidates for each. So candidates are sorted by a bound of the ratio, which is
cheap, and looked at until none that follows can be better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

from .messages import Guess, rows

_CUTOFF = 0.65
_ROWS = rows(Path(__file__).parent / "elsewhere.txt")
_ELSEWHERE = [(ours, theirs.split()) for ours, theirs in _ROWS]


def suggest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` was probably meant to be, or None."""
    lower, size, letters = _letters(word)
    candidates = list(candidates)
    for ours, words in _ELSEWHERE:
        if lower in words and ours in candidates and ours != word:
            return ours
    near: dict[str, tuple[float, str]] = {}
    for candidate in candidates:
        other, length, theirs = _letters(candidate)
        bound = 2 * (letters & theirs).bit_count() / (size + length or 1)
        if bound >= _CUTOFF and candidate != word:
            near[other] = bound, candidate
    matcher = SequenceMatcher(b=lower)
    best = (_CUTOFF, "")
    for other, (bound, _) in sorted(near.items(), key=itemgetter(1), reverse=True):
        if bound < best[0]:
            break
        matcher.set_seq1(other)
        best = max(best, (matcher.ratio(), other))
    return near[best[1]][1] if best[1] else None


def did_you_mean(word: str, candidates: Iterable[str], form: str = "{}") -> Guess:
    """`` (did you mean 'variants'?)`` for the end of a message, or an empty text.

    ``form`` is how the word stands in the place that the message is about.
    """
    return Guess(suggest(word, candidates), form)


@lru_cache(maxsize=1 << 16)
def _letters(word: str) -> tuple[str, int, int]:
    """``word`` in lower case, its length, and its letters as bits.

    A letter's n-th occurrence has a bit of its own, so that two words have at least as many bits in
    common as difflib finds letters in common. Letters that share bits make the bound worse, never
    wrong; a word with more than 8 of one letter has all bits.
    """
    lower = word.lower()
    bits = 0
    for bucket, count in Counter(ord(letter) % 32 for letter in lower).items():
        if count > 8:
            return lower, len(lower), (1 << 8 * 32) - 1
        bits |= ((1 << count) - 1) << 8 * bucket
    return lower, len(lower), bits
