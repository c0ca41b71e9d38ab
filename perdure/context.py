"""What a model sees next, out of the transcript. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.messages import Compaction, Entry, Message, ToolMessage, UserMessage
from perdure.policies import READ_RESULT, AgentSpec, ToolSpec

SUMMARY = "This is a summary of the conversation up to here; the messages that it stands for are not shown any more."


def visible(entries: Sequence[Entry]) -> list[Message]:
    """Return what the model is shown of a transcript: what came before the last compaction in short."""
    last = next((entry for entry in reversed(entries) if isinstance(entry, Compaction)), None)
    covers = last.covers if last else 0
    shown = [entry for entry in entries[covers:] if not isinstance(entry, Compaction)]
    if last is None or not last.summary:
        return shown
    return [UserMessage(role="user", content=f"{SUMMARY}\n\n{last.summary}", source="runtime"), *shown]


def handles(messages: Sequence[Message]) -> list[str]:
    """Return the handles of the results of which only a part is shown, oldest first: what `read_result` may read."""
    found: dict[str, None] = {}
    for message in messages:
        result = message.result if isinstance(message, ToolMessage | UserMessage) else None
        if result and result.ref:
            found[result.ref] = None
    return list(found)


def offered_tools(spec: AgentSpec, messages: Sequence[Message]) -> list[ToolSpec]:
    """Return the tools that a model is offered: those of its spec, and `read_result` once it can read something."""
    wanted = handles(messages) and spec.tool(READ_RESULT.name) is READ_RESULT
    return [*spec.offered, READ_RESULT] if wanted else spec.offered
