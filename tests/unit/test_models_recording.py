"""Recorded conversations as scripts and tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.activities.providers.openai_chat import request_body
from perdure.errors import ToolError
from perdure.messages import AssistantMessage, Message, UserMessage
from perdure.models import ModelRequest
from perdure.policies import ModelSettings
from perdure.testing import ScriptedModel, load_recordings
from perdure.testing.recording import comparable, recorded_tools

DATA = Path(__file__).parents[3] / "shared" / "data" / "airline-gpt4o"


def call(id_: str, **arguments):
    return {"id": id_, "type": "function", "function": {"name": "look", "arguments": json.dumps(arguments)}}


def result(id_: str, content: str):
    return {"role": "tool", "tool_call_id": id_, "name": "look", "content": content}


MESSAGES = [
    {"role": "system", "content": "Policy"},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": None, "tool_calls": [call("same", a=1)]},
    result("same", "first"),
    {"role": "assistant", "content": "Looking.", "tool_calls": [call("same", a=1)]},
    result("same", "second"),
    {"role": "assistant", "content": "Found."},
    {"role": "user", "content": "Bye"},
]
SCHEMAS = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "c.jsonl").write_text(json.dumps({"task_id": 3, "trial": 1, "messages": MESSAGES}) + "\n\n")
    (tmp_path / "tools.json").write_text(json.dumps(SCHEMAS))
    return tmp_path


def test_a_recording_is_cut_into_turns(files):
    [recording] = load_recordings(files / "c.jsonl")
    assert (recording.name, recording.instructions, len(recording.messages)) == ("3.1", "Policy", 7)
    [turn] = recording.turns
    assert (turn.input, turn.before, len(turn.messages)) == ("Hi", [], 6)
    assert [reply.text for reply in turn.replies] == ["", "Looking.", "Found."]
    assert [(c.arguments, c.result) for c in turn.calls] == [({"a": 1}, "first"), ({"a": 1}, "second")]


async def test_recorded_tools_give_the_results_in_their_order(files):
    [recording] = load_recordings(files / "c.jsonl")
    [tool] = recorded_tools(files / "tools.json", recording.calls)
    assert [await tool(a=1) for _ in range(3)] == ["first", "second", "second"]
    with pytest.raises(ToolError, match="no call of look"):
        await tool(a=2)


async def test_repeated_ids_are_levelled_and_the_conversation_compares_equal(files):
    [recording] = load_recordings(files / "c.jsonl")
    model = ScriptedModel(recording.replies)
    before: list[Message] = [recording.messages[0]]
    reply = await model.generate(ModelRequest("", before, [], ModelSettings()))
    assert reply.calls[0].id == "same"
    reply = await model.generate(ModelRequest("", recording.messages[:3], [], ModelSettings()))
    assert reply.calls[0].id == "call_2"
    assert [m.get("id") for m in comparable(recording.messages) if m["role"] == "tool"] == [1, 2]


@pytest.mark.skipif(not DATA.exists(), reason="the recorded conversations are not beside this repository")
def test_real_conversations_are_read_whole_and_sent_as_they_were_recorded():
    recordings = load_recordings(DATA / "conversations.jsonl")
    lines = (DATA / "conversations.jsonl").read_text(encoding="utf-8").split("\n")
    raw = [json.loads(line)["messages"] for line in lines if line]
    assert len(recordings) == 60
    tools = [tool.spec for tool in recorded_tools(DATA / "tools.json", [])]
    for recording, recorded in zip(recordings, raw, strict=True):
        request = ModelRequest(recording.instructions, recording.messages, tools, ModelSettings())
        sent = request_body("m", request, custom=False)["messages"]
        for message in recorded:
            message.pop("name", None)
            for one in message.get("tool_calls", ()):
                one["function"]["arguments"] = json.loads(one["function"]["arguments"])
        for message in sent:
            for one in message.get("tool_calls", ()):
                one["function"]["arguments"] = json.loads(one["function"]["arguments"])
        assert sent == recorded
        assert sum(len(turn.messages) for turn in recording.turns) == len(
            recording.messages[:-1] if isinstance(recording.messages[-1], UserMessage) else recording.messages
        )
        assert len(recording.calls) == sum(len(m.calls) for m in recording.messages if isinstance(m, AssistantMessage))
