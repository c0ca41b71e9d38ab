"""The people of a suite: they decide what is asked for, as the script says, and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from perdure import events as ev
from perdure.errors import DecisionRejected, PerdureError
from perdure.evals.suites import Decision
from perdure.failures import WORKER_LOST

if TYPE_CHECKING:
    from perdure.client import Client, RunHandle

BY = "the suite"
"""Who decides, in a run's record."""
LOOK = 1.0
"""Seconds between two looks for runs below a run that wait for somebody."""
_OVER = ("already_decided", "unknown_call", "not_waiting", "closing", "closed")
"""Why a decision does not take where it was taken before, such as by the evaluation that has crashed."""


class Unforeseen(PerdureError):
    """A run waits for what its case says nothing about; one sentence."""


class WorkerLost(Unforeseen):
    """Nobody knows what became of a call, since the evaluation itself was ended while it ran: no fault of the agent."""


class People:
    """Decides in the runs of one attempt, one after the other, and in those below them.

    Args:
        script: What is said, by tool; `*` for those that are not named.
        nested: Whether there may be runs below it.
    """

    def __init__(self, client: Client, script: Mapping[str, Sequence[Decision]], *, nested: bool) -> None:
        self._client, self._script, self._nested = client, script, nested
        self._asked: dict[str, int] = {}

    async def attend(self, handle: RunHandle) -> None:
        """Decide what comes up, to the run's end.

        Raises:
            WorkerLost: If a call is in doubt because this evaluation was ended while it ran.
            Unforeseen: If it waits for something else.
        """
        async with self._looking(handle.id) as below:
            own = asyncio.create_task(self._attend(handle))
            waited = [own, *below]
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                for task in waited:
                    if task.done():
                        task.result()
            finally:
                own.cancel()
                with suppress(asyncio.CancelledError, PerdureError):
                    await own

    @asynccontextmanager
    async def _looking(self, above: str) -> AsyncGenerator[list[asyncio.Task[None]]]:
        tasks = [asyncio.create_task(self._look_below(above))] if self._nested else []
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError, PerdureError):
                    await task

    async def _look_below(self, above: str) -> None:
        """Attend to the runs below that wait for somebody, until cancelled."""
        attended: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                for wish in ("approval", "answer"):
                    for run in await self._client.list_runs(waiting_for=wish):
                        if run.id.startswith(f"{above}/") and run.id not in attended:
                            handle = self._client.handle(run.id)
                            attended[run.id] = asyncio.create_task(self._attend(handle))
                for task in attended.values():
                    if task.done():
                        task.result()
                await asyncio.sleep(LOOK)
        finally:
            for task in attended.values():
                task.cancel()

    async def _attend(self, handle: RunHandle) -> None:
        async for event in handle.events():
            match event:
                case ev.ApprovalRequested() | ev.Asked():
                    await self._decide(handle, event, self._due(event.name))
                case ev.InDoubt():
                    kind = WorkerLost if event.message == WORKER_LOST else Unforeseen
                    raise kind(f"Call {event.call} of {event.name} is in doubt: {event.message}")
                case ev.Paused():
                    raise Unforeseen(f"It is paused: {event.reason}")
                case _:
                    pass

    def _due(self, tool: str) -> Decision:
        """Return what is said now. A run asks in the same order whenever it is looked at."""
        said = self._script.get(tool) or self._script.get("*")
        if not said:
            raise Unforeseen(f"{tool} waits for a person, and the case has no approvals for it.")
        nth = self._asked.get(tool, 0)
        self._asked[tool] = nth + 1
        return said[min(nth, len(said) - 1)]

    async def _decide(self, handle: RunHandle, event: ev.ApprovalRequested | ev.Asked, decision: Decision) -> None:
        question = isinstance(event, ev.Asked)
        if question != (decision.answer is not None):
            wants = "an answer" if question else "an approval"
            raise Unforeseen(f"{event.name} waits for {wants}, and the case says something else.")
        try:
            await _say(handle, event, decision)
        except DecisionRejected as error:
            if error.reason not in _OVER:
                raise Unforeseen(f"{event.name} was not decided: {error}") from error


async def _say(handle: RunHandle, event: ev.ApprovalRequested | ev.Asked, decision: Decision) -> None:
    if decision.answer is not None:
        await handle.answer(decision.answer, event.call, by=BY)
    elif decision.deny is not None:
        await handle.deny(event.call, by=BY, reason=decision.deny)
    else:
        shown = event.arguments if isinstance(event, ev.ApprovalRequested) else {}
        edited = {**shown, **decision.edit} if decision.edit is not None else None
        await handle.approve(event.call, arguments=edited, by=BY)
