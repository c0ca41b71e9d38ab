"""What model APIs differ in, levelled: tool names, JSON Schemas, call ids, arguments, missing usage. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, cast

from perdure.context import Once
from perdure.errors import ModelError
from perdure.messages import JSON, AssistantMessage, Content, Message, TextPart, ToolMessage, Usage, UserMessage
from perdure.models import ModelReply, ModelRequest, RawCall
from perdure.policies import ToolSpec
from perdure.results import render_result
from perdure.sensitive import CONCEAL, KIND

NAME_LIMIT = 64
DESCRIPTION_LIMIT = 1024
"""Characters of a function's description that OpenAI accepts."""

BYTES_PER_TOKEN = 4
"""Of UTF-8: about right for English, and for languages whose characters take three bytes each."""

TOKENS_PER_ATTACHMENT = 1000
"""Of an image or file, where a provider leaves usage out: its base64 text would say far too much."""


EMPTY_REPLY = "(empty reply)"
"""Stands for a reply without text and calls: several servers refuse an empty message."""


# -- names -------------------------------------------------------------------------------------------------


def sanitise(name: str) -> str:
    """Return `name` as APIs accept it: `^[a-zA-Z0-9_-]{1,64}$`. An accepted name stays as it is."""
    clean = re.sub(r"[^a-zA-Z0-9_-]+", "_", name)
    if clean != name:
        clean = clean.strip("_") or "tool"
    return clean if 0 < len(clean) <= NAME_LIMIT else _marked(clean, name)


def _marked(clean: str, name: str) -> str:
    """Return `clean`, shortened, with a mark of `name`: the same whatever other tools there are."""
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{clean[: NAME_LIMIT - 9] or 'tool'}_{mark}"


def _loose(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")


class Names:
    """Tool names, to the API and back.

    Args:
        names: The tools' own names, all different.
    """

    def __init__(self, names: Iterable[str]) -> None:
        own = list(names)
        self._wire: dict[str, str] = {name: name for name in own if sanitise(name) == name}
        for name in own:
            if name not in self._wire:
                clean = sanitise(name)
                self._wire[name] = _marked(clean, name) if clean in self._wire.values() else clean
        self._own = {wire: name for name, wire in self._wire.items()}
        self._similar: dict[str, set[str]] = {}
        for name, wire in self._wire.items():
            for spelling in (name, wire):
                self._similar.setdefault(_loose(spelling), set()).add(name)

    def wire(self, name: str) -> str:
        """Return the name for the API; one that is no tool's (an old transcript's) is only made acceptable."""
        return self._wire.get(name) or sanitise(name)

    def own(self, written: str) -> str:
        """Return the tool that a model means by `written`, or `written` itself if that is none, or not clear."""
        exact = self._own.get(written) or (written if written in self._wire else None)
        if exact:
            return exact
        similar = self._similar.get(_loose(written.removeprefix("functions.")), set())
        return next(iter(similar)) if len(similar) == 1 else written


# -- schemas -----------------------------------------------------------------------------------------------

_DROPPED = frozenset({"$schema", "$id", "$comment", "$anchor", KIND, CONCEAL})
"""Mean nothing to a model, and some servers refuse what they don't know."""

_NOT_AT_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else")
"""OpenAI refuses these at the top of a function's parameters."""

_ARRAYS = frozenset({"items", "prefixItems", "contains", "unevaluatedItems"})
_OBJECTS = frozenset({"additionalProperties", "unevaluatedProperties", "propertyNames"})
_SUBSCHEMAS = _ARRAYS | _OBJECTS | {"anyOf", "oneOf", "allOf", "not", "if", "then", "else"}
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})


