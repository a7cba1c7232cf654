"""Finds the word that the user probably meant, for "did you mean".

elsewhere.yaml lists our words, and those that other languages and libraries use for them.

Similarity is difflib's ratio. It takes 20 us per pair, and a file with a thousand unknown names has
thousands of candidates for each. Candidates are therefore sorted by a cheap upper bound of the
ratio, and compared until none of the rest can be better.
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
from .messages import table

_CUTOFF = 0.65
_CLOSE = 0.82  # one inserted, deleted or replaced letter in a word of medium length
_ELSEWHERE = Path(__file__).with_name("elsewhere.yaml")
# The parts in which deliberately similar names differ: log2, q_scale.
_MARKS = re.compile(r"\d|(?<![a-z])[a-z]")


def did_you_mean(word: str, candidates: Iterable[str], form: str = "{}") -> Guess:
    """Return the candidate that the user probably meant by ``word``, if any.

    The guess is certain if exactly one candidate is close enough for a typing error.
    """
    lower, size, letters = _letters(word)
    candidates = list(candidates)
    for ours, certain in table(_ELSEWHERE).get(lower, ()):
        if ours in candidates and ours != word:
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
    """Return ``word`` in lower case, its length, and its letters as bits.

    Each occurrence of a letter has its own bit, so that two words have at least as many bits in
    common as difflib finds letters in common. Letters that share bits make the bound looser but
    keep it valid. A word with more than 8 of one letter has all bits.
    """
    lower = word.lower()
    bits = 0
    for bucket, count in Counter(ord(letter) % 32 for letter in lower).items():
        if count > 8:
            return lower, len(lower), (1 << 8 * 32) - 1
        bits |= ((1 << count) - 1) << 8 * bucket
    return lower, len(lower), bits
