"""Going on in another execution: what is put away, what goes along, and that nothing of a run changes by it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import approvals, continuing
from perdure.cli.report import results_of
from perdure.continuing import Part
from perdure.decisions import Decision
from perdure.messages import (
    AssistantMessage,
    CallRecord,
    Entry,
    RunResult,
    Segment,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.outcomes import fold_report, records, start
from perdure.policies import AgentSpec
from perdure.state import CallState, CallStatus, RunState
from perdure.steps import ContinueAsNew, Finish, Wait, next_step
from perdure.transcripts import Chain
from perdure.turns import fold_turn, open_turn
from perdure.wire import PutAway, RunRequest, opening_state
from tests.unit.test_steps import NOW, a_run, asks, ok, says
from tests.unit.test_steps_whatever_happens import budgets, go_on, interfere

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Store:
    """What a run has put away."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.records: list[CallRecord] = []

    def take(self, part: Part, before: Segment | None) -> Segment:
        """Keep a part, and return its segment."""
        self.entries += part.entries
        self.records = continuing.together(self.records, part.records)
        chain = Chain(before)
        chain.extend(part.entries)
        counted = (before.records if before else 0) + len(part.records)
        return Segment(ref="r", length=chain.length, records=counted, head=chain.head(chain.length))


def continued(state: RunState, store: Store, executions: int = 0) -> RunState:
    """Return the state with which the next execution begins."""
    if part := continuing.due(state):
        continuing.put_away(state, part, store.take(part, state.before))
    request = RunRequest(spec=state.spec, input="go", executions=executions)
    again = RunRequest.model_validate_json(continuing.continued(request, state, BEGAN).model_dump_json())
    return opening_state(again, "other", "another execution")


