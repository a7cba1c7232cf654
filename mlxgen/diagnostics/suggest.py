"""What somebody probably meant to write: for "did you mean".

elsewhere.txt has words that other languages and libraries use, each line after our own; those after
a | may mean something else, too.

The measure is difflib's ratio, which takes 20 us a pair, and a file with a thousand unknown names
has thousands of candidates for each. So candidates are sorted by a bound of the ratio, which is
cheap, and looked at until none that follows can be better.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

from .fix import Guess
from .messages import rows

_CUTOFF = 0.65
_CLOSE = 0.82  # a letter more, less or another, in a word of some length
_ROWS = rows(Path(__file__).parent / "elsewhere.txt")
_ELSEWHERE = [(ours, theirs.split()) for ours, theirs in _ROWS]
# What names differ in that are alike on purpose: log2, q_scale.
_MARKS = re.compile(r"\d|(?<![a-z])[a-z]")


def did_you_mean(word: str, candidates: Iterable[str], form: str = "{}") -> Guess:
    """The candidate that ``word`` was probably meant to be, if there is one.

    It is certain if it alone is so close that only a slip of the fingers lies between.
    """
    lower, size, letters = _letters(word)
    candidates = list(candidates)
    for ours, words in _ELSEWHERE:
        if lower in words and ours in candidates and ours != word:
            certain = "|" not in words[: words.index(lower)]
            return Guess(ours, certain, form)
    near: dict[str, tuple[float, str]] = {}
    for candidate in candidates:
        other, length, theirs = _letters(candidate)
        bound = 2 * (letters & theirs).bit_count() / (size + length or 1)
        if bound >= _CUTOFF and candidate != word:
            near[other] = bound, candidate
    matcher = SequenceMatcher(b=lower)
    best, second = (_CUTOFF, ""), 0.0
    for other, (bound, _) in sorted(near.items(), key=itemgetter(1), reverse=True):
        if bound < best[0]:
            break
        matcher.set_seq1(other)
        worse, best = sorted([best, (matcher.ratio(), other)])
        second = max(second, worse[0])
    ratio, meant = best
    if not meant:
        return Guess(None)
    close = size > 2 and (ratio > _CLOSE or sorted(meant) == sorted(lower))
    alike = _MARKS.findall(meant) == _MARKS.findall(lower)
    return Guess(near[meant][1], close and alike and second < ratio, form)


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
