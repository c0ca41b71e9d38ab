"""What is measured: each subject serves one queue, and starts runs of one and the same conversation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from temporalio.client import Client, WorkflowHandle

from bench import bare
from perdure import Agent, Done, Limits, NotDone, Settings, ToolContext, tool
from perdure.activities import providers
from perdure.client import Client as PerdureClient
from perdure.messages import AssistantMessage
from perdure.models import ModelReply, ModelRequest, RawCall
from perdure.policies import ModelSettings
from perdure.worker import serving

QUEUE = "bench"
LOG = "BENCH_LOG"
"""Names the environment variable with the file to which a held tool writes a line each time it begins."""

Handle = WorkflowHandle[Any, Any]


class Subject(Protocol):
    """Something that runs agents."""

    def serving(self, client: Client) -> Any:
        """Return an async context manager: a worker."""
        ...

    async def steps(self, client: Client, steps: int) -> Handle:
        """Start a run of so many steps."""
        ...

    async def hold(self, client: Client) -> Handle:
        """Start a run whose tool does not end the first time."""
        ...

    async def wait(self, client: Client) -> Handle:
        """Start a run that waits for approval, for ever."""
        ...


class Bare:
    """Temporal by hand."""

    def __init__(self, *, local: bool = False, sandboxed: bool = True) -> None:
        self._local, self._sandboxed = local, sandboxed
        self._ids = count()

    def serving(self, client: Client) -> Any:
        """Return a worker."""
        return bare.serving(client, QUEUE, sandboxed=self._sandboxed)

    async def steps(self, client: Client, steps: int) -> Handle:
        """Start a run of so many steps."""
        return await self._start(client, bare.Bare.run, steps, self._local)

    async def hold(self, client: Client) -> Handle:
        """Start a run whose tool does not end the first time."""
        return await self._start(client, bare.BareHold.run, os.environ[LOG])

    async def wait(self, client: Client) -> Handle:
        """Start a run that waits."""
        return await self._start(client, bare.BareWait.run)

    async def _start(self, client: Client, run: Any, *args: Any) -> Handle:
        run_id = f"bare-{os.getpid()}-{next(self._ids)}"
        return await client.start_workflow(run, args=args, id=run_id, task_queue=QUEUE)


# -- the same on Perdure -----------------------------------------------------------------------------------


class Counting:
    """A model without latency: calls one tool as often as the user says, then answers."""

    provider = "bench"

    def __init__(self, name: str, settings: ModelSettings) -> None:
        del settings
        self._tool = name

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the reply that is due. Of a long run that was compacted, the last calls are still to be seen."""
        if not request.tools:
            return ModelReply(text="It read on and on.")  # a summary
        made = [message.calls[0].id for message in request.messages[-3:] if isinstance(message, AssistantMessage)]
        step = int(made[-1].removeprefix("c")) + 1 if made else 1
        if step > int(getattr(request.messages[0], "content", "0")):
            return ModelReply(text="done")
        return ModelReply(calls=[RawCall(f"c{step}", self._tool, f'{{"n": {step}}}')])

    async def aclose(self) -> None:
        """Nothing is open."""


async def returns(n: int) -> str:
    """Return 1,000 characters at once."""
    del n
    return bare.TEXT


async def holds(n: int) -> str:
    """Stay until killed, the first time."""
    del n
    await asyncio.sleep(60 if bare.begins(Path(os.environ[LOG])) else 0)
    return bare.TEXT


def held(ctx: ToolContext, n: int) -> Done | NotDone:
    """Look up whether `holds` has begun, which is its whole effect."""
    del ctx, n
    return Done(bare.TEXT) if Path(os.environ[LOG]).exists() else NotDone()


TOOLS = {
    "read": tool(name="read", effect="read")(returns),
    "local": tool(name="local", effect="read", local=True)(returns),
    "asking": tool(name="asking", effect="read", approval="always")(returns),
    "hold": tool(name="hold", effect="read", timeout=60)(holds),
    "hold_once": tool(name="hold_once", effect="unsafe", timeout=60, probe=held)(holds),
}
UNLIMITED = Limits(steps=100_000, input_tokens=None, output_tokens=None, wall_time=None)
AGENTS = {name: Agent(name, f"bench:{name}", tools=[one], limits=UNLIMITED) for name, one in TOOLS.items()}


class OnPerdure:
    """Perdure, with settings as they come."""

    def __init__(self, tool: str = "read", held: str = "hold") -> None:
        self._tool, self._held = tool, held
        self._settings = Settings()

    @asynccontextmanager
    async def serving(self, client: Client) -> AsyncGenerator[None]:
        """Serve an agent for each measurement."""
        providers.register("bench", Counting)
        async with serving(client, list(AGENTS.values()), QUEUE, self._settings):
            yield

    async def steps(self, client: Client, steps: int) -> Handle:
        """Start a run of so many steps."""
        return await self._start(client, self._tool, steps)

    async def hold(self, client: Client) -> Handle:
        """Start a run whose tool does not end the first time."""
        return await self._start(client, self._held, 1)

    async def wait(self, client: Client) -> Handle:
        """Start a run that waits."""
        return await self._start(client, "asking", 1)

    async def _start(self, client: Client, agent: str, steps: int) -> Handle:
        perdure = PerdureClient(client, self._settings)
        handle = await perdure.start(AGENTS[agent], str(steps), task_queue=QUEUE)
        return client.get_workflow_handle(handle.id)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "bare": Bare,
    "bare, unsandboxed": lambda: Bare(sandboxed=False),
    "bare, local activity": lambda: Bare(local=True),
    "perdure": OnPerdure,
    "perdure, local=True": lambda: OnPerdure("local"),
    "perdure, unsafe with probe": lambda: OnPerdure(held="hold_once"),
}
