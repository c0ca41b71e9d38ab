"""Recorded conversations of real models, in OpenAI Chat Completions form, as scripts and tools for tests."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from perdure.errors import ToolError
from perdure.messages import (
    JSON,
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    canonical_json,
)
from perdure.results import render_result
from perdure.testing.script import ScriptedCall, ScriptedReply
from perdure.tools import Tool


@dataclass(frozen=True)
class RecordedCall:
    """A call and the text that its tool returned."""

    name: str
    arguments: dict[str, JSON]
    result: str


@dataclass(frozen=True)
class Turn:
    """One message of the customer and all that the agent did about it.

    Attributes:
        input: What the customer says.
        replies: The model's replies, a script.
        calls: The calls of all replies with their results, in order.
        before: The conversation before the turn.
        messages: The turn's own messages, `input` first.
    """

    input: str
    replies: list[ScriptedReply]
    calls: list[RecordedCall]
    before: list[Message]
    messages: list[Message]


@dataclass(frozen=True)
class Recording:
    """One conversation.

    Attributes:
        name: Such as `3.1`: task 3, trial 1.
        instructions: The system prompt.
        messages: The whole conversation after it, ids as recorded: real ones do repeat.
    """

    name: str
    instructions: str
    messages: list[Message]

    @property
    def turns(self) -> list[Turn]:
        """The conversation cut at the customer's messages; a turn that nobody answered is left out."""
        starts = [n for n, message in enumerate(self.messages) if isinstance(message, UserMessage)]
        ends = [*starts[1:], len(self.messages)]
        cut = [(self.messages[:start], self.messages[start:end]) for start, end in zip(starts, ends, strict=True)]
        return [_turn(before, messages) for before, messages in cut if len(messages) > 1]

    @property
    def replies(self) -> list[ScriptedReply]:
        """All replies of the model, as one script."""
        return [_reply(message) for message in self.messages if isinstance(message, AssistantMessage)]

    @property
    def calls(self) -> list[RecordedCall]:
        """All calls with their results, in order."""
        return list(_calls(self.messages))


def load_recordings(path: str | Path) -> list[Recording]:
    """Return the conversations of a JSON Lines file: `{"task_id", "trial", "messages"}` a line."""
    with Path(path).open(encoding="utf-8") as lines:
        return [_recording(json.loads(line)) for line in lines if line.strip()]


def recorded_tools(schemas: str | Path, calls: Sequence[RecordedCall]) -> list[Tool]:
    """Return tools that give the recorded results.

    A call with the same name and arguments gives its results in the order of the recording, then the last
    again. One that was never recorded is an error result.

    Args:
        schemas: JSON file: an array of OpenAI tools.
        calls: What was called, and what came back.
    """
    results: dict[str, list[str]] = defaultdict(list)
    for call in calls:
        results[_key(call.name, call.arguments)].append(call.result)
    data: list[dict[str, Any]] = json.loads(Path(schemas).read_text(encoding="utf-8"))
    return [_tool(item["function"], results) for item in data]


def comparable(messages: Sequence[Message]) -> list[dict[str, JSON]]:
    """Return `messages` in Chat Completions form, free of what a runtime may choose.

    That is the ids of calls (recorded ones repeat, and are levelled): each becomes the call's position in
    the conversation. Arguments are compared as values, not as text.
    """
    out: list[dict[str, JSON]] = []
    number, positions = 0, dict[str, int]()
    for message in messages:
        if isinstance(message, UserMessage):
            out.append({"role": "user", "content": message.content})
        elif isinstance(message, AssistantMessage):
            calls: list[JSON] = []
            for call in message.calls:
                number += 1
                positions[call.id] = number
                calls.append({"id": number, "name": call.name, "arguments": call.arguments})
            out.append({"role": "assistant", "content": message.text, "calls": calls})
        else:
            content = render_result(message.result)
            out.append({"role": "tool", "id": positions.get(message.result.call_id), "content": content})
    return out


# -- reading -----------------------------------------------------------------------------------------------


def _recording(data: Mapping[str, Any]) -> Recording:
    messages = cast("list[dict[str, Any]]", data["messages"])
    instructions = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    read = [_message(message) for message in messages if message["role"] != "system"]
    return Recording(f"{data['task_id']}.{data['trial']}", instructions, read)


def _message(data: Mapping[str, Any]) -> Message:
    if data["role"] == "user":
        return UserMessage(role="user", content=data["content"])
    if data["role"] == "tool":
        result = ToolResult(call_id=data["tool_call_id"], name=data["name"], status="ok", content=data["content"])
        return ToolMessage(role="tool", result=result)
    calls = [
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"]))
        for call in data.get("tool_calls") or ()
    ]
    return AssistantMessage(role="assistant", text=data["content"] or "", calls=calls)


def _turn(before: list[Message], messages: list[Message]) -> Turn:
    replies = [_reply(message) for message in messages if isinstance(message, AssistantMessage)]
    said = cast("UserMessage", messages[0]).content
    return Turn(cast("str", said), replies, list(_calls(messages)), before, messages)


def _reply(message: AssistantMessage) -> ScriptedReply:
    calls = [ScriptedCall(name=call.name, arguments=call.arguments, id=call.id) for call in message.calls]
    return ScriptedReply(text=message.text, calls=calls)


def _calls(messages: Sequence[Message]) -> Iterator[RecordedCall]:
    asked: dict[str, ToolCall] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            asked |= {call.id: call for call in message.calls}
        elif isinstance(message, ToolMessage):
            call = asked[message.result.call_id]
            yield RecordedCall(call.name, call.arguments, message.result.content)


def _key(name: str, arguments: Mapping[str, JSON]) -> str:
    return canonical_json([name, dict(arguments)])


def _tool(function: Mapping[str, Any], results: Mapping[str, list[str]]) -> Tool:
    name: str = function["name"]

    async def play(**arguments: JSON) -> str:
        left = results.get(_key(name, arguments))
        if not left:
            raise ToolError(f"The recording has no call of {name} with these arguments.", error_type="not_recorded")
        return left.pop(0) if len(left) > 1 else left[0]

    return Tool.from_schema(play, function["parameters"], name=name, description=function["description"])
