"""Texts of a graph, with values of its state in them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Formatter
from typing import cast

from perdure.errors import AgentError
from perdure.messages import JSON

INPUT = "input"
"""Stands for what the user asks for."""


def fields_of(text: str) -> list[str]:
    """Return the fields of the state that a text names.

    Raises:
        AgentError: If it names something in another way than `{field}` or `{field.part}`.
    """
    return [path.split(".")[0] for path in _paths(text) if path != INPUT]


def _paths(text: str) -> list[str]:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise AgentError(f"Text {text!r}: {error}; a brace of its own is written twice.") from error
    paths: list[str] = []
    for _, path, form, conversion in parts:
        if path is None:
            continue
        if form or conversion or not all(part.isidentifier() for part in path.split(".")):
            raise AgentError(f"Text {text!r} can name values as {{field}} or {{field.part}}, not {{{path}}}.")
        paths.append(path)
    return paths


def filled(text: str, values: Mapping[str, JSON], asked: str = "") -> str:
    """Return a text with values in place of their names: text as it is, anything else as JSON, nothing as ""."""
    told: list[str] = []
    for literal, path, _, _ in Formatter().parse(text):
        told.append(literal)
        if path is not None:
            told.append(asked if path == INPUT else _written(_found(values, path)))
    return "".join(told)


def _found(values: Mapping[str, JSON], path: str) -> JSON:
    value: JSON = values
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, JSON]", value).get(part)
    return value


def _written(value: JSON) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
