"""JSON from outside, read so that it can be written again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import cast

from perdure.messages import JSON

DEEPEST = 100
"""Levels of nesting that are taken from outside; beyond about 250, what was read could not be written again."""


def parse_json(text: str | bytes) -> JSON:
    """Return the value of a JSON text from outside, so that it can be written and hashed again.

    A lone surrogate, which UTF-8 can't hold, becomes `?`.

    Raises:
        ValueError: If it is not JSON, or nested deeper than 100 levels.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
        value = json.loads(text, parse_constant=_not_json, parse_float=_finite)
        if "\\ud" in text.lower():
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [child for node in level for child in _children(node)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"


def _children(node: JSON) -> Iterable[JSON]:
    if isinstance(node, dict):
        return cast("dict[str, JSON]", node).values()
    return cast("list[JSON]", node) if isinstance(node, list) else ()


def _not_json(name: str) -> JSON:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _not_json(text)
