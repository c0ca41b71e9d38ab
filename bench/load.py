"""`python -m bench.load [NAME …]`: many runs at once, on worker processes and an embedded server of their own.

Prints a table for `docs/benchmarks.md`. What it shows are counts and ratios, which no machine's speed changes.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.__main__ import environment
from perdure import Client, Settings, Task
from perdure.client import RunHandle
from perdure.engine.server import DevServer
from perdure.events import ApprovalRequested
from perdure.examples.travel import script
from perdure.examples.travel.booking_service import BookingService
from perdure.loading import load_agents

AGENTS = Path(__file__).with_name("queueing.py")
TRAVEL = Path(script.__file__).with_name("agent.py")
BURST = 50
"""Runs that are started at once; many more would only wait for the server."""


@dataclass(frozen=True)
class Load:
    """A server, its client, and a folder for logs."""

    client: Client
    folder: Path

    @property
    def log(self) -> Path:
        """Where model calls are noted."""
        return self.folder / "calls.log"

    def calls(self) -> list[tuple[float, str]]:
        """Return when each model call began, and what its run was told."""
        lines = [line.partition(" ") for line in self.log.read_text().splitlines()]
        return [(float(at), told) for at, _, told in lines]

    @contextmanager
    def worker(self, file: Path, **more: str) -> Generator[subprocess.Popen[bytes]]:
        """Serve that file in a process of its own."""
        env = {**os.environ, "BENCH_LOG": str(self.log), "BENCH_CALL": "0", **more}
        command = [sys.executable, "-m", "perdure.starter", "worker", str(file)]
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()

    async def start(self, name: str, tasks: Sequence[Task]) -> list[RunHandle]:
        """Start a run of each task, in this order as nearly as it goes."""
        agent = next(agent for agent in load_agents(str(AGENTS)) if agent.name == name)
        handles: list[RunHandle] = []
        for at in range(0, len(tasks), BURST):
            handles += await asyncio.gather(*(self.client.start(agent, task) for task in tasks[at : at + BURST]))
        return handles

    async def until(self, true: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the engine has come that far."""
        while not await true():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.2)

    async def waiting(self, count: int) -> None:
        """Wait until so many runs wait for approval."""

        async def reached() -> bool:
            found = await self.client.temporal.count_workflows("PerdureStatus = 'waiting_approval'")
            return found.count >= count

        await self.until(reached)

    async def queued(self, handles: Sequence[RunHandle]) -> None:
        """Wait until the model call of each run is due, or was."""
        for handle in handles:
            await self.until(functools.partial(self._calls, handle.id))

    async def _calls(self, run_id: str) -> bool:
        described = await self.client.temporal.get_workflow_handle(run_id).describe()
        return bool(described.raw_description.pending_activities)


Told = dict[str, str]


async def travel(load: Load, number: int) -> Told:
    """Book `number` trips at once on one worker, each booking approved as soon as it is asked for."""
    agent = load_agents(str(TRAVEL))[0]
    today = datetime.now(UTC).date()
    for week in range(100):  # a flight has few seats
        replies = script.replies(today + timedelta(weeks=week))
        (load.folder / f"{week}.json").write_text(json.dumps(replies))
    with (
        BookingService(load.folder / "bookings.db") as bookings,
        load.worker(TRAVEL, TRAVEL_BOOKING_URL=bookings.address),
    ):
        began = time.monotonic()
        trips = [replace(agent, model=f"scripted:{load.folder / f'{at % 100}.json'}") for at in range(number)]
        handles = await asyncio.gather(*(load.client.start(trip, "Book the trip.") for trip in trips))
        statuses = await asyncio.gather(*(_approved(handle) for handle in handles))
        took = time.monotonic() - began
        booked = [bookings.ledger.counts(kind)["booked"] for kind in ("flights", "hotels")]
    done = statuses.count("completed")
    return {
        f"{number} travel runs at once on one worker: completed": f"{done} of {number}",
        "flights and hotels booked by them": " and ".join(map(str, booked)),
        "seconds until the last had ended": f"{took:.0f}",
    }


async def _approved(handle: RunHandle) -> str:
    async for event in handle.events():
        if isinstance(event, ApprovalRequested):
            await handle.approve(event.call)
    return (await handle.result()).status


