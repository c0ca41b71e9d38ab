"""Who did what to a run, written down at the end of each of its executions."""

from __future__ import annotations

from perdure.activities.afterwards import Copy, Kept
from perdure.activities.stores.copied import Audit
from perdure.audit import deeds


def audit_copy(audit: Audit) -> Copy:
    """Return what writes down who did what to each execution that has been archived."""

    async def copy(kept: Kept) -> None:
        told = kept.projection
        await audit.note(deeds(told.events, told.senders, kept.run.namespace, kept.run.tenant))

    return copy
