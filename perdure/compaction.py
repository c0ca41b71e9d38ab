"""How a conversation is made shorter: long results first, then old turns, and only then what is new.

The ladder below goes from what costs the model least to what costs it most, and ends with the least that can be shown:
a summary, and the user's newest message without its middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.context import NotWritten, Situation, last_compaction, to_keep, visible
from perdure.messages import AssistantMessage, Compaction, Entry, Message, ToolMessage, UserMessage
from perdure.policies import DEFAULT_STRATEGY, ContextPolicy
from perdure.summaries import instructions, mechanical, story
from perdure.verbatim import verbatim

_BYTES = 4
"""Of a token, about."""

_LARGEST_SUMMARY = 8_000
"""Bytes of a summary, and as many of what is kept word for word; an eighth of the window where that is less."""

_SHORT = 400
"""Bytes of a long result where even previews take too much room."""


class DefaultStrategy:
    """Shows the transcript as it is; compacts it by previews of long results, then by a summary of old turns.

    Args:
        policy: How many turns stay whole, what a long result is, and so on.
    """

    name = DEFAULT_STRATEGY

    def __init__(self, policy: ContextPolicy | None = None) -> None:
        self.policy = policy or ContextPolicy()

    def view(self, entries: Sequence[Entry]) -> list[Message]:
        """Return what the model is shown."""
        return visible(entries)

    async def compact(self, situation: Situation) -> Compaction | None:
        """Return what makes the transcript short enough, as far as that is possible."""
        plan = choose(situation, self.policy)
        if plan is None:
            return None
        for text in to_keep(situation.entries, plan):
            await situation.keep(text)
        return await _summed_up(plan, situation)


# -- the ladder --------------------------------------------------------------------------------------------


def choose(situation: Situation, policy: ContextPolicy) -> Compaction | None:
    """Return the compaction that costs least and is enough, but for its summary; None where nothing is gained.

    The newest turns are given up one by one for the sake of `situation.target`; more than that only for its `limit`.
    """
    before = situation.count(visible(situation.entries))
    if before <= situation.limit:
        return None
    last = last_compaction(situation.entries) or Compaction(role="compaction")
    best: tuple[int, Compaction] | None = None
    bearable: Compaction | None = None
    for plan, harmless in _ladder(situation, policy, last):
        drafted = _drafted(plan, last, situation)
        size = situation.count(visible([*situation.entries, drafted]))
        enough = situation.limit if not harmless else situation.target
        if drafted.covers == last.covers and harmless:
            enough = (situation.limit + situation.target) // 2  # a summary costs the model more than a little room
        if size <= enough and size < before:
            return bearable if bearable and not harmless else drafted
        if size <= situation.limit:
            bearable = drafted
        if size < (best[0] if best else before):
            best = size, drafted
    return bearable or (best[1] if best else None)


def _ladder(situation: Situation, policy: ContextPolicy, last: Compaction) -> Iterator[tuple[Compaction, bool]]:
    """Yield compactions, each tighter than the one before, and whether it leaves the newest turn as it is."""
    entries, length = situation.entries, len(situation.entries)
    limit = min(policy.long_result, last.limit if last.shortened > last.covers else policy.long_result)
    start = {keep: _start_of_turn(entries, last.covers, keep) for keep in _halves(policy.keep_turns)}
    old, newest = start[policy.keep_turns], start[1]
    draft = last.model_copy(update={"limit": limit, "shortened": max(last.shortened, old)})
    yield draft, True
    for covers in dict.fromkeys(start.values()):
        yield draft.model_copy(update={"covers": covers, "shortened": max(last.shortened, covers)}), True
    whole = draft.model_copy(update={"covers": newest, "shortened": length})
    share = situation.window // 2  # an eighth of the window, in bytes
    for each in sorted({max(share, limit), limit, _SHORT}, reverse=True):
        yield whole.model_copy(update={"limit": min(each, limit) if last.shortened > newest else each}), False
    barest = whole.model_copy(update={"limit": _SHORT, "covers": _end_of_turns(entries, last.covers)})
    yield barest, False
    for cut in (situation.window, situation.window // 4):
        yield barest.model_copy(update={"cut": min(cut, last.cut or cut)}), False
    yield barest.model_copy(update={"cut": situation.window // 4, "covers": length}), False


def _halves(number: int) -> list[int]:
    halves = [number]
    while halves[-1] > 1:
        halves.append(halves[-1] // 2)
    return halves


def _start_of_turn(entries: Sequence[Entry], covered: int, keep: int) -> int:
    """Return where the last `keep` turns begin, no earlier than `covered`: where nothing is torn apart.

    A call belongs together with its result, and as far as possible with what was told of it later.
    """
    starts = _starts(entries, covered)
    at = starts[-keep] if len(starts) >= keep else covered
    together = [start for start in starts if start <= at and not _torn(entries, covered, start)]
    return together[-1] if together and together[-1] > covered else at


def _starts(entries: Sequence[Entry], covered: int) -> list[int]:
    """Return where the turns after entry `covered` begin: with what was said before the model replied."""
    starts: list[int] = []
    for at in range(covered, len(entries)):
        if isinstance(entries[at], AssistantMessage):
            start = at
            while start > covered and isinstance(entries[start - 1], UserMessage | Compaction):
                start -= 1
            starts.append(start)
    return starts


def _torn(entries: Sequence[Entry], covered: int, start: int) -> bool:
    """Return whether of a call before `start` something is told after it."""
    told = {e.result.call_id for e in entries[start:] if isinstance(e, UserMessage) and e.result}
    made = (e.result.call_id for e in entries[covered:start] if isinstance(e, ToolMessage))
    return bool(told) and any(call in told for call in made)


def _end_of_turns(entries: Sequence[Entry], covered: int) -> int:
    """Return where the last turn ends: what follows it has not been answered yet."""
    ends = (at + 1 for at in range(len(entries) - 1, covered - 1, -1) if not isinstance(entries[at], UserMessage))
    return next(ends, covered)


# -- what is covered ---------------------------------------------------------------------------------------


def _covered(plan: Compaction, last: Compaction, entries: Sequence[Entry]) -> list[Entry]:
    """Return what `plan` covers that was shown up to now, but for what it keeps."""
    earlier = [last.keeps] if last.keeps is not None and last.keeps != plan.keeps else []
    places = [*earlier, *range(last.covers, plan.covers)]
    return [entries[at] for at in places if at != plan.keeps and not isinstance(entries[at], Compaction)]


def _newest_of_user(entries: Sequence[Entry], last: Compaction) -> int | None:
    for at in range(len(entries) - 1, last.covers - 1, -1):
        entry = entries[at]
        if isinstance(entry, UserMessage) and entry.source == "user":
            return at
    return last.keeps


def _room(situation: Situation) -> int:
    return min(_LARGEST_SUMMARY, situation.window // 8 * _BYTES)


def _drafted(plan: Compaction, last: Compaction, situation: Situation) -> Compaction:
    """Return `plan` with all that it has but a new summary, of which it has one that is as long as it may be."""
    newest = _newest_of_user(situation.entries, last)
    plan = plan.model_copy(update={"keeps": newest if newest is not None and newest < plan.covers else None})
    covered = _covered(plan, last, situation.entries)
    if plan.covers == last.covers or not covered:
        return plan.model_copy(update={"covers": last.covers, "keeps": last.keeps})
    kept = verbatim(
        covered,
        last.verbatim,
        situation.tools,
        _room(situation),
        waiting=situation.waiting,
        decided=situation.decided,
        limit=plan.limit,
    )
    replies = last.replies + sum(isinstance(entry, AssistantMessage) for entry in covered)
    return plan.model_copy(update={"summary": "x" * _room(situation), "verbatim": kept, "replies": replies})


async def _summed_up(plan: Compaction, situation: Situation) -> Compaction:
    """Return `plan` with its summary: a model's, or a mechanical one."""
    last = last_compaction(situation.entries) or Compaction(role="compaction")
    covered, room = _covered(plan, last, situation.entries), _room(situation)
    if plan.covers == last.covers or not covered:
        return plan
    written = None
    if not situation.free:
        text = story(covered, last.summary, situation.window // 2 * _BYTES)
        try:
            written = await situation.write(instructions(room), text)
        except NotWritten:
            written = None
    if written is None or not written.text.strip():
        return plan.model_copy(update={"summary": mechanical(covered, last.summary, room), "written_by": ""})
    text = written.text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore").strip()
    return plan.model_copy(update={"summary": text, "written_by": written.model})


def is_new(entry: Compaction, entries: Sequence[Entry]) -> bool:
    """Return whether `entry`, which follows `entries`, sums up more than was summed up before."""
    last = last_compaction(entries)
    return entry.covers > (last.covers if last else 0)
