"""Private values towards the model: it is shown handles such as `‹phone-1›`, and plans with those. Pure.

Which values there are, and which handle each one has, follows from the transcript alone: of each entry, in order, what
the schemas of its tools say. So a value has the same handle in a run, the runs of a session and their forks, whatever
was compacted, put away or resumed, and nothing of it has to be kept. An entry is shown with the handles of what was
known by then: what a model has been shown never changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from perdure.context import Once
from perdure.handling import Handles, is_handle
from perdure.messages import (
    JSON,
    AssistantMessage,
    Compaction,
    Content,
    Entry,
    Private,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    Verbatim,
    content_hash,
)
from perdure.parsing import parse_json
from perdure.policies import READ_RESULT, AgentSpec, OutputSpec, ToolSpec
from perdure.results import as_text, render_result
from perdure.sensitive import CONCEAL, KIND, Sensitive, anywhere, at_leaves, outline, unmarked

HINT = (
    "Private values are shown to you as handles such as ‹phone-1›. A handle stands for its value: write it as it is, "
    "in calls and in what you say, and whoever reads it gets the value."
)
"""Ends the instructions of a model that is shown handles."""

NOT_SHOWN = "[Not shown: what of it is private can't be told any more. Ask for less of it.]"
MOST_PRIVATE = 2_000
"""Values that are noted of one result."""


# -- what is declared --------------------------------------------------------------------------------------


def deciding(schema: Any) -> Any:
    """Return a JSON Schema in which every field that is private, and says nothing of it, is concealed."""
    if isinstance(schema, list):
        return [deciding(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    node = {key: deciding(value) for key, value in cast("Mapping[str, Any]", schema).items()}
    return {**node, CONCEAL: True} if isinstance(node.get(KIND), str) and CONCEAL not in node else node


def deciding_tool(spec: ToolSpec) -> ToolSpec:
    """Return a tool of an agent that conceals what is private."""
    changed = {"parameters": deciding(spec.parameters), "returns": deciding(spec.returns)}
    return spec if changed == {name: getattr(spec, name) for name in changed} else spec.model_copy(update=changed)


def conceals(schema: Any) -> bool:
    """Return whether a JSON Schema has fields whose values the model is not shown."""
    return anywhere(schema, lambda node: node.get(CONCEAL) is True and KIND in node)


def found(value: JSON, schema: Mapping[str, Any], *, shown: bool = False) -> list[Private]:
    """Return the values in `value` that are private, each once, in their order.

    Args:
        shown: Those that the model is shown as well.
    """
    values: dict[str, Private] = {}

    def note(leaf: JSON, said: Sensitive | None) -> JSON:
        if said and (said.conceal or shown) and _is_value(leaf):
            values.setdefault(json.dumps(leaf), Private(kind=said.kind, value=leaf))
        return leaf

    at_leaves(value, schema, note)
    return list(values.values())


def _is_value(leaf: JSON) -> bool:
    return leaf is not None and leaf != "" and not is_handle(leaf)


def noted(result: ToolResult, value: Any, schema: Mapping[str, Any]) -> ToolResult:
    """Return the `result` of a tool, with what is private in the `value` that it returned."""
    if not conceals(schema):
        return result
    text, _ = as_text(value)
    try:
        parsed = text if isinstance(value, str) else parse_json(text or "null")
    except ValueError:
        return result
    values = found(parsed, schema)
    return result.model_copy(update={"private": values if len(values) <= MOST_PRIVATE else None})


# -- what a model is shown of it ---------------------------------------------------------------------------

_learnt: Once[list[Private]] = Once()
_shown: Once[Entry] = Once()
_tools: Once[ToolSpec] = Once()


class Book:
    """The handles of a conversation.

    Args:
        spec: The rules of the run.
        key: Tells them from others: their hash.
    """

    def __init__(self, spec: AgentSpec, key: str) -> None:
        self._key = key
        variables = spec.variables.json_schema if spec.variables else {}
        self._arguments = {tool.name: tool.parameters for tool in spec.known if conceals(tool.parameters)}
        self._results = {tool.name: tool.returns for tool in spec.known if conceals(tool.returns)}
        self.is_open = bool(self._arguments or self._results) or conceals(variables)
        self._variables = variables
        self.handles = Handles()

    def read(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return a conversation as the model is shown it. Afterwards, the book knows all handles of it."""
        self.is_open = self.is_open or any(map(_has_private, entries))
        return [self._read(entry) for entry in entries] if self.is_open else list(entries)

    def _read(self, entry: Entry) -> Entry:
        for one in _learnt.get(entry, self._key, lambda: list(self._private(entry))):
            self.handles.add(one.kind, one.value)
        if not self.handles.count and not self._is_of_private(entry):
            return entry
        return _shown.get(entry, f"{self._key}/{self.handles.mark}", lambda: self._concealed(entry))

    def _is_of_private(self, entry: Entry) -> bool:
        result = entry.result if isinstance(entry, ToolMessage | UserMessage) else None
        return result is not None and result.name in self._results

    # -- what an entry tells ---------------------------------------------------------------------------

    def _private(self, entry: Entry) -> Iterator[Private]:
        match entry:
            case AssistantMessage(calls=calls):
                for call in calls:
                    yield from found(call.arguments, self._arguments.get(call.name, {}))
            case ToolMessage(result=ToolResult() as result) | UserMessage(result=ToolResult() as result):
                yield from self._of_result(result)
            case UserMessage(private=private):
                yield from private
            case _:
                pass

    def _of_result(self, result: ToolResult) -> list[Private]:
        schema = self._results.get(result.name, {})
        value = _parsed(result) if schema else None
        return [*(found(value, schema) if value is not None else ()), *(result.private or ())]

    # -- how it is shown -------------------------------------------------------------------------------

    def _concealed(self, entry: Entry) -> Entry:
        match entry:
            case UserMessage(content=str(text), result=ToolResult() as result):
                shown, told = self.result(result), render_result(result)
                words = self.text(text.removesuffix(told)) + render_result(shown) if text.endswith(told) else text
                return entry.model_copy(update={"content": self.text(words), "result": shown})
            case UserMessage(content=content):
                return entry.model_copy(update={"content": self._content(content), "private": []})
            case AssistantMessage(text=text, calls=calls):
                changed = {"text": self.text(text), "calls": [self._call(call) for call in calls], "private": []}
                return entry.model_copy(update=changed)
            case ToolMessage(result=result):
                return entry.model_copy(update={"result": self.result(result)})
            case Compaction(summary=summary, verbatim=verbatim):
                kept = Verbatim.model_validate(self.json(verbatim.model_dump(), {}))
                return entry.model_copy(update={"summary": self.text(summary), "verbatim": kept})

    def text(self, text: str) -> str:
        """Return `text` with handles in place of the values that are known."""
        return self.handles.conceal(text)

    def json(self, value: JSON, schema: Mapping[str, Any]) -> JSON:
        """Return a JSON value with handles: of what `schema` says is private, and of what is known wherever it is."""

        def leaf(one: JSON, said: Sensitive | None) -> JSON:
            if said and said.conceal and _is_value(one):
                return self.handles.of(one) or f"[{said.kind}]"
            return self.text(one) if isinstance(one, str) else self._number(one)

        return self._keys(at_leaves(value, schema, leaf))

    def _number(self, value: JSON) -> JSON:
        if value is None or isinstance(value, bool):
            return value
        shown = self.text(str(value))
        return value if shown == str(value) else shown

    def _keys(self, value: JSON) -> JSON:
        if isinstance(value, dict):
            fields = cast("dict[str, JSON]", value)
            return {self.text(str(key)): self._keys(child) for key, child in fields.items()}
        return [self._keys(item) for item in cast("list[JSON]", value)] if isinstance(value, list) else value

    def note(self, variables: Mapping[str, JSON] | None) -> Mapping[str, JSON] | None:
        """Return the variables that the model is told of; of what has no handle yet, what it is."""
        if not variables or not self.is_open:
            return variables
        from perdure.schemas import inline_refs

        schema = outline(inline_refs(self._variables))
        told: Mapping[str, JSON] = self.json(dict(variables), schema)
        return told

    def _content(self, content: Content) -> Content:
        if isinstance(content, str):
            return self.text(content)
        return [
            part.model_copy(update={"text": self.text(part.text)}) if isinstance(part, TextPart) else part
            for part in content
        ]

    def _call(self, call: ToolCall) -> ToolCall:
        arguments = self.json(call.arguments, self._arguments.get(call.name, {}))
        return call.model_copy(update={"arguments": arguments, "private": []})

    def result(self, result: ToolResult) -> ToolResult:
        """Return a result as the model is shown it."""
        changed: dict[str, Any] = {
            name: self.text(said)
            for name in ("message", "suggestion", "note", "trimmed")
            if (said := getattr(result, name))
        }
        if result.private:
            changed["private"] = None
        content, shown = self._result_content(result)
        if content != result.content:
            changed["content"] = content
            if result.size is not None and result.shown is None:
                changed["shown"] = shown
        return result.model_copy(update=changed) if changed else result

    def _result_content(self, result: ToolResult) -> tuple[str, int]:
        """Return a result's text with handles, and how many bytes of it that stands for."""
        schema, value = self._results.get(result.name, {}), None
        text, size = result.content, _bytes(result.content)
        if schema and result.status == "ok" and text:
            value = _parsed(result)
            if value is None and result.private is None:
                return NOT_SHOWN, size
        if isinstance(value, str):
            return str(self.json(value, schema)), size
        if value is not None:
            shown = self.json(value, schema)
            return (text, size) if shown == value else (json.dumps(shown, ensure_ascii=False), size)
        if result.size is not None or result.name == READ_RESULT.name:
            text = self.handles.without_pieces(text)
        whole = _bytes(text)
        return self.handles.conceal(text, [one.value for one in result.private or ()]), whole

    # -- what a model writes ---------------------------------------------------------------------------

    def revealed(self, text: str) -> str:
        """Return what a model has written, with the values of the handles in it."""
        return self.handles.reveal(text)

    def written_in(self, text: str) -> list[Private]:
        """Return what a model has written handles of in a text: whoever shows it to another model hides it likewise."""
        found = self.handles.written_in(text).items()
        return [Private(kind=handle[1:].rpartition("-")[0], value=value) for handle, value in found]

    def arguments(self, written: JSON) -> JSON:
        """Return what a model has written as JSON, with the values of the handles in it.

        Raises:
            LookupError: If there is no value of one of them; says so in one sentence.
        """
        return self.handles.reveal_json(written)


