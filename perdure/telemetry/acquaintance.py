"""What is private by declaration is known to the redactor of this process, so that free text is redacted too.

A name in a sentence looks like any other word. It is known by the field in which it was seen: in the arguments or the
result of a call, in this process or, by the transcript, in any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from perdure.concealing import found
from perdure.context import Once
from perdure.messages import JSON, AssistantMessage, Entry, ToolMessage, ToolResult, UserMessage
from perdure.parsing import parse_json
from perdure.policies import AgentSpec
from perdure.results import as_text
from perdure.sensitive import KIND, anywhere
from perdure.telemetry import redaction

_met: Once[bool] = Once()
_declared: Once[bool] = Once()


def declares(spec: AgentSpec) -> bool:
    """Return whether a tool of `spec` has fields that are private by declaration."""
    return _declared.get(spec, "", lambda: any(_says(schema) for one in spec.known for schema in _schemas(one)))


def _schemas(tool: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return tool.parameters, tool.returns


def _says(schema: Any) -> bool:
    return anywhere(schema, lambda node: isinstance(node.get(KIND), str))


def meet(entries: Iterable[Entry], spec: AgentSpec, key: str) -> None:
    """Learn what is private in a transcript.

    Args:
        key: Tells the rules from others: their hash.
    """
    if not declares(spec):
        return
    tools = {tool.name: tool for tool in spec.known}
    for entry in entries:
        _met.get(entry, key, lambda entry=entry: _met_in(entry, tools))  # type: ignore[misc]


def _met_in(entry: Entry, tools: Mapping[str, Any]) -> bool:
    match entry:
        case AssistantMessage(calls=calls):
            for call in calls:
                if tool := tools.get(call.name):
                    meet_value(call.arguments, tool.parameters)
        case ToolMessage(result=result) | UserMessage(result=ToolResult() as result):
            if (tool := tools.get(result.name)) and result.status == "ok":
                meet_value(_value(result.content), tool.returns)
            for one in result.private or ():
                redaction.current().known.learn(one.value, one.kind)
        case _:
            pass
    return True


def _value(content: str) -> JSON:
    try:
        return parse_json(content)
    except ValueError:
        return content


def meet_value(value: Any, schema: Mapping[str, Any]) -> None:
    """Learn what is private in the arguments of a tool, or in what it returned."""
    if not schema or not _says(schema):
        return
    plain = _value(as_text(value)[0]) if not isinstance(value, dict | str) else cast("JSON", value)
    known = redaction.current().known
    for one in found(plain, schema, shown=True):
        known.learn(one.value, one.kind)
