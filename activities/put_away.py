"""Putting the earlier part of a run away in the store, before the run continues as new."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.activities.conversations import QUERY_PATIENCE, Conversations, asking
from perdure.activities.heartbeats import heartbeats
from perdure.activities.stores import Blobs, run_owner, segments
from perdure.activities.stores.patience import patiently
from perdure.errors import ConnectionFailed
from perdure.messages import CallRecord, Segment
from perdure.wire import PUT_AWAY, RECORDS, PutAway

_PATIENCE = timedelta(seconds=30)
"""How long an attempt waits for a store that is down."""

_DEFECT_TRIES = 5


class Archivist:
    """Puts away what runs are done with.

    Args:
        client: To ask a workflow for what is not in memory.
        conversations: What is.
        blobs: Where it goes.
    """

    def __init__(self, client: Client, conversations: Conversations, blobs: Blobs) -> None:
        self._client = client
        self._conversations = conversations
        self._blobs = blobs

    @activity.defn(name=PUT_AWAY)
    async def put_away(self, request: PutAway) -> Segment:
        """Return the segment that holds what `request` names; the same one, however often it is written.

        Raises:
            ApplicationError: If the store can't be used: it is tried again until it can. Or if the workflow has
                something else than what it named, which no repetition will change.
        """
        run_id = activity.info().workflow_id or ""
        async with heartbeats():
            entries = await self._conversations.part(run_id, request, asking(self._client))
            records = await self._records(run_id, request.records)
            owner = run_owner(self._client.namespace, run_id)
            write = partial(segments.write, self._blobs, owner, request.before, entries, records)
            try:
                segment = await patiently(write, _PATIENCE, f"run {run_id} waits for the store")
            except ConnectionFailed as error:
                raise ApplicationError(str(error), type=error.kind) from None
        if segment.head != request.head or len(records) != request.records:
            final = activity.info().attempt >= _DEFECT_TRIES
            text = f"Run {run_id} has something else up to message {request.length} than what is to be put away."
            raise ApplicationError(text, type="internal_error", non_retryable=final)
        return segment

    async def _records(self, run_id: str, count: int) -> list[CallRecord]:
        handle = self._client.get_workflow_handle(run_id, run_id=activity.info().workflow_run_id)
        found: list[CallRecord] = []
        while len(found) < count:
            page: list[CallRecord] = await handle.query(
                RECORDS, len(found), result_type=list[CallRecord], rpc_timeout=QUERY_PATIENCE
            )
            if not page:
                break
            found.extend(page)
        return found
