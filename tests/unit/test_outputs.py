"""Structured output: what a type asks for, what is read out of an answer, and how an API is asked for it."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator
from typing_extensions import TypedDict

from perdure import Agent, AgentError, ModelSettings, RunResult, outputs, tool, turns
from perdure.activities.judging import judge_reply
from perdure.activities.providers import openai_chat, openai_responses
from perdure.errors import ModelError
from perdure.messages import UserMessage, content_hash
from perdure.models import ModelReply, ModelRequest
from perdure.models.shapes import Shapes, format_of, prompted, strict
from perdure.policies import AgentSpec, OutputSpec


class Leg(BaseModel):
    start: str
    day: date
    seats: int = Field(default=1, ge=1)


class Itinerary(BaseModel):
    title: str = Field(min_length=3)
    legs: list[Leg]
    note: str | None = None

    @field_validator("title")
    @classmethod
    def _named(cls, title: str) -> str:
        if title == "trip":
            raise ValueError("say where to")
        return title


@dataclass
class Point:
    x: int
    y: int


class Size(TypedDict):
    width: int


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


FITS = '{"title": "Rome", "legs": [{"start": "Oslo", "day": "2026-01-02"}]}'


def spec_of(output_type: Any) -> OutputSpec:
    spec = outputs.declared("a", output_type)
    assert spec is not None
    return spec


async def at_once(function: Any, keywords: Any, seconds: float) -> Any:
    value = function(**keywords)
    return await value if asyncio.iscoroutine(value) else value


async def judged(text: str, output_type: Any, *, agent: Agent | None = None, finish: Any = "stop") -> Any:
    own = Agent("a", "openai:x", output_type=output_type)
    return await judge_reply(ModelReply(text=text, finish=finish), "openai:x", own.spec, agent or own, at_once)


# -- declared ----------------------------------------------------------------------------------------------


def test_an_agent_without_an_output_type_has_the_hash_that_it_always_had():
    spec = Agent("a", "openai:x").spec
    assert spec.output is None
    assert content_hash(spec) == content_hash(AgentSpec(name="a", model="openai:x"))
    assert Agent("a", "openai:x", output_type=str).spec == spec


@pytest.mark.parametrize(
    ("output_type", "text", "output"),
    [
        (Itinerary, FITS, {"title": "Rome", "legs": [{"start": "Oslo", "day": "2026-01-02"}]}),
        (Point, '{"x": 1, "y": 2}', {"x": 1, "y": 2}),
        (Size, '{"width": 3}', {"width": 3}),
        (list[int], '{"result": [1, 2]}', [1, 2]),
        (int | None, '{"result": null}', None),
        (Literal["yes", "no"], '{"result": "yes"}', "yes"),
        (Mood, '{"result": "bad"}', "bad"),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Annotated[float, Field(ge=0)], '{"result": 0.5}', 0.5),
    ],
)
async def test_what_a_type_takes_is_an_output_and_an_instance_again(output_type, text, output):
    turn = await judged(text, output_type)
    assert (turn.misfit, turn.output.value) == ("", output)
    again = RunResult(run_id="r", status="completed", output=output).output_as(output_type)
    assert outputs.adapter_of(output_type).dump_python(again, mode="json", exclude_unset=True) == output


def test_a_type_that_is_no_json_is_refused_in_one_sentence():
    class Strange:
        pass

    with pytest.raises(AgentError, match=r"^Agent 'a': output_type Strange has no JSON Schema: .*\.$"):
        Agent("a", "openai:x", output_type=Strange)


def test_a_result_without_an_output_says_why_there_is_none():
    result = RunResult(run_id="r", status="budget_exhausted", text="so far", reason="All 3 steps are used up.")
    with pytest.raises(ValueError, match=r"r ended budget_exhausted and has no output: All 3 steps"):
        result.output_as(Itinerary)
    with pytest.raises(ValidationError):
        RunResult(run_id="r", status="completed", output={"title": 1}).output_as(Itinerary)


# -- judged ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [FITS, f"```json\n{FITS}\n```", f"Here you are:\n```\n{FITS}\n```\nEnjoy!", f"Your trip: {FITS} Enjoy."]
)
async def test_an_answer_may_come_in_a_fence_or_in_words(text):
    assert (await judged(text, Itinerary)).output.value["title"] == "Rome"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("I went to Rome.", "is not JSON"),
        ('{"title": "Rome"}', "does not fit Itinerary: 'legs' is a required property"),
        ('{"title": "Ro", "legs": []}', "title: 'Ro' is too short"),
        ('{"title": "trip", "legs": []}', "title: say where to"),
        (FITS.replace("2026-01-02", "soon"), "legs.0.day: Input should be a valid date"),
        (f"```\n{FITS}\n```\n```\n{FITS}\n```", "is not JSON"),
        ('{"title": ' + "[" * 200 + "]" * 200 + "}", "is not JSON: it is nested deeper"),
    ],
)
async def test_an_answer_that_does_not_fit_says_what_is_wrong(text, complaint):
    turn = await judged(text, Itinerary)
    assert turn.output is None
    assert complaint in turn.misfit


@pytest.mark.parametrize(("text", "finish"), [("", "stop"), ("{", "length"), ("I can't.", "refusal")])
async def test_what_is_no_answer_is_left_to_what_is_said_of_any_reply(text, finish):
    turn = await judged(text, Itinerary, finish=finish)
    assert (turn.output, turn.misfit) == (None, "")


async def test_a_type_that_was_changed_since_has_no_say_in_older_runs():
    class Itinerary(BaseModel):
        elsewhere: int

    turn = await judged(
        '{"title": "trip", "legs": []}', globals()["Itinerary"], agent=Agent("a", "o:x", output_type=Itinerary)
    )
    assert turn.output.value["title"] == "trip"


async def test_a_validator_that_breaks_lets_nothing_pass():
    class Odd(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def _check(cls, n: int) -> int:
            raise RuntimeError("boom")

    assert "can't be checked: RuntimeError: boom" in (await judged('{"n": 1}', Odd)).misfit


# -- while it is written -----------------------------------------------------------------------------------


def test_of_an_answer_that_is_being_written_there_is_what_is_there():
    seen = [outputs.partial(FITS[:end]) for end in range(len(FITS) + 1)]
    assert seen[0] is None
    assert {"title": "Ro"} in seen
    assert seen[-1] == outputs.read(FITS)
    assert outputs.partial(f"```json\n{FITS[:30]}") == outputs.partial(FITS[:30])
    assert outputs.partial(f"```json\n{FITS}\n```") == outputs.read(FITS)
    assert outputs.partial("no JSON") is None
    assert outputs.partial("{no JSON") is None


# -- schemas of APIs ---------------------------------------------------------------------------------------


def test_strict_mode_has_every_property_and_tells_the_rules_that_it_does_not_know():
    schema = strict(spec_of(Itinerary).json_schema)
    assert schema is not None
    assert schema["required"] == ["title", "legs", "note"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["title"] == {"type": "string", "description": 'Rules: {"minLength": 3}'}
    leg = schema["properties"]["legs"]["items"]
    assert leg["required"] == ["start", "day", "seats"]
    assert leg["properties"]["seats"] == {"type": "integer", "minimum": 1}
    assert leg["properties"]["day"] == {"type": "string", "format": "date"}


@pytest.mark.parametrize("output_type", [dict[str, int], tuple[int, str], list[Any]])
def test_a_type_that_strict_mode_can_not_say_is_asked_for_loosely(output_type):
    spec = spec_of(output_type)
    assert strict(spec.json_schema) is None
    assert format_of(spec)["strict"] is False


@tool(effect="read")
def look() -> str:
    """Look."""
    return ""


def asked(*, tools: Any = (), mode: Any = "auto", **more: Any) -> ModelRequest:
    spec = spec_of(Itinerary)
    settings = ModelSettings(structured_output=mode)
    return ModelRequest("Be brief.", [], [one.spec for one in tools], settings, output=spec, **more)


@pytest.mark.parametrize(
    ("custom", "request_", "by_api", "told"),
    [
        (False, asked(tools=[look]), True, False),
        (False, asked(mode="prompt"), False, True),
        (True, asked(), True, True),
        (True, asked(tools=[look]), False, True),
        (True, asked(tools=[look], answer_only=True), True, True),
        (True, asked(tools=[look], mending=True), True, True),
        (True, asked(tools=[look], mode="schema"), True, False),
    ],
)
def test_the_api_is_used_where_it_leaves_room_for_calls(custom, request_, by_api, told):
    sent = Shapes(custom=custom).shaped(request_)
    assert (sent.output is not None, "JSON Schema below" in sent.instructions) == (by_api, told)
    assert sent.instructions.startswith("Be brief.")


def test_both_apis_are_asked_in_their_own_way():
    chat = openai_chat.request_body("m", asked(), custom=False)
    assert chat["response_format"] == {"type": "json_schema", "json_schema": format_of(spec_of(Itinerary))}
    responses = openai_responses.request_body("m", asked())
    assert responses["text"]["format"] == {"type": "json_schema", **format_of(spec_of(Itinerary))}
    assert "response_format" not in openai_chat.request_body("m", prompted(asked()), custom=False)


async def test_a_server_that_refuses_a_schema_is_told_it_from_then_on():
    shapes, sent = Shapes(custom=False), []

    async def ask(request: ModelRequest) -> ModelReply:
        sent.append(request.output is not None)
        if request.output:
            raise ModelError("bad_request", "This response_format type is unavailable now (HTTP 400)")
        return ModelReply(text=FITS)

    await shapes.asking(ask, asked())
    await shapes.asking(ask, asked())
    assert sent == [True, False, False]


async def test_any_other_refusal_is_what_it_is():
    async def ask(request: ModelRequest) -> ModelReply:
        raise ModelError("bad_request", "Unknown parameter: seed.")

    with pytest.raises(ModelError, match="seed"):
        await Shapes(custom=False).asking(ask, asked())


async def test_a_server_that_can_not_do_both_is_held_to_the_schema_where_there_are_no_tools():
    shapes, sent = Shapes(custom=True), []

    async def ask(request: ModelRequest) -> ModelReply:
        sent.append((bool(request.tools), request.output is not None))
        if request.output and request.tools:
            raise ModelError("bad_request", "Cannot use custom grammar constraints with tools.")
        return ModelReply(text=FITS)

    await shapes.asking(ask, asked(tools=[look], mode="schema"))
    await shapes.asking(ask, asked(tools=[look], mode="schema"))
    await shapes.asking(ask, asked(mode="schema"))
    assert sent == [(True, True), (True, False), (True, False), (False, True)]


def test_only_after_a_complaint_about_an_answer_it_is_to_be_mended():
    def said(text: str, source: Any) -> UserMessage:
        return UserMessage(role="user", content=text, source=source)

    assert turns.is_mending([said(f"Your last answer is not JSON. {turns.AGAIN}", "runtime")])
    assert not turns.is_mending([said(turns.AGAIN, "user")])
    assert not turns.is_mending([said(turns.EMPTY, "runtime")])
    assert not turns.is_mending([])
