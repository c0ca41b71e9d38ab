"""The redactor: stands between a run and everything that tells of it, and hides personal data and credentials.

Records (history, what an approver is shown, the answer) are whole; diagnostics (logs, summaries, error texts, spans)
pass through here. Pure, but for what the process has learnt: the values of fields that were declared sensitive.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from perdure.messages import JSON
from perdure.sensitive import Sensitive, at_leaves
from perdure.telemetry.detectors import STARS, Detector, hide
from perdure.telemetry.masks import mask

__all__ = ["STARS", "Detector", "Known", "Redactor", "current", "mask", "use"]

Hook = Detector | Callable[[str], str]
"""A detector of one's own; or a function that returns a text with what it finds hidden."""

_FOREIGN_DIGIT = re.compile(r"[^\D0-9]")
"""A digit of another script: １３８… is a phone number too."""


class Redactor:
    """Hides what is personal or gives access, in text and in JSON.

    Args:
        hooks: Detectors of your own; they come after those that are always there.
        known: Values that are hidden wherever they occur.
    """

    def __init__(self, hooks: Sequence[Hook] = (), known: Known | None = None) -> None:
        self.known = Known() if known is None else known
        self.own = tuple(hooks)
        self._hooks: list[Callable[[str], str]] = [
            hook.redact if isinstance(hook, Detector) else hook for hook in hooks
        ]

    def text(self, text: str) -> str:
        """Return `text` with what is found in it hidden. Takes time in proportion to its length."""
        text, restore = self.known.set_aside(text)
        if _FOREIGN_DIGIT.search(text):
            text = _FOREIGN_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), text)
        text = restore(hide(text))
        for hook in self._hooks:
            try:
                text = str(hook(text))
            except Exception as error:  # noqa: BLE001 - what can't be looked at is not shown
                return f"[not shown: a detector failed with {type(error).__name__}]"
        return text

    def json(self, value: JSON, schema: Mapping[str, Any] | None = None) -> JSON:
        """Return a JSON value with what is found in it hidden, names of fields included.

        Args:
            schema: JSON Schema that says which fields are sensitive (`x-sensitive`). Fields whose own name says what
                they hold, such as `phone` or `passenger_name`, need none.
        """
        return self._keys(at_leaves(value, schema, self._leaf))

    def _leaf(self, value: JSON, said: Sensitive | None) -> JSON:
        if value is None or isinstance(value, bool):
            return value
        if said:
            return mask(said.kind, str(value))
        shown = self.text(str(value))
        return value if shown == str(value) else shown

    def _keys(self, value: JSON) -> JSON:
        """Return `value` with its fields judged by their names."""
        if isinstance(value, dict):
            fields = cast("dict[str, JSON]", value)
            return {self.text(str(key)): self._named(str(key), child) for key, child in fields.items()}
        return [self._keys(item) for item in cast("list[JSON]", value)] if isinstance(value, list) else value

    def _named(self, key: str, value: JSON) -> JSON:
        kind = kind_of(key)
        if kind and isinstance(value, str | int) and not isinstance(value, bool):
            return mask(kind, str(value))
        return self._keys(value)


# -- names of fields that say what they hold ---------------------------------------------------------------

_FIELDS = {
    "phone": r"(?:(?:tele|mobile|cell|contact|home|work)_?)?phone(?:_?(?:number|no))?"
    r"|mobile(?:_?(?:number|no))?|tel|fax|电话"
    r"|手机号?|联系电话",
    "email": r"e?_?mail(?:_?address)?|邮箱",
    "identity": r"id_?(?:card|number|no|num)(?:_?(?:number|no))?|identity(?:_?(?:card|number|no))?|passport"
    r"|passport_?(?:number|no|id)|ssn|national_?id|身份证号?码?|护照号?码?|证件号码?",
    "card": r"(?:bank|credit|debit|payment)?_?card_?(?:number|no)|(?:bank|credit|debit)_?card|银行卡号?|卡号",
    "name": r"(?:passenger|full|first|last|middle|given|family|contact|customer|guest|travell?er|patient|client|holder"
    r"|card_?holder|recipient|sender|owner|user)_?name|surname|(?:乘客|旅客|客户|联系人|收件人|持卡人)?姓名",
    "secret": r"(?:\w*_)?(?:password|passwd|passphrase|secret|api_?key|secret_?key|private_?key)|pwd"
    r"|authorization|cookie|set_cookie|(?:access|refresh|auth|id|session|bearer)_?token|cvv|cvc|密码|口令|密钥",
}
_FIELD = {kind: re.compile(pattern) for kind, pattern in _FIELDS.items()}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST_NAME = 64


