"""What a run needs others for to control itself."""

from __future__ import annotations

from temporalio import activity

from perdure.telemetry import redaction
from perdure.wire import CANCEL_RUN


@activity.defn(name=CANCEL_RUN)
async def cancel_run(reason: str) -> None:
    """Ask the engine to cancel the run that this activity belongs to: a workflow can't do so itself.

    The engine keeps a reason as plain text: it is told a redacted one, and none where everything else is encrypted.
    """
    info, client = activity.info(), activity.client()
    told = "asked for within the run" if client.data_converter.payload_codec else redaction.current().text(reason)
    await client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id).cancel(reason=told)
