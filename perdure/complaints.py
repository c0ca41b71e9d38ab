"""What is wrong with a declaration, in one sentence that says where and what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from perdure.errors import AgentError
from perdure.marks import Document

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_WANTED = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "list": "a list, each entry after '- '",
    "dict": "a mapping, each line KEY: VALUE",
    "model": "a mapping, each line KEY: VALUE",
    "time_delta": "a duration: seconds, or such as 30s, 10m, 24h, 2d",
}
"""By what the names of pydantic's errors begin with."""

_FINE = ("_type", "_parsing", "_from_float", "_attributes_type")


def complaint(error: ValidationError, document: Document) -> AgentError:
    """Return the first complaint about a document, as an error with its place."""
    return min((_placed(one, document) for one in error.errors(include_url=False)), key=_line)


def _line(error: AgentError) -> tuple[int, int]:
    line, column = str(error).split(": ", 1)[0].rsplit(":", 2)[1:]
    return int(line), int(column)


def _placed(one: ErrorDetails, document: Document) -> AgentError:
    at, context = one["loc"], one.get("ctx", {})
    match one["type"]:
        case "unknown_key":
            key, known = context["key"], context["known"]
            return document.fault(at, f"unknown key {key!r}; {meant(key, known)}", key=key)
        case "missing":
            where = _dotted(at[:-1])
            return document.fault(at[:-1], f"key {at[-1]!r} is missing{where and f' in {where}'}; add it.")
        case _:
            name = _dotted(at) or "the document"
            return document.fault(at, f"{name} {_wanted(one)}{_given(one)}.")


def meant(word: str, known: Sequence[str]) -> str:
    """Return which of `known` was probably meant, or what they are."""
    near = get_close_matches(word, known, 1, cutoff=0.55)
    return f"did you mean {near[0]!r}?" if near else f"known here are {', '.join(known)}."


def _dotted(at: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in at if not str(part).startswith("="))


def _wanted(one: ErrorDetails) -> str:
    kind = one["type"]
    for start, words in _WANTED.items():
        if kind.startswith(start) and kind.removeprefix(start) in _FINE:
            return f"has to be {words}"
    if kind == "literal_error":
        expected = one.get("ctx", {}).get("expected", "")
        return f"has to be {expected}"
    text = (
        one["msg"].replace("Input should", "has to").replace("Value should", "has to").replace("List should", "has to")
    )
    return text[0].lower() + text[1:] if text else "can't be that"


def _given(one: ErrorDetails) -> str:
    value: Any = one["input"]
    if one["type"] == "environment" or isinstance(value, Mapping | list):
        return ""
    text = repr(value)
    hint = "; put it in quotes" if one["type"] == "string_type" and isinstance(value, bool | int | float) else ""
    return f", not {text if len(text) <= 100 else text[:100] + '…'}{hint}"  # noqa: PLR2004
