"""What a history tells besides what was called: attempts, limits, phases, and the words of the runtime itself."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from perdure import turns
from perdure.budgets import Additions, near
from perdure.events import VERSION, position_key
from perdure.messages import AssistantMessage, Usage, UserMessage
from perdure.policies import AgentSpec, Limits
from perdure.reports import ModelTurn, RecallReport
from perdure.resuming import GO_ON, carried_on
from perdure.state import Amounts, SessionTurn, begin
from perdure.wire import RECALL
from tests.unit.histories import History, asking, lost_worker, own_failure


async def worked_on(**request: object) -> History:
    history = History()
    await history.start(**request)
    await history.add("workflow_task_started", {"identity": "w1"})
    return history


async def test_every_event_names_its_agent_the_hash_of_its_rules_its_session_and_the_version_of_the_schema():
    history = await worked_on(session=SessionTurn(name="trip", number=2))
    await history.turn(text="Done.")
    assert {(event.agent, event.session, event.version) for event in history.told()} == {("a", "trip", VERSION)}
    assert len({event.spec_hash for event in history.told()}) == 1
    assert history.told()[0].spec_hash


async def test_attempt_that_was_lost_is_told_once_with_its_reason_when_another_has_ended():
    history = await worked_on()
    scheduled = await history.ask_model()
    await history.add(
        "activity_task_started", {"scheduled_event_id": scheduled, "attempt": 3, "last_failure": lost_worker()}
    )
    await history.complete(scheduled, ModelTurn(message=AssistantMessage(role="assistant", text="Hi.")))
    (retried,) = history.told("retry_scheduled")
    assert (retried.activity, retried.call, retried.attempt, retried.step) == ("perdure.model", "", 2, 1)
    assert (retried.error_type, retried.message) == ("timeout", "The worker that executed it was lost.")
    assert history.told("model_finished")[0].attempt == 3


async def test_call_whose_attempt_failed_is_named():
    history = await worked_on()
    await history.turn("look")
    scheduled = await history.call_tool("1.1", "look")
    failed = {"scheduled_event_id": scheduled, "attempt": 2, "last_failure": own_failure("Down.", "unavailable")}
    await history.add("activity_task_started", failed)
    (retried,) = history.told("retry_scheduled")
    assert (retried.call, retried.activity, retried.error_type, retried.message) == (
        *("1.1", "look", "unavailable"),
        "Down.",
    )


async def test_failed_model_call_is_told_with_what_it_has_cost():
    history = await worked_on()
    scheduled = await history.ask_model()
    failure = own_failure("No key.", "authentication")
    failure.application_failure_info.details.CopyFrom(await history.payloads(Usage(input_tokens=7)))
    await history.add("activity_task_failed", {"scheduled_event_id": scheduled, "failure": failure})
    (failed,) = history.told("model_failed")
    assert (failed.usage, failed.attempt, failed.duration) == (Usage(input_tokens=7), 1, timedelta(seconds=1))
    assert history.state.usage == Usage(input_tokens=7)


async def test_words_of_the_runtime_are_told_once_each():
    history = await worked_on(limits=Limits(steps=2))
    await history.turn(text="")
    await history.ask_model(last=True)
    assert [event.content for event in history.told("told")] == [turns.EMPTY, turns.CLOSING]


async def test_what_is_remembered_is_told_before_what_the_user_says_and_only_once():
    history = await worked_on(shape=1)
    scheduled = await history.add(
        "activity_task_scheduled",
        {"activity_type": RECALL, "activity_id": "recall", "input": await history.payloads({})},
    )
    message = UserMessage(role="user", content="Known: likes tea.", source="runtime", facts=["f1"])
    await history.complete(scheduled, RecallReport(message=message))
    await history.turn(text="Tea?")
    assert [event.content for event in history.told("told")] == ["Known: likes tea."]
    assert history.story().index("told") == history.story().index("recalled") + 1


async def test_resumed_run_tells_what_the_runtime_says_first():
    state = begin("run", AgentSpec(name="a", model="m:m"), "go", None, "e")
    state.messages.append(AssistantMessage(role="assistant", text="So far."))
    state.closing = True
    history = await worked_on(carried=carried_on(state, Additions(steps=3)))
    assert [event.content for event in history.told("told")] == [GO_ON]


async def test_limit_is_warned_of_once_when_four_fifths_are_gone_and_again_only_after_it_was_raised():
    history = await worked_on(limits=Limits(steps=5, output_tokens=None))
    for _ in range(4):
        await history.turn("look")
        await history.report(await history.call_tool(f"{history.state.steps}.1", "look"))
    (warned,) = history.told("budget_warning")
    assert (warned.limit, warned.share, warned.most, warned.step) == ("steps", 0.8, "5 steps", 4)
    history.state.limits = Amounts(steps=4).to(history.state.limits)
    for _ in range(4):
        await history.turn("look")
        await history.report(await history.call_tool(f"{history.state.steps}.1", "look"))
    assert [event.share for event in history.told("budget_warning")] == [0.8, 0.8889]


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        ({}, []),
        ({"steps": 10}, ["steps"]),
        ({"input_tokens": 100}, ["input_tokens"]),
        ({"output_tokens": 10}, ["output_tokens"]),
        ({"usd": "1.00"}, ["usd"]),
        ({"wall_time": timedelta(seconds=50)}, ["wall_time"]),
    ],
)
def test_limit_is_near_from_four_fifths_on(limits, names):
    state = begin("run", AgentSpec(name="a", model="m:m"), "go", Limits.model_validate(limits), "e")
    state.steps, state.usage, state.ran = 8, Usage(input_tokens=80, output_tokens=8), timedelta(seconds=40)
    state.cost = Decimal("0.80")
    assert list(near(state)) == names
    assert all(share == 0.8 for share in near(state).values())


async def test_phases_are_told_as_the_run_goes_through_them_and_what_it_waits_for():
    history = await worked_on()
    await history.turn("pay")
    await history.signal("approve", {"call": "1.1", "by": "Ann"})
    await history.report(await history.call_tool("1.1", "pay"))
    await history.turn(text="Paid.")
    told = [(event.before, event.phase, event.status) for event in history.told("phase_changed")]
    assert told == [
        ("initializing", "generating", "running"),
        ("generating", "waiting", "waiting_approval"),
        ("waiting", "executing_tools", "running"),
        ("executing_tools", "generating", "running"),
        ("generating", "post_processing", "running"),
    ]


async def test_decision_tells_how_long_it_was_waited_for():
    history = await asking()
    await history.signal("approve", {"call": "1.1", "by": "Ann"})
    assert history.told("approval_decided")[0].duration == timedelta(seconds=1)


async def test_new_kinds_of_events_come_after_those_that_were_there_before_them():
    history = await worked_on(limits=Limits(steps=1))
    await history.turn("look", text="")
    first = [event for event in history.told() if event.position.endswith(".0")]
    assert not {event.type for event in first} & {"told", "budget_warning", "phase_changed"}
    positions = [position_key(event.position) for event in history.told()]
    assert positions == sorted(set(positions))
