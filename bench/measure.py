"""One measurement in a process of its own: `python -m bench.measure KIND SUBJECT NUMBER` prints JSON.

Worker and client are in this process; the server is another one, the same for all.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from bench.subjects import LOG, SUBJECTS, Handle, Subject
from perdure import Settings
from perdure.engine.connection import connect

Measured = dict[str, float]
WARM_UP = 3
BURST_STEPS = 5


async def steps(client: Client, subject: Subject, number: int) -> Measured:
    """Measure one run of `number` steps: time, CPU of this process, and history, each per step."""
    async with subject.serving(client):
        await (await subject.steps(client, WARM_UP)).result()
        began, used = time.perf_counter(), time.process_time()
        handle = await subject.steps(client, number)
        await handle.result()
        wall, cpu = time.perf_counter() - began, time.process_time() - used
        return {
            "ms": 1_000 * wall / number,
            "cpu_ms": 1_000 * cpu / number,
            **await _history(client, handle.id, number),
        }


async def _history(client: Client, run_id: str, number: int) -> Measured:
    """Return what a run has left, all its executions together, per step."""
    execution, executions, size, kinds = "", 0, 0, Counter[int]()
    while execution or not executions:
        handle: Handle = client.get_workflow_handle(run_id, run_id=execution or None)
        size += (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes
        events = [event async for event in handle.fetch_history_events()]
        kinds.update(event.event_type for event in events)
        executions += 1
        execution = events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return {
        "bytes": size / number,
        "events": kinds.total() / number,
        "workflow_tasks": kinds[EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED] / number,
        "executions": executions,
    }


async def burst(client: Client, subject: Subject, number: int) -> Measured:
    """Measure `number` runs of five steps at once: runs a second."""
    async with subject.serving(client):
        await (await subject.steps(client, WARM_UP)).result()
        began, used = time.perf_counter(), time.process_time()
        handles = await asyncio.gather(*(subject.steps(client, BURST_STEPS) for _ in range(number)))
        await asyncio.gather(*(handle.result() for handle in handles))
        wall, cpu = time.perf_counter() - began, time.process_time() - used
        return {"runs_per_s": number / wall, "cpu_ms_per_run": 1_000 * cpu / number}


async def idle(client: Client, subject: Subject, number: int) -> Measured:
    """Measure `number` runs that wait for approval: memory of this process for each."""
    async with subject.serving(client):
        await _waiting(client, [await subject.wait(client)])
        before = _memory()
        handles: list[Handle] = []
        for _ in range(0, number, 50):
            handles += await asyncio.gather(*(subject.wait(client) for _ in range(50)))
        await _waiting(client, handles)
        after = _memory()
        for handle in handles:
            await handle.terminate()
        return {"kb_per_run": (after - before) / len(handles)}


async def _waiting(client: Client, handles: list[Handle]) -> None:
    """Return as soon as all of them wait for approval."""
    own = f"WorkflowId IN ({', '.join(repr(handle.id) for handle in handles)})"
    query = f"PerdureStatus = 'waiting_approval' AND {own}"
    while (await client.count_workflows(query)).count < len(handles):  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.2)


def _memory() -> int:
    """Return the resident memory of this process in KB."""
    gc.collect()
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())]))


async def crash(client: Client, subject: Subject, number: int) -> Measured:
    """Measure a worker's loss: from kill -9 in the middle of a tool to the run's end, and how often the tool began.

    Another worker is started at once. `number` seconds lie between the tool's beginning and the kill.
    """
    name = sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "began"
        os.environ[LOG] = str(log)
        with _worker(name) as first:
            handle = await subject.hold(client)
            while not log.exists():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.02)
            await asyncio.sleep(number)
            first.kill()
            killed = time.perf_counter()
        with _worker(name) as second:
            await handle.result()
            seconds = time.perf_counter() - killed
            second.kill()
        return {"seconds": seconds, "began": len(log.read_text().splitlines())}


def _worker(name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bench.measure", "serve", name, "0"])


async def serve(client: Client, subject: Subject, number: int) -> Measured:
    """Serve until killed."""
    del number
    async with subject.serving(client):
        await asyncio.Event().wait()
    return {}


KINDS: dict[str, Callable[[Client, Subject, int], Coroutine[Any, Any, Measured]]] = {
    "steps": steps,
    "burst": burst,
    "idle": idle,
    "crash": crash,
    "serve": serve,
}


async def main(kind: str, name: str, number: str) -> None:
    """Measure and print."""
    client = await connect(Settings())
    print(json.dumps(await KINDS[kind](client, SUBJECTS[name](), int(number))), flush=True)
    os._exit(0)  # the SDK's threads now and then abort an interpreter of 3.11 that ends in the usual way


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
