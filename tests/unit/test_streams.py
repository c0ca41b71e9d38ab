"""Replies in pieces: the events in the bytes, and what they add up to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.activities.providers import openai_chat, openai_responses
from perdure.activities.providers.openai_chat import Completion
from perdure.activities.providers.openai_responses import Response
from perdure.activities.providers.streams import Assembly, Events, Incoming
from perdure.errors import ModelError
from perdure.messages import UserMessage
from perdure.models import ModelReply, ModelRequest
from perdure.policies import ModelSettings, ToolSpec
from perdure.testing.openai_wire import CHAT, RESPONSES
from perdure.testing.script import ScriptedCall, ScriptedReply, Seen

BOOK = ToolSpec(name="book", description="Book.", parameters={"type": "object"})
ASKED = ModelRequest("", [UserMessage(role="user", content="go")], [BOOK], ModelSettings())


def events(*chunks: bytes) -> list[tuple[str, str]]:
    found = Events()
    return [event for chunk in chunks for event in found.feed(chunk)] + list(found.feed(b"", last=True))


def fed(assembly: Assembly, *sent: Any) -> dict[str, Any]:
    incoming = Incoming(assembly)
    for data in sent:
        text = data if isinstance(data, str) else json.dumps(data)
        incoming.feed(f"data: {text}\n\n".encode())
    incoming.feed(b"", last=True)
    return incoming.whole()


def chat(*deltas: dict[str, Any], finish: str | None = "stop", more: tuple[Any, ...] = ("[DONE]",)) -> ModelReply:
    chunks = [{"model": "m-1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    return openai_chat.read_reply(fed(Completion(), *chunks, last, *more), ASKED)


def calls(*pieces: dict[str, Any]) -> list[tuple[str, str, str]]:
    reply = chat(*({"tool_calls": [piece]} for piece in pieces), finish="tool_calls")
    return [(call.id, call.name, call.arguments) for call in reply.calls]


def fn(arguments: Any = None, name: str | None = None) -> dict[str, Any]:
    return {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}


# -- the bytes


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b"data: a\n\ndata: b\n\n", [("", "a"), ("", "b")]),
        (b"data:a\r\n\r\nevent: e\rdata: b\r\r", [("", "a"), ("e", "b")]),
        (b"data: a\ndata: b\n\n", [("", "a\nb")]),
        (b": ping\n\n: ping\n\ndata: a\n\n", [("", "a")]),
        (b"event: alone\n\ndata: a\n\n", [("", "a")]),
        (b"id: 7\nretry: 9\nodd\ndata: a", [("", "a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", "a")]),
        ("data: 上海😀\n\n".encode(), [("", "上海😀")]),
        (b"data: \xff\n\n", [("", "\ufffd")]),
        (b'{\n  "data": 1\n}', []),
        (b"", []),
    ],
)
def test_events_are_found_however_their_bytes_are_cut(sent, found):
    assert events(sent) == found
    assert events(*(bytes([byte]) for byte in sent)) == found


# -- what they add up to


TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
REPLIES = st.builds(
    ScriptedReply,
    text=TEXTS,
    reasoning=TEXTS,
    calls=st.lists(
        st.builds(
            ScriptedCall,
            name=st.sampled_from(["book", "no such", ""]),
            arguments=st.one_of(st.dictionaries(TEXTS, TEXTS, max_size=2), TEXTS),
            id=st.sampled_from([None, "", "same", "other"]),
        ),
        max_size=3,
    ),
    finish=st.sampled_from([None, "length", "filtered", "refusal"]),
)


@pytest.mark.parametrize(
    ("api", "assembly", "read"),
    [(CHAT, Completion, openai_chat.read_reply), (RESPONSES, Response, openai_responses.read_reply)],
    ids=["chat", "responses"],
)
@settings(max_examples=40)
@given(reply=REPLIES, cut=st.integers(1, 200))
def test_any_reply_is_the_same_in_pieces_and_whole(api, assembly, read, reply, cut):
    whole = api.answer({}, reply, Seen(0, []))
    incoming = Incoming(assembly())
    sent = b"".join(api.events(whole, {"stream_options": {"include_usage": True}}))
    for start in range(0, len(sent), cut):
        incoming.feed(sent[start : start + cut])
    incoming.feed(b"", last=True)
    assert incoming.complete
    assert read(incoming.whole(), ASKED) == read(whole, ASKED)


def test_pieces_of_calls_are_told_apart_by_index():
    assert calls(
        {"index": 0, "id": "a", "function": fn("", "book")},
        {"index": 1, "id": "b", "function": fn('{"x"', "book")},
        {"index": 0, "function": fn('{"y": 1}')},
        {"index": 1, "function": fn(": 2}")},
    ) == [("a", "book", '{"y": 1}'), ("b", "book", '{"x": 2}')]


@pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}])
def test_servers_that_number_no_calls_or_all_alike_are_understood(index):
    assert calls(
        {**index, "id": "a", "function": fn('{"y": ', "book")},
        {**index, "function": fn("1}")},
        {**index, "id": "b", "function": fn({"x": 2}, "book")},
    ) == [("a", "book", '{"y": 1}'), ("b", "book", '{"x":2}')]


def test_a_server_that_repeats_id_and_name_in_each_piece_is_understood():
    piece = {"index": 0, "id": "a", "type": "function"}
    assert calls(*({**piece, "function": fn(part, "book")} for part in ('{"y"', ": ", "1}"))) == [
        ("a", "book", '{"y": 1}')
    ]


def test_the_older_function_call_comes_in_pieces_too():
    reply = chat({"function_call": fn("{", "book")}, {"function_call": fn("}")}, finish="function_call")
    assert [(call.name, call.arguments) for call in reply.calls] == [("book", "{}")]


def test_reasoning_is_put_together_in_each_dialect():
    assert chat({"reasoning_content": "h"}, {"reasoning_content": "m"}).reasoning == [{"reasoning_content": "hm"}]
    part = {"type": "reasoning.text", "index": 0}
    details = [{**part, "text": "h", "signature": None}, {**part, "text": "m"}, {**part, "text": "", "signature": "s"}]
    sealed = {"type": "reasoning.encrypted", "index": 1, "data": "x"}
    reply = chat(*({"reasoning_details": [detail]} for detail in (*details, sealed)), {"content": "hi"})
    assert reply.reasoning == [{"reasoning_details": [{**part, "text": "hm", "signature": "s"}, sealed]}]


def test_halves_of_a_character_that_come_apart_are_joined():
    said: list[str] = []
    chunks = [
        '{"choices": [{"delta": {"content": "a\\ud83d"}}]}',
        '{"choices": [{"delta": {"content": "\\ude00\\udfff"}}]}',
    ]
    body = fed(Completion(said.append), *chunks, "[DONE]")
    assert body["choices"][0]["message"]["content"] == "a😀\ufffd"
    assert len(said) == 2


def test_usage_and_finish_may_come_in_any_chunk():
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    reply = chat({"content": "x"}, finish="length", more=({"choices": [], "usage": usage},))
    assert (reply.finish, reply.usage.input_tokens, reply.usage.estimated) == ("length", 3, False)
    assert chat({"content": "x"}).usage.estimated


def test_other_choices_and_a_message_at_the_end_do_not_double_the_text():
    message = {"choices": [{"index": 0, "message": {"content": "xy"}, "finish_reason": "stop"}]}
    other = {"choices": [{"index": 1, "delta": {"content": "z"}}]}
    assert chat({"content": "xy"}, finish=None, more=(other, message)).text == "xy"
    assert openai_chat.read_reply(fed(Completion(), message), ASKED).text == "xy"


def test_a_stream_without_choices_is_an_empty_reply():
    assert openai_chat.read_reply(fed(Completion(), "[DONE]"), ASKED) == openai_chat.read_reply({"choices": []}, ASKED)


def test_items_that_the_last_event_leaves_out_are_those_sent_before():
    item = {"type": "function_call", "call_id": "k", "name": "book", "arguments": "{}"}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    body = fed(Response(), done, {"type": "response.completed", "response": {"status": "completed", "output": []}})
    assert [call.id for call in openai_responses.read_reply(body, ASKED).calls] == ["k"]


# -- what is missing or wrong


@pytest.mark.parametrize("assembly", [Completion, Response])
def test_a_stream_that_ends_in_the_middle_is_a_connection_error(assembly):
    begun = {"type": "response.output_text.delta", "delta": "hel", "choices": [{"delta": {"content": "hel"}}]}
    with pytest.raises(ModelError, match="broke off") as caught:
        fed(assembly(), begun)
    assert caught.value.kind == "connection"


def test_a_reply_is_complete_before_its_stream_is():
    incoming = Incoming(Completion())
    assert incoming.feed(b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n') == "content"
    assert incoming.complete
    assert incoming.feed(b"data: [DONE]\n\n") == "done"


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ({"error": {"code": 429, "message": "slow"}}, "rate_limited"),
        ({"error": {"type": "rate_limit_error", "message": "slow"}}, "rate_limited"),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, "rate_limited"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded"),
        ({"object": "error", "message": "maximum context length is 9", "code": 400}, "context_too_long"),
        ({"error": "model runner has unexpectedly stopped"}, "server"),
        ({"choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}, "server"),
        ({"choices": [{"error": {"code": 502, "message": "Upstream"}, "finish_reason": "error"}]}, "server"),
        ({"choices": [{"delta": {}, "finish_reason": "error"}], "error": {"code": 503}}, "overloaded"),
        ("{broken", "server"),
        ("[" * 100_000, "server"),
    ],
)
def test_an_error_in_a_stream_is_told_apart_like_any(sent, kind):
    with pytest.raises(ModelError) as caught:
        fed(Completion(), {"choices": [{"delta": {"role": "assistant"}}]}, sent)
    assert caught.value.kind == kind


def test_what_silence_may_last_depends_on_what_came():
    incoming = Incoming(Response())
    incoming.streams = True

    def after(kind: str, **fields: Any) -> str:
        data = json.dumps({"type": f"response.{kind}", **fields})
        return incoming.feed(f"event: response.{kind}\ndata: {data}\n\n".encode())

    assert incoming.feed(b": ping\n\n") == "other"
    assert after("created", response={}) == "other"
    assert after("output_item.added", item={"type": "reasoning"}) == "thinking"
    assert after("output_text.delta", delta="x") == "content"
    assert incoming.feed(b": ping\n\n") == "other"
    assert after("output_text.delta", delta="") == "other"
