"""Decisions, driven by every sequence of outcomes that hypothesis can think of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.approvals import apply_decision, apply_settlement, check, expire
from perdure.budgets import Additions, allowance, gone, turns_left, waste
from perdure.leases import Grant, ask, take, unanswered
from perdure.messages import AssistantMessage, Decision, Problem, Settlement, ToolCall, ToolMessage, ToolResult, Usage
from perdure.outcomes import fold_cancelled, fold_probe, fold_report, lost, result_of, start
from perdure.policies import AgentSpec, Approval, Effect, Limits, ToolSpec
from perdure.reports import ModelTurn, ProbeReport, ToolReport
from perdure.resuming import carried_on
from perdure.state import Amounts, Borrowing, CallState, CallStatus, RunState, begin
from perdure.steps import Borrow, CallModel, CallTools, Finish, Probe, Undo, Wait, next_step
from perdure.turns import close_soon, fail, fold_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = [
    ToolSpec(name="look", description="Look.", parameters={}, effect="read"),
    ToolSpec(name="put", description="Put.", parameters={}, effect="idempotent", probe=True),
    ToolSpec(name="send", description="Send.", parameters={}, effect="unsafe"),
    ToolSpec(name="pay", description="Pay.", parameters={}, effect="unsafe", probe=True),
    ToolSpec(name="log", description="Log.", parameters={}, effect="unsafe", parallel=True, in_doubt="tell_model"),
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


# -- every sequence ----------------------------------------------------------------------------------------

turns = st.one_of(
    st.text(max_size=3).map(says),
    st.sampled_from(["length", "filtered", "refusal", "stop"]).map(
        lambda finish: ModelTurn.model_validate({"message": {"role": "assistant"}, "finish": finish})
    ),
    st.lists(
        st.builds(
            ToolCall,
            id=st.uuids().map(str),
            name=st.sampled_from([*EFFECTS, "unknown"]),
            arguments=st.dictionaries(st.sampled_from("ab"), st.integers(0, 1), max_size=1),
            ask=st.sampled_from([None, "why"]),
        ),
        min_size=1,
        max_size=6,
    ).map(
        lambda calls: ModelTurn(
            message=AssistantMessage(
                role="assistant",
                calls=[
                    call
                    if call.name in EFFECTS
                    else call.model_copy(update={"problem": Problem(error_type="unknown_tool", message="No.")})
                    for call in calls
                ],
            ),
            usage=Usage(input_tokens=1),
        )
    ),
)
choices = st.integers(0, 7)


def conclude(state: RunState, call: CallState, choice: int) -> None:
    """End a running call in one of the ways in which a call can end."""
    match choice:
        case 0 | 1 | 2:
            fold_report(state, call, ok(call, str(choice)))
        case 3:
            fold_report(state, call, ToolReport(result=result_of(call, "error", "no")))
        case 4 if call.effect != "read":
            doubtful = result_of(call, "in_doubt", "who knows")
            fold_report(state, call, ToolReport(result=doubtful, deadline=NOW, abandoned=choice % 2 == 0))
        case 5:
            lost(state, call, "lost", NOW, timedelta(seconds=1))
        case _:
            fold_cancelled(state, call)


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


def paired(state: RunState) -> bool:
    """Whether every call of the transcript is followed by its results, exactly once and in order."""
    due: list[str] = []
    for message in state.messages:
        if isinstance(message, ToolMessage):
            if not due or due.pop(0) != message.result.call_id:
                return False
        elif due:
            return False
        if isinstance(message, AssistantMessage):
            due = [call.id for call in message.calls]
    return not due


def launch(state: RunState, positions: tuple[str, ...]) -> None:
    """Start calls that are due."""
    for position in positions:
        call = state.find(position)
        assert call is not None
        assert call.status is CallStatus.READY
        start(state, call)


def look_up(state: RunState, position: str) -> None:
    """Ask a probe."""
    call = state.find(position)
    assert call is not None
    call.status = CallStatus.PROBING


def move(state: RunState, data: st.DataObject) -> None:
    """Let something happen that a run waits for."""
    moved = [c for c in state.calls if c.status in (CallStatus.RUNNING, CallStatus.PROBING)]
    waits = [c for c in state.calls if c.status in (CallStatus.ASKING, CallStatus.IN_DOUBT)]
    assert moved or waits, "it would wait for ever"
    call = data.draw(st.sampled_from(moved + waits))
    choice = data.draw(choices)
    if call.status is CallStatus.RUNNING:
        conclude(state, call, choice)
    elif call.status is CallStatus.PROBING:
        outcome = ("done", "not_done", "unknown")[choice % 3]
        asked_at = NOW + timedelta(seconds=choice)
        fold_probe(state, call, ProbeReport.model_validate({"outcome": outcome, "asked_at": asked_at}))
    else:
        decide(state, call, choice)


def spent(state: RunState, turn: ModelTurn, data: st.DataObject) -> ModelTurn:
    """Return `turn` with what it used: within what it was allowed to, as the activity sees to."""
    left, part = allowance(state), data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    most = 50 if left.input_tokens is None else left.input_tokens
    usage = Usage(input_tokens=int(most * part), output_tokens=int((left.output_tokens or 0) * part))
    unpriced = left.usd is None and data.draw(st.booleans())
    usd = None if unpriced else (left.usd or Decimal(0)) * Decimal(str(part))
    if left.seconds is not None:
        state.ran += timedelta(seconds=left.seconds * part)
    return turn.model_copy(update={"usage": usage, "cost_usd": usd})


def ask_model(state: RunState, data: st.DataObject, *, answer_only: bool) -> None:
    """Let a model call end in one of the ways in which it can."""
    assert paired(state), "the model would see a call without its result"
    assert not state.calls
    assert turns_left(state) > 0, "it would spend more than its budget"
    if answer_only:
        close_soon(state)
    how = data.draw(choices)
    if how == 0:
        waste(state, spent(state, says(""), data).usage)
        fail(state, data.draw(st.sampled_from(["authentication", "budget", "price_unknown"])), "no")
    elif how == 1:
        fold_turn(state, spent(state, says("").model_copy(update={"finish": "interrupted"}), data), NOW)
    else:
        fold_turn(state, spent(state, data.draw(turns), data), NOW)


def borrow(state: RunState, wanted: Amounts, data: st.DataObject) -> None:
    """Let a parent answer, or not."""
    request = ask(state, wanted)
    if data.draw(st.booleans()):
        unanswered(state, request.id)
    some = data.draw(st.sampled_from([Amounts(), wanted, Amounts(steps=1, input_tokens=1)]))
    if state.borrowing.asked < 4:  # a parent has no more than it has
        take(state, Grant(id=request.id, amounts=some))
    else:
        take(state, Grant(id=request.id))


def within(state: RunState) -> bool:
    """Whether no limit of the run was passed."""
    limits, used = state.limits, gone(state)
    pairs = [(limits.steps, used.steps), (limits.input_tokens, used.input_tokens)]
    pairs += [(limits.output_tokens, used.output_tokens)]
    few = all(state.executed.get(tool, 0) <= most for tool, most in limits.calls_per_tool.items())
    in_time = limits.wall_time is None or state.ran <= limits.wall_time
    in_money = limits.usd is None or used.usd <= limits.usd
    return few and in_time and in_money and all(limit is None or amount <= limit for limit, amount in pairs)


budgets = st.fixed_dictionaries(
    {
        "steps": st.integers(1, 8),
        "input_tokens": st.sampled_from([None, 1, 1000]),
        "output_tokens": st.sampled_from([None, 1, 100]),
        "usd": st.sampled_from([None, "0.01", "1"]),
        "wall_time": st.sampled_from([None, 1, 600]),
        "calls_per_tool": st.sampled_from([{}, {"look": 1}, {"send": 0, "pay": 2}]),
        "calls_per_turn": st.integers(1, 5),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    limits=budgets,
    on_denial=st.sampled_from(["continue", "stop"]),
    parent=st.sampled_from(["", "", "above"]),
)
def test_whatever_happens_a_run_ends_with_paired_calls_within_its_budget(
    data: st.DataObject, limits: dict[str, Any], on_denial: str, parent: str
) -> None:
    state = a_run(on_denial=on_denial, **limits)
    state.borrowing = Borrowing(parent=parent)
    for _ in range(600):
        assert within(state), "it spent more than its budget"
        step = next_step(state)
        match step:
            case CallModel(answer_only):
                ask_model(state, data, answer_only=answer_only)
            case CallTools(positions):
                launch(state, positions)
            case Probe(position):
                look_up(state, position)
            case Undo():
                raise AssertionError("nobody asked for it")
            case Borrow(wanted):
                assert parent, "there is nobody to ask"
                borrow(state, wanted, data)
            case Wait():
                move(state, data)
            case Finish(outcome):
                assert not any(call.status is CallStatus.RUNNING for call in state.calls)
                assert outcome.status in ("completed", "budget_exhausted", "failed")
                assert paired(state) or state.calls
                return
    raise AssertionError("the run did not end")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_model_that_only_repeats_itself_is_ended_within_any_budget(data: st.DataObject) -> None:
    state = a_run(steps=10**6, input_tokens=None, output_tokens=None, wall_time=None)
    cycle = data.draw(st.lists(st.sampled_from(["look", "put", "send", "log"]), min_size=1, max_size=6))
    turn = 0
    while not state.outcome:
        fold_turn(state, asks(cycle[turn % len(cycle)]), NOW)
        for call in list(state.open_calls):
            start(state, call)
            fold_report(state, call, ok(call))
        turn += 1
        assert turn < 60
    assert state.outcome.failure == "no_progress"


@settings(max_examples=60, deadline=None)
@given(data=st.data(), cut=st.integers(1, 12))
def test_a_run_that_is_cut_anywhere_can_be_resumed_to_its_end(data: st.DataObject, cut: int) -> None:
    state = a_run(steps=4)
    for turn in range(200):
        if turn == cut:
            fail(state, "ended", "from outside")
            state = RunState.model_validate_json(carried_on(state, Additions(steps=2)).model_dump_json())
        step = next_step(state)
        match step:
            case CallModel(answer_only):
                assert paired(state)
                if answer_only:
                    close_soon(state)
                fold_turn(state, data.draw(turns), NOW)
            case CallTools(positions):
                launch(state, positions)
            case Probe(position):
                look_up(state, position)
            case Undo() | Borrow():
                raise AssertionError("nobody asked for it")
            case Wait():
                move(state, data)
            case Finish():
                return
    raise AssertionError("the run did not end")
