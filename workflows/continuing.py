"""Going on in a new execution before the history is full. A mixin of the workflow; what goes along: `continuing`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure import approvals, continuing, control, undoing
from perdure.messages import CallRecord
from perdure.state import RunState
from perdure.transcripts import Chain
from perdure.wire import BEGAN, RECORDS, PutAway, RunRequest
from perdure.workflows import calls
from perdure.workflows.noticing import Noticing

LARGEST = 16_000_000
"""Bytes that an input may have: what is large is kept in the store, and has to be read from there."""

_LARGEST_PAGE = 200_000
"""Bytes: a query's answer has to stay under 2 MB."""

_OF_THIS_ONE = (approvals.EXPIRED, control.SHORT, undoing.ENDING)
"""Memos by which an execution records what it has decided; those of the start go along."""

_MOMENT = timedelta(milliseconds=1)
"""A cancellation that comes in the same task as what has filled the history would be seen too late, and be lost."""

_LATER = 1_000
"""Events after which it is tried again, where it could not be done."""


class Continuing:
    """The part of a run that outlives its history."""

    request: RunRequest
    state: RunState
    _chain: Chain
    _tasks: set[asyncio.Task[None]]
    _noticing: Noticing

    def __init__(self) -> None:
        self._not_before = 0
        self._leaving: Sequence[CallRecord] = ()

    def _is_full(self) -> bool:
        """Return whether the run is to continue as new as soon as it can."""
        info, most = workflow.info(), self.request.max_history_events
        length = info.get_current_history_length()
        if not self.state.shape or length < self._not_before:
            return False
        return info.is_continue_as_new_suggested() or 0 < most <= length

    async def _continue(self) -> None:
        """Put the earlier part away, then continue as new; return where the loop has to look again before."""
        if not self._is_at_rest():
            await workflow.wait_condition(self._is_at_rest)
        elif part := continuing.due(self.state):
            await self._put_away(part)
        else:
            await workflow.sleep(_MOMENT, summary="before it continues as new: is it cancelled?")
            if self._is_at_rest():
                self._go_on_elsewhere()

    def _is_at_rest(self) -> bool:
        return not self._tasks and self._noticing.idle and workflow.all_handlers_finished()

    async def _put_away(self, part: continuing.Part) -> None:
        self._chain.extend(self.state.messages)
        self._leaving = part.records
        length = self._chain.offset + len(part.entries)
        request = PutAway(
            before=self.state.before, length=length, head=self._chain.head(length), records=len(part.records)
        )
        try:
            segment = await calls.put_away(request, self.request.heartbeat)
        except ActivityError as error:
            if not is_cancelled_exception(error):
                workflow.logger.error("the run goes on without continuing as new", exc_info=error)
                self._not_before = workflow.info().get_current_history_length() + _LATER
            return
        continuing.put_away(self.state, part, segment)
        self._chain.forget(length)

    def _go_on_elsewhere(self) -> None:
        began = self.state.began or workflow.info().workflow_start_time
        request = continuing.continued(self.request, self.state, began)
        if _size(request) > LARGEST:
            workflow.logger.warning("the run is too large to continue as new, and goes on as it is")
            self._not_before = workflow.info().get_current_history_length() + _LATER
            return
        memo = {name: value for name, value in workflow.memo().items() if name not in _OF_THIS_ONE}
        workflow.continue_as_new(request, memo={**memo, BEGAN: began})

    @workflow.query(name=RECORDS, description="Records of the calls that are being put away, a page at a time")
    def records(self, start: int) -> list[CallRecord]:
        """Return them from `start` on, at most about 200 KB."""
        page, size = list[CallRecord](), 0
        for record in self._leaving[start:]:
            size += len(record.model_dump_json().encode())
            if page and size > _LARGEST_PAGE:
                break
            page.append(record)
        return page


def _size(request: RunRequest) -> int:
    return len(workflow.payload_converter().to_payload(request).data)
