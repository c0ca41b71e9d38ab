"""Redaction of text that comes in pieces: what a pattern could still complete is held back. Pure."""

from __future__ import annotations

import re

from perdure.telemetry.detectors import ASSIGNED, CJK, LABELS_OF_SECRETS, NAME_WORDS, PHONE_WORDS, STARS, Detector
from perdure.telemetry.redaction import Redactor

MOST_HELD = 4_096
"""Characters of one word that are held back; a longer one is shown as stars."""

_ENDS = re.compile(rf"[\s{CJK}]")
"""Characters after which nothing goes on, if it is no number, no label and no key file."""
_WORDS = (
    rf"{LABELS_OF_SECRETS}|{NAME_WORDS}|(?:{PHONE_WORDS})(?:[ _-]?(?:number|no\.?)|号码?)?|bearer|authorization|basic"
)
_QUOTE = r"\\?[\"'“”‘’`]?"
_LABEL = re.compile(rf"(?i)(?:{_WORDS})(?:(?:{ASSIGNED}|{_QUOTE}[ \t]{{0,3}}(?:is|是)?[ \t]{{0,3}}){_QUOTE})\Z")
_OPEN_VALUE = re.compile(
    rf"(?i)(?:{_WORDS}){ASSIGNED}"
    r"(?:\"(?:[^\"\n\\]|\\.)*+|\\\"(?:(?!\\\")[^\n])*+|'(?:[^'\n\\]|\\.)*+|“[^”\n]*+|[^\s\"'“”,;&，；。、]*+)\\?\Z"
)
_LABEL_REACH = 64
"""Characters of the longest label with what stands between it and its value."""
_BEGIN = "-----BEGIN "
_TAIL = 80
"""Characters of the end of a key file, which may come in two pieces."""
_KEY_END = re.compile(r"-----END[A-Z0-9 ]{0,60}-----")
_CHINESE = "密码 口令 密钥 令牌 电话 手机号码 联系方式 号码 乘客姓名 旅客姓名 客户姓名 联系人姓名 收件人姓名 持卡人姓名"
_CHINESE_WORDS = tuple(word[:length] for word in _CHINESE.split() for length in range(1, len(word) + 1))


class Stream:
    """Redacts a text piece by piece: all that is returned, joined, is the text redacted as a whole.

    A word of more than 4,096 characters, or a key file of more, is shown as stars: nothing is kept for ever.

    Args:
        redactor: What is hidden.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._swallowing: re.Pattern[str] | None = None
        self._own = max((hook.longest if isinstance(hook, Detector) else 256 for hook in redactor.own), default=0)

    def feed(self, text: str) -> str:
        """Take the next piece, and return what can be shown now."""
        self._held += text
        if self._swallowing and not self._swallowed(self._swallowing):
            return ""
        cut = self._cut()
        if len(self._held) - cut > MOST_HELD + self._own:
            return self._overflow(cut)
        shown, self._held = self._held[:cut], self._held[cut:]
        return self._redactor.text(shown) if shown else ""

    def close(self) -> str:
        """Return the rest."""
        shown, self._held = self._held, ""
        return "" if self._swallowing or not shown else self._redactor.text(shown)

    def _overflow(self, cut: int) -> str:
        shown, self._held = self._held[:cut], self._held[cut:]
        self._swallowing = _KEY_END if _BEGIN in self._held else _ENDS
        self._held = self._held[-_TAIL:] if self._swallowing is _KEY_END else ""
        return f"{self._redactor.text(shown) if shown else ''}{STARS}"

    def _swallowed(self, until: re.Pattern[str]) -> bool:
        """Drop what belongs to a word or key file that was too long; return whether it has ended."""
        end = until.search(self._held)
        if end:
            self._held = self._held[end.start() if until is _ENDS else end.end() :]
            self._swallowing = None
        else:
            self._held = self._held[-_TAIL:]
        return end is not None

    def _cut(self) -> int:
        """Return up to where nothing that comes can change what is found."""
        held = self._held
        at = safe_cut(held)
        if self._own or self._redactor.known:
            at = _last_end(held, min(at, self._redactor.known.begun(held), max(len(held) - self._own, 0)))
            while at and not self._parts_at(at):
                at = _last_end(held, at - 1)
        return at

    def _parts_at(self, at: int) -> bool:
        """Return whether nothing that is found reaches over that place."""
        whole = self._redactor.text(self._held)
        return whole == self._redactor.text(self._held[:at]) + self._redactor.text(self._held[at:])


def safe_cut(text: str) -> int:
    """Return how much of `text` can be redacted by itself, whatever follows it."""
    begun = text.rfind(_BEGIN)
    if begun >= 0 and not _KEY_END.search(text, begun):
        text = text[:begun]
    at = _last_end(text, len(text))
    at -= max((len(word) for word in _CHINESE_WORDS if text[:at].endswith(word)), default=0)
    while at:
        moved = _before_label(text, _before_number(text, at))
        if moved == at:
            break
        at = moved
    return at


def _last_end(text: str, at: int) -> int:
    """Return the place, at or before `at`, after the last character that ends a word."""
    while at and not _ENDS.match(text, at - 1):
        at -= 1
    return at


_PART_OF_NUMBER = re.compile(r"[^\s]*[\d)+./-]|[A-Z0-9]{1,4}")
_SPACES = " \u00a0\u2009\u202f"


def _before_number(text: str, at: int) -> int:
    """Return where a number begins that goes on at `at` after a space, or could; else `at`."""
    end = at
    while end and text[end - 1] in _SPACES and at - end < 3:  # noqa: PLR2004 - two may stand between two digits
        end -= 1
    start = _last_end(text, end)
    goes_on = at == len(text) or text[at] in "+(-./" or text[at].isdigit() or text[at].isupper()
    return start if start < end < at and goes_on and _PART_OF_NUMBER.fullmatch(text, start, end) else at


def _before_label(text: str, at: int) -> int:
    """Return where a label such as `password:` begins whose value is at `at`; else `at`."""
    reach = text[max(at - _LABEL_REACH, 0) : at]
    found = _LABEL.search(reach)
    if found:
        return _last_end(text, at - len(reach) + found.start())
    line = text.rfind("\n", max(at - MOST_HELD, 0), at) + 1
    begun = _OPEN_VALUE.search(text, max(line, at - MOST_HELD), at)
    return _last_end(text, begun.start()) if begun else at
