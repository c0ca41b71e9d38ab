"""A context strategy for any agent: `context: newest` in YAML."""

from collections.abc import Sequence

from perdure import ContextPolicy
from perdure.context import Situation, last_compaction, visible
from perdure.messages import AssistantMessage, Compaction, Entry, Message, UserMessage


class Newest:
    """Shows the user's newest message and the last turn: what came before is left out, and no model is asked."""

    name = "newest"
    policy = ContextPolicy(compact_at=0.5, compact_to=0.25)

    def view(self, entries: Sequence[Entry]) -> list[Message]:
        """Return what the model is shown."""
        return visible(entries)

    async def compact(self, situation: Situation) -> Compaction | None:
        """Leave out what came before the last turn; None where that is left out already."""
        entries, before = situation.entries, last_compaction(situation.entries)
        turns = [at for at, entry in enumerate(entries) if isinstance(entry, AssistantMessage)]
        asked = [at for at, entry in enumerate(entries) if isinstance(entry, UserMessage) and entry.source == "user"]
        covers = turns[-1] if turns else 0
        if covers <= (before.covers if before else 0):
            return None
        keeps = max((at for at in asked if at < covers), default=None)
        return Compaction(role="compaction", covers=covers, keeps=keeps, replies=len(turns) - 1)
