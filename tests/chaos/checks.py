"""What holds for every run, whatever was killed."""

import asyncio

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from perdure.engine.converter import data_converter
from perdure.events import position_key
from perdure.workflows.agent import AgentWorkflow
from tests.chaos.play import Case, Played
from tests.chaos.stage import returned


def check_sound(played: Played, case: Case):
    """Assert what has to hold for every run, that it ended as it should, and what the case expects."""
    check_run(played)
    assert played.result.status == case.status
    assert {record.position: record.status for record in played.result.calls} == case.results
    tools = [effect.tool for effect in played.effects if not effect.tool.startswith("model")]
    assert {tool: tools.count(tool) for tool in tools} == case.effects
    if case.status != "completed":
        undone = [(one.status, one.message) for one in played.result.undone]
        hired = tools.count("hire")
        assert undone == [("undone", f"dismissed hire {number}") for number in range(hired, 0, -1)]
    if case.doubts is not None:
        assert sum(event.type == "in_doubt" for event in played.events) == case.doubts


def check_run(played: Played):
    """Assert what has to hold for every run."""
    assert played.trouble == ""
    assert played.ended
    assert played.executions == len(played.histories)
    check_ledger(played)
    check_transcript(played)
    check_large(played)
    for history in played.histories:
        check_history(history)
    check_events(played)


def check_ledger(played: Played):
    """Assert that no call had two effects, be it under one key or two, and that each is told as what it was."""
    calls = [effect.call for effect in played.effects if effect.call]
    assert len(calls) == len(set(calls))
    keys = [effect.key for effect in played.effects if effect.call]
    assert len(keys) == len(set(keys))
    for record in played.result.calls:
        done = record.position in calls
        if record.name not in ("read", "local_read", "study", "ask_user") and record.status != "in_doubt":
            assert done == (record.status == "ok"), record


def check_transcript(played: Played):
    """Assert that each call has exactly one result, in call order, and that the order of execution is told right."""
    assert played.projection
    asked: list[str] = []
    answered: list[str] = []
    orders: list[int | None] = []
    for message in played.projection.entries:
        match message.role:
            case "assistant":
                assert asked == answered
                asked, answered = [call.id for call in message.calls], []
            case "tool":
                answered.append(message.result.call_id)
                orders.append(message.result.execution_order)
            case "user" if message.result:  # of a call that went on waiting beside the conversation
                orders.append(message.result.execution_order)
            case _:
                pass
    started = [order for order in orders if order is not None]
    assert sorted(started) == list(range(1, len(started) + 1))


def check_large(played: Played):
    """Assert that the store has the whole of each result that the model was shown in part."""
    assert played.projection
    for entry in played.projection.entries:
        if entry.role == "tool" and entry.result.size is not None:
            assert entry.result.ref, entry.result
            whole = played.kept[entry.result.ref].decode()
            name, number, *rest = whole.split(" ")
            assert whole == returned(name, number, 8 * len(rest))
            assert len(whole) == entry.result.size
            assert entry.result.content.startswith(f"{entry.result.name} {number} 0000000")


def check_history(history: WorkflowHistory):
    """Assert that no workflow task failed, and that the history replays with the same code."""
    names = [event.WhichOneof("attributes") for event in history.events]
    failed = [
        event.workflow_task_failed_event_attributes
        for event, name in zip(history.events, names, strict=True)
        if name == "workflow_task_failed_event_attributes"
        # It was about to continue as new, or to end, when something else happened: it is asked again.
        and event.workflow_task_failed_event_attributes.cause
        != WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
    ]
    assert not failed
    replayer = Replayer(
        workflows=[AgentWorkflow], workflow_runner=UnsandboxedWorkflowRunner(), data_converter=data_converter
    )
    replayed = asyncio.run(replayer.replay_workflow(history, raise_on_replay_failure=False))
    assert replayed.replay_failure is None


def check_events(played: Played):
    """Assert that following gave each event once and in order, and that the projection is what the workflow has."""
    assert played.events == played.again
    assert played.events[3:] == played.rest
    positions = [position_key(event.position) for event in played.events]
    assert positions == sorted(set(positions))
    assert played.events[0].type == "run_started"
    assert played.events[-1].type == "run_finished"
    finished = [event.call for event in played.events if event.type == "tool_finished" and event.status != "staged"]
    assert sorted(finished) == sorted(record.position for record in played.result.calls)
    assert played.projection
    assert played.projection.state
    assert played.state
    clocks = {"ran"}  # the workflow sees a thing when it hears of it, the history when it happened
    told, kept = played.projection.state.model_dump(exclude=clocks), played.state.model_dump(exclude=clocks)
    assert {name: told[name] for name in told if told[name] != kept[name]} == {}
