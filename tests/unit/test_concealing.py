"""What is private has the same handle for the model throughout, and nothing but a handle."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Sensitive, tool
from perdure.activities.judging import judge_reply
from perdure.concealing import NOT_SHOWN, Book, book_of, found, offered
from perdure.context import visible
from perdure.messages import (
    AssistantMessage,
    Compaction,
    Entry,
    Private,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    Verbatim,
    canonical_json,
)
from perdure.models import ModelReply, RawCall
from perdure.results import render_result

PHONE, OTHER, NAME = "13800138000", "13911112222", "张伟"


class Guest(BaseModel):
    name: Annotated[str, Sensitive("name")]
    phone: Annotated[str, Sensitive("phone")]
    age: Annotated[int, Sensitive("age")] = 7
    seat: str = "7A"


class Seen(BaseModel):
    open: Annotated[str, Sensitive("phone", conceal=False)]
    closed: Annotated[str, Sensitive("phone", conceal=True)]
    silent: Annotated[str, Sensitive("phone")]


@tool(effect="read")
def find_guests(city: str) -> list[Guest]:
    """Find guests."""
    return []


@tool
def call_up(phone: Annotated[str, Sensitive("phone")], text: str = "") -> str:
    """Call somebody."""
    return f"{phone}: {text}"


AGENT = Agent("desk", "scripted:none", tools=[find_guests, call_up], conceal=True)
GUESTS = json.dumps([{"name": NAME, "phone": PHONE, "age": 7, "seat": "7A"}], ensure_ascii=False)


def user(text: str) -> UserMessage:
    return UserMessage(role="user", content=text)


def asked(name: str, **arguments: Any) -> AssistantMessage:
    return AssistantMessage(role="assistant", calls=[ToolCall(id="c1", name=name, arguments=arguments)])


def told(name: str, content: str, **more: Any) -> ToolMessage:
    return ToolMessage(role="tool", result=ToolResult(call_id="c1", name=name, status="ok", content=content, **more))


def read(*entries: Entry, agent: Agent = AGENT) -> tuple[Book, list[Entry]]:
    book = book_of(agent.spec)
    return book, book.read(entries)


def all_of(entries: list[Entry]) -> str:
    return "\n".join(canonical_json(entry) for entry in entries)


def test_values_of_sensitive_fields_are_shown_as_handles_wherever_they_come_again() -> None:
    book, shown = read(
        user("Call the guest in Bern."),
        asked("find_guests", city="Bern"),
        told("find_guests", GUESTS),
        asked("call_up", phone=PHONE, text=f"{NAME}, are you there?"),
        told("call_up", f"no answer from 138-0013-8000 ({PHONE})"),
        user(f"Then text {NAME} at 138 0013 8000."),
    )
    assert [one for one in (PHONE, NAME, "0013") if one in all_of(shown)] == []
    assert json.loads(shown[2].result.content) == [  # type: ignore[union-attr]
        {"name": "‹name-1›", "phone": "‹phone-1›", "age": "‹age-1›", "seat": "7A"}
    ]
    assert shown[5] == user("Then text ‹name-1› at ‹phone-1›.")
    assert book.revealed("I called ‹name-1› at ‹phone-1›.") == f"I called {NAME} at {PHONE}."


def test_what_a_model_was_shown_never_changes_to_the_byte() -> None:
    entries: list[Entry] = [
        user(f"Call {PHONE}."),
        asked("call_up", phone=PHONE),
        told("call_up", "ok"),
        asked("find_guests", city="Bern"),
        told("find_guests", GUESTS.replace(PHONE, OTHER)),
        user(f"Is {OTHER} or {PHONE} right?"),
    ]
    whole = read(*entries)[1]
    assert [all_of(read(*entries[:length])[1]) for length in range(1, 7)] == [
        all_of(whole[:length]) for length in range(1, 7)
    ]
    assert whole[0] == user(f"Call {PHONE}."), "it was shown before anything said that it is private"
    assert whole[5] == user("Is ‹phone-2› or ‹phone-1› right?")


def test_a_field_says_itself_whether_it_is_concealed() -> None:
    @tool(effect="read")
    def look() -> Seen:
        """Look."""
        return Seen(**seen)

    seen = {"open": "111111111", "closed": "222222222", "silent": "333333333"}
    content = json.dumps(seen)
    shown = {
        conceal: json.loads(
            read(told("look", content), agent=Agent("a", "scripted:x", tools=[look], conceal=conceal))[1][
                0
            ].result.content  # type: ignore[union-attr]
        )
        for conceal in (False, True)
    }
    assert shown[False] == {"open": "111111111", "closed": "‹phone-1›", "silent": "333333333"}
    assert shown[True] == {"open": "111111111", "closed": "‹phone-1›", "silent": "‹phone-2›"}


def test_an_agent_that_conceals_nothing_has_the_rules_that_it_had_before() -> None:
    plain = Agent("desk", "scripted:none", tools=[find_guests, call_up])
    assert plain.hash != AGENT.hash
    assert "conceal" not in canonical_json(plain.spec)
    assert all_of(read(told("find_guests", GUESTS), agent=plain)[1]) == all_of([told("find_guests", GUESTS)])


def test_a_result_of_which_only_a_part_is_shown_tells_nothing_either() -> None:
    values = found(json.loads(GUESTS), AGENT.spec.tools[0].returns)
    assert values == [
        Private(kind="name", value=NAME),
        Private(kind="phone", value=PHONE),
        Private(kind="age", value=7),
    ]
    cut = GUESTS[: GUESTS.index(PHONE) + 6]
    _, (shown,) = read(told("find_guests", cut, size=500, ref="r", private=values))
    assert isinstance(shown, ToolMessage)
    assert PHONE[:4] not in shown.result.content
    assert "‹name-1›" in shown.result.content
    whole = len(cut.encode()) - 6
    assert f"offset={whole})" in render_result(shown.result), "the value that was cut is read on from its beginning"
    _, (nothing,) = read(told("find_guests", cut, size=500, ref="r"))
    assert nothing.result.content == NOT_SHOWN  # type: ignore[union-attr]


def test_pages_of_a_large_result_have_no_halves_of_values() -> None:
    _, shown = read(told("find_guests", GUESTS), told("read_result", f'{PHONE[4:]}", "x": "{PHONE[:7]}'))
    assert shown[1].result.content == '…", "x": "'  # type: ignore[union-attr]


def test_a_summary_and_what_is_kept_word_for_word_have_handles() -> None:
    verbatim = Verbatim(said=[f"Call {PHONE}"], identifiers=[f"user: {PHONE}"])
    entry = Compaction(role="compaction", covers=1, summary=f"{NAME} was called.", verbatim=verbatim)
    _, shown = read(told("find_guests", GUESTS), entry)
    assert [one for one in (PHONE, NAME) if one in all_of(shown)] == []
    assert "‹name-1› was called." in str(visible(shown)[0])


async def judged(book: Book, name: str, arguments: Any) -> ToolCall:
    reply = ModelReply(calls=[RawCall(id="c", name=name, arguments=json.dumps(arguments, ensure_ascii=False))])

    async def nobody(*_: Any) -> Any:
        pytest.fail("nobody is to be asked")

    return (await judge_reply(reply, "m:x", AGENT.spec, AGENT, nobody, (), book)).message.calls[0]


async def test_a_tool_that_is_called_with_a_handle_gets_the_value() -> None:
    book, _ = read(told("find_guests", GUESTS))
    call = await judged(book, "call_up", {"phone": "‹phone-1›", "text": "Hello ‹name-1›, <phone-1>?"})
    assert call.problem is None
    assert call.arguments == {"phone": PHONE, "text": f"Hello {NAME}, {PHONE}?"}


async def test_a_number_fits_where_text_is_wanted() -> None:
    book, _ = read(told("find_guests", GUESTS))
    call = await judged(book, "call_up", {"phone": "‹age-1›"})
    assert (call.problem, call.arguments) == (None, {"phone": "7"})


async def test_an_unknown_handle_is_an_error_of_the_call() -> None:
    book, _ = read(told("find_guests", GUESTS))
    call = await judged(book, "call_up", {"phone": "‹phone-9›"})
    assert call.problem is not None
    assert call.problem.error_type == "invalid_arguments"
    assert call.problem.message == "There is no private value with the handle ‹phone-9›."
    assert "‹phone-1›" in str(call.problem.suggestion)


def test_a_field_that_may_be_given_a_handle_is_described_as_text() -> None:
    schema = {
        "type": "object",
        "properties": {"at": {"type": "integer", "minimum": 3, "x-sensitive": "age", "x-conceal": True}},
    }
    spec = AGENT.spec.tools[1].model_copy(update={"parameters": schema})
    assert offered(spec).parameters["properties"] == {"at": {"type": ["integer", "string"]}}


@pytest.mark.parametrize("text", ["‹phone-1›", "<phone-1>", "a ‹phone-1› b", "‹phone-7›", "phone-1"])
def test_what_a_model_writes_is_shown_to_it_again_as_handles(text: str) -> None:
    book, _ = read(told("find_guests", GUESTS))
    said = AssistantMessage(role="assistant", text=book.revealed(text))
    again = book.read([said])[0]
    assert again.text == text.replace("<", "‹").replace(">", "›")  # type: ignore[union-attr]


def test_variables_that_are_private_are_not_shown() -> None:
    class Trip(BaseModel):
        contact: Annotated[str, Sensitive("phone")] = ""
        city: str = ""

    agent = Agent("a", "scripted:x", tools=[find_guests], variables=Trip, conceal=True)
    book, _ = read(told("find_guests", GUESTS), agent=agent)
    assert book.note({"contact": PHONE, "city": NAME}) == {"contact": "‹phone-1›", "city": "‹name-1›"}
    assert book.note({"contact": OTHER, "city": "Bern"}) == {"contact": "[phone]", "city": "Bern"}
