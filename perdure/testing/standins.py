"""Stand-ins for private values: the same one for the same value, of the same form, in all that was recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from perdure.messages import JSON
from perdure.parsing import parse_json
from perdure.sensitive import Sensitive, at_leaves
from perdure.telemetry import redaction
from perdure.telemetry.redaction import Known, Redactor, kind_of

_SHOWN = 3
"""Characters that stay of a number, as its mask shows them too: 138****1234."""
_NUMBERS = ("phone", "identity", "passport", "id")
_LONGEST = 64
"""Characters of an argument that is taken for a value as a whole, where something was found in it."""


class StandIns:
    """What is put in place of private values of one recording.

    Values of declared fields (`Sensitive`), and of fields whose names say what they hold, get a stand-in wherever they
    occur; what else the redactor finds is masked as in diagnostics.
    """

    def __init__(self) -> None:
        self._own = redaction.current()
        self._given: dict[str, str] = {}
        self._known = _Shown()
        self._redactor = Redactor(self._own.own, self._known)

    def learn(self, value: JSON, schema: Mapping[str, Any] | None) -> None:
        """Take note of the private values in arguments or a result; text that is JSON is read as such."""

        def declared(found: JSON, said: Sensitive | None) -> JSON:
            if said:
                self._of(found, said.kind)
            return found

        read = _read(value)
        at_leaves(read, schema, declared)
        self._learn_named(read)
        at_leaves(read, None, self._learn_found)

    def _learn_found(self, found: JSON, said: Sensitive | None) -> JSON:
        """Take note of a text in which the redactor finds something, where it is short enough to be nothing else."""
        del said
        if isinstance(found, str) and len(found) <= _LONGEST and not any(character.isspace() for character in found):
            masked = self._own.text(found)
            if masked != found:
                self._of(found, _kind_shown(found, masked))
        return found

    def _learn_named(self, value: JSON) -> None:
        if isinstance(value, list):
            for item in cast("list[JSON]", value):
                self._learn_named(item)
        elif isinstance(value, dict):
            for key, child in cast("dict[str, JSON]", value).items():
                if (kind := kind_of(str(key))) and isinstance(child, str | int):
                    self._of(child, kind)
                self._learn_named(child)

    def _of(self, value: JSON, kind: str) -> str:
        text = str(value).strip()
        if not text or value is None or isinstance(value, bool | list | dict):
            return text
        if text not in self._given:
            self._given[text] = stand_in(text, kind, len(self._given) + 1)
            self._known.show(text, self._given[text])
        return self._given[text]

    def text(self, text: str) -> str:
        """Return a text with stand-ins, and masks where something else is found in it."""
        return self._given.get(text.strip()) or self._redactor.text(text)

    def json(self, value: JSON, schema: Mapping[str, Any] | None = None) -> JSON:
        """Return a value with stand-ins, and masks where something else is found in it."""

        def leaf(found: JSON, said: Sensitive | None) -> JSON:
            if found is None or isinstance(found, bool):
                return found
            shown = self._of(found, said.kind) if said else self.text(str(found))
            if isinstance(found, str):
                return shown
            if shown == str(found):
                return found
            return int(shown) if isinstance(found, int) and shown.isdecimal() else shown

        return at_leaves(value, schema, leaf)


class _Shown(Known):
    """Values that are shown as somebody says."""

    def show(self, value: str, shown: str) -> None:
        """Show `value` so from now on, where it is long enough to be told from other text."""
        if len(value) > 1:
            self._add(self._shown, value, shown)


def _read(value: JSON) -> JSON:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value


def _kind_shown(value: str, masked: str) -> str:
    if "@" in value:
        return "email"
    return "phone" if masked[:_SHOWN] == value[:_SHOWN] else "private"


def stand_in(value: str, kind: str, number: int) -> str:
    """Return what stands for a value: its form, and nothing of it but what a mask would show as well.

    Args:
        number: Tells it from the others of the recording.
    """
    match kind:
        case "email":
            return f"person{number}@example.com"
        case "name":
            return f"Person {number}"
        case "secret":
            return f"[secret {number}]"
        case _:
            kept = _SHOWN if kind in _NUMBERS else 0
            return _numbered(_formed(value, kept), kept, number)


def _formed(value: str, kept: int) -> str:
    form = re.sub(r"\d", "0", re.sub(r"[a-z]", "x", re.sub(r"[A-Z]", "X", value)))
    form = re.sub(r"[^\x00-\x7f]", "x", form)
    return value[:kept] + form[kept:] if len(value) > 2 * kept else form


def _numbered(form: str, kept: int, number: int) -> str:
    """Return a form with the last of its digits as the number, which is appended where there are too few."""
    left = str(number)[::-1]
    characters = list(form)
    for at in range(len(characters) - 1, kept - 1, -1):
        if left and characters[at] == "0":
            characters[at], left = left[0], left[1:]
    return "".join(characters) + left[::-1]
