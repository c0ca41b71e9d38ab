"""Full text as terms, and how well a text fits a query: pure, so that every database finds the same."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

_RUN = re.compile(r"[^\W_]+")
_WIDE = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+")
_LONGEST = 64
_MOST = 2000
_SATURATION = 1.2
_SHORT = 3
"""Words of up to so many letters keep an `s` at their end."""


def terms(text: str) -> list[str]:
    """Return what `text` is found by, with repetitions: words without case, accents and plural; pairs of Chinese signs.

    Chinese, Japanese and Korean are written without spaces: each two neighbours are a term, and a sign alone is one.
    """
    plain = "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    plain = unicodedata.normalize("NFC", plain).casefold()
    found: list[str] = []
    for run in _RUN.findall(plain):
        at = 0
        for wide in _WIDE.finditer(run):
            found += _word(run[at : wide.start()]) + _pairs(wide.group())
            at = wide.end()
        found += _word(run[at:])
        if len(found) > _MOST:
            break
    return found[:_MOST]


def best(query: str, texts: Sequence[str]) -> list[int]:
    """Return the positions of those `texts` that share a term with `query`, the best first; else in the order given.

    A term counts the more, the fewer of the texts have it (the weights are those of BM25).
    """
    wanted = dict.fromkeys(terms(query))
    bags = [terms(text) for text in texts]
    mean = sum(map(len, bags)) / len(bags) if bags else 0
    weights = {term: _rarity(sum(term in bag for bag in bags), len(bags)) for term in wanted}
    scores = [sum(weights[term] * _share(bag, term, mean) for term in wanted) for bag in bags]
    return sorted((at for at, score in enumerate(scores) if score > 0), key=lambda at: -scores[at])


def _rarity(having: int, of: int) -> float:
    return math.log(1 + (of - having + 0.5) / (having + 0.5))


def _share(bag: Sequence[str], term: str, mean: float) -> float:
    count = bag.count(term)
    return count * (_SATURATION + 1) / (count + _SATURATION * (0.25 + 0.75 * len(bag) / mean)) if count else 0


def _word(word: str) -> list[str]:
    """Return `word` in the singular, as far as its end tells; [] for none."""
    if len(word) > _SHORT and word.isascii():
        if word.endswith("ies") and word[-4] not in "ae":
            word = word[:-3] + "y"
        elif word.endswith("s") and word[-2] not in "us":
            word = word[:-1]
    return [word[:_LONGEST]] if word else []


def _pairs(signs: str) -> list[str]:
    return [first + second for first, second in pairwise(signs)] or [signs]
