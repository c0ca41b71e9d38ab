"""Both OpenAI adapters against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure.activities.providers import open_model
from perdure.errors import ModelError
from perdure.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage
from perdure.models import ModelReply, ModelRequest
from perdure.policies import ModelSettings, ToolSpec
from perdure.testing import ModelServer

BOTH = pytest.mark.parametrize("api", ["openai", "openai-responses"])
IN_EVERY_WAY = pytest.mark.parametrize(
    ("api", "mode"), [(a, m) for a in ("openai", "openai-responses") for m in ("stream", "whole")], indirect=["mode"]
)
KEY = "sk-test-0123456789abcdef"

SEARCH = ToolSpec(
    name="flight search",
    description="Find flights.",
    parameters={"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
)
BOOK = ToolSpec(name="book", description="Book one.", parameters={"type": "object", "properties": {"id": {}}})
HELLO = UserMessage(role="user", content="To Shanghai")


MODE: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def mode(request, monkeypatch):
    monkeypatch.setitem(MODE, "stream", getattr(request, "param", "stream") == "stream")


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def asked(*messages: Message, tools=(SEARCH, BOOK), settings=None, **options) -> ModelRequest:
    return ModelRequest("Be brief.", messages or [HELLO], tools, settings or ModelSettings(), **options)


async def ask(api: str, address: str, request: ModelRequest, **settings) -> ModelReply:
    model = open_model(f"{api}:m", ModelSettings(base_url=address, **{**MODE, **settings}))
    try:
        return await model.generate(request)
    finally:
        await model.aclose()


async def failure(
    api: str, script: Sequence[dict[str, Any]], request: ModelRequest | None = None, **settings
) -> ModelError:
    async with ModelServer(script) as server:
        with pytest.raises(ModelError) as caught:
            await ask(api, server.base_url, request or asked(), **settings)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    return caught.value


def as_message(reply: ModelReply, api: str) -> AssistantMessage:
    calls = [ToolCall(id=c.id, name=c.name, arguments=json.loads(c.arguments)) for c in reply.calls]
    reasoning = list(reply.reasoning)
    return AssistantMessage(role="assistant", text=reply.text, calls=calls, reasoning=reasoning, provider=api)


def result(call: ToolCall, content: object, **fields) -> ToolMessage:
    fields = {"status": "ok", "content": json.dumps(content), **fields}
    return ToolMessage(role="tool", result=ToolResult.model_validate({"call_id": call.id, "name": call.name, **fields}))


# -- what goes well


@IN_EVERY_WAY
async def test_a_whole_conversation_goes_back_and_forth(api):
    script: list[dict[str, Any]] = [
        {
            "text": "Let me look.",
            "reasoning": "They want Shanghai.",
            "calls": [{"name": "flight_search", "arguments": {"to": n}} for n in ("SHA", "PVG")],
        },
        {"reasoning": "MU1.", "calls": [{"name": "book", "arguments": {"id": "${flight_search.0.id}"}}]},
        {"text": "Booked ${book.ref}."},
    ]
    async with ModelServer(script) as server:
        messages: list[Message] = [HELLO]
        for content in ([{"id": "MU1"}], {"ref": "R7"}):
            reply = await ask(api, server.base_url, asked(*messages))
            message = as_message(reply, api)
            messages += [message, *(result(call, content) for call in message.calls)]
        last = await ask(api, server.base_url, asked(*messages))
    assert (last.text, last.finish) == ("Booked R7.", "stop")
    first = messages[1]
    assert isinstance(first, AssistantMessage)
    assert (first.text, [call.name for call in first.calls]) == ("Let me look.", ["flight search"] * 2)
    assert first.reasoning
    assert last.usage.input_tokens > 0
    assert not last.usage.estimated
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    # The prefix that a provider caches: each request begins with the one before.
    key = "messages" if api == "openai" else "input"
    bodies = [request.body[key] for request in server.requests]
    assert bodies[1][: len(bodies[0])] == bodies[0]
    assert bodies[2][: len(bodies[1])] == bodies[1]
    assert "They want Shanghai." in json.dumps(bodies[2])


@BOTH
async def test_each_request_is_the_same_to_the_byte(api):
    async with ModelServer(["hi"]) as server:
        for _ in range(2):
            await ask(api, server.base_url, asked())
    assert server.requests[0].raw == server.requests[1].raw


@BOTH
async def test_a_server_without_keys_needs_none(api, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    async with ModelServer(["hi"]) as server:
        assert (await ask(api, server.base_url, asked())).text == "hi"
    assert server.requests[0].headers["authorization"] == "Bearer none"


@BOTH
async def test_the_address_may_come_from_the_environment(api, monkeypatch):
    async with ModelServer(["hi"]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        model = open_model(f"{api}:m", ModelSettings())
        assert (await model.generate(asked())).text == "hi"
        await model.aclose()


@BOTH
async def test_the_key_may_have_a_variable_of_its_own(api, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "other\n")
    async with ModelServer(["hi"]) as server:
        await ask(api, server.base_url, asked(), api_key_env="OTHER_KEY")
    assert server.requests[0].headers["authorization"] == "Bearer other"


@BOTH
async def test_a_closed_model_opens_again(api):
    async with ModelServer(["hi"]) as server:
        model = open_model(f"{api}:m", ModelSettings(base_url=server.base_url))
        await model.aclose()
        for _ in range(2):
            assert (await model.generate(asked())).text == "hi"
            await model.aclose()


# -- oddities of replies


@IN_EVERY_WAY
async def test_missing_and_repeated_ids_are_levelled(api):
    calls = [{"name": "book", "id": id_} for id_ in ("c1", "same", "same", "", None)]
    first = ToolCall(id="c1", name="book")
    before: list[Message] = [HELLO, AssistantMessage(role="assistant", calls=[first]), result(first, 1)]
    async with ModelServer([{}, {"calls": calls}]) as server:
        reply = await ask(api, server.base_url, asked(*before))
    ids = [call.id for call in reply.calls]
    assert len(set(ids)) == 5
    assert "c1" not in ids
    assert ids[1] == "same"


@IN_EVERY_WAY
async def test_broken_arguments_arrive_as_they_were_written(api):
    async with ModelServer([{"calls": [{"name": "book", "arguments": '{"id": '}]}]) as server:
        reply = await ask(api, server.base_url, asked())
    assert reply.calls[0].arguments == '{"id": '


@IN_EVERY_WAY
async def test_half_a_character_becomes_one_that_can_be_stored(api):
    arguments = '{"id": "\\ud83d", "ok": "\\ud83d\\ude00"}'
    script: list[dict[str, Any]] = [{"text": "x", "calls": [{"name": "book", "arguments": arguments}]}]
    async with ModelServer(script) as server:
        reply = await ask(api, server.base_url, asked())
    assert json.loads(reply.calls[0].arguments) == {"id": "\ufffd", "ok": "😀"}


async def test_half_a_character_in_the_text_becomes_one_that_can_be_stored():
    body = '{"choices": [{"message": {"content": "a\\ud83db \\ud83d\\ude00"}}]}'
    async with ModelServer([{"http": {"body": body}}]) as server:
        assert (await ask("openai", server.base_url, asked())).text == "a\ufffdb 😀"


@IN_EVERY_WAY
@pytest.mark.parametrize("finish", ["length", "filtered", "refusal", "stop"])
async def test_every_ending_arrives(api, finish):
    async with ModelServer([{"text": "some", "finish": finish}]) as server:
        reply = await ask(api, server.base_url, asked())
    assert (reply.text, reply.finish) == ("some", finish)


@IN_EVERY_WAY
async def test_an_empty_reply_without_usage_is_a_reply(api):
    async with ModelServer([{"usage": None}]) as server:
        reply = await ask(api, server.base_url, asked())
    assert (reply.text, reply.finish, reply.usage.estimated) == ("", "stop", True)


@BOTH
async def test_an_unknown_tool_and_an_edited_transcript_are_sent_acceptably(api):
    odd = AssistantMessage(role="assistant", calls=[ToolCall(id="c", name="no such tool! 不")])
    denied = result(odd.calls[0], "", status="denied", message="no")
    async with ModelServer(["x", "fine"]) as server:
        assert (await ask(api, server.base_url, asked(HELLO, odd, denied, answer_only=True))).text == "fine"


async def test_arguments_as_an_object_and_a_plain_body_are_levelled():
    call = {"function": {"name": "flight_search", "arguments": {"to": "SHA"}}}
    body = {"choices": [{"message": {"tool_calls": [call]}}]}
    answer = {"http": {"body": body, "headers": {"Content-Type": "text/plain"}}}
    async with ModelServer([answer]) as server:
        reply = await ask("openai", server.base_url, asked())
    assert reply.calls[0].arguments == '{"to":"SHA"}'


async def test_a_model_that_does_not_reason_is_asked_again_without_reasoning():
    refusal = {"error": {"message": "Encrypted content is not supported with this model.", "param": "include"}}
    script = [{"text": "hi", "http": {"status": 400, "body": refusal}, "times": 1}]
    async with ModelServer(script) as server:
        model = open_model("openai-responses:m", ModelSettings(base_url=server.base_url))
        assert [(await model.generate(asked())).text for _ in range(2)] == ["hi", "hi"]
        await model.aclose()
    assert ["include" in request.body for request in server.requests] == [True, False, False]


# -- in pieces


@BOTH
async def test_text_is_passed_on_as_it_comes(api):
    said: list[str] = []
    async with ModelServer([{"text": "It comes in pieces 😀.", "reasoning": "not this"}]) as server:
        reply = await ask(api, server.base_url, asked(on_text=said.append))
    assert len(said) > 1
    assert "".join(said) == reply.text == "It comes in pieces 😀."


@BOTH
async def test_a_reply_is_the_same_in_pieces_and_whole(api):
    script: list[dict[str, Any]] = [
        {
            "text": "Let me look 🛫" * 9,
            "reasoning": "hm " * 30,
            "calls": [{"name": "book", "arguments": {"id": "上海" * 20}}, {"name": "book"}],
            "usage": {"input_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "reasoning_tokens": 3},
        }
    ]
    async with ModelServer(script) as server:
        pieces = await ask(api, server.base_url, asked(), stream=True)
        assert pieces == await ask(api, server.base_url, asked(), stream=False)
    assert [request.body.get("stream") for request in server.requests] == [True, None]


@BOTH
async def test_a_server_that_answers_whole_though_asked_for_pieces_is_understood(api):
    async with ModelServer([{"text": "whole"}], streams=False) as server:
        assert (await ask(api, server.base_url, asked())).text == "whole"
    assert len(server.requests) == 1


@BOTH
@pytest.mark.parametrize(
    ("words", "left"),
    [
        ({"error": {"message": "Your organization must be verified to stream this model.", "param": "stream"}}, set()),
        ({"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}, {"stream"}),
    ],
)
async def test_what_a_server_refuses_of_streaming_is_not_asked_for_again(api, words, left):
    script = [{"text": "hi", "http": {"status": 422, "body": words}, "times": 1}]
    if api == "openai-responses":
        left = set()  # which has no options of a stream
    async with ModelServer(script) as server:
        model = open_model(f"{api}:m", ModelSettings(base_url=server.base_url))
        assert [(await model.generate(asked())).text for _ in range(2)] == ["hi", "hi"]
        await model.aclose()
    sent = [{"stream", "stream_options"} & set(request.body) for request in server.requests]
    assert sent[1:] == [left, left]


# -- failures


@BOTH
@pytest.mark.parametrize(
    "kind",
    [
        "rate_limited",
        "overloaded",
        "server",
        "authentication",
        "quota",
        "bad_request",
        "context_too_long",
        "content_filtered",
    ],
)
async def test_every_kind_of_failure_is_told_apart(api, kind):
    error = await failure(api, [{"error": {"kind": kind, "message": f"own words, {KEY}", "retry_after": 3}}])
    assert error.kind == kind
    assert error.message.startswith("own words, [key] (HTTP ")
    assert error.retry_after == timedelta(seconds=3)


@BOTH
async def test_the_package_never_retries_by_itself(api):
    async with ModelServer([{"http": {"status": 500}}]) as server:
        with pytest.raises(ModelError):
            await ask(api, server.base_url, asked())
    assert len(server.requests) == 1


@BOTH
async def test_nobody_listening_is_a_connection_error_that_names_the_address(api):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ModelError, match=f"127.0.0.1:{port}") as caught:
        await ask(api, f"http://user:secret@127.0.0.1:{port}/v1", asked())
    assert caught.value.kind == "connection"
    assert "secret" not in caught.value.message


@IN_EVERY_WAY
@pytest.mark.parametrize("drop", [True, "body"])
async def test_a_dropped_connection_is_a_connection_error(api, drop):
    error = await failure(api, [{"text": "a reply", "drop": drop}])
    assert error.kind == "connection"
    assert ("in the middle of the reply" in error.message) == (drop == "body")


LATE: dict[str, dict[str, Any]] = {
    "first_byte": {"hang": True},
    "between_chunks": {"hang": "body", "text": "a long reply " * 20},
    "timeout": {"drip": 0.03, "text": "a long reply " * 20},
}


@IN_EVERY_WAY
@pytest.mark.parametrize("limit", LATE)
async def test_a_call_that_takes_too_long_ends_and_says_which_limit_it_was(api, limit):
    if limit == "first_byte" and not MODE["stream"]:
        limit = "timeout"  # a whole reply comes when it is ready: it has no first piece to wait for
        error = await failure(api, [LATE["first_byte"]], first_byte=timedelta(milliseconds=1), timeout=SOON)
    else:
        limits: dict[str, Any] = {"between_chunks": timedelta(seconds=20), limit: SOON}
        error = await failure(api, [LATE[limit]], **limits)
    assert error.kind == "timeout"
    assert f"0.1 s ({limit})" in error.message


SOON = timedelta(seconds=0.1)


@IN_EVERY_WAY
async def test_a_server_that_only_keeps_the_connection_alive_is_given_up(api):
    timeout = timedelta(seconds=20) if MODE["stream"] else SOON * 2
    error = await failure(api, [{"hang": "ping"}], first_byte=SOON, between_chunks=SOON, timeout=timeout)
    assert error.kind == "timeout"
    assert ("(first_byte)" if MODE["stream"] else "(timeout)") in error.message


@IN_EVERY_WAY
@pytest.mark.reported(33)
async def test_a_reply_that_broke_off_has_an_estimate_of_what_it_used(api):
    text = "some words " * 40
    error = await failure(api, [{"text": text, "drop": "body"}])
    assert error.usage
    assert error.usage.estimated
    assert error.usage.input_tokens > 10
    assert 0 < error.usage.output_tokens < len(text) / (4 if MODE["stream"] else 1)
    assert (await failure(api, [{"drop": True}])).usage is None
    assert (await failure(api, [{"error": {"kind": "server"}}])).usage is None


@BOTH
async def test_an_error_in_the_middle_of_a_stream_is_that_error(api):
    error = {"kind": "overloaded", "message": f"overloaded, says {KEY}", "streamed": True}
    caught = await failure(api, [{"text": "some words " * 9, "error": error}])
    assert (caught.kind, caught.message) == ("overloaded", "overloaded, says [key]")
    assert caught.usage
    assert caught.usage.output_tokens > 0


@IN_EVERY_WAY
async def test_a_malformed_answer_is_a_server_error_that_shows_it(api):
    error = await failure(api, [{"text": "some words " * 9, "malformed": True}])
    assert (error.kind, error.message.startswith("The answer is not ")) == ("server", True)


@BOTH
async def test_a_call_that_hangs_can_be_cancelled(api):
    async with ModelServer([{"hang": True}]) as server:
        task = asyncio.create_task(ask(api, server.base_url, asked()))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@BOTH
@pytest.mark.parametrize(
    ("http", "kind", "words"),
    [
        (
            {"status": 502, "body": "<html><body><h1>502 Bad Gateway</h1></body></html>"},
            "server",
            "502 Bad Gateway (HTTP 502)",
        ),
        ({"status": 500, "body": ""}, "server", "HTTP 500"),
        ({"status": 400, "body": '{"error": {"mess'}, "bad_request", '{"error": {"mess (HTTP 400)'),
        ({"status": 404, "body": {"error": "model 'm' not found"}}, "bad_request", "model 'm' not found (HTTP 404)"),
        ({"status": 302, "body": "moved"}, "bad_request", "moved (HTTP 302)"),
        ({"body": "<html><body>Welcome</body></html>"}, "server", "The answer is not JSON: Welcome"),
        ({"body": ""}, "server", "The answer is not JSON: it is empty"),
        ({"body": '{"choices": [{"mess'}, "server", 'The answer is not JSON: {"choices": [{"mess'),
        ({"body": [1]}, "server", "The answer is not a JSON object: [1]"),
        ({"body": {"error": {"code": 429, "message": "slow"}}}, "rate_limited", "slow"),
        (
            {"body": "null", "headers": {"Content-Type": "text/html; charset=nonsense"}},
            "server",
            "The answer is not a JSON object: null",
        ),
        ({"body": "not gzip at all", "headers": {"Content-Encoding": "gzip"}}, "connection", None),
        ({"body": "\ud83d", "headers": {}}, "server", None),
    ],
)
async def test_an_answer_of_any_form_is_a_model_error(api, http, kind, words):
    error = await failure(api, [{"http": http}])
    assert error.kind == kind
    assert words is None or error.message == words


@BOTH
async def test_what_is_not_the_apis_object_is_a_server_error(api):
    error = await failure(api, [{"http": {"body": {"object": "list", "data": []}}}])
    assert error.kind == "server"
    assert error.message.startswith("The answer is not a ")


@BOTH
async def test_a_missing_key_is_told_by_the_name_of_its_variable(api, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    for address in (None, "https://api.openai.com/v1"):
        with pytest.raises(ModelError, match="set OPENAI_API_KEY where the worker runs") as caught:
            open_model(f"{api}:m", ModelSettings(base_url=address))
        assert caught.value.kind == "authentication"


@BOTH
@pytest.mark.parametrize("bad", ["ключ", "a\nb"])
async def test_a_key_that_cannot_be_one_is_not_sent(api, monkeypatch, bad):
    monkeypatch.setenv("OPENAI_API_KEY", bad)
    with pytest.raises(ModelError, match="OPENAI_API_KEY holds characters") as caught:
        open_model(f"{api}:m", ModelSettings())
    assert (caught.value.kind, bad in caught.value.message) == ("authentication", False)


@BOTH
@pytest.mark.parametrize("address", ["localhost:8000/v1", "ftp://x/v1", "http://", "http://[::1", "http://x:99999/v1"])
async def test_an_address_that_cannot_be_one_is_one_clear_sentence(api, address):
    with pytest.raises(ModelError, match="is no address of a model server") as caught:
        open_model(f"{api}:m", ModelSettings(base_url=address))
    assert caught.value.kind == "bad_request"
