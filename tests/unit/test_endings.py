"""What a turn leaves to its session: a whole conversation, whenever and however its run has ended."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import control
from perdure.approvals import apply_decision
from perdure.decisions import Decision, Saying
from perdure.endings import closing
from perdure.messages import Entry, ToolMessage, ToolResult, UserMessage
from perdure.outcomes import close, doubt, result_of, start
from perdure.state import STAGED, Doubt, Outcome, RunState, SessionTurn, begin
from perdure.steps import CallModel, CallTools, Finish, Probe, next_step
from perdure.turns import fold_turn, open_turn
from tests.unit.test_staging import SPEC
from tests.unit.test_steps import NOW, a_run, asks, says
from tests.unit.test_steps_whatever_happens import launch, look_up, move, paired, turns


def whole(state: RunState) -> list[Entry]:
    return [*state.messages, *closing(state)]


def results(entries: list[Entry]) -> list[ToolResult]:
    return [entry.result for entry in entries if isinstance(entry, ToolMessage | UserMessage) and entry.result]


def notes(entries: list[Entry]) -> str:
    return "\n".join(str(one.content) for one in entries if isinstance(one, UserMessage) and one.source == "runtime")


@settings(max_examples=150, deadline=None)
@given(data=st.data(), moves=st.integers(0, 12), ended=st.sampled_from(["cancelled", "failed", None]))
def test_whenever_a_run_ends_each_call_has_its_result_and_nothing_said_is_lost(
    data: st.DataObject, moves: int, ended: str | None
) -> None:
    state, told = a_run(), 0
    for number in range(moves):
        step = next_step(state)
        if isinstance(step, Finish):
            break
        if data.draw(st.booleans()):
            told += 1
            control.apply(state, Saying(content=f"said {number}"), "signal", NOW)
        match step:
            case CallModel(answer_only):
                open_turn(state, answer_only=answer_only)
                fold_turn(state, data.draw(turns), NOW)
            case CallTools(positions):
                launch(state, positions)
            case Probe(position):
                look_up(state, position)
            case _:
                move(state, data)
    if ended:
        state.outcome = Outcome.model_validate({"status": ended, "reason": "enough."})
    entries = whole(state)
    assert paired(state.model_copy(update={"messages": entries}))
    assert sum("said" in str(one.content) for one in entries if isinstance(one, UserMessage)) >= told
    waiting = [result.call_id for result in results(entries) if result.status == "waiting"]
    assert all(sum(result.call_id == call for result in results(entries)) == 2 for call in waiting)
    assert (f"ended as {ended}: enough." in notes(entries)) == bool(ended)


def test_nothing_is_added_to_a_turn_that_was_answered():
    state = begin("r", SPEC, "go", None, "e")
    fold_turn(state, says("done"), NOW)
    assert closing(state) == []


def test_a_call_with_an_effect_that_was_under_way_is_in_doubt_and_one_that_waits_was_not_done():
    state = begin("r", SPEC, "go", None, "e")
    fold_turn(state, asks("pay", "look"), NOW)
    pay, look = state.calls
    start(state, pay)
    first, second = results(whole(state))
    assert (first.status, second.status) == ("in_doubt", "cancelled")
    assert "may or may not" in str(first.message)
    assert "Not executed" in str(second.message)
    doubt(state, pay, Doubt(message="The reply was lost."))
    close(state, look, result_of(look, "ok", content="seen"))
    first, second = results(whole(state))
    assert "The reply was lost." in str(first.message)
    assert second.content == "seen"


def test_the_next_turn_is_told_what_became_of_staged_actions():
    state = begin("r", SPEC, "go", None, "e", session=SessionTurn(name="s", number=1))
    fold_turn(state, asks("put", "send"), NOW)
    fold_turn(state, says("done"), NOW)
    assert "Staged action 1.1 put" in notes(whole(state))
    assert notes(whole(state)).count("Not executed") == 2
    apply_decision(state, Decision(call=STAGED, approve=True), "update", NOW)
    for call in list(state.calls):
        start(state, call)
        close(state, call, result_of(call, "ok", content=f"{call.call.name} done"))
    assert notes(whole(state)) == "Staged action 1.1 put: put done\nStaged action 1.2 send: send done"
