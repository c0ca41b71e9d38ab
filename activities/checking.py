"""What a JSON Schema says against a value."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from perdure.messages import JSON, canonical_json
from perdure.results import clean

_MOST = 5
"""Complaints that a model is told of."""

_LONGEST = 300


@lru_cache(maxsize=512)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def complaints(value: JSON, schema: dict[str, Any]) -> str:
    """Return what `schema` says against `value`, in words for a model; "" for nothing.

    Raises:
        Exception: Whatever the validator raises about a number or pattern that it can't take.
    """
    found = list(_validator(canonical_json(schema)).iter_errors(value))
    errors = sorted(found, key=lambda error: error.json_path)
    said = "; ".join(f"{error.json_path.removeprefix('$.')}: {brief(error.message)}" for error in errors[:_MOST])
    return f"{said} (and {len(errors) - _MOST} more)" if len(errors) > _MOST else said


def brief(text: str) -> str:
    """Return `text` clean and at most 300 characters long."""
    return clean(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
