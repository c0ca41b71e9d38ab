"""What a model sees next, out of the transcript. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.messages import Compaction, Entry, Message, UserMessage

SUMMARY = "This is a summary of the conversation up to here; the messages that it stands for are not shown any more."


def visible(entries: Sequence[Entry]) -> list[Message]:
    """Return what the model is shown of a transcript: what came before the last compaction in short."""
    last = next((entry for entry in reversed(entries) if isinstance(entry, Compaction)), None)
    covers = last.covers if last else 0
    shown = [entry for entry in entries[covers:] if not isinstance(entry, Compaction)]
    if last is None or not last.summary:
        return shown
    return [UserMessage(role="user", content=f"{SUMMARY}\n\n{last.summary}", source="runtime"), *shown]
