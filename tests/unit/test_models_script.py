"""Scripts: what they may hold, and which reply they give."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from perdure.activities.providers import open_model
from perdure.errors import ModelError
from perdure.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage
from perdure.models import ModelRequest
from perdure.policies import ModelSettings, ToolSpec
from perdure.testing import ScriptedModel, ScriptedReply, load_script

HELLO = UserMessage(role="user", content="Hello")


def asked(*messages: Message, tools=()) -> ModelRequest:
    specs = [ToolSpec(name=name, description="d", parameters={}) for name in tools]
    return ModelRequest("", messages, specs, ModelSettings())


def said(text: str = "x", *calls: ToolCall) -> AssistantMessage:
    return AssistantMessage(role="assistant", text=text, calls=list(calls))


def answered(name: str, content: object, status: str = "ok") -> ToolMessage:
    text = content if isinstance(content, str) else json.dumps(content)
    return ToolMessage(
        role="tool", result=ToolResult.model_validate({"call_id": "c", "name": name, "status": status, "content": text})
    )


async def test_the_reply_depends_only_on_how_many_there_have_been():
    for _ in range(2):  # a new model, as after a crash
        model = ScriptedModel(["one", "two", {"text": "three"}])
        assert (await model.generate(asked(HELLO, said(), HELLO))).text == "two"
        assert (await model.generate(asked(HELLO))).text == "one"
        assert (await model.generate(asked(HELLO, said(), HELLO, said(), said(), said()))).text == "three"


async def test_a_reply_may_be_a_function_of_the_request():
    model = ScriptedModel([lambda request: {"text": f"{len(request.messages)} seen"}])
    reply = await model.generate(asked(HELLO))
    assert (reply.text, reply.finish, reply.usage.estimated) == ("1 seen", "stop", True)
    assert model.requests == [asked(HELLO)]


async def test_calls_are_levelled_like_any_models():
    model = ScriptedModel(
        [{"calls": [{"name": "Book Flight", "arguments": {"n": 1}}, {"name": "x", "arguments": "{br", "id": "c"}]}]
    )
    reply = await model.generate(asked(said("", ToolCall(id="c", name="x")), tools=["book flight"]))
    assert reply.finish == "calls"
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [
        ("call_2", "book flight", '{"n":1}'),
        ("call_3", "x", "{br"),
    ]


async def test_marks_are_filled_from_the_latest_ok_result():
    call = {
        "name": "book",
        "arguments": {"id": "${search.flights.0.id}", "price": "${search.flights.0.price}", "all": ["${search}"]},
    }
    model = ScriptedModel(
        ["x", {"text": "${search.flights.0.id} for ${search.flights.0.price}: ${note}", "calls": [call]}]
    )
    latest = {"flights": [{"id": "MU1", "price": 99.5}]}
    reply = await model.generate(
        asked(
            said(),
            answered("search", {"flights": []}),
            answered("search", latest),
            answered("search", "no", "error"),
            answered("note", "hi"),
        )
    )
    assert reply.text == "MU1 for 99.5: hi"
    assert json.loads(reply.calls[0].arguments) == {"id": "MU1", "price": 99.5, "all": [latest]}


@pytest.mark.parametrize(
    ("mark", "complaint"),
    [
        ("${other.id}", "no such tool"),
        ("${search.1}", "no '1' there"),
        ("${search.0.id.x}", "no 'x' there"),
        ("${search.a}", "no 'a'"),
    ],
)
async def test_a_mark_that_leads_nowhere_is_one_clear_sentence(mark, complaint):
    model = ScriptedModel([mark])
    with pytest.raises(ModelError, match=complaint) as caught:
        await model.generate(asked(answered("search", [{"id": 1}])))
    assert caught.value.kind == "bad_request"


async def test_trouble_comes_as_often_as_it_says():
    error = {"kind": "rate_limited", "message": "slow", "retry_after": 2}
    model = ScriptedModel([{"text": "fine", "error": error, "times": 2}])
    for _ in range(2):
        with pytest.raises(ModelError, match="slow") as caught:
            await model.generate(asked(HELLO))
        assert (caught.value.kind, caught.value.retry_after) == ("rate_limited", timedelta(seconds=2))
    assert (await model.generate(asked(HELLO))).text == "fine"


async def test_a_dropped_connection_and_a_raw_answer_are_model_errors_in_process():
    for trouble, kind in (({"drop": True}, "connection"), ({"http": {"status": 500}}, "bad_request")):
        with pytest.raises(ModelError) as caught:
            await ScriptedModel([trouble]).generate(asked(HELLO))
        assert caught.value.kind == kind


async def test_a_delay_can_be_cancelled():
    task = asyncio.create_task(ScriptedModel([{"text": "late", "delay": 3600}]).generate(asked(HELLO)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_named_model_is_found_while_its_context_lasts():
    model = ScriptedModel(["hi"])
    with model.named() as name:
        assert open_model(name, ModelSettings()) is model
    with pytest.raises(ModelError, match="known providers are"):
        open_model(name, ModelSettings())


async def test_a_script_is_read_from_a_file(tmp_path):
    path = tmp_path / "script.json"
    path.write_text('[{"text": "你好"}]', encoding="utf-8")
    assert load_script(path) == [ScriptedReply(text="你好")]
    model = open_model(f"scripted:{path}", ModelSettings())
    assert (await model.generate(asked(HELLO))).text == "你好"
    await model.aclose()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "can't be read: No such file"),
        ("[{", "is not JSON"),
        ("{}", "at least one reply"),
        ("[]", "at least one reply"),
        ('["a", {"txt": "b"}]', r"reply 2: txt: Extra inputs"),
        ("[3]", "reply 1: it: "),
        ('[{"calls": [{"arguments": {}}]}]', r"calls\.0\.name: Field required"),
        ('[{"error": {"kind": "odd"}}]', r"error\.kind"),
    ],
)
def test_a_bad_script_is_one_clear_sentence(tmp_path, content, complaint):
    path = tmp_path / "s.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ModelError, match=complaint) as caught:
        open_model(f"scripted:{path}", ModelSettings())
    assert caught.value.kind == "bad_request"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["nope:x", "openai", "openai:", ""])
def test_an_unknown_provider_lists_those_known(name):
    with pytest.raises(ModelError, match=r"known providers are openai, openai-responses, .*scripted") as caught:
        open_model(name, ModelSettings())
    assert caught.value.kind == "bad_request"
    well_formed = name == "nope:x"
    assert ("provider 'nope' is not known" in caught.value.message) == well_formed
    assert ("PROVIDER:NAME" in caught.value.message) != well_formed


async def test_a_reply_that_is_about_something_is_for_conversations_alone_that_begin_with_it():
    model = ScriptedModel(
        [{"text": "plan"}, {"text": "fly", "about": "(flight)"}, "end", {"text": "land", "about": "(flight)"}]
    )
    flight = UserMessage(role="user", content="Your step (flight): look.")
    told = [
        await model.generate(asked(first, *said_so_far)) for first in (HELLO, flight) for said_so_far in ((), (said(),))
    ]
    assert [reply.text for reply in told] == ["plan", "end", "fly", "land"]


async def test_what_a_strategy_did_is_no_reply_of_the_model():
    moved = AssistantMessage(role="assistant", source="strategy")
    assert (await ScriptedModel(["one", "two"]).generate(asked(HELLO, moved))).text == "one"
