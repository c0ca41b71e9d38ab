"""Reading what servers send, of whatever shape: a wrong type reads as absent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from perdure.messages import JSON


def obj(value: JSON) -> dict[str, JSON]:
    """Return `value` if it is an object, else an empty one."""
    return cast("dict[str, JSON]", value) if isinstance(value, dict) else {}


def arr(value: JSON) -> list[JSON]:
    """Return `value` if it is an array, else an empty one."""
    return list(cast("Sequence[JSON]", value)) if isinstance(value, list) else []


def text(value: JSON) -> str:
    """Return `value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def number(value: JSON) -> int | None:
    """Return `value` if it is a count, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def texts(content: JSON) -> str:
    """Return the text of a message's content: a string, or an array of parts of which some have text."""
    if isinstance(content, list):
        return "".join(text(part) or text(obj(part).get("text")) for part in arr(content))
    return text(content)


_HALVES = re.compile(r"(?i)(\\+ud[89ab][0-9a-f]{2}\\+ud[c-f][0-9a-f]{2})|\\ud[89a-f][0-9a-f]{2}")


def decode(answer: str) -> JSON:
    """Return what the JSON text `answer` holds.

    A model may write half a character as an escape, also within a call's arguments; nothing could store it, so
    it becomes U+FFFD.

    Raises:
        ValueError: If it is not JSON.
    """
    try:
        return json.loads(_HALVES.sub(lambda found: found[1] or r"\ufffd", answer))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode(body: Mapping[str, JSON]) -> bytes:
    """Return `body` as JSON: equal bodies, in equal order, give equal bytes.

    Lone surrogates, which no server accepts, become question marks.
    """
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