def kind_of(field: str) -> str | None:
    """Return what a field of that name holds, where the name says so: `passengerName` is a name."""
    if len(field) > _LONGEST_NAME:
        return None
    plain = _HUMP.sub("_", field).lower().replace("-", "_").replace(" ", "_")
    return next((kind for kind, pattern in _FIELD.items() if pattern.fullmatch(plain)), None)


# -- values that are known ---------------------------------------------------------------------------------

_SHORTEST, _SHORTEST_HAN = 4, 2
_MOST_KNOWN = 2_000


class Known:
    """Values that this process has seen in declared fields, or has resolved from the vault: hidden wherever they occur.

    Bounded; the ones learnt first are forgotten first, secrets only after all others. Threads may share it.
    """

    def __init__(self, limit: int = _MOST_KNOWN) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._shown: OrderedDict[str, str] = OrderedDict()
        self._secrets: OrderedDict[str, str] = OrderedDict()

    def learn(self, value: JSON, kind: str) -> None:
        """Hide `value` from now on as `kind` is masked. What is too short to be told from other text is not learnt."""
        text = str(value).strip()
        shortest = _SHORTEST_HAN if any("㐀" <= character <= "鿿" for character in text) else _SHORTEST
        if len(text) >= shortest and not isinstance(value, bool) and STARS not in text:
            self._add(self._shown, text, mask(kind, text))

    def learn_secret(self, name: str, spellings: Iterable[str]) -> None:
        """Hide a secret in all its spellings, as `[secret NAME]`."""
        for spelling in spellings:
            if spelling:
                self._add(self._secrets, spelling, f"[secret {name}]")

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._shown) + len(self._secrets)

    def begun(self, text: str) -> int:
        """Return where in `text` one of them begins that its end cuts off; else the length of `text`."""
        with self._lock:
            return min((_begun(text, value) for value in [*self._shown, *self._secrets]), default=len(text))

    def _add(self, kept: OrderedDict[str, str], text: str, shown: str) -> None:
        with self._lock:
            kept[text] = shown
            kept.move_to_end(text)
            while len(kept) > self._limit:
                kept.popitem(last=False)

    def set_aside(self, text: str) -> tuple[str, Callable[[str], str]]:
        """Return `text` with a mark in place of each of them, and what puts what is shown in place of the marks.

        A mark is no part of any word or number: what stands beside it is found as if nothing had been there.
        """
        with self._lock:
            found = {value: (shown, True) for value, shown in self._shown.items() if value in text}
            found |= {value: (shown, False) for value, shown in self._secrets.items() if value in text}
        if not found:
            return text, lambda redacted: redacted
        shown = [shown for shown, _ in found.values()][:_MARKS]
        numbers = {value: at for at, value in enumerate(list(found)[:_MARKS])}
        ordered = sorted(numbers, key=len, reverse=True)
        pattern = "|".join(_in_words(value) if found[value][1] else re.escape(value) for value in ordered)
        marked = re.sub(pattern, lambda one: f"{_MARK}{chr(_FIRST + numbers[one[0]])}", text.replace(_MARK, "�"))
        return marked, lambda redacted: _MARKED.sub(lambda one: shown[ord(one[1]) - _FIRST], redacted)

    def without_secrets(self, text: str) -> str:
        """Return `text` with the secrets among them hidden, and nothing else."""
        with self._lock:
            found = [(value, shown) for value, shown in self._secrets.items() if value in text]
        for value, shown in sorted(found, key=lambda one: -len(one[0])):
            text = text.replace(value, shown)
        return text


_MARK, _FIRST, _MARKS = "\ufdd0", 0xE000, 6400
_MARKED = re.compile(f"{_MARK}([\ue000-\uf8ff])")


def _begun(text: str, value: str) -> int:
    at = text.find(value[0], max(len(text) - len(value) + 1, 0))
    while at >= 0 and not value.startswith(text[at:]):
        at = text.find(value[0], at + 1)
    return at if at >= 0 else len(text)


def _in_words(value: str) -> str:
    """Return a pattern of `value` where it is no part of a longer word of ASCII: Li stays in Listing."""
    left = r"(?<![A-Za-z0-9])" if value[0].isascii() and value[0].isalnum() else ""
    right = r"(?![A-Za-z0-9])" if value[-1].isascii() and value[-1].isalnum() else ""
    return f"{left}{re.escape(value)}{right}"


# -- the one of this process -------------------------------------------------------------------------------

_current = Redactor()


def current() -> Redactor:
    """Return the redactor of this process."""
    return _current


def use(redactor: Redactor) -> None:
    """Make `redactor` that of this process."""
    global _current  # noqa: PLW0603 - failures are converted by a class that the engine's client makes itself
    _current = redactor
