"""Recorded runs, played again with another prompt, another tool, another model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from perdure import Agent, Client, MCPServer, Sensitive, ask_user, tool
from perdure.errors import RecordingError
from perdure.testing import (
    Case,
    Checked,
    Environment,
    ScriptedModel,
    call,
    check_server,
    load_case,
    record,
    replay,
    save_case,
)
from tests.integration.archiving import archived

LIBRARY = Path(__file__).parents[2] / "examples/mcp_library_server.py"
PHONE, MAIL = "13812345678", "wei@acme.example"


@tool(effect="read")
def find_guest(name: str) -> dict[str, str]:
    """Find a guest."""
    return {"phone": PHONE, "note": f"write to {MAIL}"}


@tool(approval="always")
def book(phone: Annotated[str, Sensitive("phone")], nights: int) -> str:
    """Book a room."""
    return f"booked for {phone}"


hotel = Agent("hotel", "openai:none", instructions="Book what is asked for.", tools=[find_guest, book, ask_user])
SCRIPT: list[Any] = [
    call("find_guest", name="Wei"),
    call("ask_user", question="How long?"),
    call("book", phone=PHONE, nights=3),
    f"Booked, {PHONE} is told.",
]


@pytest.fixture(scope="module")
def case(perdure_env) -> Case:
    """A run of today, recorded: a question is answered, and a booking approved with other arguments."""
    with perdure_env.start(hotel, f"Book for Wei, {PHONE}", model=SCRIPT) as run:
        run.answer("three nights")
        run.approve(arguments={"phone": PHONE, "nights": 2}, by="ann")
        assert run.result().status == "completed"
        recorded: Case = run.call(record(perdure_env.engine.client, run.id))
        return recorded


def test_case_holds_nothing_private_and_says_the_same_of_the_same(case, tmp_path):
    save_case(case, tmp_path / "case.json")
    text = (tmp_path / "case.json").read_text()
    assert PHONE not in text
    assert MAIL not in text
    assert load_case(tmp_path / "case.json") == case
    booked = next(one.calls[0] for one in case.entries if one.role == "assistant" and one.calls[0].name == "book")
    assert booked.arguments["phone"] in str(case.task)
    assert booked.arguments["phone"] in case.text
    assert (booked.arguments["phone"][:3], len(booked.arguments["phone"])) == ("138", 11)


def test_case_goes_the_same_way_with_the_agent_that_it_was_recorded_of(case, perdure_env):
    replayed = replay(case, hotel, environment=perdure_env)
    replayed.assert_same()
    assert (replayed.status, replayed.answer) == ("completed", case.text)


def test_tools_are_not_run_when_a_case_is_replayed(case, perdure_env):
    def never(**_: Any) -> str:
        raise AssertionError("it was run")

    replay(case, replace(hotel, tools=[replace(find_guest, function=never), *hotel.tools[1:]]), environment=perdure_env)


def test_tool_that_has_another_schema_now_changes_the_path(case, perdure_env):
    @tool(approval="always")
    def book(phone: str, weeks: int) -> str:
        """Book a room."""
        return "booked"

    replayed = replay(case, replace(hotel, tools=[find_guest, book, ask_user]), environment=perdure_env)
    assert replayed.parting
    assert replayed.parting.step == 3
    with pytest.raises(AssertionError, match="another way at step 3"):
        replayed.assert_same()


def test_call_about_which_nobody_is_asked_any_more_changes_the_path(case, perdure_env):
    trusting = replace(
        hotel, tools=[find_guest, replace(book, spec=book.spec.model_copy(update={"approval": "never"})), ask_user]
    )
    replayed = replay(case, trusting, environment=perdure_env)
    assert replayed.parting
    [asked] = [one for one in replayed.parting.differences if one.what == "approval"]
    assert (replayed.parting.step, asked.call) == (3, "3.1")
    assert (asked.left, asked.right) == ("a person is asked", "nobody is asked")


def test_prompt_that_breaks_the_booking_is_found_with_a_model_that_is_asked_anew(case, perdure_env):
    def books(request: Any) -> Any:
        careless = "asked for" not in request.instructions
        phone = case.entries[5].calls[0].arguments["phone"]
        return "I would book it." if careless else call("book", phone=phone, nights=3)

    model = [*SCRIPT[:2], books, "Done, in other words."]
    replay(case, hotel, model=model, environment=perdure_env).assert_same()
    replayed = replay(case, replace(hotel, instructions="Be brief."), model=model, environment=perdure_env)
    assert replayed.parting
    assert (replayed.parting.step, [one.what for one in replayed.parting.differences]) == (3, ["calls"])
    assert (replayed.parting.differences[0].left, replayed.parting.differences[0].right) == (["book"], [])


def test_other_arguments_are_told_and_the_run_is_broken_off(case, perdure_env):
    model = ScriptedModel([call("find_guest", name="Li"), *SCRIPT[1:]])
    replayed = replay(case, hotel, model=model, environment=perdure_env)
    assert replayed.parting
    assert [(one.what, one.call) for one in replayed.parting.differences] == [("arguments", "1.1")]


def test_answer_that_is_recorded_otherwise_is_a_change(case, perdure_env):
    assert not replay(case.model_copy(update={"status": "failed"}), hotel, environment=perdure_env).same


def test_run_that_waits_is_recorded_as_far_as_it_has_come(perdure_env):
    with perdure_env.start(hotel, "Book", model=[SCRIPT[2]]) as run:
        run.until_asked()
        case = run.call(record(perdure_env.engine.client, run.id))
    assert (case.status, case.asked) == ("waiting_approval", ["1.1"])
    assert replay(case, hotel, environment=perdure_env).same


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_file_that_is_no_case_is_refused(content, tmp_path):
    if content:
        (tmp_path / "case.json").write_text(content)
    with pytest.raises(RecordingError, match=r"case\.json"):
        load_case(tmp_path / "case.json")


def test_run_that_the_engine_has_forgotten_is_recorded_from_the_archive(tmp_path):
    long = "Book. " + "Please. " * 40_000
    with Environment(tmp_path) as first, first.start(hotel, long, model=["Which room?"]) as run:
        assert run.result().text == "Which room?"
        first.call(archived(first.engine, run.id))
        histories = first.call(_checked(first.engine.client, run.id))
    assert [one.verdict for one in histories] == ["fine"]
    with Environment(tmp_path) as later:
        case = later.call(record(later.engine.client, run.id))
        assert (case.status, case.text, case.task) == ("completed", "Which room?", long)
        replay(case, hotel, environment=later).assert_same()


async def _checked(client: Client, run_id: str) -> list[Checked]:
    return [one async for one in check_server(client, f'WorkflowId = "{run_id}"')]


def test_tools_of_a_server_are_those_that_the_run_had_listed(perdure_env):
    served = replace(hotel, tools=[MCPServer("library", command=[sys.executable, str(LIBRARY)])])
    script = [call("find", words="moby"), "There are ${find.Moby-Dick}."]
    with perdure_env.start(served, "Look", model=script) as run:
        assert run.result().status == "completed"
        case = run.call(record(perdure_env.engine.client, run.id))
    assert case.text == "There are 2."
    gone = replace(hotel, tools=[MCPServer("library", command=["no-such-command"])])
    replay(case, gone, environment=perdure_env).assert_same()
