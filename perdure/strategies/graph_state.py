"""A graph's state: what nodes give it, read and checked by the class that declares it. Pure."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from perdure.errors import VariableError
from perdure.messages import JSON, ToolResult, canonical_json
from perdure.schemas import sentence
from perdure.strategies.graph_shape import NodeSpec
from perdure.strategies.graph_types import listed

Reducer = Callable[[Any, Any], Any]
"""Called with what a field holds and with what a node gives; returns what it holds then."""


class Misfit(ValueError):
    """What a node has given is no value of the field that it writes."""


def instance(state: type[BaseModel], values: Mapping[str, JSON]) -> BaseModel:
    """Return the state as application code is given it.

    Raises:
        VariableError: If the values do not fit the class, which may have changed since the run was started.
    """
    known = {name: values[name] for name in state.model_fields if name in values}
    try:
        return state.model_validate_json(json.dumps(known), by_name=True)
    except ValidationError as error:
        raise VariableError(f"The state does not fit {state.__name__}: {sentence(error)}") from error


def given(node: NodeSpec, result: ToolResult, proposed: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return what a node's result gives to fields of the state, as it came.

    Args:
        proposed: The arguments of its call: what a person has not changed of them is not given again.

    Raises:
        Misfit: If there is more of it than the run has kept, or it is not what it has to be.
    """
    if not node.written:
        return {}
    if result.size is not None:
        raise Misfit(f"its result has {result.size:,} bytes, of which a part alone is kept")
    if node.writes:
        return {node.writes: _value(node, result.content)}
    parsed = _parsed(result.content)
    if not isinstance(parsed, dict):
        raise Misfit("its result is no object")
    found = cast("dict[str, JSON]", parsed)
    if node.shows:
        return {name: found[name] for name in node.shows if _changed(name, found, proposed)}
    if missing := [name for name in node.spreads if name not in found]:
        raise Misfit(f"its result has no {missing[0]!r}")
    return {name: found[name] for name in node.spreads}


def _changed(name: str, found: Mapping[str, JSON], proposed: Mapping[str, JSON]) -> bool:
    return name in found and canonical_json(found[name]) != canonical_json(proposed.get(name))


def _value(node: NodeSpec, content: str) -> JSON:
    if node.is_text:
        return content
    if content == "":
        return None
    if (values := listed(node.schema_of)) is not None:
        said = _plain(content)
        return next((value for value in values if _plain(str(value)) == said), _parsed(content))
    return _parsed(content)


def _plain(said: str) -> str:
    return said.strip().strip("\"'`*.").strip().casefold()


def _parsed(content: str) -> JSON:
    """Return JSON, also where a model has put it into a fence; text where it is none."""
    text = content.strip()
    if text.startswith("```") and text.endswith("```"):
        text = text[3:-3].removeprefix("json").strip()
    try:
        return json.loads(text)
    except ValueError:
        return content


@functools.lru_cache(maxsize=1_024)
def _adapter(state: type[BaseModel], name: str) -> TypeAdapter[Any]:
    field = state.model_fields[name]
    hint: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(hint)


def read(state: type[BaseModel], name: str, value: JSON) -> Any:
    """Return a value of a field, as JSON, as its own type.

    Raises:
        Misfit: If it is none.
    """
    return _checked(name, lambda: _adapter(state, name).validate_json(json.dumps(value)))


def _checked(name: str, made: Callable[[], Any]) -> Any:
    try:
        return made()
    except ValidationError as error:
        one = error.errors(include_url=False)[0]
        where = ".".join(map(str, (name, *one["loc"])))
        raise Misfit(f"it is no value of {where}: {one['msg']}") from error


def written(state: type[BaseModel], name: str, value: Any) -> JSON:
    """Return a value of a field as JSON."""
    found: JSON = json.loads(_adapter(state, name).dump_json(value))
    return found


def merged(
    state: type[BaseModel], values: Mapping[str, JSON], new: Mapping[str, JSON], reducers: Mapping[str, Reducer]
) -> dict[str, JSON]:
    """Return what fields hold once a node has given `new`: that, or what the field's reducer makes of both.

    Raises:
        Misfit: If a value is none of its field's.
    """
    changed: dict[str, JSON] = {}
    for name, value in new.items():
        if name not in state.model_fields:
            continue  # the state has lost it since the run was started
        fresh = read(state, name, value)
        if reducer := reducers.get(name):
            before = read(state, name, values[name]) if name in values else None
            both = reducer(before, fresh)
            fresh = _checked(name, functools.partial(_adapter(state, name).validate_python, both))
        changed[name] = written(state, name, fresh)
    return changed