def _has_private(entry: Entry) -> bool:
    """Return whether an entry comes from a run that conceals, or went to one: then this one conceals as well."""
    match entry:
        case UserMessage(private=[_, *_]) | ToolMessage(result=ToolResult(private=[_, *_])):
            return True
        case _:
            return False


def _parsed(result: ToolResult) -> JSON:
    """Return the value of a result, which a string is itself; None where it has none, or only its beginning."""
    if result.status != "ok":
        return None
    try:
        value = parse_json(result.content)
    except ValueError:
        is_whole = result.private is None and result.size is None
        return result.content if is_whole and result.content.lstrip()[:1] not in ("{", "[") else None
    return cast("JSON", value) if isinstance(value, dict | list) else result.content


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def offered(tool: ToolSpec) -> ToolSpec:
    """Return a tool as it is described to a model that may be shown handles: each field that has one takes text."""
    if not conceals(tool.parameters):
        return tool

    def relaxed() -> ToolSpec:
        return tool.model_copy(update={"parameters": unmarked(_relaxed(tool.parameters))})

    return _tools.get(tool, "", relaxed)


def offered_output(spec: OutputSpec) -> OutputSpec:
    """Return the answer that is asked of a model that may be shown handles, as `offered` does for tools."""
    if not conceals(spec.json_schema):
        return spec
    return spec.model_copy(update={"json_schema": unmarked(_relaxed(spec.json_schema))})


_RULES = frozenset({"pattern", "format", "minLength", "maxLength", "minimum", "maximum", "multipleOf", "enum", "const"})
_RULES_ABOVE = frozenset({"exclusiveMinimum", "exclusiveMaximum"})


def _relaxed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_relaxed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    node = {key: _relaxed(value) for key, value in cast("Mapping[str, Any]", schema).items()}
    if node.get(CONCEAL) is not True or "type" not in node or node["type"] in ("object", "array"):
        return node
    said = node["type"]
    types = cast("list[str]", said) if isinstance(said, list) else [str(said)]
    kept = {key: value for key, value in node.items() if key not in _RULES | _RULES_ABOVE}
    return {**kept, "type": types[0] if types == ["string"] else [*types, *({"string"} - set(types))]}


def book_of(spec: AgentSpec) -> Book:
    """Return the book of a conversation of which nothing was read yet."""
    return Book(spec, content_hash(spec))
