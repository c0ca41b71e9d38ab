"""Requests to both OpenAI APIs, and replies of every shape. No network."""

from __future__ import annotations

import json
import random

import pytest

from perdure.activities.providers import openai_chat, openai_responses
from perdure.activities.providers.wire import encode
from perdure.errors import ModelError
from perdure.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.models import ModelReply, ModelRequest
from perdure.policies import ModelSettings, ToolSpec

SEARCH = ToolSpec(
    name="flight search",
    description="Find flights.",
    parameters={"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
)
PARTS = [
    TextPart(kind="text", text="Look"),
    ImagePart(kind="image", url="https://x.test/a.png", detail="low"),
    ImagePart(kind="image", url="data:image/png;base64,AA=="),
    FilePart(kind="file", filename="a.pdf", data="BB=="),
    FilePart(kind="file", filename="b.pdf", file_id="file-1"),
]
TALK = [
    UserMessage(role="user", content="To Shanghai"),
    AssistantMessage(role="assistant", calls=[ToolCall(id="c1", name="flight search", arguments={"to": "上海"})]),
    ToolMessage(role="tool", result=ToolResult(call_id="c1", name="flight search", status="ok", content="[]")),
    AssistantMessage(role="assistant", text="None today."),
]


def asked(messages=TALK, *, tools=(SEARCH,), instructions="Be brief.", settings=None, **options) -> ModelRequest:
    return ModelRequest(instructions, messages, tools, settings or ModelSettings(), **options)


def chat(request: ModelRequest, *, custom: bool = True):
    return openai_chat.request_body("m", request, custom=custom)


def responses(request: ModelRequest):
    return openai_responses.request_body("m", request)


def completion(message, finish: str | None = "stop", **fields):
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "model": "m-1", **fields}


def read_chat(data, request=None) -> ModelReply:
    return openai_chat.read_reply(data, request or asked())


def read_response(*output, **fields) -> ModelReply:
    return openai_responses.read_reply({"status": "completed", "output": list(output), **fields}, asked())


# -- Chat Completions: the request


def test_a_conversation_becomes_chat_messages():
    assert chat(asked()) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "To Shanghai"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "flight_search", "arguments": '{"to":"上海"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "[]"},
            {"role": "assistant", "content": "None today."},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "flight_search",
                    "description": "Find flights.",
                    "parameters": SEARCH.parameters,
                },
            }
        ],
    }


def test_images_and_files_become_chat_parts():
    assert chat(asked([UserMessage(role="user", content=PARTS)]))["messages"][1]["content"] == [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BB=="}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]


@pytest.mark.parametrize("build", [chat, responses])
def test_a_longer_conversation_begins_with_the_same_bytes(build):
    key = "messages" if build is chat else "input"
    shorter, longer = build(asked(TALK[:3])), build(asked(TALK))
    assert encode({key: longer[key]}).startswith(encode({key: shorter[key]})[:-2])
    assert encode(build(asked())) == encode(build(asked([m.model_copy(deep=True) for m in TALK])))
    assert encode({"t": longer["tools"]}) == encode({"t": shorter["tools"]})


@pytest.mark.parametrize("build", [chat, responses])
def test_without_tools_nothing_is_said_of_tools(build):
    body = build(asked(tools=(), settings=ModelSettings(tool_choice="required", parallel_tool_calls=False), first=True))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body)


@pytest.mark.parametrize("build", [chat, responses])
def test_a_turn_that_has_to_answer_still_shows_the_tools(build):
    body = build(asked(answer_only=True))
    assert body["tool_choice"] == "none"
    assert len(body["tools"]) == 1


def test_a_chosen_tool_is_named_as_each_api_wants_it():
    request = asked(settings=ModelSettings(tool_choice="flight search"), first=True)
    assert chat(request)["tool_choice"] == {"type": "function", "function": {"name": "flight_search"}}
    assert responses(request)["tool_choice"] == {"type": "function", "name": "flight_search"}


SETTINGS = ModelSettings(
    temperature=0,
    top_p=0.5,
    tool_choice="required",
    parallel_tool_calls=False,
    reasoning_effort="low",
    seed=7,
    max_output_tokens=100,
    extra_body={"top_k": 20, "temperature": 1},
)


