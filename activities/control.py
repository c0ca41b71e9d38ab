"""What a run needs others for to control itself."""

from __future__ import annotations

from temporalio import activity

from perdure.wire import CANCEL_RUN


@activity.defn(name=CANCEL_RUN)
async def cancel_run(reason: str) -> None:
    """Ask the engine to cancel the run that this activity belongs to: a workflow can't do so itself."""
    info = activity.info()
    handle = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    await handle.cancel(reason=reason)
