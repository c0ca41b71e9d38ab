"""Names as their initials, Chinese ones by pinyin. Pure."""

from __future__ import annotations

import re

_HAN = re.compile(r"[㐀-鿿豈-﫿]")
_BREAK = re.compile(r"[\s.,·・_/()\"'“”-]+")
_SURNAMES = {
    "曾": "Z",
    "单": "S",
    "解": "X",
    "仇": "Q",
    "区": "O",
    "查": "Z",
    "翟": "Z",
    "覃": "Q",
    "盖": "G",
    "冼": "X",
    "朴": "P",
    "召": "S",
    "缪": "M",
    "宓": "M",
    "郗": "X",
    "繁": "P",
    "黑": "H",
    "员": "Y",
    "种": "C",
    "乜": "N",
}
"""Initials of surnames that are read otherwise than the character is elsewhere."""
_LONGEST, _MOST = 120, 6
"""Characters of a name that are looked at; initials that are shown."""


def initials(name: str) -> str:
    """Return the initials of a name: `Z.W.` of 张伟 and of "Zhang Wei" alike; of what has none, stars."""
    letters: list[str] = []
    for word in _BREAK.split(name[:_LONGEST]):
        if _HAN.search(word):
            letters += _pinyin(word)
        elif word[:1].isalpha():
            letters.append(word[0].upper())
    return "".join(f"{letter}." for letter in letters[:_MOST]) or "****"


def _pinyin(word: str) -> list[str]:
    from pypinyin import Style, lazy_pinyin  # its dictionary takes 0.3 s to load

    read: list[str] = [
        one.upper() for one in lazy_pinyin(word, style=Style.FIRST_LETTER, errors="ignore") if one.isalpha()
    ]
    return [_SURNAMES[word[0]], *read[1:]] if word[0] in _SURNAMES else read
