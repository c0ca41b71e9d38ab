"""The strategy by which conversations are made shorter, unless an agent has one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.context import NotWritten, Situation, last_compaction, to_keep, visible
from perdure.ladder import rungs
from perdure.messages import AssistantMessage, Compaction, Entry, Message, ToolResult, UserMessage, Verbatim
from perdure.policies import DEFAULT_STRATEGY, ContextPolicy
from perdure.summaries import instructions, mechanical, story
from perdure.verbatim import verbatim

_BYTES = 4
"""Of a token, about."""

_LARGEST_SUMMARY = 8_000
"""Bytes of a summary, and as many of what is kept word for word; a tenth of the window where that is less."""


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
        last = last_compaction(situation.entries) or Compaction(role="compaction")
        chosen = await asyncio.to_thread(choose, situation, last, self.policy)  # it reads all that is shown
        if chosen is None:
            return None
        plan = await asyncio.to_thread(_drafted, chosen, last, situation, {})
        named = {*plan.refs.values(), *(ref for _, ref in plan.verbatim.handles)}
        wanted = [(at, text) for at, text in to_keep(situation.entries, plan) if _some_ref(at) in named]
        kept = {at: await situation.keep(text) for at, text in wanted}
        plan = await asyncio.to_thread(_drafted, chosen, last, situation, kept)
        return await _summed_up(plan, last, situation)


def choose(situation: Situation, last: Compaction, policy: ContextPolicy) -> Compaction | None:
    """Return the compaction that costs least and is enough, roughly; None where nothing is gained.

    The newest turns are given up one by one for the sake of `situation.target`; more than that only for its `limit`.

    Args:
        last: The compaction that holds.
    """
    before = situation.count(visible(situation.entries))
    if before <= situation.limit:
        return None

    def size(plan: Compaction) -> int:
        return situation.count(visible([*situation.entries, _drafted(plan, last, situation)]))

    best: tuple[int, Compaction] | None = None
    bearable: Compaction | None = None
    steps = rungs(situation.entries, last, situation.window, policy, lambda plan: size(plan) <= situation.target)
    for plan, harmless in steps:
        needs, enough = size(plan), situation.target if harmless else situation.limit
        if plan.covers == last.covers and harmless:
            enough = (situation.limit + situation.target) // 2  # a summary costs the model more than a little room
        if needs <= enough and needs < before:
            return bearable if bearable and not harmless else plan
        if needs <= situation.limit:
            bearable = plan
        if needs < (best[0] if best else before):
            best = needs, plan
    return bearable or (best[1] if best else None)


# -- what is covered ---------------------------------------------------------------------------------------


def _covered(plan: Compaction, last: Compaction, entries: Sequence[Entry]) -> list[Entry]:
    """Return what `plan` covers that was shown up to now, but for what it keeps."""
    if plan.covers <= last.covers:
        return []
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
    return min(_LARGEST_SUMMARY, situation.window // 10 * _BYTES)


def _some_ref(at: int) -> str:
    """Return what stands for the reference of what is not in the store yet."""
    return f"{at:032}"


def _drafted(
    plan: Compaction, last: Compaction, situation: Situation, kept: Mapping[int, str] | None = None
) -> Compaction:
    """Return `plan` with all that it has but a new summary, of which it has one that is as long as it may be.

    Args:
        kept: Where the store holds what it shows in short, by the places of the entries, as far as it does. None: what
            it keeps word for word is as long as it may be, too.
    """
    entries, newest = situation.entries, _newest_of_user(situation.entries, last)
    plan = plan.model_copy(update={"keeps": newest if newest is not None and newest < plan.covers else None})
    covered = _covered(plan, last, entries)
    if not covered:
        plan = plan.model_copy(update={"covers": last.covers, "keeps": last.keeps})
    refs = {**last.refs, **{at: _some_ref(at) for at, _ in to_keep(entries, plan)}, **(kept or {})}
    changed: dict[str, Any] = {"refs": {at: refs[at] for at in refs if at >= plan.covers or at == plan.keeps}}
    if covered:
        room = _room(situation)
        changed["summary"] = "x" * room
        changed["verbatim"] = Verbatim(said=["x" * room]) if kept is None else _exact(covered, last, situation, refs)
        changed["replies"] = last.replies + sum(isinstance(entry, AssistantMessage) for entry in covered)
    return plan.model_copy(update=changed)


def _exact(covered: Sequence[Entry], last: Compaction, situation: Situation, refs: Mapping[int, str]) -> Verbatim:
    """Return what is kept word for word of what is covered now and was before."""
    results = {at: getattr(situation.entries[at], "result", None) for at in refs}
    return verbatim(
        covered,
        last.verbatim,
        situation.tools,
        _room(situation),
        waiting=situation.waiting,
        decided=situation.decided,
        refs={result.call_id: refs[at] for at, result in results.items() if isinstance(result, ToolResult)},
    )


async def _summed_up(plan: Compaction, last: Compaction, situation: Situation) -> Compaction:
    """Return `plan` with its summary: a model's, or a mechanical one."""
    covered, room = _covered(plan, last, situation.entries), _room(situation)
    if not covered:
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
