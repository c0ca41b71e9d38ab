"""Reading a long text in pages, and looking for words in it. Pure. Positions are bytes, characters stay whole."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST = 65_536
"""Bytes of a page at most."""
_USUAL, _LEAST = 16_384, 500
"""Bytes of a page of which nobody has said how long it is to be: usually, and in the smallest window."""
_PLACES = 10
"""Places of what was looked for that are returned at once."""
_AROUND = 120
"""Characters that are shown before and after each of them."""

_MASK, _REST = 0xC0, 0x80
"""The bits by which a byte is told that is not the first of its character."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a text, and which part it is, in words; `then` is where the next one begins, None at the end."""

    text: str
    where: str
    then: int | None = None


def fitting(window: int) -> int:
    """Return how many bytes a page has by default: a quarter of a `window` of so many tokens, but not more than usual.

    A token has three bytes of most texts, or more.
    """
    return max(min(_USUAL, window * 3 // 4), _LEAST)


def page(data: bytes, offset: int, limit: int) -> Page:
    """Return about `limit` bytes of `data` from `offset` on, at least one character.

    Args:
        data: UTF-8.
        offset: From 0 up to the size of `data`; within a character, the next one is the first.
        limit: At most `MOST` count.
    """
    start = _boundary(data, offset)
    end = min(start + min(limit, MOST), len(data))
    while end < len(data) and data[end] & _MASK == _REST:
        end -= 1
    end = end if end > start else _boundary(data, start + 1)
    then = end if end < len(data) else None
    where = f"Bytes {start} to {end} of {len(data)}" + ("." if then else ", its end.")
    return Page(data[start:end].decode("utf-8", "replace"), where, then)


def _boundary(data: bytes, position: int) -> int:
    """Return where the first character at or after `position` begins."""
    while position < len(data) and data[position] & _MASK == _REST:
        position += 1
    return min(position, len(data))


def find(data: bytes, words: str, offset: int) -> Page:
    """Return the first places from `offset` on where `words` are, in whatever case, each with what is around it."""
    start = _boundary(data, offset)
    text = data[start:].decode("utf-8", "replace")
    lines: list[str] = []
    count, seen, position, then = 0, 0, start, None
    for found in re.finditer(re.escape(words), text, re.IGNORECASE):
        count += 1
        if count > _PLACES:
            then = then or position + len(text[seen : found.start()].encode())
            continue
        position, seen = position + len(text[seen : found.start()].encode()), found.start()
        lines.append(f"Byte {position}: {_around(text, found.start(), found.end())}")
    if not lines:
        return Page("", f"{words!r} is not in bytes {start} to {len(data)} of {len(data)}.")
    return Page("\n".join(lines), f"{len(lines)} of {count} places from byte {start} on.", then)


def _around(text: str, start: int, end: int) -> str:
    before, after = max(start - _AROUND, 0), min(end + _AROUND, len(text))
    return f"{'…' if before else ''}{text[before:after]}{'…' if after < len(text) else ''}"
