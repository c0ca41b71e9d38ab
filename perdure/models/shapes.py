"""How a model is held to the schema of its answer: by its API, or by what it is told. Pure."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from perdure.errors import ModelError
from perdure.messages import JSON
from perdure.models import ModelReply, ModelRequest
from perdure.models.dialect import function_parameters, sanitise, to_text
from perdure.policies import OutputSpec

_STRICT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_KEPT = frozenset(
    {"type", "enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minItems", "maxItems"}
)
_TOLD = ("minLength", "maxLength", "uniqueItems", "format", "minProperties", "maxProperties")
"""Rules that strict mode does not know: they are told in the description."""

_LOOSE = frozenset(
    {"allOf", "not", "if", "then", "else", "patternProperties", "prefixItems", "contains", "propertyNames"}
    | {"dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "$ref"}
)


class _NotStrict(Exception):
    """The schema says something that strict mode can't."""


def strict(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema of OpenAI's strict dialect whose values all have the form of `schema`; None if there is none.

    Every property is required there, and nothing else is allowed. Rules that the dialect does not know are told in
    descriptions: what is written is validated against the whole schema in any case.
    """
    try:
        return _strict(schema)
    except _NotStrict:
        return None


def _strict(node: Any) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        raise _NotStrict
    node = cast("Mapping[str, Any]", node)
    if _LOOSE & set(node):
        raise _NotStrict
    out: dict[str, Any] = {key: value for key, value in node.items() if key in _KEPT}
    branches = node.get("anyOf") or node.get("oneOf")
    if branches:
        out["anyOf"] = [_strict(branch) for branch in branches]
    kinds = node.get("type")
    kinds = cast("list[str]", kinds) if isinstance(kinds, list) else [kinds]
    if "object" in kinds:
        out |= _object(node)
    if "array" in kinds:
        out["items"] = _strict(node.get("items"))
    if not {"type", "anyOf", "enum", "const"} & set(out):
        raise _NotStrict
    return out | _described(node, out)


def _object(node: Mapping[str, Any]) -> dict[str, Any]:
    properties: Mapping[str, Any] = node.get("properties") or {}
    if not properties and node.get("additionalProperties") is not False:
        raise _NotStrict  # a mapping: its keys are the model's to choose
    return {
        "properties": {name: _strict(child) for name, child in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


def _described(node: Mapping[str, Any], out: dict[str, Any]) -> dict[str, Any]:
    rules = {key: node[key] for key in _TOLD if key in node}
    if rules.get("format") in _STRICT_FORMATS:
        out["format"] = rules.pop("format")
    said = str(node.get("description") or "")
    if rules:
        said = f"{said} Rules: {json.dumps(rules, ensure_ascii=False)}".strip()
    return {"description": said} if said else {}


def format_of(spec: OutputSpec) -> dict[str, JSON]:
    """Return the `{name, schema, strict}` of an answer; strict where the schema allows it."""
    narrow = strict(spec.json_schema)
    schema = function_parameters(spec.json_schema) if narrow is None else narrow
    return {"name": sanitise(spec.name), "schema": schema, "strict": narrow is not None}


# -- which way ---------------------------------------------------------------------------------------------


def told(spec: OutputSpec) -> str:
    """Return what a model is told of the answer that is wanted, where its API can't be."""
    return (
        "Your final answer has to be one JSON value that fits the JSON Schema below, and nothing else: no words around "
        f"it, no code fence. Call tools before that as you need them.\n{to_text(function_parameters(spec.json_schema))}"
    )


def prompted(request: ModelRequest) -> ModelRequest:
    """Return a request that tells the model of its answer's schema, and leaves its API out of it."""
    return replace(_telling(request), output=None)


def _telling(request: ModelRequest) -> ModelRequest:
    if request.output is None:
        return request
    return replace(request, instructions=f"{request.instructions}\n\n{told(request.output)}".lstrip())


_BLAMED = (
    "response_format",
    "response format",
    "text.format",
    "json_schema",
    "json schema",
    "response mime type",
    "structured output",
    "grammar",
)


class Shapes:
    """How one server is asked for answers that fit a schema. Whether it can, asking shows: no list of names says so.

    Args:
        custom: It is not OpenAI's own. Some of those let nothing but the answer through once they are held to its
            schema, calls included: they are held to it only where none may be made, and where an answer is
            to be mended.
    """

    def __init__(self, *, custom: bool) -> None:
        self._custom = custom
        self._refused: set[bool] = set()  # with tools, without

    def shaped(self, request: ModelRequest) -> ModelRequest:
        """Return the request as it goes to the server: with an `output` only where its API is to be held to it."""
        if request.output is None:
            return request
        mode = request.settings.structured_output
        if bool(request.tools) in self._refused or mode == "prompt":
            return prompted(request)
        if mode == "schema" or not self._custom:
            return request
        if request.mending:  # it has tried to answer: now it is to, and nothing else
            return _telling(replace(request, answer_only=True))
        return prompted(request) if request.tools and not request.answer_only else _telling(request)

    async def asking(self, ask: Callable[[ModelRequest], Awaitable[ModelReply]], request: ModelRequest) -> ModelReply:
        """Return the reply to a request, made once more where the server refuses to be held to a schema.

        Raises:
            ModelError: Whatever else goes wrong.
        """
        sent = self.shaped(request)
        try:
            return await ask(sent)
        except ModelError as error:
            if not self._blames(error, sent):
                raise
        return await ask(self.shaped(request))

    def _blames(self, error: ModelError, sent: ModelRequest) -> bool:
        """Remember that a server refuses to be held to a schema; return whether that is what it says."""
        if sent.output is None or error.kind != "bad_request":
            return False
        words = error.message.lower()
        blamed = any(word in words for word in _BLAMED)
        self._refused |= {bool(sent.tools)} if blamed else set()
        return blamed
