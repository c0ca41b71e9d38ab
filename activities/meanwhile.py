"""What is copied of runs while they go on: whoever reads logs or traces does not wait for the end of a run of days."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.activities.afterwards import Copy, make_copies, so_far
from perdure.errors import ConnectionFailed
from perdure.telemetry.executions import Recorded
from perdure.wire import ARCHIVE, WORKFLOW

_log = logging.getLogger("perdure.afterwards")

_SHARE = 30.0
"""Copying takes one of so many seconds at most: what it reads grows with a run."""
_LONGEST_PAUSE = 300.0
_ALL = 600.0
"""Seconds between two looks at all runs that are open, those that another worker has left behind included."""
_REMEMBERED = 10_000
"""Executions of which is known how far they were copied."""

Key = tuple[str, str]
"""A run, and Temporal's id of one of its executions."""


class Meanwhile:
    """Copies, every few seconds, what is new of the runs of a worker that go on. Runs that end soon are left alone.

    Args:
        client: To read histories.
        copies: What is made of them. They take what they had already, and skip it.
        query: Of the engine's index, for all runs that go on.
        every: Seconds after which what has happened is copied, about; 0: nothing is.
    """

    def __init__(self, client: Client, copies: Sequence[Copy], query: str, every: float) -> None:
        self._client = client
        self._copies = copies
        self._query = query
        self._every = every
        self._touched: dict[Key, float] = {}
        self._lengths: OrderedDict[Key, int] = OrderedDict()
        self._complained = False

    def touch(self, run_id: str, execution: str) -> None:
        """Take that something has happened to a run."""
        if self._every:
            self._touched.setdefault((run_id, execution), time.monotonic())

    def over(self, run_id: str, execution: str) -> None:
        """Take that an execution has ended: what copies it then needs no help."""
        self._touched.pop((run_id, execution), None)
        self._lengths.pop((run_id, execution), None)

    async def work(self) -> None:
        """Copy for ever."""
        looked = -_ALL
        while self._every:
            began = time.monotonic()
            if began - looked >= _ALL:
                looked = began
                await self._look()
            await self._sweep(began - self._every / 2)
            await asyncio.sleep(self._every / 2)

    async def _look(self) -> None:
        """Take that something may have happened to each run that is open."""
        try:
            async for each in self._client.list_workflows(self._query):
                self.touch(each.id, each.run_id)
        except RPCError as error:
            _log.debug("runs that go on can't be listed: %s", error)

    async def _sweep(self, before: float) -> None:
        """Copy the runs to which something has happened before then, one after another, with a pause after each.

        A worker that takes over many runs has better things to do first.
        """
        for key in [key for key, at in self._touched.items() if at < before]:
            if self._touched.pop(key, None) is None:
                continue  # it has ended meanwhile
            began = time.monotonic()
            try:
                await self._copy(key)
                self._complained = False
            except ConnectionFailed as error:
                self.touch(*key)
                if not self._complained:
                    _log.warning("what runs tell that go on waits to be copied: %s", error)
                self._complained = True
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    self.touch(*key)
            except Exception:  # noqa: BLE001 - it is made again at the run's end, and complains then, too
                _log.exception("what run %s tells can't be copied while it goes on", key[0])
            await asyncio.sleep(min((time.monotonic() - began) * _SHARE, _LONGEST_PAUSE))

    async def _copy(self, key: Key) -> None:
        handle = self._client.get_workflow_handle(key[0], run_id=key[1])
        described = await handle.describe()
        length = described.history_length
        if described.status is not WorkflowExecutionStatus.RUNNING or self._lengths.get(key) == length:
            return
        events = [event async for event in handle.fetch_history_events()]
        await make_copies(self._copies, await so_far(self._client, key[0], Recorded(key[1], events)))
        self._lengths[key] = length
        while len(self._lengths) > _REMEMBERED:
            self._lengths.popitem(last=False)


class Noting(Interceptor):
    """Has a worker note to which runs something happens."""

    def __init__(self, meanwhile: Meanwhile) -> None:
        self._meanwhile = meanwhile

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _Activity(next, self._meanwhile)


class _Activity(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, meanwhile: Meanwhile) -> None:
        super().__init__(next)
        self._meanwhile = meanwhile

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """See base class."""
        info = activity.info()
        if info.workflow_type == WORKFLOW:
            self._meanwhile.touch(info.workflow_id or "", info.workflow_run_id or "")
        elif info.activity_type == ARCHIVE:
            self._meanwhile.over(input.args[0].run_id, input.args[0].execution)
        try:
            return await super().execute_activity(input)
        finally:
            if info.workflow_type == WORKFLOW:
                self._meanwhile.touch(info.workflow_id or "", info.workflow_run_id or "")
