"""Whether what is written fits where it is read, by JSON Schema: it all travels as JSON. Pure.

A doubt is no mismatch: only what certainly does not fit is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from perdure.messages import JSON, canonical_json

Schema = Mapping[str, Any]
_FORMATS = frozenset({"date", "date-time", "time", "duration", "uuid"})
"""Formats in which a value of another one is none."""


def fits(written: Schema, read: Schema, *, unset: bool = False) -> bool:
    """Return whether any value of `written` can be read as `read`.

    Args:
        unset: None is let pass: a field that is not written yet is no mismatch of types.
    """
    if options := _options(written):
        left = [one for one in options if not (unset and one.get("type") == "null")]
        return all(fits(one, read, unset=unset) for one in left)
    if options := _options(read):
        return any(fits(written, one, unset=unset) for one in options)
    return _types_fit(written, read) and _values_fit(written, read) and _parts_fit(written, read)


def _options(schema: Schema) -> list[Schema]:
    found = schema.get("anyOf") or schema.get("oneOf") or ()
    return list(cast("list[Schema]", found))


def _types(schema: Schema) -> set[str]:
    named = schema.get("type")
    if named is None and (values := listed(schema)) is not None:
        return {_type_of(value) for value in values}
    return {named} if isinstance(named, str) else set(cast("list[str]", named or ()))


def _type_of(value: JSON) -> str:
    names = {"bool": "boolean", "int": "integer", "float": "number", "str": "string", "list": "array"}
    return names.get(type(value).__name__, "null" if value is None else "object")


def _types_fit(written: Schema, read: Schema) -> bool:
    given, wanted = _types(written), _types(read)
    if "number" in wanted:
        wanted = {*wanted, "integer"}
    return not given or not wanted or given <= wanted


def _values_fit(written: Schema, read: Schema) -> bool:
    wanted, given = listed(read), listed(written)
    if wanted is not None:
        known = {canonical_json(value) for value in wanted}
        return given is not None and {canonical_json(value) for value in given} <= known
    form = read.get("format")
    if form in _FORMATS and "string" in _types(written) and given is None:
        return bool(written.get("format") == form)
    return True


def _parts_fit(written: Schema, read: Schema) -> bool:
    items, wanted = written.get("items"), read.get("items")
    if isinstance(items, Mapping) and isinstance(wanted, Mapping):
        return fits(cast("Schema", items), cast("Schema", wanted))
    given: Mapping[str, Schema] = written.get("properties", {})
    known: Mapping[str, Schema] = read.get("properties", {})
    if not given:
        return True
    return all(name in given for name in read.get("required", ())) and all(
        fits(given[name], known[name]) for name in known if name in given
    )


def is_text(schema: Schema) -> bool:
    """Return whether any text is a value, and nothing else but None."""
    if options := _options(schema):
        left = [one for one in options if one.get("type") != "null"]
        return bool(left) and all(is_text(one) for one in left)
    return schema.get("type") == "string" and listed(schema) is None and "format" not in schema


def listed(schema: Schema) -> list[JSON] | None:
    """Return all values that there can be; None where there is no end of them."""
    if "enum" in schema:
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    if schema.get("type") == "boolean":
        return [True, False]
    if schema.get("type") == "null":
        return [None]
    if options := _options(schema):
        values = [listed(one) for one in options]
        return None if None in values else [value for some in values for value in some or ()]
    return None
