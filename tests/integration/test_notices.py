"""Notices as they arrive: each thing once, after failures too, and never in the way of the run."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import Limits, retention, tool
from perdure.client import RunHandle
from perdure.notices import key_of
from perdure.settings import Settings
from perdure.wire import NOTIFY
from tests.integration.archiving import archived
from tests.integration.test_reset import reset
from tests.receiving import Receiver

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@tool(approval="always")
async def pay(to: str = "13812345678") -> str:
    """Pay."""
    return f"paid {to}"


@tool(effect="read")
async def look(place: int = 0) -> str:
    """Look."""
    return f"nothing at {place}"


PAY = {"calls": [{"name": "pay", "arguments": {"to": "13812345678"}}]}
LOOKS = [{"calls": [{"name": "look", "arguments": {"place": place}}]} for place in range(9)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook."""
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def noticed(stage: Any, receiver: Receiver) -> Any:
    """A stage whose runs tell the receiver."""
    changes = {"notify_url": receiver.url, "notify_secret": SECRET}
    given = {**stage.client.settings.model_dump(), **changes}
    stage.client.settings = Settings.model_validate(given)
    return stage


async def test_a_run_that_waits_and_one_that_ends_are_told_of_once_though_it_fails_twice(
    noticed: Any, receiver: Receiver
) -> None:
    receiver.failures = [500, 503]
    handle = await noticed.start([PAY, "done"], [pay])
    (waiting,) = await receiver.until(handle.id, "run.waiting")
    assert receiver.refused == 2
    assert waiting["data"]["commands"] == [f"perdure approve {handle.id} 1.1", f"perdure deny {handle.id} 1.1"]
    assert waiting["data"]["arguments"] == {"to": "138****5678"}
    await handle.approve()
    assert (await noticed.end(handle)).result.status == "completed"
    _, ended = await receiver.until(handle.id, "run.waiting", "run.ended")
    assert ended["data"]["status"] == "completed"
    assert len({body["data"]["id"] for body in receiver.of(handle.id)}) == 2


async def test_what_arrives_is_signed(noticed: Any, receiver: Receiver) -> None:
    done = await noticed.run(["done"])
    await receiver.until(done.handle.id, "run.ended")
    (told, body), content = receiver.got[-1], receiver.bodies[-1]
    signed = f"{told['webhook-id']}.{told['webhook-timestamp']}.".encode() + content
    expected = base64.b64encode(hmac.new(key_of(SECRET), signed, hashlib.sha256).digest()).decode()
    assert told["webhook-signature"] == f"v1,{expected}"
    assert told["webhook-id"] == body["data"]["id"]
    assert told["content-type"] == "application/json"


async def test_a_run_that_nears_a_limit_tells_so_once(noticed: Any, receiver: Receiver) -> None:
    done = await noticed.run([*LOOKS, "done"], [look], limits=Limits(steps=10))
    budget, _ = await receiver.until(done.handle.id, "run.budget", "run.ended")
    assert budget["data"]["limits"] == [{"limit": "steps", "share": 0.8, "most": "10 steps"}]


async def test_a_receiver_that_is_down_is_never_in_the_way_of_a_run(noticed: Any, receiver: Receiver) -> None:
    receiver.failures = [500] * 1000
    handle = await noticed.start([PAY, "done"], [pay])
    await noticed.until(handle, "approval_requested")
    await handle.approve()
    assert (await noticed.end(handle)).result.status == "completed"
    receiver.failures = []
    await receiver.until(handle.id, "run.waiting", "run.ended")


async def test_what_is_waiting_when_a_run_continues_as_new_is_not_told_again(noticed: Any, receiver: Receiver) -> None:
    noticed.client.settings = noticed.client.settings.model_copy(update={"max_history_events": 40})
    handle = await noticed.start([PAY, *LOOKS[:8], "done"], [pay, look])
    await receiver.until(handle.id, "run.waiting")
    for _ in range(4):
        await handle.say("And?")
    await handle.approve()
    await noticed.end(handle)
    await receiver.until(handle.id, "run.waiting", "run.ended")
    assert len((await archived(noticed, handle.id, executions=2)).histories) > 1


async def test_a_run_that_is_cancelled_or_fails_is_told_of(noticed: Any, receiver: Receiver, raw_model: Any) -> None:
    handle = await noticed.start([PAY, "done"], [pay])
    await receiver.until(handle.id, "run.waiting")
    await handle.cancel("enough")
    await noticed.end(handle)
    _, ended = await receiver.until(handle.id, "run.waiting", "run.ended")
    assert (ended["data"]["status"], ended["data"]["reason"]) == ("cancelled", "enough")

    def broken(_: Any) -> None:
        raise RuntimeError("a defect at 13812345678")

    done = await noticed.run(raw_model(broken))
    (ended,) = await receiver.until(done.handle.id, "run.ended")
    assert ended["data"]["status"] == "failed"
    assert "13812345678" not in json.dumps(ended)


