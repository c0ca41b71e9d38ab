"""What a tool's signature says of private data: which fields are, and which arguments a secret fills in. Data only.

`Annotated[str, Sensitive("phone")]` ends up in the tool's JSON Schemas as `"x-sensitive": "phone"`: every place of a
value is then looked up by the schema, never guessed from the value.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, quote_plus

from perdure.messages import JSON, Data
from perdure.parsing import DEEPEST

KIND = "x-sensitive"
"""Key of a schema: the kind of private data that its values are."""
CONCEAL = "x-conceal"
"""Key of a schema: whether the model is shown handles in place of its values."""
_KEYS = frozenset({KIND, CONCEAL})
_WORD = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class Sensitive:
    """Says that a field holds private data: `phone: Annotated[str, Sensitive("phone")]`.

    Works in a tool's signature and in the models, dataclasses and typed dictionaries that it takes or returns. What is
    said of an object or a list holds for all that is in it.

    Args:
        kind: `phone`, `identity`, `card`, `email` or `name`: diagnostics show a part of it, as in 138****1234. Any
            other word: they show nothing of it.
        conceal: The model is shown a handle such as `‹phone-1›` in its place, which stands for the same value in the
            whole run; a tool that is called with the handle gets the value. Default: what the agent says.
    """

    kind: str = "private"
    conceal: bool | None = None

    def __post_init__(self) -> None:
        """Check that the kind can be a part of a handle."""
        if not _WORD.fullmatch(self.kind):
            raise ValueError(f"The kind of sensitive data is a word such as phone or card, not {self.kind!r}.")

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Say it in the JSON Schema."""
        said: dict[str, Any] = {KIND: self.kind}
        return (
            {**handler(schema), **said} if self.conceal is None else {**handler(schema), **said, CONCEAL: self.conceal}
        )


Leaf = Callable[[JSON, Sensitive | None], JSON]
"""Returns what is put in place of a string, number, true, false or null; told what the schema says of it."""
TOO_DEEP = "…"
"""Stands for what is nested too deeply to be looked at."""


