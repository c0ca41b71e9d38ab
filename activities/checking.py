"""What a JSON Schema says against a value."""

from __future__ import annotations

import difflib
import json
from functools import lru_cache
from typing import Any, cast

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
    said = "; ".join(_complaint(error) for error in errors[:_MOST])
    return f"{said} (and {len(errors) - _MOST} more)" if len(errors) > _MOST else said


def _complaint(error: Any) -> str:
    """Return one complaint, with the field that it is about, and with the name that may have been meant."""
    where = "" if error.json_path == "$" else f"{error.json_path.removeprefix('$.')}: "
    told = f"{where}{brief(error.message)}"
    if error.validator != "additionalProperties" or "patternProperties" in error.schema:
        return told
    known = [str(name) for name in error.schema.get("properties", {})]
    strangers = [str(name) for name in cast("dict[str, JSON]", error.instance) if name not in known]
    close = [meant[0] for name in strangers if (meant := difflib.get_close_matches(name, known, n=1))]
    names = ", ".join(map(repr, strangers))
    hint = f", did you mean {close[0]!r}?" if close else ""
    return f"{where}there is no {brief(names)}{hint}" if strangers and error.validator_value is False else told


def brief(text: str) -> str:
    """Return `text` clean and at most 300 characters long."""
    return clean(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
