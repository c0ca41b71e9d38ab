"""Staged actions: never executed before they are approved, and in order."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.approvals import apply_decision, check
from perdure.decisions import Decision
from perdure.errors import ToolDefinitionError
from perdure.outcomes import records
from perdure.policies import AgentSpec, Limits, ToolSpec
from perdure.state import STAGED, CallStatus, Outcome, RunState, begin
from perdure.steps import (
    AskForMore,
    Borrow,
    CallModel,
    CallTools,
    Compact,
    ContinueAsNew,
    Finish,
    ListTools,
    Probe,
    Recall,
    Undo,
    Wait,
    next_step,
)
from perdure.tools import tool
from perdure.turns import close_soon, fold_reset, fold_turn
from tests.unit.test_steps import asks, says
from tests.unit.test_steps_whatever_happens import launch, look_up, move, paired, turns

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = AgentSpec(
    name="a",
    model="scripted:x",
    tools=[
        ToolSpec(name="look", description="Look.", parameters={}, effect="read"),
        ToolSpec(name="put", description="Put.", parameters={}, effect="idempotent", probe=True, defer=True),
        ToolSpec(name="send", description="Send.", parameters={}, defer=True, parallel=True),
        ToolSpec(name="pay", description="Pay.", parameters={}, probe=True),
        ToolSpec(name="log", description="Log.", parameters={}, in_doubt="tell_model", defer=True),
    ],
    limits=Limits(calls_per_tool={"log": 2}, steps=5),
)
DEFERRED = ("put", "send", "log")


def a_run() -> RunState:
    return begin("run", SPEC, "go", None, "e")


def presented(*names: str) -> RunState:
    """Return a run that asks about these actions."""
    state = a_run()
    fold_turn(state, asks(*names), NOW)
    fold_turn(state, says("done"), NOW)
    return state


def approved(state: RunState, positions: tuple[str, ...]) -> list[str]:
    """Return those that were staged: one at a time, and only if a person has approved it."""
    staged = [call for call in state.calls if call.position in positions and call.call.name in DEFERRED]
    assert all(call.decision and call.decision.approve for call in staged)
    assert len(staged) <= 1
    return [call.position for call in staged]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_whatever_happens_nothing_staged_runs_unless_all_of_it_was_approved(data: st.DataObject) -> None:
    state = a_run()
    launched: list[str] = []
    for _ in range(400):
        step = next_step(state)
        match step:
            case CallModel(answer_only):
                assert paired(state)
                if answer_only:
                    close_soon(state)
                fold_turn(state, data.draw(turns), NOW)
            case CallTools(positions):
                launched += [p for p in approved(state, positions) if p not in launched]
                launch(state, positions)
            case Probe(position):
                look_up(state, position)
            case ListTools() | Recall() | Undo() | Borrow() | AskForMore() | ContinueAsNew() | Compact():
                raise AssertionError("nobody asked for it")
            case Wait():
                move(state, data)
            case Finish(outcome):
                ended = [record.position for record in records(state)]
                assert launched == sorted(launched, key=ended.index)
                left = {record.position for record in state.records if record.status == "staged"}
                assert outcome.status != "completed" or not left
                return
    raise AssertionError("the run did not end")


def test_all_that_is_staged_is_one_request_bound_to_its_arguments() -> None:
    state = presented("send", "put")
    [asked] = state.calls
    assert (asked.position, asked.status) == (STAGED, CallStatus.ASKING)
    assert [action["call"] for action in asked.arguments["actions"]] == ["1.1", "1.2"]
    assert next_step(state) == Wait("waiting_approval")
    assert check(state, Decision(call="", approve=True)).call == STAGED
    assert check(state, Decision(call=STAGED, approve=True, hash="other")).reason == "stale_hash"


def test_staged_actions_run_one_after_another_though_they_may_run_beside_others() -> None:
    state = presented("send", "send")
    apply_decision(state, Decision(call=STAGED, approve=True), "update", NOW)
    assert next_step(state) == CallTools(("1.1",))


def test_a_limit_of_calls_of_a_tool_counts_what_is_staged() -> None:
    state = a_run()
    fold_turn(state, asks("log", "log", "log"), NOW)
    assert [record.status for record in state.records] == ["staged", "staged", "skipped"]


def test_after_a_reset_what_is_staged_has_new_keys_and_an_old_decision_fits_no_more() -> None:
    state = presented("send")
    apply_decision(state, Decision(call=STAGED, approve=True), "update", NOW)
    before = state.calls[0].key
    fold_reset(state, "other", NOW)
    [call] = state.calls
    assert (call.position, call.status) == ("1.1", CallStatus.ASKING)
    assert call.key != before
    state = presented("send")
    fold_reset(state, "other", NOW)
    assert not check(state, Decision(call=STAGED, approve=True)).accepted
    apply_decision(state, Decision(call="", approve=True), "update", NOW)
    assert [call.key for call in state.calls] == ["run:other:1.1"]
    assert next_step(state) == CallTools(("1.1",))


def test_nothing_is_asked_where_nothing_is_staged() -> None:
    state = a_run()
    fold_turn(state, says("done"), NOW)
    assert isinstance(next_step(state), Finish)
    assert state.outcome == Outcome(status="completed")


def test_a_read_can_not_be_deferred() -> None:
    with pytest.raises(ToolDefinitionError, match="a 'read' can't be deferred"):

        @tool(effect="read", defer=True)
        def look() -> str:
            """Look."""
            return ""