@pytest.mark.parametrize(("custom", "limit"), [(True, "max_tokens"), (False, "max_completion_tokens")])
def test_settings_reach_chat(custom, limit):
    body = chat(asked(settings=SETTINGS, first=True), custom=custom)
    assert {key: value for key, value in body.items() if key not in ("model", "messages", "tools")} == {
        "temperature": 1,
        "top_p": 0.5,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "seed": 7,
        limit: 100,
        "top_k": 20,
    }


def test_reasoning_goes_back_to_the_api_that_wrote_it_and_to_no_other():
    for entry in ({"reasoning_content": "hm"}, {"reasoning": "hm"}, {"reasoning_details": [{"data": "x"}]}):
        said = AssistantMessage(role="assistant", text="Hi", reasoning=[entry], provider="openai")
        assert chat(asked([said]))["messages"][1] == {"role": "assistant", "content": "Hi", **entry}
        assert responses(asked([said]))["input"] == [{"role": "assistant", "content": "Hi"}]
    items = [{"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}]
    said = AssistantMessage(role="assistant", text="Hi", reasoning=items, provider="openai-responses")
    assert chat(asked([said]))["messages"][1] == {"role": "assistant", "content": "Hi"}
    assert responses(asked([said]))["input"] == [*items, {"role": "assistant", "content": "Hi"}]


@pytest.mark.parametrize("build", [chat, responses])
def test_an_empty_reply_is_never_sent_as_an_empty_message(build):
    body = build(asked([AssistantMessage(role="assistant", reasoning=[{"type": "reasoning"}], provider="x")], tools=()))
    assert (body.get("messages") or body["input"])[-1] == {"role": "assistant", "content": "(empty reply)"}


@pytest.mark.parametrize("build", [chat, responses])
def test_half_a_character_does_not_break_the_request(build):
    assert json.loads(encode(build(asked([UserMessage(role="user", content="a\ud800b")]))))


# -- Chat Completions: the reply


def test_calls_are_mapped_back():
    call = {"id": "c2", "type": "function", "function": {"name": "flight_search", "arguments": '{"to": "SHA"}'}}
    reply = read_chat(completion({"content": None, "tool_calls": [call]}, "tool_calls"))
    assert (reply.text, reply.finish, reply.model) == ("", "calls", "m-1")
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [("c2", "flight search", '{"to": "SHA"}')]


def test_odd_calls_are_levelled():
    calls = [
        {"id": "c1", "function": {"name": "flight_search", "arguments": {"to": "SHA"}}},
        {"id": None, "function": {"name": "Flight Search", "arguments": None}},
        {"id": "", "name": "flight_search", "arguments": ""},
        None,
        {"function": {"arguments": "{}"}},
    ]
    reply = read_chat(completion({"tool_calls": calls}, None))
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [
        ("call_2", "flight search", '{"to":"SHA"}'),
        ("call_3", "flight search", "{}"),
        ("call_4", "flight search", "{}"),
        ("call_5", "", "{}"),
    ]
    assert reply.finish == "calls"


def test_the_older_function_call_is_a_call():
    reply = read_chat(completion({"content": None, "function_call": {"name": "flight_search", "arguments": "{}"}}))
    assert [(c.id, c.name) for c in reply.calls] == [("call_2", "flight search")]


@pytest.mark.parametrize(
    ("message", "finish", "text", "ending"),
    [
        ({"content": "Hi"}, "stop", "Hi", "stop"),
        ({"content": "Hi"}, None, "Hi", "stop"),
        ({"content": "Hi"}, "eos", "Hi", "stop"),
        ({"content": "H"}, "length", "H", "length"),
        ({"content": ""}, "content_filter", "", "filtered"),
        ({"content": None, "refusal": "I can't."}, "stop", "I can't.", "refusal"),
        ({"content": None}, "tool_calls", "", "stop"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": []}, "b"]}, "stop", "ab", "stop"),
        ({}, "stop", "", "stop"),
        (None, "stop", "", "stop"),
    ],
)
def test_endings_are_levelled(message, finish, text, ending):
    reply = read_chat(completion(message, finish))
    assert (reply.text, reply.finish) == (text, ending)


def test_no_choices_are_an_empty_reply():
    assert read_chat({"choices": []}).text == ""
    assert read_chat({"choices": [None]}).finish == "stop"


def test_calls_cut_off_by_length_say_so():
    call = {"id": "c2", "function": {"name": "flight_search", "arguments": '{"to": '}}
    reply = read_chat(completion({"tool_calls": [call]}, "length"))
    assert (reply.finish, reply.calls[0].arguments) == ("length", '{"to": ')


def test_usage_is_read_in_each_dialect():
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    read = read_chat(completion({"content": "x"}, usage=usage)).usage
    assert (read.input_tokens, read.cached_tokens, read.output_tokens, read.reasoning_tokens) == (10, 4, 5, 3)
    assert not read.estimated
    deepseek = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_cache_hit_tokens": 6,
        "prompt_tokens_details": None,
    }
    assert read_chat(completion({"content": "x"}, usage=deepseek)).usage.cached_tokens == 6
    assert read_chat(completion({"content": "x"}, usage=None)).usage.estimated


def test_reasoning_makes_the_round_trip():
    call = {
        "id": "c9",
        "function": {"name": "flight_search", "arguments": "{}"},
        "extra_content": {"google": {"s": "x"}},
    }
    message = {"content": "", "reasoning_content": "hm", "reasoning": "hm", "tool_calls": [call]}
    reply = read_chat(completion(message))
    assert list(reply.reasoning) == [
        {"reasoning_content": "hm", "tool_calls": {"c9": {"extra_content": {"google": {"s": "x"}}}}}
    ]
    said = AssistantMessage(
        role="assistant",
        calls=[ToolCall(id="c9", name="flight search")],
        reasoning=list(reply.reasoning),
        provider="openai",
    )
    sent = chat(asked([said]))["messages"][1]
    assert sent["reasoning_content"] == "hm"
    assert sent["tool_calls"][0]["extra_content"] == {"google": {"s": "x"}}


@pytest.mark.parametrize("data", [{}, {"choices": None}, {"object": "list", "data": []}, {"choices": {"a": 1}}])
def test_what_is_no_completion_is_a_server_error(data):
    with pytest.raises(ModelError, match="not a chat completion") as caught:
        read_chat(data)
    assert caught.value.kind == "server"


def test_a_choice_that_is_an_error_is_an_error():
    with pytest.raises(ModelError, match="Upstream busy") as caught:
        read_chat({"choices": [{"error": {"code": 429, "message": "Upstream busy"}, "message": {}}]})
    assert caught.value.kind == "rate_limited"


# -- Responses: the request


def test_a_conversation_becomes_items():
    assert responses(asked(settings=SETTINGS.model_copy(update={"extra_body": {}}))) == {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "To Shanghai"},
            {"type": "function_call", "call_id": "c1", "name": "flight_search", "arguments": '{"to":"上海"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "[]"},
            {"role": "assistant", "content": "None today."},
        ],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "tools": [
            {
                "type": "function",
                "name": "flight_search",
                "description": "Find flights.",
                "parameters": SEARCH.parameters,
                "strict": False,
            }
        ],
        "parallel_tool_calls": False,
        "temperature": 0,
        "top_p": 0.5,
        "reasoning": {"effort": "low"},
        "max_output_tokens": 100,
    }


def test_images_and_files_become_input_parts():
    assert responses(asked([UserMessage(role="user", content=PARTS)]))["input"][0]["content"] == [
        {"type": "input_text", "text": "Look"},
        {"type": "input_image", "image_url": "https://x.test/a.png", "detail": "low"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,BB=="},
        {"type": "input_file", "file_id": "file-1"},
    ]


# -- Responses: the reply


def reasoning(n: int):
    return {"type": "reasoning", "id": f"rs_{n}", "summary": [], "encrypted_content": f"e{n}", "status": None}


def called(n: int):
    return {"type": "function_call", "id": f"fc_{n}", "call_id": f"k{n}", "name": "flight_search", "arguments": "{}"}


def said(*parts):
    return {"type": "message", "role": "assistant", "content": list(parts)}


TEXT = {"type": "output_text", "text": "Hi", "annotations": []}


@pytest.mark.parametrize(
    "output",
    [
        [reasoning(1), called(1), called(2)],
        [reasoning(1), reasoning(2), said(TEXT), called(1)],
        [reasoning(1), said(TEXT), reasoning(2), called(1)],
        [reasoning(1), called(1), reasoning(2), called(2)],
        [called(1), called(2)],
    ],
)
def test_items_go_back_untouched_in_the_order_in_which_they_came(output):
    reply = read_response(*output)
    message = AssistantMessage(
        role="assistant",
        text=reply.text,
        calls=[ToolCall(id=call.id, name=call.name) for call in reply.calls],
        reasoning=list(reply.reasoning),
        provider="openai-responses",
    )
    sent = responses(asked([message]))["input"]
    assert [item.get("id") or item.get("call_id") or item["content"] for item in sent] == [
        item["call_id"] if item["type"] == "function_call" else item.get("id") or "Hi" for item in output
    ]
    assert [item for item in sent if item.get("type") == "reasoning"] == [i for i in output if i["type"] == "reasoning"]


def test_reasoning_that_led_to_nothing_is_left_out():
    items = [reasoning(1), {"order": ["text", "reasoning"]}]
    message = AssistantMessage(role="assistant", text="Hi", reasoning=items, provider="openai-responses")
    assert responses(asked([message]))["input"] == [{"role": "assistant", "content": "Hi"}]


@pytest.mark.parametrize(
    ("fields", "parts", "text", "ending"),
    [
        ({}, [TEXT, TEXT], "HiHi", "stop"),
        ({}, [{"type": "refusal", "refusal": "No."}], "No.", "refusal"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, [TEXT], "Hi", "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, [], "", "filtered"),
        ({"status": "incomplete", "incomplete_details": None}, [], "", "length"),
        ({"status": None}, [None, {"type": "output_text"}], "", "stop"),
    ],
)
def test_endings_of_a_response_are_levelled(fields, parts, text, ending):
    reply = read_response(said(*parts), **fields)
    assert (reply.text, reply.finish) == (text, ending)


def test_calls_of_a_response_are_levelled():
    odd = {"type": "function_call", "id": "fc_9", "name": "Flight Search", "arguments": {"to": "SHA"}}
    reply = read_response({**called(1), "call_id": "c1"}, odd, None)
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [
        ("call_3", "flight search", "{}"),
        ("fc_9", "flight search", '{"to":"SHA"}'),
    ]
    assert reply.finish == "calls"


def test_usage_of_a_response_is_read():
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    read = read_response(said(TEXT), usage=usage).usage
    assert (read.input_tokens, read.cached_tokens, read.output_tokens, read.reasoning_tokens) == (10, 4, 5, 3)
    assert read_response(said(TEXT)).usage.estimated


def test_a_failed_response_is_an_error_in_its_own_words():
    with pytest.raises(ModelError, match="slow down") as caught:
        read_response(status="failed", error={"code": "rate_limit_exceeded", "message": "slow down"})
    assert caught.value.kind == "rate_limited"
    with pytest.raises(ModelError, match="not a response"):
        openai_responses.read_reply({"choices": []}, asked())


# -- any shape


def _mangled(value, rng: random.Random):
    if rng.random() < 0.12:
        return rng.choice([None, 0, -1, "x", "", [], {}, [None], {"a": None}, True, 1.5, [[]]])
    if isinstance(value, dict):
        return {key: _mangled(child, rng) for key, child in value.items() if rng.random() > 0.05}
    if isinstance(value, list):
        return [_mangled(child, rng) for child in value]
    return value


def test_no_answer_of_any_shape_raises_anything_but_a_model_error():
    rng = random.Random(1)
    call = {"id": "c2", "function": {"name": "flight_search", "arguments": "{}"}, "extra_content": {"a": 1}}
    full = completion(
        {"content": [TEXT], "tool_calls": [call], "reasoning_content": "r", "refusal": "n"}, usage={"prompt_tokens": 1}
    )
    response = {"status": "completed", "output": [reasoning(1), said(TEXT), called(1)], "usage": {"input_tokens": 2}}
    for read, data in ((openai_chat.read_reply, full), (openai_responses.read_reply, response)) * 500:
        mangled = _mangled(data, rng)
        try:
            reply = read(mangled if isinstance(mangled, dict) else {}, asked())
        except ModelError:
            continue
        assert isinstance(reply.text, str)
        for call_ in reply.calls:
            assert {type(call_.id), type(call_.name), type(call_.arguments)} == {str}