def function_parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `schema` that function-calling servers accept.

    Where a keyword has to go, its meaning moves into a description: a pattern that llama.cpp's grammars
    can't express, a combination at the top. Arguments are validated against the whole schema in any case.
    """
    top = cast("dict[str, Any]", _level(schema))
    moved = {key: top.pop(key) for key in _NOT_AT_TOP if key in top}
    properties: dict[str, Any] = {}
    for key in ("allOf", "anyOf", "oneOf"):
        for branch in moved.get(key, ()):
            properties |= branch.get("properties", {})
    top = {**top, "type": "object", "properties": {**properties, **top.get("properties", {})}}
    if moved:
        rule = json.dumps(moved, ensure_ascii=False, separators=(",", ":"))
        top["description"] = _and(top.get("description"), f"The arguments also have to fit this JSON Schema: {rule}")
    return top


def _level(node: Any) -> Any:
    if isinstance(node, bool):
        return {} if node else {"not": {}}
    if not isinstance(node, Mapping):
        return node
    fields = cast("Mapping[str, Any]", node)
    out = {key: _child(key, value) for key, value in fields.items() if key not in _DROPPED}
    kind = out.get("type")
    if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in out:
        out["items"] = {}
    pattern = out.get("pattern")
    if isinstance(pattern, str) and not _expressible(pattern):
        del out["pattern"]
        out["description"] = _and(out.get("description"), f"Has to match the regular expression {pattern}")
    return out


def _child(key: str, value: Any) -> Any:
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _level(child) for name, child in cast("Mapping[str, Any]", value).items()}
    if key in _SUBSCHEMAS and isinstance(value, list):
        return [_level(child) for child in cast("Sequence[Any]", value)]
    flag = isinstance(value, bool) and key in _OBJECTS
    return _level(value) if key in _SUBSCHEMAS and not flag else value


def _expressible(pattern: str) -> bool:
    """Whether llama.cpp can make a grammar of it: anchored, without look-around and classes of characters."""
    anchored = pattern.startswith("^") and pattern.endswith("$") and not pattern.endswith("\\$")
    return anchored and "(?" not in pattern and not re.search(r"\\[a-zA-Z0-9]", pattern)


def _and(text: Any, more: str) -> str:
    return f"{text} {more}" if text else more


def function(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `{name, description, parameters}` of a function.

    What is over the limit of a description opens the description of its parameters, which has none.
    """
    parameters = function_parameters(schema)
    if len(description) > DESCRIPTION_LIMIT:
        cut = description.rfind(" ", DESCRIPTION_LIMIT // 2, DESCRIPTION_LIMIT - 1)
        cut = cut if cut > 0 else DESCRIPTION_LIMIT - 2
        rest = _and(f"(continued) {description[cut:].strip()}", parameters.get("description") or "").strip()
        description, parameters = f"{description[:cut].rstrip()} …", {**parameters, "description": rest}
    return {"name": name, "description": description, "parameters": parameters}


# -- calls -------------------------------------------------------------------------------------------------


_RANDOM = re.compile(r"[A-Za-z0-9]*(?:[A-Za-z][A-Za-z0-9]*\d|\d[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]*")
_RANDOM_FROM = 8
"""Letters and digits mixed in a row that make an id one that does not come twice."""


def level_ids(written: Sequence[JSON], taken: Iterable[str], mark: str = "") -> list[str]:
    """Return ids that differ from each other and from `taken`: the provider's where it is usable.

    Args:
        written: The ids of one reply, in order; None, empty or not a string where missing.
        taken: The ids already in the conversation, as far as it is shown.
        mark: Where not all of it is: makes ids that look as if they might come again different from those before.
    """
    used = set(taken)
    kept: list[str | None] = []
    for id_ in written:
        marked = f"{id_}_{mark}" if mark and isinstance(id_, str) and id_.strip() and not _is_random(id_) else id_
        usable = isinstance(marked, str) and bool(marked.strip()) and marked not in used
        kept.append(marked if usable else None)
        used |= {marked} if usable else set()
    fresh = (f"call_{number}{mark and '_'}{mark}" for number in count(len(used) + 1))
    unused = (id_ for id_ in fresh if id_ not in used)
    return [id_ or next(unused) for id_ in kept]


def _is_random(id_: str) -> bool:
    return any(len(found) >= _RANDOM_FROM and _RANDOM.fullmatch(found) for found in re.findall(r"[A-Za-z0-9]+", id_))


def level_calls(written: Sequence[tuple[JSON, JSON, JSON]], request: ModelRequest, names: Names) -> list[RawCall]:
    """Return the calls of one reply.

    Args:
        written: Id, name and arguments of each as the server wrote them, of whatever type.
        request: What was asked: its conversation says which ids are taken.
        names: Of the request's tools.
    """
    replies = request.hidden + sum(isinstance(message, AssistantMessage) for message in request.messages)
    mark = str(replies) if request.hidden else ""
    ids = level_ids([id_ for id_, _, _ in written], ids_in(request.messages), mark)
    return [
        RawCall(id_, names.own(name) if isinstance(name, str) else "", arguments_text(arguments))
        for id_, (_, name, arguments) in zip(ids, written, strict=True)
    ]


def tool_choice(request: ModelRequest, names: Names) -> str | None:
    """Return `auto`, `required`, `none`, a tool's name for the API, or None where nothing is to be said.

    Raises:
        ModelError: If the settings name a tool that the agent does not have.
    """
    chosen = request.settings.tool_choice
    if not request.tools:
        return None
    if request.answer_only:
        return "none"
    if chosen not in (None, "auto", "none", "required") and chosen not in {tool.name for tool in request.tools}:
        raise ModelError("bad_request", f"The setting tool_choice={chosen!r} is not the name of one of the tools.")
    if chosen in (None, "auto", "none"):
        return chosen
    if not request.first:
        return None
    return chosen if chosen == "required" else names.wire(chosen)


def ids_in(messages: Sequence[Message]) -> list[str]:
    """Return the ids of all calls in `messages`."""
    return [call.id for message in messages if isinstance(message, AssistantMessage) for call in message.calls]


def arguments_text(written: JSON) -> str:
    """Return a call's arguments as JSON text, however the server wrote them; text is left as it is."""
    if written is None or (isinstance(written, str) and not written.strip()):
        return "{}"
    return written if isinstance(written, str) else to_text(written)


def to_text(value: JSON) -> str:
    """Return `value` as compact JSON in its own order: the same value gives the same bytes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# -- usage -------------------------------------------------------------------------------------------------


def usage_or_estimate(written: Mapping[str, int | None], request: ModelRequest, reply: ModelReply) -> Usage:
    """Return the provider's usage, or an estimate, flagged so, for what it left out.

    Args:
        written: `input`, `cached`, `output` and `reasoning` tokens as far as the provider says; it never
            sends a request without tokens, so an `input` of 0 counts as left out.
    """
    sent, received = written.get("input") or None, written.get("output")
    return Usage(
        input_tokens=sent if sent is not None else request_tokens(request),
        cached_tokens=written.get("cached") or 0,
        output_tokens=received if received is not None else _tokens(_reply_bytes(reply)),
        reasoning_tokens=written.get("reasoning") or 0,
        estimated=sent is None or received is None,
    )


def usage_of_part(request: ModelRequest, characters: int) -> Usage:
    """Return the estimated usage of a call whose reply broke off after so many characters."""
    return Usage(input_tokens=request_tokens(request), output_tokens=_tokens(characters), estimated=True)


def request_tokens(request: ModelRequest) -> int:
    """Return an estimate of the tokens of a request, its tools included: 4 bytes a token, attachments flat."""
    messages = sum(message_bytes(message) for message in request.messages)
    messages += _bytes(to_text(request.output.json_schema)) if request.output else 0
    return _tokens(instruction_bytes(request.instructions, request.tools) + messages)


def instruction_bytes(instructions: str, tools: Sequence[ToolSpec]) -> int:
    """Return how large what stands before a conversation is."""
    described = sum(_bytes(t.name) + _bytes(t.description) + _bytes(to_text(t.parameters)) for t in tools)
    return _bytes(instructions) + described


def message_bytes(message: Message) -> int:
    """Return how large a message is; an attachment counts as a flat number of tokens."""
    return _sizes.get(message, "", partial(_message_bytes, message))


_sizes: Once[int] = Once()


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _reply_bytes(reply: ModelReply) -> int:
    calls = sum(_bytes(call.name) + _bytes(call.arguments) for call in reply.calls)
    return _bytes(reply.text) + calls + sum(_bytes(to_text(item)) for item in reply.reasoning)


def _message_bytes(message: Message) -> int:
    match message:
        case UserMessage(content=content):
            return _content_bytes(content)
        case AssistantMessage(text=text, calls=calls, reasoning=reasoning):
            asked = sum(_bytes(call.name) + _bytes(to_text(call.arguments)) for call in calls)
            return _bytes(text) + asked + sum(_bytes(to_text(item)) for item in reasoning)
        case ToolMessage(result=result):
            return _bytes(render_result(result)) + len(result.images) * TOKENS_PER_ATTACHMENT * BYTES_PER_TOKEN


def _content_bytes(content: Content) -> int:
    if isinstance(content, str):
        return _bytes(content)
    attachment = TOKENS_PER_ATTACHMENT * BYTES_PER_TOKEN
    return sum(_bytes(part.text) if isinstance(part, TextPart) else attachment for part in content)
