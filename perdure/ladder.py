"""How a conversation can be made shorter, from what costs the model least to what costs it most. Pure.

Long results first, then old turns, and only then what is new. The last rung is the least that can be shown: a summary,
and the user's newest message without its middle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from perdure.messages import AssistantMessage, Compaction, Entry, ToolMessage, UserMessage
from perdure.policies import ContextPolicy

SHORT = 400
"""Bytes of a long result where even previews take too much room."""


class Turns:
    """Where the turns of a conversation begin, as far as it is shown: with what was said before the model replied.

    Args:
        entries: The whole transcript.
        covered: So many of them are not shown any more.
    """

    def __init__(self, entries: Sequence[Entry], covered: int) -> None:
        self._covered = covered
        self._starts: list[int] = []
        begin = covered
        for at in range(covered, len(entries)):
            if isinstance(entries[at], AssistantMessage):
                self._starts.append(begin)
            if isinstance(entries[at], AssistantMessage | ToolMessage):
                begin = at + 1
        self.end = begin
        torn = _torn(entries, covered)
        self._whole = [start for start in self._starts if not torn(start)]

    def __len__(self) -> int:
        return len(self._starts)

    def start(self, keep: int) -> int:
        """Return where the last `keep` of them begin.

        A call stays together with its result, and as far as possible with what was told of it later.
        """
        at = self._starts[-keep] if keep <= len(self) else self._covered
        whole = bisect_right(self._whole, at)
        together = self._whole[whole - 1] if whole else self._covered
        return together if together > self._covered else at


def _torn(entries: Sequence[Entry], covered: int) -> Callable[[int], bool]:
    """Return what tells whether at some place something is told of a call before it."""
    made: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for at in range(covered, len(entries)):
        match entries[at]:
            case ToolMessage(result=result):
                made[result.call_id] = at
            case UserMessage(result=result) if result and result.call_id in made:
                spans.append((made[result.call_id], at))
            case _:
                pass
    return lambda start: any(begin < start <= end for begin, end in spans)


def rungs(
    entries: Sequence[Entry],
    last: Compaction,
    window: int,
    policy: ContextPolicy,
    suits: Callable[[Compaction], bool],
) -> Iterator[tuple[Compaction, bool]]:
    """Yield compactions, each tighter than the one before, and whether it leaves the newest turn as it is.

    Args:
        last: The compaction that holds.
        suits: Returns whether a compaction is enough: the newest turns stay as far as that allows.
    """
    length, turns = len(entries), Turns(entries, last.covers)
    limit = min(policy.long_result, last.limit if last.shortened > last.covers else policy.long_result)
    old, newest = turns.start(policy.keep_turns), turns.start(1)
    draft = last.model_copy(update={"limit": limit, "shortened": max(last.shortened, old)})
    yield draft, True
    keep = _most(len(turns), lambda keep: suits(_covering(draft, turns.start(keep))))
    yield _covering(draft, turns.start(keep)), True
    whole = draft.model_copy(update={"covers": newest, "shortened": length})
    share = window // 2  # an eighth of the window, in bytes
    for each in sorted({max(share, limit), limit, SHORT}, reverse=True):
        yield whole.model_copy(update={"limit": min(each, limit) if last.shortened > newest else each}), False
    barest = whole.model_copy(update={"limit": SHORT, "covers": turns.end})
    yield barest, False
    for cut in (window, window // 4):
        yield barest.model_copy(update={"cut": min(cut, last.cut or cut)}), False
    yield barest.model_copy(update={"cut": min(window // 4, last.cut or window), "covers": length}), False


def _covering(draft: Compaction, covers: int) -> Compaction:
    return draft.model_copy(update={"covers": covers, "shortened": max(draft.shortened, covers)})


def _most(turns: int, suits: Callable[[int], bool]) -> int:
    """Return how many turns may be kept, at least one."""
    low, high = 1, max(turns, 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if suits(middle) else (low, middle - 1)
    return low
