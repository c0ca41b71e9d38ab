"""Which workers a run has had, as its history tells it."""

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskStartedEventAttributes

from perdure.engine.converter import data_converter
from perdure.events import WorkerTookOver
from perdure.policies import AgentSpec
from perdure.state import begin
from perdure.telemetry.projection import Projection


def task_started(event_id: int, identity: str) -> HistoryEvent:
    return HistoryEvent(
        event_id=event_id,
        event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
        workflow_task_started_event_attributes=WorkflowTaskStartedEventAttributes(identity=identity),
    )


@pytest.fixture
def projection() -> Projection:
    projection = Projection("run", data_converter)
    projection.state = begin("run", AgentSpec(name="a", model="scripted:x"), "go", None, "")
    return projection


async def test_task_that_is_not_recorded_yet_is_no_other_worker(projection):
    for event in (task_started(3, "first"), task_started(9, ""), task_started(9, "first"), task_started(12, "second")):
        await projection.feed(event)
    assert projection.workers == ["first", "second"]
    told = [event.worker for event in projection.events if isinstance(event, WorkerTookOver)]
    assert told == ["first", "second"]
    assert len({event.position for event in projection.events}) == len(projection.events)
