"""What is undone at the end of a run, and in which order, whatever happened before."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import undoing
from perdure.budgets import Additions
from perdure.errors import ToolDefinitionError
from perdure.outcomes import begin_undoing, close, doubt, result_of, start
from perdure.policies import AgentSpec, ToolSpec
from perdure.reports import UndoReport
from perdure.resuming import carried_on
from perdure.state import CallStatus, Doubt, Outcome, RunState, begin
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
from perdure.tools import Tool, tool
from perdure.turns import close_soon, fail, fold_turn, open_turn
from tests.unit.test_steps import asks
from tests.unit.test_steps_whatever_happens import choices, conclude, launch, look_up, move, paired, turns

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMPENSATED = ("put", "send", "pay", "log")
SPEC = AgentSpec(
    name="a",
    model="scripted:x",
    tools=[
        ToolSpec(name="look", description="Look.", parameters={}, effect="read"),
        ToolSpec(name="put", description="Put.", parameters={}, effect="idempotent", probe=True, compensate=True),
        ToolSpec(name="send", description="Send.", parameters={}, compensate=True),
        ToolSpec(name="pay", description="Pay.", parameters={}, probe=True, compensate=True),
        ToolSpec(name="log", description="Log.", parameters={}, parallel=True, in_doubt="tell_model", compensate=True),
        ToolSpec(name="shout", description="Shout.", parameters={}),
    ],
    compensate_on=["cancelled", "failed"],
)
CANCELLED = Outcome(status="cancelled", reason="enough")


def a_run(spec: AgentSpec = SPEC) -> RunState:
    return begin("run", spec, "go", None, "e")


def done(state: RunState, *names: str) -> None:
    """Let the model call these tools, and all of them succeed."""
    fold_turn(state, asks(*names), NOW)
    for call in list(state.calls):
        start(state, call)
        close(state, call, result_of(call, "ok", content="{}"))


def cut_off(state: RunState, data: st.DataObject) -> None:
    """Cancel a run: what is under way ends somehow, and then it is taken back."""
    for call in list(state.calls):
        if call.status is CallStatus.RUNNING:
            conclude(state, call, data.draw(choices))
    begin_undoing(state, CANCELLED)


def wait(state: RunState, data: st.DataObject) -> None:
    """Let something happen that the run waits for: the undoing, or else what it always waits for."""
    effect = undoing.due(state)
    if effect and effect.status == "undoing":
        status = "undone" if data.draw(choices) else "failed"
        undoing.fold(state, effect, UndoReport.model_validate({"status": status}))
    else:
        move(state, data)


def take_back(state: RunState, position: str) -> None:
    """Begin to undo an effect that was done, once all that was in doubt has been looked up."""
    effect = undoing.find(state, position)
    assert effect
    assert effect.status == "done"
    assert undoing.wanted(state)
    assert not undoing.looked_up(state)
    effect.status = "undoing"


def reply(state: RunState, data: st.DataObject, *, answer_only: bool) -> None:
    """Let the model reply, or fail."""
    if answer_only:
        close_soon(state)
    if data.draw(choices) == 0:
        fail(state, "authentication", "no key")
    else:
        fold_turn(state, data.draw(turns), NOW)


def check(state: RunState, undone: list[str]) -> None:
    """Fail unless what was done was undone once, the last first, and all else is listed with the reason.

    Where the run did not end so that it is wanted, nothing may have been undone.
    """
    if not undoing.wanted(state):
        assert not undone
        return
    orders = {record.position: record.execution_order or 0 for record in state.records}
    orders |= {call.position: call.order or 0 for call in state.calls}
    assert undone == sorted(set(undone), key=lambda position: -orders[position])
    ok = {record.position for record in state.records if record.status == "ok" and record.name in COMPENSATED}
    ok |= {c.position for c in state.calls if c.result and c.result.status == "ok" and c.call.name in COMPENSATED}
    assert set(undone) == ok
    told = {one.position: one.status for one in undoing.undone(state)}
    assert {position for position, status in told.items() if status != "not_known"} == set(undone)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), cut=st.integers(0, 15))
def test_whatever_happens_each_effect_that_was_done_is_undone_once_and_the_last_first(
    data: st.DataObject, cut: int
) -> None:
    state = a_run()
    undone: list[str] = []
    for turn in range(400):
        if turn == cut and not state.outcome:
            cut_off(state, data)
        step = next_step(state)
        match step:
            case CallModel(answer_only):
                reply(state, data, answer_only=answer_only)
            case CallTools(positions):
                launch(state, positions)
            case Probe(position):
                look_up(state, position)
            case Undo(position):
                take_back(state, position)
                undone.append(position)
            case Wait():
                wait(state, data)
            case ListTools() | Recall() | Borrow() | AskForMore() | Finish() | ContinueAsNew() | Compact():
                assert isinstance(step, Finish), "there is nobody to ask"
                check(state, undone)
                return
    raise AssertionError("the run did not end")


@pytest.mark.parametrize("status", ["completed", "budget_exhausted"])
def test_nothing_is_undone_after_another_end(status: str) -> None:
    state = a_run()
    done(state, "send")
    state.outcome = Outcome.model_validate({"status": status})
    assert isinstance(next_step(state), Finish)
    assert undoing.undone(state) == []


def test_nothing_is_undone_where_the_agent_does_not_say_so() -> None:
    state = a_run(SPEC.model_copy(update={"compensate_on": []}))
    done(state, "send")
    fail(state, "quota", "no money")
    assert isinstance(next_step(state), Finish)


def test_nothing_begins_once_a_run_is_cut_off_and_nobody_is_waited_for() -> None:
    state = a_run()
    done(state, "send")
    fold_turn(state, asks("look", "send", ask="why"), NOW)
    begin_undoing(state, CANCELLED)
    assert next_step(state) == Undo("1.1")
    assert [record.status for record in state.records] == ["ok", "cancelled", "cancelled"]


def test_what_could_not_be_undone_is_tried_again_if_the_resumed_run_ends_so_too() -> None:
    state = a_run()
    done(state, "put", "send")
    begin_undoing(state, CANCELLED)
    for effect, status in zip(state.effects, ("failed", "undone"), strict=True):
        undoing.fold(state, effect, UndoReport.model_validate({"status": status}))
    resumed = carried_on(state, Additions(steps=5))
    assert next_step(resumed) == CallModel()
    begin_undoing(resumed, CANCELLED)
    assert next_step(resumed) == Undo("1.1")


def test_what_was_undone_stays_listed_after_the_run_was_resumed_and_the_model_is_told_once() -> None:
    state = a_run()
    done(state, "put", "send")
    begin_undoing(state, CANCELLED)
    for effect in state.effects:
        undoing.fold(state, effect, UndoReport(status="undone", message="Gone."))
    resumed = carried_on(state, Additions(steps=5))
    listed = [(one.position, one.status, one.message) for one in undoing.undone(resumed)]
    assert listed == [("1.2", "undone", "Gone."), ("1.1", "undone", "Gone.")]
    begin_undoing(resumed, CANCELLED)
    assert isinstance(next_step(resumed), Finish)
    again = carried_on(resumed, Additions(steps=5))
    assert [one.position for one in undoing.undone(again)] == ["1.2", "1.1"]
    assert sum("Meanwhile this was undone" in str(message) for message in again.messages) == 1


def test_a_resumed_run_is_told_what_was_undone_though_a_call_is_still_in_doubt() -> None:
    state = a_run()
    done(state, "put")
    fold_turn(state, asks("send"), NOW)
    start(state, state.calls[0])
    doubt(state, state.calls[0], Doubt(message="Who knows."))
    begin_undoing(state, CANCELLED)
    undoing.fold(state, state.effects[0], UndoReport(status="undone"))
    resumed = carried_on(state, Additions(steps=5))
    assert next_step(resumed) == CallModel()
    open_turn(resumed, answer_only=False)
    assert paired(resumed)
    assert "put (call 1.1)" in str(resumed.messages[-1])
    assert resumed.parked[0].status is CallStatus.IN_DOUBT


# -- declared --------------------------------------------------------------------------------------------------


def book(seat: str, row: int = 1) -> str:
    """Book."""
    return f"{seat}{row}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compensate": "cancel"}, "compensate has to be a function, not 'cancel'"),
        ({"compensate": tool(book)}, "compensate has to be a function"),
        ({"compensate": lambda ctx, result, seat: None, "effect": "read"}, "has no effect that compensate could undo"),
        ({"compensate": lambda ctx, result, seat: None}, "is called with (ctx, result, seat, row), which does not fit"),
        ({"compensate": lambda ctx, **_: None}, "does not fit"),
        ({"compensate": lambda *_, **__: None, "undo_attempts": 0}, "undo_attempts"),
    ],
)
def test_a_compensation_that_can_not_work_is_refused_when_it_is_declared(options: dict[str, object], says: str) -> None:
    with pytest.raises(ToolDefinitionError) as refused:
        tool(**options)(book)  # type: ignore[call-overload]
    assert says in str(refused.value)


def test_a_compensation_that_fits_is_kept_and_told_to_the_workflow() -> None:
    def cancel(ctx: object, result: object, **_: object) -> None:
        del ctx, result

    made: Tool = tool(compensate=cancel)(book)
    assert made.compensate is cancel
    assert made.spec.compensate
    assert not tool(book).spec.compensate
