"""Approval: who is asked, what a decision does, which decisions do not take."""

import asyncio
from datetime import timedelta

import pytest
from pydantic import ValidationError
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from perdure.errors import DecisionRejected, RunNotFound
from perdure.policies import Approval
from perdure.tools import tool


def calling(*seats, name="book"):
    return {"calls": [{"name": name, "arguments": {"seat": seat}} for seat in seats]}


@pytest.fixture
def booked():
    """The seats that were booked, in order."""
    return []


@pytest.fixture
def book(booked):
    @tool(approval="always")
    def book(seat: str, count: int = 1) -> str:
        """Book a seat."""
        booked.append((seat, count))
        return f"booked {seat}"

    return book


@pytest.mark.reported(22)
async def test_a_call_waits_for_approval_and_is_then_executed(stage, book, booked):
    handle = await stage.start([calling("1A"), "done"], [book])
    event = await stage.until(handle, "approval_requested")
    assert (event.call, event.name, event.arguments) == ("1.1", "book", {"seat": "1A"})
    assert event.why == "book needs approval."
    assert booked == []
    receipt = await handle.approve("1.1", hash=event.hash, by="Ann", reason="cheap enough")
    assert (receipt.accepted, receipt.call) == (True, "1.1")
    done = await stage.end(handle)
    assert done.result.text == "done"
    assert booked == [("1A", 1)]
    [decided] = done.told("approval_decided")
    assert (decided.approve, decided.by, decided.via, decided.reason) == (True, "Ann", "update", "cheap enough")


@pytest.mark.reported(24)
async def test_a_denied_call_is_never_executed_and_the_model_goes_on(stage, book, booked):
    handle = await stage.start([calling("1A"), "as you like"], [book])
    await stage.until(handle, "approval_requested")
    await handle.deny("1.1", by="Ann", reason="too dear")
    done = await stage.end(handle)
    assert (done.result.status, done.result.text) == ("completed", "as you like")
    [result] = done.results
    assert result.status == "denied"
    assert "Denied by Ann: too dear" in result.message
    assert "not executed" in result.message
    assert booked == []
    assert done.told("tool_finished")[0].status == "denied"


async def test_with_on_denial_stop_the_run_ends_with_that_reason_and_nothing_more_is_executed(stage, book, booked):
    @tool
    def pay(seat: str) -> str:
        """Pay."""
        booked.append(seat)
        return "paid"

    calls = {"calls": [*calling("1A", "2B")["calls"]]}
    handle = await stage.start([calls, "never said"], [book, pay], approval=Approval(on_denial="stop"))
    await stage.until(handle, "approval_requested", nth=2)
    await handle.deny("1.2", by="Ann", reason="no")
    done = await stage.end(handle)
    assert done.result.status == "completed"
    assert done.result.reason.startswith("book was denied by Ann: no")
    assert [result.status for result in done.results] == ["skipped", "denied"]
    assert booked == []


async def test_with_on_denial_stop_a_call_under_way_is_finished_first(stage, book, anchor):
    @tool(timeout=20)
    def pay(seat: str) -> str:
        """Pay."""
        anchor.wait(20)
        return "paid"

    calls = {"calls": [*calling("1A", name="pay")["calls"], *calling("2B")["calls"]]}
    handle = await stage.start([calls, "never said"], [book, pay], approval=Approval(on_denial="stop"))
    await stage.until_held(handle, "pay")
    await handle.deny("1.2", by="Ann")
    anchor.set()
    done = await stage.end(handle)
    assert done.result.status == "completed"
    assert [result.status for result in done.results] == ["ok", "denied"]


async def test_approval_of_one_call_does_not_hold_back_the_others(stage, book, booked):
    @tool(effect="read")
    def look(seat: str) -> str:
        """Look."""
        return f"{seat} is free"

    calls = {"calls": [*calling("1A", "2B")["calls"], *calling("3C", name="look")["calls"]]}
    handle = await stage.start([calls, "done"], [book, look])
    await stage.until(handle, lambda event: event.type == "tool_finished" and event.name == "look")
    await handle.approve("1.2")
    await stage.until(handle, lambda event: event.type == "tool_finished" and event.call == "1.2")
    assert booked == [("2B", 1)]
    assert not [event for event in (await handle.projection()).events if event.type == "run_finished"]
    await handle.approve("1.1")
    done = await stage.end(handle)
    assert [result.content for result in done.results] == ["booked 1A", "booked 2B", "3C is free"]
    assert [result.execution_order for result in done.results] == [3, 2, 1]


