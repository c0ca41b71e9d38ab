"""A run as its history tells it: histories made by hand, event by event."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

from perdure import approvals
from perdure.budgets import Additions
from perdure.engine.converter import PayloadConverter, data_converter
from perdure.messages import AssistantMessage, Problem, RunResult, ToolResult
from perdure.outcomes import close, result_of, start
from perdure.policies import Limits
from perdure.reports import ModelTurn, ToolReport
from perdure.resuming import carried_on
from perdure.state import RunState, begin
from perdure.telemetry.projection import _HANDLERS, Projection
from perdure.turns import fold_turn
from tests.unit.histories import NOW, History, Rot, a_call, asking, lost_worker, own_failure

# -- a run from start to end ----------------------------------------------------------------------------------


async def test_run_is_told_from_start_to_end_with_durations_and_the_same_state_as_the_workflow_had():
    history = History()
    await history.start()
    await history.add("workflow_task_started", {"identity": "w1"})
    await history.turn("look", text="Let me see.")
    await history.report(await history.call_tool("1.1", "look", 1), content="sun", execution_order=1)
    await history.turn(text="Sunny.")
    result = RunResult(run_id="run", status="completed", text="Sunny.", duration=timedelta(seconds=9))
    await history.add("workflow_execution_completed", {"result": await history.payloads(result)})
    assert history.story() == [
        "run_started",
        "worker_took_over",
        "phase_changed",
        "model_started",
        "model_finished",
        "phase_changed",
        "tool_started",
        "tool_finished",
        "phase_changed",
        "model_started",
        "model_finished",
        "phase_changed",
        "run_finished",
    ]
    model, tool, end = history.told("model_finished")[0], history.told("tool_finished")[0], history.told()[-1]
    assert (model.calls, model.text, model.duration, model.step) == (
        ["1.1 look"],
        "Let me see.",
        timedelta(seconds=1),
        1,
    )
    assert (tool.call, tool.status, tool.attempt, tool.duration) == ("1.1", "ok", 1, timedelta(seconds=1))
    assert (end.status, end.text, end.duration) == ("completed", "Sunny.", timedelta(seconds=9))
    assert history.projection.result() == result
    assert [message.role for message in history.state.messages] == ["user", "assistant", "tool", "assistant"]
    assert history.state.execution == "e" * 12


async def test_events_have_positions_that_grow_and_carry_the_historys_time_and_can_be_written():
    history = await asking()
    await history.signal("nonsense")
    await history.signal("deny", "1.1")
    positions = [tuple(int(part) for part in event.position.split(".")) for event in history.told()]
    assert positions == sorted(set(positions))
    for event in history.told():
        assert event.time == NOW + timedelta(seconds=int(event.position.partition(".")[0]) - 1)
        assert json.loads(event.model_dump_json())["run_id"] == "run"


async def test_feeding_gives_each_event_only_once():
    history = await asking()
    again = Projection("run", data_converter)
    fed = [event for one in history.events for event in await again.feed(one)]
    assert fed == again.events == history.told()


async def test_history_behind_a_codec_is_read_through_it():
    history = History(DataConverter(payload_converter_class=PayloadConverter, payload_codec=Rot()))
    await history.start()
    await history.turn("pay")
    await history.signal("approve", {"call": "1.1", "by": "Ann"})
    assert history.told("approval_decided")[0].by == "Ann"
    await history.ring(approvals.ALARM_SUMMARY)
    await history.report(await history.call_tool("1.1", "pay", 1))
    assert [record.status for record in history.state.records] == ["ok"]


async def test_last_turn_is_told_and_the_model_was_told_too():
    history = History()
    await history.start(limits=Limits(steps=2))
    await history.turn("look")
    await history.report(await history.call_tool("1.1", "look"))
    await history.ask_model(last=True)
    assert [event.answer_only for event in history.told("model_started")] == [False, True]
    assert history.state.closing
    assert history.state.limits.steps == 2


async def test_call_that_is_never_executed_is_told_with_its_result():
    history = History()
    await history.start()
    problem = Problem(error_type="unknown_tool", message="There is no tool 'x'.")
    await history.turn(a_call("x", problem=problem), "look")
    (finished,) = history.told("tool_finished")
    assert (finished.call, finished.status, finished.duration, finished.attempt) == ("1.1", "error", None, None)
    await history.report(await history.call_tool("1.2", "look"))
    assert [event.call for event in history.told("tool_finished")] == ["1.1", "1.2"]


@pytest.mark.parametrize(
    ("kind", "attributes", "status", "reason"),
    [
        ("workflow_execution_terminated", {"reason": "by hand"}, "failed", "terminated: by hand"),
        ("workflow_execution_timed_out", {}, "failed", "timed out"),
        ("workflow_execution_failed", {"failure": Failure(message="odd")}, "failed", "odd"),
        ("workflow_execution_canceled", {}, "cancelled", "enough"),
    ],
)
async def test_run_that_was_ended_from_outside_keeps_what_it_had_done(kind, attributes, status, reason):
    history = await asking()
    await history.add("workflow_execution_cancel_requested", {"cause": "enough"})
    await history.add(kind, attributes)
    assert [event.type for event in history.told()[-2:]] == ["cancel_requested", "run_finished"]
    result = history.projection.result()
    assert (result.status, result.reason, result.steps) == (status, reason, 1)
    assert [call.status for call in result.calls] == ["open"]
    assert result.duration == timedelta(seconds=len(history.events) - 1)


async def test_failed_run_says_why_in_its_own_result():
    history = await asking()
    failure = Failure(message="No key.")
    result = RunResult(run_id="run", status="failed", reason="No key.", failure="authentication")
    failure.application_failure_info.details.CopyFrom(await history.payloads(result))
    await history.add("workflow_execution_failed", {"failure": failure})
    assert history.projection.result() == result
    assert history.state.outcome
    assert history.state.outcome.failure == "authentication"


async def test_engine_that_could_not_execute_the_code_is_told():
    history = await asking()
    await history.add("workflow_task_failed", {"failure": Failure(message="[TMPRL1100] Nondeterminism")})
    await history.add("workflow_task_failed", {})
    assert [event.message for event in history.told("runtime_fault")] == ["[TMPRL1100] Nondeterminism"]


async def test_what_is_none_of_ours_is_passed_over():
    history = await asking()
    before = history.told()
    await history.add("marker_recorded", {"marker_name": "core_patch"})
    await history.add("upsert_workflow_search_attributes")
    await history.add("workflow_properties_modified")
    await history.ring("hard deadline of call 1.1")
    await history.add("timer_fired", {"started_event_id": 999})
    await history.add("activity_task_cancel_requested")
    assert history.told() == before


async def test_open_run_has_a_partial_result():
    result = (await asking()).projection.result()
    assert (result.steps, [call.status for call in result.calls]) == (1, ["open"])


# -- activities that fail -------------------------------------------------------------------------------------


async def test_lost_effect_is_told_as_in_doubt_with_its_key():
    history = History()
    await history.start()
    await history.turn("far")
    scheduled = await history.call_tool("1.1", "Far")
    await history.add("activity_task_timed_out", {"scheduled_event_id": scheduled, "failure": lost_worker()})
    (doubt,) = history.told("in_doubt")
    assert (doubt.call, doubt.name, doubt.message) == ("1.1", "far", "The worker that executed it was lost.")
    assert doubt.key == "run:eeeeeeeeeeee:1.1"
    assert not history.told("tool_finished")
    assert history.projection.pending == {}


async def test_lost_read_is_told_as_an_error():
    history = History()
    await history.start()
    await history.turn("look")
    scheduled = await history.call_tool("1.1", "look")
    await history.add("activity_task_timed_out", {"scheduled_event_id": scheduled, "failure": lost_worker()})
    (finished,) = history.told("tool_finished")
    assert (finished.status, finished.message) == ("error", "The worker that executed it was lost.")


async def test_call_that_was_cancelled_before_it_began_is_told_so():
    history = History()
    await history.start()
    await history.turn("look")
    await history.add("activity_task_canceled", {"scheduled_event_id": await history.call_tool("1.1", "look")})
    assert [event.status for event in history.told("tool_finished")] == ["cancelled"]


async def test_model_that_fails_is_told_with_its_words():
    history = History()
    await history.start()
    scheduled = await history.ask_model()
    failure = own_failure("No key.", "authentication")
    await history.add("activity_task_failed", {"scheduled_event_id": scheduled, "failure": failure})
    (failed,) = history.told("model_failed")
    assert (failed.error_type, failed.message) == ("authentication", "No key.")


@pytest.mark.parametrize(("returned", "content"), [(({"id": 7},), '{"id": 7}'), ((), "")])
async def test_what_a_tool_elsewhere_returns_is_its_result(returned, content):
    history = History()
    await history.start()
    await history.turn("far", "far")
    await history.complete(await history.activity("Far", "1.1", {"any": "thing"}), *returned)
    result = history.state.calls[0].result
    assert result
    assert (result.status, result.content, result.execution_order) == ("ok", content, 1)


async def test_second_attempt_is_told_as_such():
    history = History()
    await history.start()
    await history.turn("look")
    scheduled = await history.call_tool("1.1", "look")
    await history.add("activity_task_started", {"scheduled_event_id": scheduled, "attempt": 2})
    await history.report(scheduled)
    assert [event.attempt for event in history.told("tool_finished")] == [2]


# -- local activities -----------------------------------------------------------------------------------------


async def local(history: History, position: str, *report: Any, failure: Failure | None = None, **data: Any) -> None:
    marker = HistoryEvent().marker_recorded_event_attributes
    marker.marker_name = "core_local_activity"
    described = Payload(data=json.dumps({"activity_id": position, "attempt": 1, **data}).encode())
    marker.details["data"].payloads.append(described)
    if report:
        marker.details["result"].CopyFrom(await history.payloads(*report))
    if failure:
        marker.failure.CopyFrom(failure)
    event = HistoryEvent(event_id=len(history.events) + 1, event_type=EventType.EVENT_TYPE_MARKER_RECORDED)
    event.event_time.FromDatetime(history.time)
    event.marker_recorded_event_attributes.CopyFrom(marker)
    history.events.append(event)
    await history.projection.feed(event)


async def test_local_call_is_told_by_its_marker_alone_in_the_order_that_it_had():
    history = History()
    await history.start()
    await history.turn("peek", "look")
    looking = await history.call_tool("1.2", "look", 2)
    result = ToolResult(call_id="id1", name="peek", status="ok", content="seen", execution_order=1)
    await local(history, "1.1", ToolReport(result=result), attempt=3)
    await history.report(looking, execution_order=2)
    assert [(event.type, event.call) for event in history.told("tool_started", "tool_finished")] == [
        ("tool_started", "1.2"),
        ("tool_started", "1.1"),
        ("tool_finished", "1.1"),
        ("tool_finished", "1.2"),
    ]
    assert [(record.position, record.execution_order) for record in history.state.records] == [("1.1", 1), ("1.2", 2)]
    assert history.told("tool_finished")[0].attempt == 3


async def test_local_call_that_failed_is_an_error():
    history = History()
    await history.start()
    await history.turn("peek")
    await local(history, "1.1", failure=lost_worker())
    assert [event.status for event in history.told("tool_finished")] == ["error"]


async def test_marker_of_an_unknown_call_is_passed_over():
    history = await asking()
    before = history.told()
    await local(history, "9.9")
    assert history.told() == before


# -- resumed runs ---------------------------------------------------------------------------------------------


async def test_resumed_run_goes_on_where_it_stopped_and_tells_nothing_twice():
    history, closed = History(), begin("run", History().spec, "go", None, "old")
    for index, call in enumerate(("look", "pay")):
        message = AssistantMessage(role="assistant", calls=[a_call(call, f"c{index}")])
        fold_turn(closed, ModelTurn(message=message), NOW)
        if call == "look":
            finish(closed)
    await history.start(carried=carried_on(closed, Additions(steps=3)))
    assert [event.type for event in history.told()] == ["run_started", "approval_requested"]
    assert history.told()[0].resumed
    assert history.state.execution == "e" * 12
    assert history.state.calls[0].key == "run:old:2.1"
    await history.signal("approve")
    await history.report(await history.call_tool("2.1", "pay", 2))
    assert [event.call for event in history.told("tool_finished")] == ["2.1"]
    assert [record.position for record in history.state.records] == ["1.1", "2.1"]


def finish(state: RunState) -> None:
    """Close the one open call of a run."""
    start(state, state.calls[0])
    close(state, state.calls[0], result_of(state.calls[0], "ok"))


def test_every_handler_is_there():
    assert all(callable(getattr(Projection, name)) for name in _HANDLERS.values())
