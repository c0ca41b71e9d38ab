"""Evaluations: every attempt is a real run, and what breaks an agent is caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from perdure import Agent, ask_user, tool
from perdure.client import Client
from perdure.evals import Called, Case, Decision, Evidence, Expect, Report, Suite, evaluate, load_suite
from perdure.testing import ScriptedModel, call, load_script

TRAVEL = Path(__file__).parents[2] / "examples" / "travel" / "evals"
BOOKING = "Then book what fits best: the user approves each booking before it is made, so don't ask."


def heeding(replies: list[Any]) -> list[Callable[[Any], Any]]:
    """Return replies of a model that books nothing unless its instructions tell it to."""

    def reply(said: Any) -> Callable[[Any], Any]:
        books = any(one.name.endswith("_book") for one in said.calls)
        return lambda request: "Shall I book it?" if books and BOOKING not in request.instructions else said

    return [reply(said) for said in replies]


async def test_change_of_the_prompt_that_breaks_the_booking_step_is_caught(client: Client) -> None:
    suite = load_suite(str(TRAVEL / "travel.yaml"))
    suite = suite.model_copy(update={"cases": suite.cases[:1]})
    script = [one for one in load_script(str(TRAVEL / "travel.json")) if not one.about]
    broken = replace(suite.agent, instructions=suite.agent.instructions.replace(BOOKING, "Be brief."))
    with ScriptedModel(heeding(script)).named() as model:
        before = await evaluate(suite, client, models=[model], id=uuid4().hex)
        after = await evaluate(suite.model_copy(update={"agent": broken}), client, models=[model], id=uuid4().hex)
    assert before.passed, before.attempts[0].reason
    failed = {one.check.partition(" 1 times")[0] for one in after.attempts[0].verdicts if not one.passed}
    assert {"calls flight_book", "calls hotel_book", "flight_and_hotel_are_booked"} <= failed
    assert "booked are 0 flights and 0 hotels" in {one.reason for one in after.attempts[0].verdicts}


# -- a small agent -------------------------------------------------------------------------------------------

paid: list[tuple[str, int]] = []


@tool(approval="always", effect="idempotent")
def pay(order: str, cents: int) -> str:
    """Pay an order."""
    paid.append((order, cents))
    return f"paid {cents}"


def suite_of(model: str, *cases: Case, **more: Any) -> Suite:
    return Suite(suite="clerks", agent=Agent("clerk-evaluated", model, tools=[pay]), cases=list(cases), **more)


PAYS: list[Any] = [call("pay", order="A7", cents=500), "${pay}, and done."]


async def reported(client: Client, replies: list[Any], *cases: Case, **more: Any) -> Report:
    with ScriptedModel(replies).named() as model:
        return await evaluate(suite_of(model, *cases), client, id=uuid4().hex, **more)


@pytest.mark.parametrize(
    ("approvals", "expect"),
    [
        ({"pay": "approve"}, Expect(contains=["paid 500"])),
        ({"*": "approve"}, Expect(contains=["paid 500"])),
        (
            {"pay": {"edit": {"cents": 5}}},
            Expect(contains=["paid 5,"], called=[Called(tool="pay", arguments={"cents": 5})]),
        ),
        ({"pay": {"deny": "no"}}, Expect(called=[Called(tool="pay", status="denied")], status="failed")),
    ],
)
async def test_people_of_a_case_decide_as_it_says(client: Client, approvals, expect) -> None:
    case = Case.model_validate({"name": "pays", "input": "Pay A7", "approvals": approvals, "expect": expect})
    report = await reported(client, PAYS, case)
    assert report.passed, report.attempts[0].reason


async def test_request_that_nobody_foresaw_fails_the_case_and_ends_its_run(client: Client) -> None:
    report = await reported(client, PAYS, Case(name="pays", input="Pay A7"))
    attempt = report.attempts[0]
    assert attempt.reason == "people: pay waits for a person, and the case has no approvals for it."
    assert attempt.status == "cancelled"


async def test_same_id_takes_up_what_was_done_and_checks_it_anew(client: Client) -> None:
    case, evaluation = Case(name="pays", input="Pay A7", approvals={"pay": [Decision(approve=True)]}), uuid4().hex
    with ScriptedModel(PAYS).named() as model:
        first = await evaluate(suite_of(model, case), client, repeat=2, id=evaluation)
        before = len(paid)
        stricter = case.model_copy(update={"expect": Expect(contains=["never said"])})
        again = await evaluate(suite_of(model, stricter), client, repeat=3, id=evaluation)
    assert first.passed
    assert not again.passed
    assert [one.run_id for one in again.attempts[:2]] == [one.run_id for one in first.attempts]
    assert len(paid) == before + 1  # the third attempt's


async def test_what_was_changed_since_is_run_anew_under_the_same_id(client: Client) -> None:
    case, evaluation = Case(name="pays", input="Pay A7", approvals={"pay": [Decision(approve=True)]}), uuid4().hex
    with ScriptedModel(PAYS).named() as model:
        suite = suite_of(model, case)
        first = await evaluate(suite, client, id=evaluation)
        other = replace(suite.agent, instructions="Be kind.")
        again = await evaluate(suite.model_copy(update={"agent": other}), client, id=evaluation)
    assert first.attempts[0].run_id != again.attempts[0].run_id


async def test_last_turn_of_a_session_is_what_is_checked(client: Client) -> None:
    case = Case(name="talks", input="And now?", session=["First.", "Second."], expect=Expect(contains=["third"]))
    report = await reported(client, ["first", "second", "third"], case)
    assert report.passed, report.attempts[0].reason


async def test_rubric_is_judged_once_by_a_run_of_its_own(client: Client) -> None:
    evaluation, case = uuid4().hex, Case(name="kind", input="Hello", expect=Expect(judged=["It greets.", "It sings."]))

    def judge(request: Any) -> str:
        return json.dumps({"reason": "read", "met": "It greets." in str(request.messages)})

    judging = ScriptedModel([judge])
    with ScriptedModel(["Hello!"]).named() as model, judging.named() as judged_by:
        suite = suite_of(model, case, judge=judged_by)
        await evaluate(suite, client, id=evaluation)
        report = await evaluate(suite, client, id=evaluation)
    assert [(one.check, one.passed) for one in report.attempts[0].verdicts[1:]] == [
        ("judged: It greets.", True),
        ("judged: It sings.", False),
    ]
    assert len(judging.requests) == 2


async def test_functions_of_the_user_see_the_world_of_the_suite(client: Client) -> None:
    def environment(folder: Path) -> Any:
        from contextlib import nullcontext

        return nullcontext(folder)

    def world_is_there(evidence: Evidence) -> None:
        assert evidence.world.is_dir()
        assert evidence.text == "Hello!"

    def stumbles(evidence: Evidence) -> None:
        raise LookupError(evidence.case.name)

    case = Case(name="greets", input="Hello", expect=Expect(functions=[world_is_there, stumbles]))
    with ScriptedModel(["Hello!"]).named() as model:
        report = await evaluate(suite_of(model, case, environment=environment), client, id=uuid4().hex)
    assert [one.reason for one in report.attempts[0].verdicts] == ["", "", "LookupError: greets"]


async def test_models_are_compared_and_no_fallback_answers_for_one(client: Client) -> None:
    case = Case(name="greets", input="Hello", expect=Expect(contains=["good"]))
    with ScriptedModel(["good"]).named() as good, ScriptedModel(["bad"]).named() as bad:
        suite = suite_of(good, case)
        report = await evaluate(suite, client, models=[good, bad], repeat=2, jobs=3, id=uuid4().hex)
    assert [(row.passed, row.of) for row in report.totals()] == [(2, 2), (0, 2)]


async def test_people_decide_in_runs_below_as_well(client: Client) -> None:
    below = "payer-below"
    tells: list[Any] = [call(below, task="Pay A7"), f"Told: ${{{below}}}"]
    with ScriptedModel(PAYS).named() as pays, ScriptedModel(tells).named() as model:
        payer = Agent(below, pays, tools=[pay])
        chief = Agent("chief-evaluated", model, tools=[payer.as_tool("Pays orders.")])
        said, expect = {"pay": [Decision(approve=True)]}, Expect(contains=["paid 500"])
        case = Case(name="pays", input="Pay A7", approvals=said, expect=expect)
        report = await evaluate(Suite(suite="chiefs", agent=chief, cases=[case]), client, id=uuid4().hex)
    assert report.passed, report.attempts[0].reason


async def test_question_is_answered_by_the_script(client: Client) -> None:
    asks: list[Any] = [call("ask_user", question="How many?"), "You want ${ask_user}."]
    answers = {"ask_user": [Decision(answer="two")]}
    case = Case(name="asks", input="Order", approvals=answers, expect=Expect(contains=["want two"]))
    with ScriptedModel(asks).named() as model:
        suite = Suite(suite="asking", agent=Agent("asker-evaluated", model, tools=[ask_user]), cases=[case])
        report = await evaluate(suite, client, id=uuid4().hex)
    assert report.passed, report.attempts[0].reason


async def test_case_that_takes_too_long_is_cancelled_and_has_failed(client: Client) -> None:
    case = Case(name="slow", input="Hello", timeout=timedelta(seconds=0.5))
    report = await reported(client, [{"text": "late", "delay": 30}], case)
    attempt = report.attempts[0]
    assert attempt.reason == "within 0.5 s: it did not end, and was cancelled"
    assert attempt.status == "cancelled"