async def test_of_two_decisions_at_once_one_takes_and_the_other_says_why_not(stage, book, booked):
    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "approval_requested")
    answers = await asyncio.gather(handle.approve("1.1"), handle.deny("1.1"), return_exceptions=True)
    [refused] = [answer for answer in answers if isinstance(answer, DecisionRejected)]
    assert refused.reason in ("already_decided", "closed")
    done = await stage.end(handle)
    assert len(done.told("approval_decided")) == 1
    assert len(booked) == (done.results[0].status == "ok")


async def test_two_edits_of_one_call_at_once_are_judged_apart_and_one_takes(stage, book, booked):
    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "approval_requested")
    edits = [handle.approve("1.1", arguments={"seat": seat}) for seat in ("7A", "7B", "7C")]
    answers = await asyncio.gather(*edits, return_exceptions=True)
    assert sorted(isinstance(answer, DecisionRejected) for answer in answers) == [False, True, True]
    await stage.end(handle)
    assert len(booked) == 1


# -- edits -----------------------------------------------------------------------------------------------------


async def test_edited_arguments_are_executed_and_the_model_is_told(stage, book, booked):
    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "approval_requested")
    await handle.approve("1.1", arguments={"seat": "2B", "count": 2}, by="Ann")
    done = await stage.end(handle)
    assert booked == [("2B", 2)]
    [result] = done.results
    assert (result.status, result.content) == ("ok", "booked 2B")
    assert "A person changed the arguments" in result.note
    assert '"seat": "2B"' in result.note
    assert done.told("approval_decided")[0].edited
    assert done.told("tool_started")[0].arguments == {"seat": "2B", "count": 2}
    assert done.result.calls[0].arguments == {"seat": "2B", "count": 2}
    assert done.state.messages[1].calls[0].arguments == {"seat": "1A"}  # what the model wrote stays as it was


EDITS = [{"seat": 7}, {}, {"seat": "2B", "colour": "red"}, {"seat": "2B", "count": "two"}]


@pytest.mark.parametrize("arguments", EDITS, ids=str)
async def test_an_edit_that_does_not_fit_is_refused_and_the_call_goes_on_waiting(stage, book, booked, arguments):
    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "approval_requested")
    with pytest.raises(DecisionRejected, match="do not fit book") as refused:
        await handle.approve("1.1", arguments=arguments)
    assert refused.value.reason == "invalid_edit"
    assert booked == []
    await handle.approve("1.1")
    done = await stage.end(handle)
    assert booked == [("1A", 1)]
    [event] = done.told("decision_refused")
    assert event.via == "update"
    assert "do not fit book" in event.reason


async def test_an_edit_that_changes_nothing_is_a_plain_approval(stage, book):
    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "approval_requested")
    await handle.approve("1.1", arguments={"seat": "1A"})
    done = await stage.end(handle)
    assert done.results[0].note is None
    assert not done.told("approval_decided")[0].edited


# -- decisions that do not take --------------------------------------------------------------------------------


@pytest.mark.reported(19)
async def test_a_decision_about_other_arguments_than_those_shown_is_refused(stage, book, booked):
    handle = await stage.start([calling("1A"), "done"], [book])
    event = await stage.until(handle, "approval_requested")
    with pytest.raises(DecisionRejected) as refused:
        await handle.approve("1.1", hash="0123456789abcdef")
    assert refused.value.reason == "stale_hash"
    assert event.hash in str(refused.value)
    assert booked == []
    await handle.approve("1.1", hash=event.hash)
    await stage.end(handle)


