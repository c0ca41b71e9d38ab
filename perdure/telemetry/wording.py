"""What an event says besides what it is, in words."""

from __future__ import annotations

from perdure import events as ev
from perdure.messages import Content
from perdure.state import STAGED


def words_of(event: ev.Event) -> str:
    """Return what an event says besides what it is."""
    match event:
        case ev.Said() | ev.Told():
            return text_of(event.content)
        case ev.BudgetWarning():
            return f"{event.share:.0%} of {event.most} are gone"
        case ev.RunStarted():
            return f"resumed from {event.forked_from.run_id}" if event.forked_from else "resumed" * event.resumed
        case ev.DecisionRefused() | ev.Paused() | ev.Resumed() | ev.CancelRequested():
            return event.reason
        case ev.ModelFailed() | ev.RuntimeFault():
            return event.message
        case ev.HandedOff() | ev.ToolsListed():
            return _whose(event)
        case ev.ApprovalReminder():
            return STAGED if event.call == STAGED else event.name
        case _:
            return ""


def _whose(event: ev.HandedOff | ev.ToolsListed) -> str:
    if isinstance(event, ev.HandedOff):
        return f"{event.agent} to {event.to}"
    return event.problem or ", ".join(f"{len(names)} of {server}" for server, names in event.tools.items())


def text_of(content: Content) -> str:
    """Return what is said as text; images and files by their kind."""
    if isinstance(content, str):
        return content
    return " ".join(part.text if part.kind == "text" else f"[{part.kind}]" for part in content)
