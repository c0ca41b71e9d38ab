"""Decisions: what a run does next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import control
from perdure.approvals import apply_decision, apply_settlement, check, expire
from perdure.budgets import Additions
from perdure.decisions import Decision, Saying, Settlement
from perdure.messages import AssistantMessage, ToolCall, ToolMessage, ToolResult
from perdure.outcomes import fold_probe, fold_report, lost, result_of, start
from perdure.policies import AgentSpec, Approval, Effect, Limits, ToolSpec
from perdure.reports import ModelTurn, ProbeReport, ToolReport
from perdure.state import CallState, CallStatus, RunState, begin
from perdure.steps import AskForMore, CallModel, CallTools, Finish, Probe, Wait, next_step
from perdure.turns import close_soon, fail, fold_turn, open_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = [
    ToolSpec(name="look", description="Look.", parameters={}, effect="read"),
    ToolSpec(name="put", description="Put.", parameters={}, effect="idempotent", probe=True),
    ToolSpec(name="send", description="Send.", parameters={}, effect="unsafe"),
    ToolSpec(name="pay", description="Pay.", parameters={}, effect="unsafe", probe=True),
    ToolSpec(name="log", description="Log.", parameters={}, effect="unsafe", parallel=True, in_doubt="tell_model"),
    ToolSpec(name="ask_user", description="Ask.", parameters={}, effect="read", asks_user=True),
]
EFFECTS: dict[str, Effect] = {tool.name: tool.effect for tool in TOOLS}


def a_run(*, on_denial: str = "continue", **limits: Any) -> RunState:
    spec = AgentSpec(
        name="a",
        model="scripted:x",
        tools=TOOLS,
        limits=Limits.model_validate(limits),
        approval=Approval.model_validate({"on_denial": on_denial}),
    )
    return begin("run", spec, "go", None, "e")


def asks(*names: str, ask: str | None = None) -> ModelTurn:
    calls = [ToolCall(id=f"id{index}", name=name, ask=ask) for index, name in enumerate(names)]
    return ModelTurn(message=AssistantMessage(role="assistant", calls=calls), finish="calls")


def says(text: str) -> ModelTurn:
    return ModelTurn(message=AssistantMessage(role="assistant", text=text))


def ok(call: CallState, content: str = "fine") -> ToolReport:
    return ToolReport(result=result_of(call, "ok", content=content))


def test_an_answer_ends_the_run() -> None:
    state = a_run()
    assert next_step(state) == CallModel()
    fold_turn(state, says("done"), NOW)
    step = next_step(state)
    assert isinstance(step, Finish)
    assert step.outcome.status == "completed"


def test_reads_run_side_by_side_and_effects_one_after_another_in_call_order() -> None:
    state = a_run()
    fold_turn(state, asks("send", "look", "pay", "look", "log"), NOW)
    assert next_step(state) == CallTools(("1.1", "1.2", "1.4", "1.5"))
    for call in state.calls:
        if call.position != "1.3":
            start(state, call)
    assert isinstance(next_step(state), Wait)
    fold_report(state, state.calls[0], ok(state.calls[0]))
    assert next_step(state) == CallTools(("1.3",))


def test_a_call_that_waits_for_approval_holds_nothing_back() -> None:
    state = a_run()
    calls = [ToolCall(id="a", name="send", ask="why"), ToolCall(id="b", name="pay")]
    fold_turn(state, ModelTurn(message=AssistantMessage(role="assistant", calls=calls)), NOW)
    assert next_step(state) == CallTools(("1.2",))


def test_a_call_in_doubt_holds_back_the_effects_after_it_but_no_read() -> None:
    state = a_run()
    fold_turn(state, asks("send", "pay", "look"), NOW)
    start(state, state.calls[0])
    lost(state, state.calls[0], "lost", NOW, timedelta(seconds=1))
    assert state.calls[0].status is CallStatus.IN_DOUBT
    assert next_step(state) == CallTools(("1.3",))


def test_at_most_eight_reads_are_under_way_at_once() -> None:
    state = a_run()
    fold_turn(state, asks(*["look"] * 12), NOW)
    step = next_step(state)
    assert isinstance(step, CallTools)
    assert len(step.positions) == 8


@pytest.mark.reported(40)
def test_results_enter_the_transcript_in_call_order_whoever_ends_first() -> None:
    state = a_run()
    fold_turn(state, asks("look", "look", "look"), NOW)
    calls = list(state.calls)
    for call in calls:
        start(state, call)
    for call in reversed(calls):
        fold_report(state, call, ok(call, call.position))
    results = [message.result for message in state.messages if isinstance(message, ToolMessage)]
    assert [result.content for result in results] == ["1.1", "1.2", "1.3"]


def test_calls_beyond_the_limit_of_a_turn_are_skipped_with_the_reason() -> None:
    state = a_run(calls_per_turn=2)
    fold_turn(state, asks("look", "look", "look"), NOW)
    assert [call.status for call in state.calls] == [CallStatus.READY, CallStatus.READY, CallStatus.CLOSED]
    skipped = state.calls[2].result
    assert skipped is not None
    assert skipped.status == "skipped"
    assert "at most 2 calls" in (skipped.message or "")


def test_the_last_turn_may_only_answer_and_ends_the_budget() -> None:
    state = a_run(steps=2)
    fold_turn(state, asks("look"), NOW)
    start(state, state.calls[0])
    fold_report(state, state.calls[0], ok(state.calls[0]))
    assert next_step(state) == CallModel(answer_only=True)
    close_soon(state)
    fold_turn(state, asks("look"), NOW)
    step = next_step(state)
    assert isinstance(step, Finish)
    assert step.outcome.status == "budget_exhausted"
    last = state.messages[-1]
    assert isinstance(last, ToolMessage)
    assert last.result.status == "skipped"


def test_the_same_call_with_the_same_result_is_told_at_the_third_and_refused_at_the_fifth() -> None:
    state = a_run()
    told: list[int] = []
    for turn in range(1, 6):
        before = len(state.messages)
        fold_turn(state, asks("look"), NOW)
        if not state.calls:
            break
        start(state, state.calls[0])
        fold_report(state, state.calls[0], ok(state.calls[0]))
        if len(state.messages) - before > 2:
            told.append(turn)
    assert told == [3, 4]
    assert [record.status for record in state.records] == ["ok"] * 4 + ["skipped"]


def test_a_different_result_starts_the_count_anew() -> None:
    state = a_run()
    for turn in range(8):
        fold_turn(state, asks("look"), NOW)
        start(state, state.calls[0])
        fold_report(state, state.calls[0], ok(state.calls[0], str(turn)))
    assert all(record.status == "ok" for record in state.records)


def test_three_unusable_replies_in_a_row_end_the_run_with_its_partial_work() -> None:
    state = a_run()
    fold_turn(state, says("so far"), NOW)
    state.outcome = None
    for _ in range(3):
        fold_turn(state, says("  "), NOW)
    step = next_step(state)
    assert isinstance(step, Finish)
    assert (step.outcome.status, step.outcome.failure) == ("failed", "malformed_output")


def test_not_done_is_believed_only_if_the_probe_asked_after_the_hard_deadline() -> None:
    state = a_run()
    fold_turn(state, asks("pay"), NOW)
    call = state.calls[0]
    start(state, call)
    lost(state, call, "lost", NOW, timedelta(seconds=10))
    assert next_step(state) == Probe("1.1")
    call.status = CallStatus.PROBING
    fold_probe(state, call, ProbeReport(outcome="not_done", asked_at=NOW + timedelta(seconds=9)))
    assert next_step(state) == Probe("1.1", NOW + timedelta(seconds=10))
    call.status = CallStatus.PROBING
    fold_probe(state, call, ProbeReport(outcome="not_done", asked_at=NOW + timedelta(seconds=10)))
    assert state.records[-1].status == "error"


def test_not_done_is_never_believed_of_a_body_that_still_runs() -> None:
    state = a_run()
    fold_turn(state, asks("pay"), NOW)
    call = state.calls[0]
    start(state, call)
    doubtful = ToolResult(call_id="id0", name="pay", status="in_doubt", message="late")
    fold_report(state, call, ToolReport(result=doubtful, deadline=NOW, abandoned=True))
    call.status = CallStatus.PROBING
    fold_probe(state, call, ProbeReport(outcome="not_done", asked_at=NOW + timedelta(days=1)))
    assert call.status is CallStatus.IN_DOUBT


def test_a_run_that_was_stopped_by_a_denial_still_waits_for_what_is_under_way() -> None:
    state = a_run(on_denial="stop")
    calls = [ToolCall(id="a", name="look"), ToolCall(id="b", name="send", ask="why")]
    fold_turn(state, ModelTurn(message=AssistantMessage(role="assistant", calls=calls)), NOW)
    start(state, state.calls[0])
    apply_decision(state, Decision(call="1.2", approve=False), "update", NOW)
    assert next_step(state) == Wait("running")
    fold_report(state, state.calls[0], ok(state.calls[0]))
    assert isinstance(next_step(state), Finish)


# -- people take hold of it --------------------------------------------------------------------------------


def decide(state: RunState, call: CallState, choice: int) -> None:
    """Let a person decide about a call that waits, rightly or wrongly."""
    wanted: Decision | Settlement
    if choice == 7:
        expire(state, NOW + timedelta(days=9))
    if call.status is CallStatus.IN_DOUBT:
        outcome = "done" if call.again else ("done", "not-done", "retry")[choice % 3]
        wanted = Settlement.model_validate({"call": call.position, "outcome": outcome})
    else:
        stale = "stale" if choice == 6 else None
        arguments = {"edited": 1} if choice == 5 else None
        wanted = Decision(call=call.position, approve=choice % 2 == 0, hash=stale, arguments=arguments)
    if not check(state, wanted).accepted:
        wanted = wanted.model_copy(update={"hash": None}) if isinstance(wanted, Decision) else wanted
    if isinstance(wanted, Decision):
        apply_decision(state, wanted, "update", NOW)
    else:
        apply_settlement(state, wanted)


def say(state: RunState, wanted: control.Wanted) -> bool:
    """Say something to the run, and return whether it took."""
    taken = control.check(state, wanted).accepted
    if taken:
        control.apply(state, wanted, "update", NOW)
    return taken


def test_a_message_parks_the_calls_that_wait_and_their_results_are_told_later() -> None:
    state = a_run()
    fold_turn(state, asks("send", "look", ask="why"), NOW)
    assert next_step(state) == Wait("waiting_approval")
    say(state, Saying(content="hello"))
    assert next_step(state) == CallModel()
    open_turn(state, answer_only=False)
    assert [m.result.status for m in state.messages if isinstance(m, ToolMessage)] == ["waiting", "waiting"]
    fold_turn(state, says("still waiting"), NOW)
    assert next_step(state) == Wait("waiting_approval")
    decide(state, state.parked[0], 0)
    decide(state, state.parked[1], 1)
    assert next_step(state) == CallTools(("1.1",))
    start(state, state.parked[0])
    assert next_step(state) == Wait("running")
    fold_report(state, state.parked[0], ok(state.parked[0]))
    assert next_step(state) == CallModel()
    open_turn(state, answer_only=False)
    told = [str(m.content) for m in state.messages[-2:] if m.role == "user"]
    assert told[0] == "Call 1.1 send, approved by unknown: fine"
    assert told[1].startswith("Call 1.2 look, denied by unknown: {")
    assert not state.parked
    assert [record.position for record in state.records] == ["1.1", "1.2"]


def test_a_message_waits_for_what_is_under_way() -> None:
    state = a_run()
    fold_turn(state, asks("send", "look"), NOW)
    start(state, state.calls[0])
    start(state, state.calls[1])
    say(state, Saying(content="hello"))
    assert next_step(state) == Wait("running")


def test_the_last_turn_waits_for_parked_calls() -> None:
    state = a_run(steps=3)
    fold_turn(state, asks("send", ask="why"), NOW)
    say(state, Saying(content="hello"))
    open_turn(state, answer_only=False)
    fold_turn(state, asks("look"), NOW)
    start(state, state.calls[0])
    fold_report(state, state.calls[0], ok(state.calls[0]))
    assert next_step(state) == Wait("waiting_approval")
    decide(state, state.parked[0], 1)
    assert next_step(state) == CallModel(answer_only=True)


def test_what_a_person_says_after_the_answer_makes_the_model_speak_again() -> None:
    state = a_run()
    open_turn(state, answer_only=False)
    say(state, Saying(content="wait"))
    fold_turn(state, says("done"), NOW)
    assert next_step(state) == CallModel()
    late = a_run()
    fold_turn(late, says("done"), NOW)
    assert isinstance(next_step(late), Finish)
    say(late, Saying(content="wait"))
    assert next_step(late) == CallModel(), "whichever comes first"


def test_at_a_limit_it_asks_and_without_more_takes_its_last_turn() -> None:
    state = a_run(steps=2, on_exhausted="ask")
    fold_turn(state, asks("look"), NOW)
    start(state, state.calls[0])
    fold_report(state, state.calls[0], ok(state.calls[0]))
    assert next_step(state) == AskForMore("The limit of 2 steps is reached.")
    control.run_short(state, "steps")
    assert next_step(state) == Wait("paused")
    assert say(state, control.Resumption())
    assert next_step(state) == CallModel(answer_only=True)
    assert say(state, control.Resumption(add=Additions(steps=3)))
    assert next_step(state) == CallModel()


def test_a_refusal_for_lack_of_budget_counts_nothing_if_more_was_given_meanwhile_whichever_comes_first() -> None:
    kinds: list[dict[str, Any]] = [{"on_exhausted": "ask"}, {"on_exhausted": "end"}]
    for limits in kinds:
        ends: list[RunState] = []
        for first in ("more", "refused"):
            state = a_run(**limits)
            open_turn(state, answer_only=False)
            if first == "refused":
                fail(state, "budget", "too dear")
            assert say(state, control.Resumption(add=Additions(input_tokens=100)))
            if first == "more":
                fail(state, "budget", "too dear")
            assert next_step(state) == CallModel()
            ends.append(state)
        assert ends[0] == ends[1]
