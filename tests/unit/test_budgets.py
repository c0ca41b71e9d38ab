"""What a run may still spend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure.budgets import Additions, Allowance, Clock, allowance, cost, exhausted, still_scarce, turns_left
from perdure.messages import AssistantMessage, ToolCall, Usage
from perdure.outcomes import start
from perdure.policies import AgentSpec, Limits, ToolSpec
from perdure.reports import ModelTurn
from perdure.resuming import carried_on
from perdure.state import RunState, begin
from perdure.steps import CallModel, Finish, next_step
from perdure.turns import fail, fold_turn, open_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOOK = ToolSpec(name="look", description="Look.", parameters={}, effect="read")


def a_run(**limits: Any) -> RunState:
    spec = AgentSpec(name="a", model="m:x", tools=[LOOK], limits=Limits.model_validate({"steps": 100, **limits}))
    return begin("run", spec, "go", None, "e")


def turn(input_tokens: int = 100, output_tokens: int = 10, *, usd: str | None = "0.10", calls: int = 0) -> ModelTurn:
    asked = [ToolCall(id=f"id{index}", name="look") for index in range(calls)]
    return ModelTurn(
        message=AssistantMessage(role="assistant", text="" if calls else "hello", calls=asked),
        usage=Usage(input_tokens=input_tokens, output_tokens=output_tokens),
        cost_usd=None if usd is None else Decimal(usd),
    )


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"steps": 1}, "1 step"),
        ({"input_tokens": 300}, "300 input tokens"),
        ({"output_tokens": 25}, "25 output tokens"),
        ({"usd": "0.25"}, "0.25 USD"),
        ({"wall_time": 60}, "1 min of time"),
    ],
)
def test_every_limit_leaves_one_last_turn_without_tools_and_then_ends_the_run(limits, named):
    state = a_run(**{"steps": 100, **limits, **({"steps": 2} if "steps" in limits else {})})
    assert next_step(state) == CallModel()
    fold_turn(state, turn(), NOW)
    state.outcome = None
    state.ran = timedelta(seconds=55)
    assert next_step(state) == CallModel(answer_only=True)
    fold_turn(state, turn(), NOW)
    state.outcome, state.ran = None, timedelta(seconds=61)
    step = next_step(state)
    if isinstance(step, CallModel):  # what is left might do for one more
        fold_turn(state, turn(), NOW)
        state.outcome = None
        step = next_step(state)
    assert isinstance(step, Finish)
    assert step.outcome.status == "budget_exhausted"
    assert named.split()[-1] in str(step.outcome.reason)


@pytest.mark.parametrize(("seconds", "words"), [(10, "10 s"), (60, "1 min"), (3690.5, "1 h 1 min 30.5 s")])
def test_a_limit_of_time_is_told_in_words(seconds, words):
    state = a_run(wall_time=seconds)
    state.ran = timedelta(seconds=seconds)
    assert exhausted(state).reason == f"The limit of {words} of time is reached."


def test_what_is_left_is_what_a_call_may_spend():
    state = a_run(input_tokens=1000, output_tokens=100, usd="1", wall_time=60)
    fold_turn(state, turn(), NOW)
    state.ran = timedelta(seconds=20)
    assert allowance(state) == Allowance(input_tokens=900, output_tokens=90, usd=Decimal("0.90"), seconds=40)


def test_without_limits_nothing_is_held_back():
    state = a_run(input_tokens=None, output_tokens=None, wall_time=None)
    fold_turn(state, turn(10**9, 10**9), NOW)
    assert allowance(state) == Allowance()
    assert turns_left(state) == 99


def test_failed_attempts_count_as_well():
    state = a_run()
    fold_turn(state, turn().model_copy(update={"wasted": Usage(input_tokens=7, estimated=True)}), NOW)
    assert state.usage == Usage(input_tokens=107, output_tokens=10, estimated=True)
    assert state.last.input_tokens == 100


def test_a_cost_that_is_not_known_once_is_never_known_again():
    state = a_run()
    assert cost(state) == 0
    fold_turn(state, turn(), NOW)
    assert cost(state) == Decimal("0.10")
    fold_turn(state, turn(usd=None), NOW)
    fold_turn(state, turn(), NOW)
    assert cost(state) is None


def test_an_interrupted_reply_is_paid_and_dropped():
    state = a_run()
    fold_turn(state, turn(calls=1).model_copy(update={"finish": "interrupted"}), NOW)
    assert (state.steps, len(state.messages), state.calls, state.usage.input_tokens) == (1, 1, [], 100)
    assert next_step(state) == CallModel()


def test_a_tool_is_called_no_more_often_than_the_run_may():
    state = a_run(calls_per_tool={"look": 2})
    fold_turn(state, turn(calls=3), NOW)
    statuses = [call.result.status if call.result else "open" for call in state.calls]
    assert statuses == ["open", "open", "skipped"]
    for call in state.open_calls:
        start(state, call)
    assert state.executed == {"look": 2}
    refused = state.calls[2].result
    assert refused is not None
    assert refused.message == "Not executed: at most 2 calls of look are allowed in one run."


def test_additions_raise_what_is_limited_and_nothing_else():
    more = Additions(steps=5, usd=Decimal("0.5"), wall_time=timedelta(minutes=1))
    raised = more.to(Limits(steps=1, usd=None, wall_time=timedelta(minutes=1)))
    assert (raised.steps, raised.usd, raised.wall_time) == (6, None, timedelta(minutes=2))
    assert raised.input_tokens == 400_000
    few = Limits(calls_per_tool={"look": 2})
    assert Additions(calls={"look": 3, "pay": 1}).to(few).calls_per_tool == {"look": 5}


def test_the_reason_names_the_limit_that_is_reached():
    state = a_run(steps=1)
    fold_turn(state, turn(), NOW)
    assert exhausted(state).reason == "The limit of 1 step is reached."


def test_time_spent_waiting_for_people_is_not_counted():
    clock = Clock(timedelta(), NOW)
    assert clock.tick(NOW + timedelta(seconds=3)) == timedelta(seconds=3)
    clock.waits = True
    assert clock.tick(NOW + timedelta(days=3)) == timedelta(seconds=3)
    clock.waits = False
    assert clock.tick(NOW + timedelta(days=3, seconds=2)) == timedelta(seconds=5)


def test_the_last_turn_is_one_turn_whatever_it_says():
    state = a_run(wall_time=60)
    fold_turn(state, turn(), NOW)
    state.outcome, state.ran = None, timedelta(seconds=55)
    assert next_step(state) == CallModel(answer_only=True)
    open_turn(state, answer_only=True)
    fold_turn(state, turn(calls=2), NOW)
    step = next_step(state)
    assert isinstance(step, Finish)
    assert step.outcome.status == "budget_exhausted"


@pytest.mark.parametrize(
    ("more", "lacking"),
    [
        (Additions(steps=5), ["usd"]),
        (Additions(usd=Decimal("0.01")), []),
        (Additions(usd=Decimal(1)), []),
    ],
)
def test_a_run_that_has_ended_at_a_limit_needs_more_of_that(more, lacking):
    state = a_run(usd="0.25")
    fold_turn(state, turn(), NOW)
    state.outcome = exhausted(state)
    assert still_scarce(state, carried_on(state, more)) == lacking


def test_a_run_that_has_failed_needs_more_only_where_nothing_is_left():
    state = a_run(steps=2)
    fold_turn(state, turn(), NOW)
    fail(state, "authentication", "no key")
    assert still_scarce(state, carried_on(state, Additions())) == []
    state.steps = 2
    assert still_scarce(state, carried_on(state, Additions())) == ["steps"]