class Noted:
    """Draws from `data`, and notes what it has drawn."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.drawn: list[Any] = []

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        """Return what is drawn."""
        self.drawn.append(self._data.draw(strategy))
        return self.drawn[-1]


class Again:
    """Draws once more what was noted, for another state of the same run."""

    def __init__(self, noted: Noted, state: RunState) -> None:
        self._drawn, self._state = iter(noted.drawn), state

    def draw(self, _: st.SearchStrategy[Any]) -> Any:
        """Return what was drawn."""
        drawn = next(self._drawn)
        return self._state.find(drawn.position) if isinstance(drawn, CallState) else drawn


@settings(max_examples=60, deadline=None)
@given(data=st.data(), limits=budgets, interruptions=st.integers(0, 6))
def test_whatever_happens_a_run_that_continues_as_new_is_the_run_that_it_would_have_been(
    data: st.DataObject, limits: dict[str, Any], interruptions: int
) -> None:
    one, many, store = a_run(**{**limits, "on_exhausted": "end"}), a_run(**{**limits, "on_exhausted": "end"}), Store()
    for turn in range(800):
        noted: Any = Noted(data)
        if data.draw(st.booleans()) and isinstance(next_step(many, full=True), ContinueAsNew):
            assert not many.generating
            assert not any(call.status in (CallStatus.RUNNING, CallStatus.PROBING) for call in many.open_calls)
            many = continued(many, store, executions=turn)
        if interruptions and data.draw(st.booleans()):
            interruptions -= 1
            interfere(one, noted)
            again: Any = Again(noted, many)
            interfere(many, again)
        noted = Noted(data)
        end = go_on(one, noted)
        again = Again(noted, many)
        assert go_on(many, again) == end
        if end:
            break
    assert store.entries + many.messages == one.messages
    assert continuing.together(store.records, records(many)) == records(one)
    different = {"messages", "records", "before", "began"}
    assert many.model_dump(exclude=different) == one.model_dump(exclude=different)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), limits=budgets, from_turn=st.integers(0, 20))
def test_a_run_whose_history_is_full_continues_as_new_or_ends_without_starting_anything(
    data: st.DataObject, limits: dict[str, Any], from_turn: int
) -> None:
    state: RunState = a_run(**limits)
    for _ in range(from_turn):
        if go_on(state, data):
            return
    for _ in range(100):
        step = next_step(state, full=True)
        if isinstance(step, ContinueAsNew | Finish):
            return
        assert isinstance(step, Wait), "something new is started"
        running = [call for call in state.open_calls if call.status is CallStatus.RUNNING]
        probing = [call for call in state.open_calls if call.status is CallStatus.PROBING]
        assert running or probing or state.generating, "it waits for people, who may take years"
        for call in running:
            fold_report(state, call, ok(call))
        for call in probing:
            call.status = CallStatus.IN_DOUBT
        if state.generating:
            fold_turn(state, says("done"), NOW)
    raise AssertionError("it never continues")


def turns(count: int) -> RunState:
    """Return a run that has taken so many turns, each with one call."""
    state = a_run(steps=1000, input_tokens=None)
    for _ in range(count):
        open_turn(state, answer_only=False)
        fold_turn(state, asks("look"), NOW)
        (call,) = state.open_calls
        start(state, call)
        fold_report(state, call, ok(call, f"{state.steps}"))
    return state


def test_the_last_two_turns_stay_with_the_run() -> None:
    state = turns(10)
    part = continuing.due(state)
    assert part is not None
    replies = [entry for entry in state.messages[len(part.entries) :] if isinstance(entry, AssistantMessage)]
    assert len(replies) == 2
    assert isinstance(state.messages[len(part.entries)], AssistantMessage)
    assert len(part.records) == len(state.records)
    assert continuing.due(turns(1)) is None


def test_only_the_last_turn_stays_where_the_turns_are_large() -> None:
    state = turns(10)
    at = max(index for index, entry in enumerate(state.messages) if isinstance(entry, ToolMessage)) - 2
    large = ToolResult(call_id="x", name="look", status="ok", content="x" * 300_000)
    state.messages[at] = ToolMessage(role="tool", result=large)
    part = continuing.due(state)
    assert part is not None
    assert len(state.messages) - len(part.entries) <= 3


def test_what_is_named_is_what_was_due() -> None:
    state, store = turns(10), Store()
    part = continuing.due(state)
    assert part is not None
    continuing.put_away(state, part, store.take(part, None))
    more = turns(14)
    state.messages += more.messages[len(part.entries) + len(state.messages) :]
    state.records += more.records[len(part.records) :]
    due = continuing.due(state)
    assert due is not None
    request = PutAway(before=state.before, length=len(part.entries) + len(due.entries), head="h", records=4)
    assert continuing.named(state, request) == due


def test_a_staged_record_stays_with_the_run_because_it_changes_yet() -> None:
    state, store = turns(5), Store()
    state.records[1] = state.records[1].model_copy(update={"status": "staged"})
    order = [record.position for record in state.records]
    part = continuing.due(state)
    assert part is not None
    continuing.put_away(state, part, store.take(part, None))
    assert [record.position for record in state.records] == ["2.1"]
    state.records[0] = state.records[0].model_copy(update={"status": "ok"})
    together = continuing.together(store.records, state.records)
    assert [record.position for record in together] == order
    assert {record.status for record in together} == {"ok"}


def test_the_spec_goes_along_once_and_the_keys_of_the_run_stay() -> None:
    state = a_run()
    spec = AgentSpec(name="a", model="m:m", instructions="Be kind. " * 100)
    state.spec, state.execution, state.steps = spec, "first", 7
    request = continuing.continued(RunRequest(spec=spec, input="x" * 100_000, max_history_events=60), state, BEGAN)
    assert request.model_dump_json(exclude_defaults=True).count("Be kind.") == 100
    assert len(str(request.input)) == 10_000
    opened = opening_state(request, "run", "second")
    assert (opened.spec, opened.execution, opened.steps, opened.began) == (spec, "first", 7, BEGAN)
    assert (request.max_history_events, request.executions) == (60, 1)


def test_records_of_a_run_in_a_session_are_its_own() -> None:
    session = Segment(ref="s", length=40, records=12, head="h")
    opened = opening_state(RunRequest(spec=a_run().spec, input="go", before=session), "run", "e")
    assert opened.before is not None
    assert (opened.before.length, opened.before.records, opened.start) == (40, 0, 40)


def test_a_result_keeps_naming_what_is_missing_of_its_records() -> None:
    before = Segment(ref="s", length=40, records=12, head="h")
    early, late = (CallRecord(position=position, name="look", status="ok") for position in ("1.1", "2.1"))
    result = RunResult(run_id="r", status="completed", calls=[late], before=before)
    assert continuing.with_records(result, None, [early]).calls == [early, late]
    assert continuing.with_records(result, None, [early]).before is None
    assert continuing.with_records(result, before, []).before == before
    assert continuing.with_records(result, before.model_copy(update={"records": 0}), []).before is None


def test_a_decision_about_a_call_that_was_put_away_comes_too_late() -> None:
    state = continued(turns(6), Store())
    receipt = approvals.check(state, Decision(call="2.1", approve=True))
    assert (receipt.accepted, receipt.reason) == (False, "already_decided")
    assert approvals.check(state, Decision(call="7.1", approve=True)).reason == "unknown_call"


# -- whose result is whose, in a transcript that begins elsewhere ----------------------------------------------


def said(*ids: str) -> AssistantMessage:
    return AssistantMessage(role="assistant", calls=[ToolCall(id=each, name="look") for each in ids])


def given_(call_id: str, order: int | None, content: str = "") -> ToolMessage:
    status = "ok" if order else "skipped"
    result = ToolResult.model_validate(
        {"call_id": call_id, "name": "look", "status": status, "content": content, "execution_order": order}
    )
    return ToolMessage(role="tool", result=result)


def test_results_find_their_calls_where_the_transcript_began_before_the_run() -> None:
    entries: list[Entry] = [
        UserMessage(role="user", content="earlier turn"),
        said("a"),
        given_("a", None, "of another run"),
        UserMessage(role="user", content="go"),
        said("a", "b"),
        given_("a", 7, "seven"),
        given_("b", None),
        said("c", "d"),
        given_("c", None),
        given_("d", 8, "eight"),
    ]
    calls = [
        CallRecord(position="4.1", name="look", status="ok", execution_order=7),
        CallRecord(position="4.2", name="look", status="skipped"),
        CallRecord(position="6.1r1", name="look", status="skipped"),
        CallRecord(position="6.2r1", name="look", status="ok", execution_order=8),
    ]
    results = results_of(entries, calls)
    assert {
        position: result.call_id for position, result in results.items() if position in ("4.1", "4.2", "6.2r1")
    } == {
        "4.1": "a",
        "4.2": "b",
        "6.2r1": "d",
    }


def test_results_of_a_run_without_executed_calls_are_counted_from_its_beginning() -> None:
    entries: list[Entry] = [
        UserMessage(role="user", content="go"),
        said("a", "b"),
        given_("a", None),
        given_("b", None),
    ]
    assert set(results_of(entries, [])) == {"1.1", "1.2"}
