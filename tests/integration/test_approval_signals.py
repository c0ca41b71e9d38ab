"""Plain signals, as anybody can send them: understood, or shown as refused with the reason; never a wedge."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from perdure.policies import Approval
from perdure.tools import tool


def calling(*seats):
    return {"calls": [{"name": "book", "arguments": {"seat": seat}} for seat in seats]}


def payload(data, encoding="json/plain"):
    """A payload as another client writes it."""
    return RawValue(Payload(metadata={"encoding": encoding.encode()}, data=data))


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


@pytest.fixture
async def waiting(stage, book):
    """A run that waits for approval of call 1.1."""
    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "approval_requested")
    return handle


GOOD = {
    "approve": ("approve", [{"call": "1.1", "by": "Ann", "reason": "fine"}]),
    "approve_text": ("approve", ["1.1"]),
    "approve_nothing": ("approve", []),
    "approve_null": ("approve", [None]),
    "approve_empty": ("approve", [payload(b"")]),
    "approve_binary_null": ("approve", [payload(b"", "binary/null")]),
    "approve_other_encoding": ("approve", [payload(b'{"call": "1.1"}', "binary/plain")]),
    "approve_said_twice": ("approve", [{"call": "1.1", "approve": True}]),
    "decide": ("decide", [{"call": "1.1", "approve": True}]),
    "by_the_models_id": ("approve", [{"call": "call_1"}]),
}


@pytest.mark.parametrize(("name", "arguments"), GOOD.values(), ids=GOOD)
async def test_a_signal_approves(stage, waiting, booked, name, arguments):
    await stage.signal(waiting, name, *arguments)
    done = await stage.end(waiting)
    assert booked == [("1A", 1)]
    [event] = done.told("approval_decided")
    assert (event.approve, event.via) == (True, "signal")
    assert not done.told("decision_refused")


async def test_a_signal_denies_with_who_and_why(stage, waiting, booked):
    await stage.signal(waiting, "deny", {"call": "1.1", "by": "Ann", "reason": "too dear"})
    done = await stage.end(waiting)
    assert booked == []
    [event] = done.told("approval_decided")
    assert (event.approve, event.by, event.via, event.reason) == (False, "Ann", "signal", "too dear")


async def test_a_signal_edits_the_arguments(stage, waiting, booked):
    await stage.signal(waiting, "approve", {"call": "1.1", "arguments": {"seat": "2B"}})
    done = await stage.end(waiting)
    assert booked == [("2B", 1)]
    assert done.told("approval_decided")[0].edited


async def test_a_signal_settles(stage):
    @tool
    def book(seat: str) -> str:
        """Book."""
        raise OSError("reset")

    handle = await stage.start([calling("1A"), "done"], [book])
    await stage.until(handle, "in_doubt")
    await stage.signal(handle, "settle", payload(b'{"call": "1.1", "outcome": "done", "result": {"a": "\\ud83d"}}'))
    done = await stage.end(handle)
    assert [(result.status, result.content) for result in done.results] == [("ok", '{"a": "?"}')]
    assert done.told("settled")[0].outcome == "done"


BAD = {
    "unknown_name": ("aprove", [{"call": "1.1"}], "no signal 'aprove'; known are approve, deny"),
    "odd_name": ("ü" * 300, [], "There is no signal"),
    "two_values": ("approve", ["1.1", "1.2"], "takes one JSON value, not 2"),
    "not_json": ("approve", [payload(b"{call: 1.1}")], "this is not JSON"),
    "not_text": ("approve", [payload(b"\xff\xfe\x00")], "this is not JSON"),
    "surrogate_bytes": ("approve", [payload(b'"\xed\xa0\x80"')], "this is not JSON"),
    "nan": ("approve", [payload(b'{"call": NaN}')], "this is not JSON"),
    "deep": ("approve", [payload(b"[" * 200_000)], "this is not JSON"),
    "nested": ("approve", [payload(b"[" * 300 + b"]" * 300)], "this is not JSON"),
    "list": ("approve", [["1.1"]], "not list"),
    "number": ("approve", [7], "not int"),
    "false": ("approve", [False], "not bool"),
    "wrong_type": ("approve", [{"call": 1.1}], "call: Input should be a valid string"),
    "wrong_by": ("approve", [{"call": "1.1", "by": ["Ann"]}], "by: Input should be a valid string"),
    "wrong_arguments": ("approve", [{"call": "1.1", "arguments": "2B"}], "arguments: Input should be an object"),
    "unknown_field": ("approve", [{"call": "1.1", "comment": "ok"}], "does not know comment"),
    "surrogate_field": ("approve", [payload(b'{"call": "1.1", "\\ud83d": 1}')], "does not know ?"),
    "contradiction": ("deny", [{"call": "1.1", "approve": True}], "contradicts its name"),
    "decide_what": ("decide", [{"call": "1.1"}], "approve: Field required"),
    "settle_how": ("settle", [{"call": "1.1", "outcome": "perhaps"}], "outcome: Input should be"),
    "settle_what": ("settle", [{"call": "1.1", "outcome": "done"}], "is not in doubt"),
    "no_such_call": ("approve", [{"call": "9.9"}], "no call '9.9': waiting are 1.1 (book)"),
    "stale": ("approve", [{"call": "1.1", "hash": "0000"}], "has other arguments"),
    "edit": ("approve", [{"call": "1.1", "arguments": {"seat": 7}}], "do not fit book"),
    "huge": ("approve", [{"x" * 1_500_000: 1}], "does not know xxx"),
}


@pytest.mark.parametrize(("name", "arguments", "reason"), BAD.values(), ids=BAD)
async def test_a_signal_that_does_not_take_is_shown_as_refused_with_the_reason(
    stage, waiting, booked, name, arguments, reason
):
    await stage.signal(waiting, name, *arguments)
    event = await stage.until(waiting, "decision_refused")
    assert (event.name, event.via) == (name, "signal")
    assert reason in event.reason
    assert len(event.reason) < 3_000
    assert booked == []
    await waiting.approve("1.1")
    done = await stage.end(waiting)
    assert booked == [("1A", 1)]
    assert len(done.told("decision_refused")) == 1


async def test_an_edit_nested_beyond_what_can_be_recorded_is_refused(stage, waiting, booked):
    value = b"[" * 90 + b"]" * 90
    await stage.signal(waiting, "approve", payload(b'{"call": "1.1", "arguments": {"seat": ' + value + b"}}"))
    assert "do not fit" in (await stage.until(waiting, "decision_refused")).reason
    await waiting.approve()
    await stage.end(waiting)


async def test_half_an_emoji_in_an_edit_becomes_a_question_mark(stage, waiting, booked):
    await stage.signal(waiting, "approve", payload(b'{"call": "1.1", "arguments": {"seat": "\\ud83d"}}'))
    await stage.end(waiting)
    assert booked == [("?", 1)]


async def test_several_edits_by_signal_at_once_wedge_nothing_and_the_first_takes(stage, waiting, booked):
    await stage.stop()
    for seat in ("7A", "7B"):
        await stage.signal(waiting, "approve", {"call": "1.1", "arguments": {"seat": seat}})
    await stage.serve(*stage.agents)
    done = await stage.end(waiting)
    assert booked in ([("7A", 1)], [("7B", 1)])
    assert len(done.told("approval_decided")) == 1
    assert len(done.told("decision_refused")) == 1


async def test_a_second_approval_of_a_call_is_refused_and_changes_nothing(stage, book, booked):
    handle = await stage.start([calling("1A", "2B"), "done"], [book])
    await stage.until(handle, "approval_requested", nth=2)
    await stage.signal(handle, "approve", "1.1")
    await stage.signal(handle, "deny", "1.1")
    assert "it was approved by" in (await stage.until(handle, "decision_refused")).reason
    await handle.approve("1.2")
    await stage.end(handle)
    assert sorted(booked) == [("1A", 1), ("2B", 1)]


async def test_a_signal_to_a_run_that_no_worker_serves_waits_for_one(stage, waiting, booked):
    await stage.stop()
    await stage.signal(waiting, "approve", "1.1")
    assert booked == []
    await stage.serve(*stage.agents)
    await stage.end(waiting)
    assert booked == [("1A", 1)]


async def test_signals_among_steps_without_a_question_are_refused(stage, booked):
    @tool
    def book(seat: str) -> str:
        """Book."""
        booked.append(seat)
        return "booked"

    handle = await stage.start([calling("1A"), {"text": "done", "delay": 1.5}], [book])
    await stage.until(handle, "model_started", nth=2)
    await stage.signal(handle, "approve")
    await stage.signal(handle, "approve", "1.1")
    done = await stage.end(handle)
    assert len(done.told("decision_refused")) == 2
    assert sum("1.1" in event.reason for event in done.told("decision_refused")) == 1
    assert not done.told("approval_decided")


@pytest.mark.parametrize("way", ["signal", "update"])
async def test_a_decision_that_meets_the_expiry_is_taken_or_refused_the_same_by_run_and_history(
    stage, book, booked, way
):
    handle = await stage.start([calling("1A"), "done"], [book], approval=Approval(expires=timedelta(seconds=0.7)))
    await happened(stage, handle, "timer_started")
    await stage.stop()  # the request expires while no worker runs; then somebody approves
    await happened(stage, handle, "timer_fired")
    if way == "signal":
        await stage.signal(handle, "approve", "1.1")
        await stage.serve(*stage.agents)
    else:
        sent = asyncio.create_task(handle.approve("1.1"))
        await stage.serve(*stage.agents)
        await asyncio.gather(sent, return_exceptions=True)
    done = await stage.end(handle)
    assert len(booked) == (done.results[0].status == "ok")
    assert len(done.told("approval_decided")) == 1


async def happened(stage, handle, what):
    """Wait until an event of the engine's is in the run's history."""

    async def look():
        workflow = stage.client.temporal.get_workflow_handle(handle.id)
        async for event in workflow.fetch_history_events(wait_new_event=True):
            if event.HasField(f"{what}_event_attributes"):
                return

    await asyncio.wait_for(look(), 10)


async def test_a_decision_that_reaches_the_run_together_with_its_question_is_kept(stage, book, booked):
    asked = asyncio.Event()

    def reply(_):
        asked.set()
        return {**calling("1A"), "delay": 1}

    agent = stage.agent([reply, "done"], [book])
    await stage.serve(agent, settings=stage.client.settings.model_copy(update={"grace": timedelta(seconds=10)}))
    handle = await stage.start_again(agent)
    await asked.wait()
    await stage.stop()  # the model's reply is still recorded; nobody is left to act on it
    await stage.until(handle, "approval_requested")
    await stage.signal(handle, "approve", "1.1")
    await stage.serve(agent)
    done = await stage.end(handle)
    assert booked == [("1A", 1)]
    assert not done.told("decision_refused")
