"""Runs that ended long ago, replayed: today's code has to decide as they did, or waiting runs would break."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.exceptions import FailureError

from perdure.events import EXECUTION, RunFinished, position_key
from perdure.state import RunState
from perdure.wire import ARCHIVE, END_TURN, LEARN, REMEMBER
from perdure.workflows import calls, later
from tests.replay.replaying import (
    FOLLOWERS,
    HERE,
    NAMES,
    follower_of,
    history_of,
    projected,
    replay_follower,
    replay_in_sandbox,
    replayed,
    state_of,
)
from tests.replay.scenarios import SCENARIOS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.reported(40)
async def test_recorded_run_replays_into_the_state_in_which_it_ended(name: str) -> None:
    assert await replayed(name) == state_of(name)


BRIEFLY = (
    "compacted",
    "compensated_after_cancel",
    "continued_1",
    "delegated",
    "denied",
    "handed_off",
    "planned",
    "walked",
)
"""Runs that come through most of the workflow; the others take as long, seconds each."""


@pytest.mark.parametrize("name", [n if n in BRIEFLY else pytest.param(n, marks=pytest.mark.long) for n in NAMES])
async def test_workflow_does_nothing_that_the_sandbox_forbids(name: str) -> None:
    await replay_in_sandbox(name)


@pytest.mark.parametrize("name", NAMES)
async def test_projection_of_a_recorded_run_tells_the_end_that_it_had(name: str) -> None:
    projection, own = await projected(name), state_of(name)
    assert projection.state is not None
    assert without_times(projection.state) == without_times(own)
    if history_of(name).events[-1].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
        assert not any(isinstance(event, RunFinished) for event in projection.events)
        return
    last = projection.events[-1]
    assert isinstance(last, RunFinished)
    assert own.outcome is not None
    assert (last.status, last.reason, last.failure) == (own.outcome.status, own.outcome.reason, own.outcome.failure)
    assert (projection.result().text, last.text) == (own.text, own.text)


def without_times(state: RunState) -> dict[str, Any]:
    """Return `state` without its times: the workflow learns of a reply a moment after the engine."""
    data = state.model_dump()
    calls = [{**call, "asked_at": None, "decision": {**(call["decision"] or {}), "at": None}} for call in data["calls"]]
    return {**data, "ran": None, "calls": calls}


@pytest.mark.parametrize("name", NAMES)
async def test_events_of_a_recorded_run_have_positions_that_only_grow(name: str) -> None:
    positions = [position_key(event.position) for event in (await projected(name)).events]
    assert positions == sorted(set(positions))
    assert {event % EXECUTION for event, _ in positions} <= {event.event_id for event in history_of(name).events}


@pytest.mark.parametrize("name", FOLLOWERS)
async def test_what_followed_a_recorded_run_replays_as_it_was(name: str) -> None:
    await replay_follower(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_activity_timer_and_child_of_a_recorded_run_has_a_summary(name: str) -> None:
    begun = (
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_TIMER_STARTED,
        EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
    )
    events = [event for event in history_of(name).events if event.event_type in begun]
    assert [event.event_id for event in events if not event.user_metadata.HasField("summary")] == []


# -- the replays can fail ----------------------------------------------------------------------------------


async def broken(name: str) -> str:
    """Return what replaying a history says, which has to be that it does not fit."""
    with pytest.raises(workflow.NondeterminismError) as raised:
        await replayed(name)
    return str(raised.value)


async def test_inserted_activity_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    once = calls.model

    async def twice(*args: Any) -> Any:
        await once(*args)
        return await once(*args)

    monkeypatch.setattr(calls, "model", twice)
    assert "TMPRL1100" in await broken("plain_answer")


async def test_renamed_activity_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MODEL", "perdure.another")
    assert "TMPRL1100" in await broken("plain_answer")


async def test_effects_side_by_side_instead_of_in_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.steps._beside", lambda _call: True)
    assert "TMPRL1100" in await broken("tools")


@pytest.mark.parametrize("constant", ["ARCHIVE", "END_TURN", "LEARN", "REMEMBER"])
async def test_renamed_activity_in_what_follows_is_caught(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, constant, "perdure.another")
    with pytest.raises(workflow.NondeterminismError, match="TMPRL1100"):
        await replay_follower("followed_1", sandboxed=False)


async def test_defect_of_the_workflow_is_not_taken_for_the_recorded_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr("perdure.turns.fold_turn", fails)
    with pytest.raises((workflow.NondeterminismError, FailureError)):
        await replayed("plain_answer")


async def test_other_words_to_the_model_are_seen_in_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.turns.CLOSING", "That's it.")
    assert await replayed("budget_exhausted") != state_of("budget_exhausted")


# -- what is committed -------------------------------------------------------------------------------------


def test_every_scenario_has_a_history_and_an_end() -> None:
    expected = [
        name if one.executions == 1 else f"{name}_{number}"
        for name, one in SCENARIOS.items()
        for number in range(1, one.executions + 1)
    ]
    assert NAMES == sorted(expected) == sorted(path.stem for path in (HERE / "ends").glob("*.json"))


def test_what_follows_is_recorded_where_it_only_archives_and_where_it_does_all() -> None:
    done = {name: activities_of(name) for name in FOLLOWERS}
    assert set(done["followed_1"]) == {ARCHIVE, END_TURN, LEARN, REMEMBER}
    assert done["followed_on_2_1"] == done["followed_on_2_2"] == [ARCHIVE]


def activities_of(name: str) -> list[str]:
    """Return the types of the activities in what followed a run, local ones first."""
    events = follower_of(name).events
    local = [
        event.marker_recorded_event_attributes.details["data"].payloads[0].data
        for event in events
        if event.HasField("marker_recorded_event_attributes")
    ]
    queued = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
    return [*(json.loads(data)["activity_type"] for data in local), *filter(None, queued)]


@pytest.mark.parametrize("name", [f"{file.parent.name}/{file.stem}" for file in HERE.glob("*/*.json")])
def test_recorded_run_names_no_machine(name: str) -> None:
    told = texts(json.loads((HERE / f"{name}.json").read_text("utf-8")))
    machine = re.compile(r"\d@|/(home|root|tmp|usr|Users|work)\b")
    assert not [text for text in told if machine.search(text)]


def texts(data: Any) -> list[str]:
    """Return every text in a history, what its payloads hold included."""
    if isinstance(data, dict):
        return [text for value in data.values() for text in texts(value)]
    if isinstance(data, list):
        return [text for value in data for text in texts(value)]
    return [data, _decoded(data)] if isinstance(data, str) else []


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""
