"""Handles: what stands for private values in what a model reads and writes. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import cast

from perdure.messages import JSON

_HANDLE = re.compile(r"‹[a-z][a-z0-9_]{0,31}-\d{1,6}›")
_WRITTEN = re.compile(r"[‹<«]([a-z][a-z0-9_]{0,31}-\d{1,6})[›>»]")
"""As models write it, some of which know only other brackets."""

_SHORTEST, _SHORTEST_NUMBER, _SHORTEST_HAN = 3, 4, 2
"""Characters of a value that is told from other text; a shorter one has a handle only where it is a field's own."""
_SHORTEST_SPELT = 7
"""Digits of a number that may be written in groups."""
_SHORTEST_PIECE = 3


def is_handle(value: JSON) -> bool:
    """Return whether a value is a handle itself, and nothing else."""
    return isinstance(value, str) and _HANDLE.fullmatch(value) is not None


def has_handle(text: str) -> bool:
    """Return whether there is a handle in a text, of whatever."""
    return _HANDLE.search(text) is not None


class Handles:
    """Handles of values, numbered by kind in the order in which they were added.

    Attributes:
        count: How many there are.
        mark: Tells what has been added from anything else.
    """

    def __init__(self) -> None:
        self._values: dict[str, JSON] = {}  # by handle
        self._handles: dict[str, str] = {}  # by value as text
        self._texts: dict[str, str] = {}  # those of them that are found in text
        self._numbers: dict[str, int] = {}
        self.mark = ""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._values)

    def add(self, kind: str, value: JSON) -> None:
        """Give `value` a handle, unless it has one."""
        text = _text(value)
        if text in self._handles:
            return
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        handle = f"‹{kind}-{self._numbers[kind]}›"
        self._handles[text], self._values[handle] = handle, value
        if not isinstance(value, bool) and _is_told_apart(text):
            self._texts[text] = handle
        self.mark = hashlib.sha256(f"{self.mark}{handle}{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def of(self, value: JSON) -> str | None:
        """Return the handle of a value, or None."""
        return self._handles.get(_text(value))

    def conceal(self, text: str, own: Sequence[JSON] = ()) -> str:
        """Return `text` with handles in place of values.

        Args:
            own: Values that it is known to hold: of these, short ones as well.
        """
        known = {**self._texts, **{_text(value): self._handles[_text(value)] for value in own if self.of(value)}}
        plain = text.replace(" ", "").replace("-", "")
        found = [(value, handle) for value, handle in known.items() if _may_hold(text, plain, value)]
        if not found:
            return text
        found.sort(key=lambda one: -len(one[0]))
        pattern = "|".join(f"({_spellings(value)})" for value, _ in found)
        return re.sub(pattern, lambda one: found[cast("int", one.lastindex) - 1][1], text)

    def without_pieces(self, text: str) -> str:
        """Return a part of a text without the end of a value at its beginning, and the beginning of one at its end."""
        head = max((_overlap(value, text) for value in self._texts), default=0)
        tail = max((_overlap(text, value) for value in self._texts), default=0)
        return f"{'…' if head else ''}{text[head : len(text) - tail]}"

    def reveal(self, text: str) -> str:
        """Return `text` with values in place of handles; what is no handle of these stays."""
        return _WRITTEN.sub(lambda one: _text(self._values.get(f"‹{one[1]}›", one[0])), text) if self._values else text

    def written_in(self, text: str) -> dict[str, JSON]:
        """Return the values of the handles in a text, by their handles."""
        handles = (f"‹{one}›" for one in _WRITTEN.findall(text))
        return {handle: self._values[handle] for handle in handles if handle in self._values}

    def reveal_json(self, written: JSON) -> JSON:
        """Return a JSON value with values in place of handles: of their own type where nothing is beside them.

        Raises:
            LookupError: If there is no value of a handle; says so in one sentence.
        """
        if isinstance(written, str):
            whole = _WRITTEN.fullmatch(written.strip())
            if whole and (handle := f"‹{whole[1]}›") in self._values:
                return self._values[handle]
            self._check(written)
            return self.reveal(written)
        if isinstance(written, dict):
            fields = cast("dict[str, JSON]", written)
            return {self.reveal(key): self.reveal_json(child) for key, child in fields.items()}
        return (
            [self.reveal_json(item) for item in cast("list[JSON]", written)] if isinstance(written, list) else written
        )

    def _check(self, written: str) -> None:
        for handle in _HANDLE.findall(written):
            if handle not in self._values:
                raise LookupError(f"There is no private value with the handle {handle}.")

    @property
    def names(self) -> list[str]:
        """All handles, in their order."""
        return list(self._values)


def texts(value: JSON) -> JSON:
    """Return a JSON value with its numbers as texts."""
    return _mapped(value, lambda one: _text(one) if isinstance(one, int | float) and not isinstance(one, bool) else one)


def _mapped(value: JSON, change: Callable[[JSON], JSON]) -> JSON:
    if isinstance(value, dict):
        return {key: _mapped(child, change) for key, child in cast("dict[str, JSON]", value).items()}
    return [_mapped(one, change) for one in cast("list[JSON]", value)] if isinstance(value, list) else change(value)


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_told_apart(text: str) -> bool:
    if any("㐀" <= character <= "鿿" for character in text):
        return len(text) >= _SHORTEST_HAN
    return len(text) >= (_SHORTEST if any(character.isalpha() for character in text) else _SHORTEST_NUMBER)


def _may_hold(text: str, plain: str, value: str) -> bool:
    return value in text or _escaped(value) in text or ((digits := _digits(value)) != "" and digits in plain)


def _digits(value: str) -> str:
    """Return the digits of a long number, which may be written in groups; "" of anything else."""
    digits = re.sub(r"[ +-]", "", value)
    return digits if len(digits) >= _SHORTEST_SPELT and digits.isascii() and digits.isdigit() else ""


def _escaped(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _spellings(value: str) -> str:
    """Return a pattern of what a value may be written as, where it is no part of a longer word or number."""
    if digits := _digits(value):
        return rf"(?<![A-Za-z0-9])\+?{'[ -]?'.join(digits)}(?![A-Za-z0-9])"
    left = r"(?<![A-Za-z0-9])" if value[0].isascii() and value[0].isalnum() else ""
    right = r"(?![A-Za-z0-9])" if value[-1].isascii() and value[-1].isalnum() else ""
    written = {re.escape(value): None, re.escape(_escaped(value)): None}
    return f"{left}(?:{'|'.join(written)}){right}"


def _overlap(first: str, second: str) -> int:
    """Return how many characters at the end of `first` are the beginning of `second`, but not all of either."""
    for length in range(min(len(first), len(second)) - 1, _SHORTEST_PIECE - 1, -1):
        if first.endswith(second[:length]):
            return length
    return 0
