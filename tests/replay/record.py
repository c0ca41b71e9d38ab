"""Records the runs that `test_replay.py` replays.

    python -m tests.replay.record NAME …     plays those scenarios and keeps what they leave; without names, all
    python -m tests.replay.record --ends     replays what is recorded, and keeps only the state in which it ends now

The first is for a new scenario. A history that was released stays, as old runs do: it is the proof that they go on.
The second is for other words to the model: the diff shows what a waiting run would say now.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.worker import Worker

from perdure import Agent, Client, Settings
from perdure.activities import providers
from perdure.client import RunHandle
from perdure.engine.server import DevServer
from perdure.errors import RunEnded
from perdure.state import RunState
from perdure.testing import ScriptedModel
from perdure.wire import STATE
from perdure.worker import serving
from tests.replay.replaying import HERE, NAMES, end_of, replayed
from tests.replay.scenarios import BOOKINGS, QUEUE, SCENARIOS, Scenario, book_elsewhere

_IDENTITY = re.compile(r"(perdure )?\d+@[^\s\"-]+|perdure-\w+ [^\s\"@]+@[^\s\"]+")


async def main(names: list[str]) -> None:
    """Record those scenarios, or all."""
    with tempfile.TemporaryDirectory() as folder:
        told: dict[str, Any] = {"notify_command": "true", "notify_on": []}
        settings = Settings(home=Path(folder), grace=timedelta(), cancel_grace=timedelta(seconds=0.3), **told)
        async with await DevServer.start(settings):
            client = await Client.connect(settings)
            for name in names or SCENARIOS:
                await record(name, SCENARIOS[name], client, settings)


async def record(name: str, scenario: Scenario, client: Client, settings: Settings) -> None:
    """Play one scenario and keep what it left: its history, and the state in which the workflow itself ended."""
    providers.register("script", lambda _name, _settings: ScriptedModel(scenario.replies))
    agent = Agent("subject", f"script:{name}", tools=scenario.tools, **scenario.options)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(client.temporal, [agent], QUEUE, settings))
        elsewhere = Worker(client.temporal, task_queue=BOOKINGS, activities=[book_elsewhere], identity="bookings")
        await stack.enter_async_context(elsewhere)
        if scenario.before:
            await scenario.before(client)
        changes = {"max_history_events": scenario.max_events, "notify_on": scenario.notify}
        client.settings = settings.model_copy(update=changes)
        handle = await scenario.start(client, agent, name.replace("_", "-"))
        if scenario.meanwhile:
            async with asyncio.timeout(30):
                await scenario.meanwhile(handle, client)
        with suppress(RunEnded):
            await asyncio.wait_for(handle.result(), 30)
        executions = await executions_of(handle, client)
        for number, execution in enumerate(executions, 1):
            part = name if len(executions) == 1 else f"{name}_{number}"
            await keep(part, handle, execution, client)
            if scenario.followed:
                await keep_followers(part, handle, execution, client)


async def executions_of(handle: RunHandle, client: Client) -> list[str]:
    """Return the engine's ids of a run's executions, oldest first."""
    found = [(await client.temporal.get_workflow_handle(handle.id).describe()).run_id or ""]
    while True:
        workflow = client.temporal.get_workflow_handle(handle.id, run_id=found[0])
        first = await anext(workflow.fetch_history_events(page_size=1))
        before = first.workflow_execution_started_event_attributes.continued_execution_run_id
        if not before:
            return found
        found.insert(0, before)


async def keep(name: str, handle: RunHandle, execution: str, client: Client) -> None:
    """Write history and end of one execution, without anything of this machine."""
    workflow = client.temporal.get_workflow_handle(handle.id, run_id=execution)
    history = json.loads((await workflow.fetch_history()).to_json())
    state: RunState = await workflow.query(STATE, result_type=RunState)
    seen: dict[str, str] = {}
    write("histories", name, scrubbed(history, seen))
    write("ends", name, {"run": handle.id, "state": state.model_dump(mode="json", exclude_defaults=True)})
    ended = state.outcome.status if state.outcome else "open"
    sys.stdout.write(f"{name}: {len(history['events'])} events, {ended}\n")


async def keep_followers(name: str, handle: RunHandle, execution: str, client: Client) -> None:
    """Write the histories of what an execution has begun to follow itself, or the one before it, once that is done."""
    events = client.temporal.get_workflow_handle(handle.id, run_id=execution).fetch_history_events()
    started = [event.child_workflow_execution_started_event_attributes async for event in events]
    for number, child in enumerate((one for one in started if one.workflow_execution.workflow_id), 1):
        workflow = client.temporal.get_workflow_handle(child.workflow_execution.workflow_id)
        await asyncio.wait_for(workflow.result(), 30)
        history = json.loads((await workflow.fetch_history()).to_json())
        write("followers", f"{name}_{number}", scrubbed(history, {}))
        sys.stdout.write(f"{name}: {len(history['events'])} events of what follows\n")


async def end_again() -> None:
    """Replay what is recorded, and keep the state in which it ends."""
    for name in NAMES:
        state = await replayed(name)
        write("ends", name, {**end_of(name), "state": state.model_dump(mode="json", exclude_defaults=True)})


def write(kind: str, name: str, data: dict[str, Any]) -> None:
    """Write one file."""
    path = HERE / kind / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(lines(data), encoding="utf-8")


def lines(data: dict[str, Any]) -> str:
    """Return `data` as JSON with a line for each event, or each field of the state: small, and readable in a diff."""
    *_, (name, last) = data.items()
    head = json.dumps({**data, name: None}, ensure_ascii=False).removesuffix("null}")
    dumped = [json.dumps(each, ensure_ascii=False) for each in (last if isinstance(last, list) else last.values())]
    if isinstance(last, dict):
        dumped = [f"{json.dumps(key)}: {text}" for key, text in zip(last, dumped, strict=True)]
    begin, end = "[]" if isinstance(last, list) else "{}"
    return f"{head}{begin}\n" + ",\n".join(dumped) + f"\n{end}}}\n"


def scrubbed(data: Any, seen: dict[str, str]) -> Any:
    """Return `data` with workers and clients numbered in the order in which they appear, and no stack traces."""
    if isinstance(data, dict):
        return {key: "" if key == "stackTrace" else scrubbed(value, seen) for key, value in data.items()}
    if isinstance(data, list):
        return [scrubbed(value, seen) for value in data]
    if not isinstance(data, str):
        return data

    def number(found: re.Match[str]) -> str:
        return seen.setdefault(found[0], f"{'worker' if found[1] else 'client'}-{len(seen) + 1}")

    return _IDENTITY.sub(number, data)


if __name__ == "__main__":
    asyncio.run(end_again() if sys.argv[1:] == ["--ends"] else main(sys.argv[1:]))