def anywhere(schema: Any, fits: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Return whether a JSON Schema, or one in it, fits."""
    if isinstance(schema, list):
        return any(anywhere(item, fits) for item in cast("list[Any]", schema))
    if not isinstance(schema, Mapping):
        return False
    node = cast("Mapping[str, Any]", schema)
    return fits(node) or any(anywhere(value, fits) for value in node.values())


def at_leaves(value: JSON, schema: Mapping[str, Any] | None, change: Leaf) -> JSON:
    """Return `value` with `change` made to everything in it that is neither object nor list.

    Args:
        schema: Says which places are sensitive; without `$ref`. None: nothing is known of any.
    """
    return _at_leaves(value, _branches([schema] if schema else []), None, change, DEEPEST)


def _at_leaves(
    value: JSON, schemas: Sequence[Mapping[str, Any]], above: Sensitive | None, change: Leaf, left: int
) -> JSON:
    said = _said(schemas) or above
    if left == 0 and isinstance(value, dict | list):
        return TOO_DEEP
    if isinstance(value, dict):
        fields = cast("dict[str, JSON]", value)
        return {
            key: _at_leaves(child, _branches(_of_key(schemas, key)), said, change, left - 1)
            for key, child in fields.items()
        }
    if isinstance(value, list | tuple):
        items = cast("Sequence[JSON]", value)
        return [
            _at_leaves(child, _branches(_of_index(schemas, at)), said, change, left - 1)
            for at, child in enumerate(items)
        ]
    return change(value, said)


def _said(schemas: Iterable[Mapping[str, Any]]) -> Sensitive | None:
    for schema in schemas:
        if kind := schema.get(KIND):
            usable = isinstance(kind, str) and _WORD.fullmatch(kind)
            return Sensitive(kind if usable else "private", schema.get(CONCEAL))
    return None


_MOST_BRANCHES = 100


def _branches(schemas: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Return the schemas, and all those that they combine: where any of them speaks of a place, it counts."""
    found: list[Mapping[str, Any]] = []
    waiting: list[Any] = [schema for schema in schemas if isinstance(schema, Mapping)]
    while waiting and len(found) < _MOST_BRANCHES:
        schema = cast("Mapping[str, Any]", waiting.pop(0))
        found.append(schema)
        for key in ("anyOf", "oneOf", "allOf"):
            waiting += [one for one in schema.get(key, ()) if isinstance(one, Mapping)]
        waiting += [schema[key] for key in ("then", "else") if isinstance(schema.get(key), Mapping)]
    return found


def _of_key(schemas: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    found: list[Any] = []
    for schema in schemas:
        named = cast("Mapping[str, Any]", schema.get("properties") or {})
        patterns = cast("Mapping[str, Any]", schema.get("patternProperties") or {})
        matching = [child for pattern, child in patterns.items() if _matches(pattern, key)]
        found += [named[key]] if key in named else matching or [schema.get("additionalProperties")]
    return found


def _matches(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:
        return True  # what can't be told counts as said


def _of_index(schemas: Iterable[Mapping[str, Any]], at: int) -> list[Any]:
    found: list[Any] = []
    for schema in schemas:
        first = cast("Sequence[Any]", schema.get("prefixItems") or ())
        found.append(first[at] if at < len(first) else schema.get("items"))
    return found


# -- schemas -----------------------------------------------------------------------------------------------

_NAMED = ("properties", "patternProperties")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "then", "else")


def outline(schema: Any) -> dict[str, Any]:
    """Return as much of a JSON Schema without `$ref` as leads to what is sensitive; `{}` where nothing is."""
    if not isinstance(schema, Mapping):
        return {}
    node = cast("Mapping[str, Any]", schema)
    kept: dict[str, Any] = {key: node[key] for key in (KIND, CONCEAL) if key in node}
    rest = outline(node.get("additionalProperties"))
    for key in _NAMED:
        children = cast("Mapping[str, Any]", node.get(key) or {})
        if found := {name: inner for name, child in children.items() if (inner := outline(child)) or rest}:
            kept[key] = found  # where the rest is sensitive, also those that are not: they are not the rest
    for key in _LISTED:
        inner_ones = [outline(child) for child in cast("Sequence[Any]", node.get(key) or ())]
        if any(inner_ones):
            kept[key] = inner_ones
    for key in _SINGLE:
        if inner := outline(node.get(key)):
            kept[key] = inner
    return kept


def unmarked(schema: JSON) -> JSON:
    """Return a JSON Schema without what it says of private data: what a model is shown."""
    if isinstance(schema, list):
        return [unmarked(item) for item in cast("list[JSON]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, JSON]", schema)
    return {
        key: {name: unmarked(child) for name, child in cast("dict[str, JSON]", value).items()}
        if key in _NAMED and isinstance(value, dict)
        else value
        if key in ("enum", "const", "default", "examples")
        else unmarked(value)
        for key, value in fields.items()
        if key not in _KEYS
    }


# -- secrets -----------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
SHORTEST_SECRET = 4
"""Characters: something shorter could not be told from other text, and would be hidden everywhere."""
LONGEST_SECRET = 64 * 1024


@dataclass(frozen=True, slots=True)
class Secret:
    """Says that an argument is filled in from the run's secrets: `passenger: Annotated[str, Secret("passenger_id")]`.

    The model never learns of it; the value goes from the vault straight into the tool.

    Args:
        name: As in `perdure run --secret NAME=@FILE`.
    """

    name: str

    def __post_init__(self) -> None:
        """Check that there can be such a secret."""
        if problem := unnameable(self.name):
            raise ValueError(problem)


class Vaulted(Data):
    """The secrets of a run, without their values: where they are in the vault, and which there are."""

    id: str
    names: list[str]


def unnameable(name: str) -> str:
    """Return why a secret can't be called so, or ""."""
    if _NAME.fullmatch(name):
        return ""
    return f"A secret's name is made of at most 64 letters, digits, '_', '-' and '.'; {name!r} is not."


def unfit(name: str, value: str) -> str:
    """Return why that can't be a secret, or ""; the value itself is never told."""
    if problem := unnameable(name):
        return problem
    if len(value) < SHORTEST_SECRET:
        return f"Secret {name!r} has fewer than {SHORTEST_SECRET} characters: it can't be told from other text."
    if len(value) > LONGEST_SECRET:
        return f"Secret {name!r} has more than {LONGEST_SECRET:,} characters."
    return ""


def spellings(value: str) -> list[str]:
    """Return in which ways a text may hold `value`: as it is, within JSON or an address, or as base64."""
    data = value.encode("utf-8", "surrogatepass")
    written = {
        value,
        value.strip(),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        quote(data, safe=""),
        quote(data),
        quote_plus(data),
        base64.b64encode(data).decode(),
        base64.urlsafe_b64encode(data).decode(),
        base64.b64encode(data).decode().rstrip("="),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
    }
    return sorted((one for one in written if len(one) >= SHORTEST_SECRET), key=lambda one: (-len(one), one))