async def urgent(load: Load, number: int) -> Told:
    """Start one urgent run when the model calls of `number` others are queued for the only slot."""
    served = await _served(load, [[Task(input="other")] * number, [Task(input="urgent", priority=1)]])
    return {f"an urgent run behind {number} queued ones: served as number": f"{served.index('urgent') + 1}"}


async def tenants(load: Load, number: int) -> Told:
    """Let two tenants with weights 3:1 queue up for one slot, the lighter one first."""
    load.client.settings = load.client.settings.model_copy(update={"tenant_weights": {"heavy": 3}})
    tasks = [Task(input=name, tenant=name) for name in ["light"] * number + ["heavy"] * number]
    while_both = (await _served(load, [tasks]))[: number * 4 // 3 - 4]
    heavy, light = while_both.count("heavy"), while_both.count("light")
    return {f"two tenants with weights 3:1, {number} runs each: shares while both waited": f"{heavy}:{light}"}


async def _served(load: Load, groups: Sequence[Sequence[Task]]) -> list[str]:
    """Return in which order model calls are served that were queued group after group while the one slot was held."""
    with load.worker(AGENTS, PERDURE_MODEL_SLOTS="1", BENCH_CALL="60") as held:
        handles: list[RunHandle] = []
        for tasks in groups:
            handles += await load.start("answering", tasks)
            await load.queued(handles)
        held.kill()
    before = len(load.calls())
    with load.worker(AGENTS, PERDURE_MODEL_SLOTS="1"):
        await asyncio.gather(*(handle.result() for handle in handles))
    return [told for _, told in load.calls()][before:]


async def rate(load: Load, number: int) -> Told:
    """Keep three workers busy for half a minute at `number` model calls a second."""
    limit = {"PERDURE_MODEL_RATE": json.dumps({"noting": number})}
    with load.worker(AGENTS, **limit), load.worker(AGENTS, **limit), load.worker(AGENTS, **limit):
        handles = await load.start("answering", [Task(input="go")] * (number * 30))
        await asyncio.gather(*(handle.result() for handle in handles))
    times = sorted(at for at, _ in load.calls())
    windows = [sum(at <= other < at + 10 for other in times) for at in times if at + 10 <= times[-1]]
    most, least = max(windows) / (10 * number), min(windows) / (10 * number)
    return {f"{number} model calls a second, three workers: in any 10 s, of those allowed": f"{least:.2f}–{most:.2f}"}


async def waiting(load: Load, number: int) -> Told:
    """Let `number` runs wait for approval on a worker that keeps 100 in memory, then approve each."""
    with load.worker(AGENTS, PERDURE_MAX_RUNS="100") as worker:
        few, sizes = number // 5, list[int]()
        handles: list[RunHandle] = []
        for count in (few, number - few):
            handles += await load.start("asking", [Task(input="go")] * count)
            await load.waiting(len(handles))
            sizes.append(_memory(worker.pid))
        statuses: list[str] = []
        for at in range(0, number, BURST):
            statuses += await asyncio.gather(*(_approved(handle) for handle in handles[at : at + BURST]))
    done, ratio = statuses.count("completed"), sizes[1] / sizes[0]
    return {
        f"{number} runs wait for approval on a worker with PERDURE_MAX_RUNS=100: approved and completed": f"{done}",
        f"its memory with {number} of them, beside that with {few}": f"{ratio:.2f}×",
    }


def _memory(pid: int) -> int:
    """Return the resident memory of a process in KB."""
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)]))


PARTS: dict[str, tuple[Callable[[Load, int], Awaitable[Told]], int]] = {
    "travel": (travel, 200),
    "urgent": (urgent, 200),
    "tenants": (tenants, 100),
    "rate": (rate, 5),
    "waiting": (waiting, 1000),
}


@asynccontextmanager
async def opened() -> AsyncGenerator[Load]:
    """Start a server for one part."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        os.environ.update(environment(home))
        settings = Settings(home=home)
        async with await DevServer.start(settings):
            load = Load(await Client.connect(settings), Path(folder))
            load.log.touch()
            yield load


async def main(names: Sequence[str]) -> None:
    """Run these parts and print what they told."""
    print("|  | measured |\n| --- | --- |")
    for name in names:
        part, number = PARTS[name]
        async with opened() as load:
            for what, value in (await part(load, number)).items():
                print(f"| {what} | {value} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.load")
    parser.add_argument("names", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    asyncio.run(main(parser.parse_args().names))