async def test_a_call_that_was_decided_already_stays_as_it_is(stage, book, booked):
    handle = await stage.start([calling("1A", "2B"), "done"], [book])
    await stage.until(handle, "approval_requested", nth=2)
    await handle.deny("1.1", by="Ann")
    with pytest.raises(DecisionRejected, match="denied by Ann") as refused:
        await handle.approve("1.1")
    assert refused.value.reason == "already_decided"
    await handle.approve("1.2")
    await stage.end(handle)
    assert booked == [("2B", 1)]


@pytest.mark.reported(17)
async def test_a_decision_about_no_call_of_the_run_is_refused_with_those_that_wait(stage, book):
    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "approval_requested")
    with pytest.raises(DecisionRejected, match=r"no call '9.9': waiting are 1.1 \(book\)") as refused:
        await handle.approve("9.9")
    assert refused.value.reason == "unknown_call"
    await handle.approve()  # only one waits
    await stage.end(handle)


@pytest.mark.reported(17)
async def test_without_a_name_a_decision_is_refused_where_two_wait(stage, book, booked):
    handle = await stage.start([calling("1A", "2B"), "done"], [book])
    await stage.until(handle, "approval_requested", nth=2)
    with pytest.raises(DecisionRejected, match="Say which call is meant"):
        await handle.approve()
    assert booked == []
    await asyncio.gather(handle.deny("1.1"), handle.deny("1.2"))
    await stage.end(handle)


async def test_a_decision_after_the_end_or_about_no_run_is_refused(stage, book):
    handle = await stage.start(["done"], [book])
    await stage.end(handle)
    with pytest.raises(DecisionRejected, match="has ended") as refused:
        await handle.approve("1.1")
    assert refused.value.reason == "closed"
    with pytest.raises(RunNotFound, match="no run 'nowhere'"):
        await stage.client.handle("nowhere").approve("1.1")


UPDATES = [
    ("decide", [{"nonsense": 1}]),
    ("decide", []),
    ("decide", ["1.1"]),
    ("decide", [{"call": 7, "approve": "perhaps"}]),
    ("decide", [{"call": "1.1", "approve": True}, "more"]),
    ("settle", [{"call": "1.1", "outcome": "perhaps"}]),
    ("settle", [None]),
    ("decline", [{"call": "1.1"}]),
]


@pytest.mark.parametrize(("name", "arguments"), UPDATES, ids=str)
async def test_an_update_that_can_not_be_understood_is_refused_and_nothing_is_wedged(
    stage, book, booked, name, arguments
):
    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "approval_requested")
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    with pytest.raises((WorkflowUpdateFailedError, RPCError)):
        await workflow.execute_update(name, args=arguments, rpc_timeout=timedelta(seconds=3))
    assert booked == []
    await handle.approve("1.1")
    await stage.end(handle)
    assert booked == [("1A", 1)]


# -- policies --------------------------------------------------------------------------------------------------


async def test_a_predicate_asks_for_some_arguments_and_not_for_others(stage, booked):
    @tool(approval=lambda seat, **_: seat.startswith("1"))
    def book(seat: str) -> str:
        """Book."""
        booked.append(seat)
        return "booked"

    handle = await stage.start([calling("1A", "2B"), "done"], [book])
    await stage.until(handle, lambda event: event.type == "tool_finished" and event.call == "1.2")
    assert booked == ["2B"]
    event = await stage.until(handle, "approval_requested")
    assert event.call == "1.1"
    assert "for these arguments" in event.why
    await handle.approve()
    await stage.end(handle)
    assert booked == ["2B", "1A"]


def leave(**_):
    raise SystemExit(3)


async def cancel(**_):
    raise asyncio.CancelledError


def broken(seat):
    raise KeyError(seat)


@pytest.mark.parametrize(
    "predicate", [leave, cancel, broken, lambda: True], ids=["exit", "cancel", "raise", "arguments"]
)
async def test_a_predicate_that_fails_asks_a_person(stage, booked, predicate):
    @tool(approval=predicate)
    def book(seat: str) -> str:
        """Book."""
        booked.append(seat)
        return "booked"

    handle = await stage.start([calling("1A"), "done"], [book])
    event = await stage.until(handle, "approval_requested")
    assert "failed" in event.why
    await handle.approve()
    await stage.end(handle)


