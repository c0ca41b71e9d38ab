"""Decisions, driven by every sequence of outcomes and of what people say that hypothesis can think of."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import control, pressure, recalling, toolsets
from perdure.budgets import Additions, allowance, gone, turns_left, waste
from perdure.decisions import Answer, Pause, Saying
from perdure.leases import Grant, ask, take, unanswered
from perdure.messages import AssistantMessage, Compaction, Problem, ToolCall, ToolMessage, Usage, UserMessage
from perdure.outcomes import fold_cancelled, fold_probe, fold_report, lost, result_of, start
from perdure.policies import McpServerSpec, MemoryPolicy
from perdure.reports import CompactReport, Listed, ModelTurn, ProbeReport, RecallReport, ToolReport, ToolsReport
from perdure.resuming import carried_on
from perdure.state import Amounts, Borrowing, CallState, CallStatus, RunState
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
from perdure.turns import fail, fold_turn, interrupt, open_turn
from tests.unit.test_steps import EFFECTS, NOW, a_run, asks, decide, ok, say, says

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
NOTES = UserMessage(role="user", content="Notes", source="runtime", facts=["f1"])
choices = st.integers(0, 7)
additions = st.sampled_from([Additions(), Additions(steps=1), Additions(steps=2, input_tokens=5)])


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
    moved = [c for c in state.open_calls if c.status in (CallStatus.RUNNING, CallStatus.PROBING)]
    people = (CallStatus.ASKING, CallStatus.QUESTION, CallStatus.IN_DOUBT)
    waits = [c for c in state.open_calls if c.status in people]
    model = ["model"] if state.generating else ["compaction"] if state.pressure.under_way else []
    held = ["resume"] if next_step(state) == Wait("paused") else []
    memory = ["memory"] if state.recall == "asked" else ["tools"] if state.listing else []
    assert moved or waits or model or held or memory, "it would wait for ever"
    chosen = data.draw(st.sampled_from([*moved, *waits, *model, *held, *memory]))
    choice = data.draw(choices)
    if chosen == "memory":
        recalling.fold(state, RecallReport(message=NOTES if choice else None))
    elif chosen == "tools" and choice:
        toolsets.fold(state, ToolsReport(servers=[Listed(server="files")]))
    elif chosen == "tools":
        toolsets.fail(state, "It is down.")
    elif chosen == "resume":
        say(state, control.Resumption(add=data.draw(additions)))
    elif chosen == "compaction":
        compacted(state, data)
    elif not isinstance(chosen, CallState):
        speak(state, data)
    elif chosen.status is CallStatus.RUNNING:
        conclude(state, chosen, choice)
    elif chosen.status is CallStatus.PROBING:
        outcome = ("done", "not_done", "unknown")[choice % 3]
        asked_at = NOW + timedelta(seconds=choice)
        fold_probe(state, chosen, ProbeReport.model_validate({"outcome": outcome, "asked_at": asked_at}))
    elif chosen.status is CallStatus.QUESTION:
        say(state, Answer(text="yes", call=chosen.position))
    else:
        decide(state, chosen, choice)


def speak(state: RunState, data: st.DataObject) -> None:
    """End the model call under way in one of the ways in which it can end."""
    match data.draw(choices):
        case 0:
            waste(state, spent(state, says(""), data).usage)
            kinds = ["authentication", "budget", "price_unknown", pressure.TOO_LONG, pressure.TOO_LONG]
            fail(state, data.draw(st.sampled_from(kinds)), "no")
        case 1:
            fold_turn(state, spent(state, says("").model_copy(update={"finish": "interrupted"}), data), NOW)
        case 2 if state.generating and state.generating.interrupted:
            interrupt(state)
        case 3 if state.shape and not state.pressure.over:
            fold_turn(state, says("").model_copy(update={"finish": "full"}), NOW)
        case _:
            fold_turn(state, spent(state, data.draw(turns), data), NOW)


def compacted(state: RunState, data: st.DataObject) -> None:
    """End the compaction under way in one of the ways in which it can end."""
    turn = spent(state, says(""), data)
    costs: dict[str, Any] = {"usage": turn.usage, "cost_usd": turn.cost_usd}
    entry = Compaction(role="compaction", covers=data.draw(st.integers(0, state.length)))
    match data.draw(st.integers(0, 3)):
        case 0:
            waste(state, turn.usage)
            pressure.give_up(state)
        case 1:
            pressure.fold(state, CompactReport(**costs))
        case _:
            pressure.fold(state, CompactReport(entry=entry, how="summarised", **costs))


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
        "input_tokens": st.sampled_from([None, 1, 1000, 50_000]),
        "output_tokens": st.sampled_from([None, 1, 100]),
        "usd": st.sampled_from([None, "0.01", "1"]),
        "wall_time": st.sampled_from([None, 1, 600]),
        "calls_per_tool": st.sampled_from([{}, {"look": 1}, {"send": 0, "pay": 2}]),
        "calls_per_turn": st.integers(1, 5),
        "on_exhausted": st.sampled_from(["end", "ask"]),
    }
)


def interfere(state: RunState, data: st.DataObject) -> None:
    """Let a person say something that nobody waits for."""
    said = st.builds(Saying, content=st.just("hey"), now=st.booleans())
    say(state, data.draw(st.one_of(said, st.just(Pause()), st.builds(control.Resumption, add=additions))))


def ask_model(state: RunState, *, answer_only: bool) -> None:
    """Begin a model call, and look at what the model would see."""
    assert not any(c.status in (CallStatus.RUNNING, CallStatus.PROBING) for c in state.open_calls)
    assert turns_left(state) > 0, "it would spend more than its budget"
    open_turn(state, answer_only=answer_only)
    assert paired(state), "the model would see a call without its result"
    assert not state.calls
    assert not state.said


def go_on(state: RunState, data: st.DataObject) -> Finish | None:  # noqa: C901 - once per member of the union
    """Do what is next, and return how the run ends, if it does."""
    step = next_step(state)
    match step:
        case CallModel(answer_only):
            ask_model(state, answer_only=answer_only)
        case ListTools():
            assert not state.steps
            toolsets.begin(state)
        case Recall():
            assert not state.steps
            recalling.begin(state)
        case Compact(free):
            assert state.shape, "an older run can't do that"
            assert paired(state), "it would come between a call and its result"
            assert free == (not state.pressure.due)
            pressure.begin(state, len(state.decided))
        case CallTools(positions):
            assert not state.paused
            launch(state, positions)
        case Probe(position):
            look_up(state, position)
        case AskForMore(reason):
            assert reason
            control.run_short(state, reason)
        case Undo() | ContinueAsNew():
            raise AssertionError("nobody asked for it")
        case Borrow(wanted):
            assert state.borrowing.parent, "there is nobody to ask"
            borrow(state, wanted, data)
        case Wait():
            move(state, data)
        case Finish():
            return step
    return None


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    limits=budgets,
    on_denial=st.sampled_from(["continue", "stop"]),
    parent=st.sampled_from(["", "", "above"]),
    interruptions=st.integers(0, 8),
    kind=st.sampled_from(["old", "new", "remembers", "lists"]),
)
@pytest.mark.reported(14)
def test_whatever_happens_a_run_ends_with_paired_calls_within_its_budget(
    data: st.DataObject, limits: dict[str, Any], on_denial: str, parent: str, interruptions: int, kind: str
) -> None:
    state = a_run(on_denial=on_denial, **limits)
    state.borrowing, state.shape = Borrowing(parent=parent), int(kind != "old")
    if kind == "remembers":
        state.user, state.spec = "ann", state.spec.model_copy(update={"memory": MemoryPolicy()})
    if kind == "lists":
        state.spec = state.spec.model_copy(update={"mcp": [McpServerSpec(name="files")]})
    most = state.limits.steps + 10
    for _ in range(800):
        assert within(state), "it spent more than its budget"
        if interruptions and data.draw(st.booleans()):
            interruptions -= 1
            interfere(state, data)
        if end := go_on(state, data):
            assert not any(call.status is CallStatus.RUNNING for call in state.open_calls)
            assert not state.generating
            assert end.outcome.status in ("completed", "budget_exhausted", "failed")
            assert paired(state) or state.calls
            return
        if state.limits.steps > most:
            additions_end(state)
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


def additions_end(state: RunState) -> None:
    """Let nobody add anything any more: a person who always gives more has a run that never ends."""
    state.limits = state.limits.model_copy(update={"on_exhausted": "end"})


@settings(max_examples=60, deadline=None)
@given(data=st.data(), cut=st.integers(1, 12), interruptions=st.integers(0, 4))
def test_a_run_that_is_cut_anywhere_can_be_resumed_to_its_end(
    data: st.DataObject, cut: int, interruptions: int
) -> None:
    state = a_run(steps=4)
    for turn in range(300):
        if turn < interruptions:
            interfere(state, data)
        if turn == cut:
            fail(state, "ended", "from outside")
            state = RunState.model_validate_json(carried_on(state, Additions(steps=2)).model_dump_json())
        if go_on(state, data):
            return
    raise AssertionError("the run did not end")