async def test_a_command_gets_the_same_on_its_stdin(stage: Any, tmp_path: Path) -> None:
    script = tmp_path / "notify.py"
    script.write_text("import sys, pathlib\npathlib.Path(sys.argv[1]).write_bytes(sys.stdin.buffer.read())\n")
    out = tmp_path / "told.json"
    changes = {"notify_command": f"{sys.executable} {script} {out}", "notify_on": ["waiting"]}
    stage.client.settings = stage.client.settings.model_copy(update=changes)
    handle = await stage.start([PAY, "done"], [pay])
    async with asyncio.timeout(30):
        while not (out.exists() and out.read_bytes()):
            await asyncio.sleep(0.05)
    assert json.loads(out.read_bytes())["data"]["commands"][0] == f"perdure approve {handle.id} 1.1"
    await handle.deny()
    await stage.end(handle)


async def test_runs_that_are_to_tell_nobody_have_nothing_of_it_in_their_histories(stage: Any) -> None:
    handle = await stage.start([PAY, "done"], [pay])
    await stage.until(handle, "approval_requested")
    await handle.approve()
    await stage.end(handle)
    assert await notices_of(stage, handle) == []


async def test_a_run_begins_one_workflow_for_each_notice(noticed: Any, receiver: Receiver) -> None:
    handle = await noticed.start([PAY, *LOOKS[:1], "done"], [pay, look])
    await receiver.until(handle.id, "run.waiting")
    await handle.approve()
    await noticed.end(handle)
    (begun,) = await notices_of(noticed, handle)
    assert begun.startswith(f"{handle.id}/notices/")


async def notices_of(stage: Any, handle: RunHandle) -> list[str]:
    """Return the ids of the notices that a run's history has begun."""
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    events = [event async for event in workflow.fetch_history_events()]
    started = [event.start_child_workflow_execution_initiated_event_attributes for event in events]
    return [one.workflow_id for one in started if one.workflow_type.name == NOTIFY]


# -- runs that were ended from outside ------------------------------------------------------------------------------


@pytest.fixture
def own_store(noticed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stage, with a store of its own, and runs that are looked for as soon as they have ended."""
    monkeypatch.setattr(retention, "_SETTLED", timedelta())
    monkeypatch.setattr(retention, "missing", partial(retention.missing, task_queue=noticed.queue))
    store = f"sqlite:///{tmp_path / 'store.db'}"
    noticed.client.settings = noticed.client.settings.model_copy(update={"store": store})
    return noticed


async def terminated(stage: Any, receiver: Receiver) -> RunHandle:
    """A run that was ended while it waited."""
    agent = stage.agent([PAY, "done"], [pay])
    await stage.serve(agent)
    handle: RunHandle = await stage.client.start(agent, "go", task_queue=stage.queue)
    await receiver.until(handle.id, "run.waiting")
    await stage.client.temporal.get_workflow_handle(handle.id).terminate(reason="enough")
    return handle


async def test_a_run_that_was_terminated_is_told_of_by_the_worker_once(own_store: Any, receiver: Receiver) -> None:
    handle = await terminated(own_store, receiver)
    temporal, queue = own_store.client.temporal, own_store.queue
    async with own_store.client.store() as store:
        while not await retention.follow_up(temporal, store, queue, 10, retention.FROM_OUTSIDE):
            await asyncio.sleep(0.05)  # the engine lists it a moment later
    _, ended = await receiver.until(handle.id, "run.waiting", "run.ended")
    assert (ended["data"]["status"], ended["data"]["reason"]) == ("failed", "terminated: enough")
    await archived(own_store, handle.id)
    assert handle.id not in await retention.catch_up(own_store.client)
    await receiver.until(handle.id, "run.waiting", "run.ended")


async def test_a_run_that_the_command_archives_is_told_of_as_well(own_store: Any, receiver: Receiver) -> None:
    handle = await terminated(own_store, receiver)
    while handle.id not in await retention.catch_up(own_store.client):
        await asyncio.sleep(0.05)  # the engine lists it a moment later
    await receiver.until(handle.id, "run.waiting", "run.ended")


async def test_a_run_that_was_reset_has_not_ended(own_store: Any, receiver: Receiver) -> None:
    agent = own_store.agent([PAY, "done"], [pay])
    await own_store.serve(agent)
    handle = await own_store.client.start(agent, "go", task_queue=own_store.queue)
    own_store.audit(handle)
    await receiver.until(handle.id, "run.waiting")
    await reset(own_store, handle.id)
    while handle.id not in await retention.catch_up(own_store.client):
        await asyncio.sleep(0.05)  # the engine lists it a moment later
    await own_store.until(handle, "approval_requested")
    await handle.approve()
    await own_store.end(handle)
    found = await receiver.until(handle.id, "run.waiting", "run.waiting", "run.ended")
    assert found[-1]["data"]["status"] == "completed"