async def test_a_predicate_that_blocks_is_given_up_and_a_person_asked(stage, booked, anchor, monkeypatch):
    monkeypatch.setattr("perdure.activities.judging._PREDICATE_SECONDS", 0.3)

    async def block(**_):
        return anchor.wait(20)

    @tool(approval=block)
    def book(seat: str) -> str:
        """Book."""
        booked.append(seat)
        return "booked"

    handle = await stage.start([calling("1A"), "done"], [book])
    event = await stage.until(handle, "approval_requested")
    assert "failed (TimeoutError)" in event.why
    anchor.set()
    await handle.approve()
    await stage.end(handle)


async def test_what_the_agent_says_of_a_tool_beats_what_the_tool_says(stage, book, booked):
    rules = Approval(default="always", tools={"book": "never"})
    done = await stage.run([calling("1A"), "done"], [book], approval=rules)
    assert booked == [("1A", 1)]
    assert not done.told("approval_requested")


async def test_the_default_of_the_agent_holds_for_tools_that_say_nothing(stage, booked):
    @tool
    def book(seat: str) -> str:
        """Book."""
        booked.append(seat)
        return "booked"

    handle = await stage.start([calling("1A"), "done"], [book], approval="always")
    await stage.until(handle, "approval_requested")
    await handle.deny()
    await stage.end(handle)
    assert booked == []


# -- time ------------------------------------------------------------------------------------------------------


@pytest.mark.reported(23)
async def test_a_request_that_nobody_decides_in_time_is_denied(stage, book, booked):
    rules = Approval(expires=timedelta(seconds=0.5))
    done = await stage.run([calling("1A"), "as you like"], [book], approval=rules)
    assert done.result.status == "completed"
    assert [result.status for result in done.results] == ["denied"]
    assert booked == []
    [event] = done.told("approval_decided")
    assert (event.approve, event.via, event.by) == (False, "expiry", "nobody")
    assert "not decided within" in event.reason


async def test_a_request_that_waits_is_reminded_of_until_it_is_decided(stage, book, booked):
    handle = await stage.start([calling("1A"), "done"], [book], approval=Approval(remind_every=timedelta(seconds=0.3)))
    await stage.until(handle, "approval_reminder", nth=2)
    await handle.approve()
    done = await stage.end(handle)
    assert booked == [("1A", 1)]
    assert {event.call for event in done.told("approval_reminder")} == {"1.1"}


async def test_a_request_is_reminded_of_before_it_expires(stage, book):
    rules = Approval(remind_every=timedelta(seconds=1), expires=timedelta(seconds=2.5))
    done = await stage.run([calling("1A"), "as you like"], [book], approval=rules)
    assert len(done.told("approval_reminder")) in (1, 2)  # the engine's timers are a second late at times
    assert done.told("approval_decided")[0].via == "expiry"


@pytest.mark.parametrize("field", ["expires", "remind_every"])
@pytest.mark.parametrize("seconds", [0, -1])
def test_a_time_that_is_none_is_refused(field, seconds):
    with pytest.raises(ValidationError, match=field):
        Approval.model_validate({field: timedelta(seconds=seconds)})


async def test_a_run_that_is_cancelled_while_it_waits_executes_nothing(stage, book, booked):
    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "approval_requested")
    await handle.cancel("not needed any more")
    done = await stage.end(handle)
    assert (done.result.status, done.result.reason) == ("cancelled", "not needed any more")
    assert booked == []
    await handle.resume()  # it asks again
    await handle.approve("1.1")
    assert (await stage.end(handle)).result.status == "completed"
    assert booked == [("1A", 1)]


async def test_calls_that_can_not_be_executed_are_not_asked_about(stage, book):
    calls = {"calls": [{"name": "book", "arguments": {"seat": 7}}, {"name": "bok", "arguments": {}}]}
    done = await stage.run([calls, "done"], [book])
    assert [result.status for result in done.results] == ["error", "error"]
    assert not done.told("approval_requested")
