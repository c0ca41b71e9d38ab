"""What is shown of a value whose field says what it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from perdure.telemetry.detectors import IN_NUMBERS, STARS, Detector, masked_number
from perdure.telemetry.initials import initials

_LONG, _MIDDLING = 14, 8
"""Characters of an identity number from which on its first three and last four, or two and two, are shown."""


def mask(kind: str, value: str) -> str:
    """Return `value` as diagnostics show it.

    Args:
        kind: `phone` (138****1234), `identity` (first 3 and last 4), `card` (last 4), `email`, `name` (initials), or
            anything else: nothing of it is shown. Masking twice is masking once.
    """
    if not value.strip() or STARS in value:
        return value if _MASKED.fullmatch(value) or not value.strip() else STARS
    return _MASKS.get(kind, _hidden)(value)


_MASKED = re.compile(r"\+?[\w.+ -]{0,8}\*{4}\w{0,4}")


def _hidden(_: str) -> str:
    return STARS


def _found(kind: str) -> Callable[[str], str | None]:
    detectors: list[Detector] = [one for one in IN_NUMBERS if one.kind == kind]

    def find(value: str) -> str | None:
        return next((shown for one in detectors if (shown := one.redact(value)) != value and len(shown) < 24), None)  # noqa: PLR2004 - a number, not a sentence around one

    return find


_phone, _card, _identity = _found("phone"), _found("card"), _found("identity")


def _mask_phone(value: str) -> str:
    return _phone(value) or masked_number(value)


def _mask_card(value: str) -> str:
    return f"{STARS}{re.sub(r'[^0-9]', '', value)[-4:]}"


def _mask_identity(value: str) -> str:
    plain = re.sub(r"[^0-9A-Za-z]", "", value)
    shown = (3, 4) if len(plain) >= _LONG else (2, 2) if len(plain) >= _MIDDLING else (0, 0)
    return f"{plain[: shown[0]]}{STARS}{plain[len(plain) - shown[1] :]}" if any(shown) else STARS


def _mask_email(value: str) -> str:
    local, at, domain = value.strip().rpartition("@")
    return f"{local[:1]}***@{domain}" if at else STARS


_MASKS: dict[str, Callable[[str], str]] = {
    "phone": _mask_phone,
    "card": _mask_card,
    "identity": _mask_identity,
    "id": _mask_identity,
    "passport": _mask_identity,
    "email": _mask_email,
    "name": initials,
}
KINDS = tuple(_MASKS)
"""Kinds of which something is shown."""
