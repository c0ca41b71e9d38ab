"""The model server: what it refuses, and its command."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from perdure.errors import ConnectionFailed
from perdure.testing import ModelServer, ModelServerProcess
from perdure.testing.model_server import main

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ITEM = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}


def _send(address: str, body) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


async def sent(server: ModelServer, path: str, body=None):
    return await asyncio.to_thread(_send, f"{server.base_url}{path}", body)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "at least one message"),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, USER], "have no result: c1"),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}], "have no result: c1"),
        ([{"role": "tool", "tool_call_id": "c1", "content": ""}], "No call before"),
        ([USER, {"role": "assistant", "content": None}], "needs content"),
        (
            [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{**CALL, "function": {"name": "a b", "arguments": "{}"}}],
                }
            ],
            "name",
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}],
                }
            ],
            "JSON",
        ),
        ([{"content": "no role"}], "can't be understood"),
    ],
)
async def test_a_conversation_that_openai_would_refuse_is_refused(messages, complaint):
    async with ModelServer(["hi"]) as server:
        status, answer = await sent(server, "/chat/completions", {"model": "m", "messages": messages})
    assert status == 400
    assert complaint in answer["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"input": []}, "at least one item"),
        ({"store": True}, "store has to be false"),
        ({"input": [USER, ITEM]}, "No tool output found for function call c1"),
        ({"input": [USER, ITEM, USER]}, "No tool output found for function call c1"),
        ({"input": [{"type": "function_call_output", "call_id": "c1", "output": ""}]}, "No call before"),
        ({"input": [{"type": "reasoning", "id": "rs"}, USER]}, "required following item"),
        ({"input": [USER, {"type": "reasoning", "id": "rs"}]}, "required following item"),
        ({"tools": [{"name": "a b"}]}, "Invalid tool name"),
        ({"tools": [{"name": "f", "parameters": {"type": "object", "anyOf": []}}]}, "Invalid schema"),
        ({"tools": [{"name": "f", "parameters": {"type": "object"}}] * 2}, "unique"),
        ({"tools": [{"name": "f", "parameters": {"type": "object"}, "description": "x" * 1025}]}, "too long"),
        ({"tool_choice": "auto"}, "at least one tool"),
    ],
)
async def test_a_request_that_responses_would_refuse_is_refused(fields, complaint):
    async with ModelServer(["hi"]) as server:
        status, answer = await sent(server, "/responses", {"model": "m", "input": [USER], "store": False, **fields})
    assert status == 400
    assert complaint in answer["error"]["message"]


async def test_it_lists_its_model_and_knows_no_other_paths():
    async with ModelServer(["hi"]) as server:
        assert (await sent(server, "/models"))[1]["data"][0]["id"] == "scripted"
        assert (await sent(server, "/embeddings", {}))[0] == 404
    assert server.requests == []


async def test_a_mark_that_leads_nowhere_is_refused_in_words():
    async with ModelServer(["${x}"]) as server:
        status, answer = await sent(server, "/chat/completions", {"model": "m", "messages": [USER]})
    assert (status, "no such tool has given a result" in answer["error"]["message"]) == (400, True)


async def test_it_stops_while_a_script_hangs():
    async with ModelServer([{"hang": True}]) as server:
        asking = asyncio.create_task(sent(server, "/chat/completions", {"model": "m", "messages": [USER]}))
        while not server.requests:
            await asyncio.sleep(0.01)
    with pytest.raises(OSError, match="closed connection without response"):
        await asking


def test_in_a_process_of_its_own_it_answers_and_tells_what_it_was_asked():
    with ModelServerProcess([{"text": "hi", "delay": 0.001}]) as server:
        address = f"{server.base_url}/chat/completions"
        body = {"model": "m", "messages": [USER]}
        assert _send(address, body)[1]["choices"][0]["message"]["content"] == "hi"
        assert [(one["path"], one["body"]) for one in server.requests()] == [("/v1/chat/completions", body)]
    with pytest.raises(OSError, match="refused"):
        _send(address, body)


def test_a_process_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(ConnectionFailed, match="did not start"), ModelServerProcess(["hi"]):
        pass


def test_the_command_complains_in_one_sentence(tmp_path, capsys):
    assert main([str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
