"""Where two runs part: their transcripts, turn by turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from perdure.messages import (
    JSON,
    AssistantMessage,
    Compaction,
    Content,
    Data,
    Entry,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)

What = Literal["said", "text", "calls", "arguments", "status", "result", "end", "approval"]
"""What differs: what the model was told, its text, the tools that it called, what one was given, how a call ended, what
it gave; `end`: only one of the runs goes on; `approval`: whether a person was asked."""


class Turn(Data):
    """A turn of the model: what it was told before, what it replied, and what came of its calls.

    Attributes:
        step: From 1; 0 is what was said where no reply has followed yet.
    """

    step: int
    said: list[Content] = Field(default_factory=list[Content])
    text: str = ""
    calls: list[ToolCall] = Field(default_factory=list[ToolCall])
    results: dict[str, ToolResult] = Field(default_factory=dict[str, ToolResult])
    replied: bool = False

    def position(self, index: int) -> str:
        """Return the position of one of its calls."""
        return f"{self.step}.{index + 1}"


class Difference(Data):
    """One thing in which two turns differ.

    Attributes:
        call: The call's position; "" where it is about the whole turn.
        left: What the first run has; None where it has nothing there.
        right: The same of the second one.
    """

    what: What
    call: str = ""
    left: JSON = None
    right: JSON = None


class Parting(Data):
    """Where two runs part: everything before is the same. `step`: the first turn of the model that differs, from 1."""

    step: int
    differences: list[Difference]


def parting(left: Sequence[Entry], right: Sequence[Entry]) -> Parting | None:
    """Return where two transcripts part, or None if they are the same.

    What is only shown less, once a context was compacted, is no difference; neither are ids of calls.
    """
    ours, theirs = list(turns(left)), list(turns(right))
    for one, other in zip(ours, theirs, strict=False):
        if found := list(_differences(one, other)):
            return Parting(step=one.step, differences=found)
    if len(ours) == len(theirs):
        return None
    longer = ours[len(theirs)] if len(ours) > len(theirs) else theirs[len(ours)]
    next_one = _brief(longer)
    ends = {"left": next_one} if len(ours) > len(theirs) else {"right": next_one}
    return Parting(step=longer.step, differences=[Difference(what="end", **ends)])


def turns(entries: Sequence[Entry]) -> Iterator[Turn]:
    """Yield the turns of a transcript; the last one may lack its reply."""
    said, step = list[Content](), 0
    turn: Turn | None = None
    for entry in entries:
        match entry:
            case AssistantMessage():
                if turn:
                    yield turn
                step += 1
                turn = Turn(step=step, said=said, text=entry.text, calls=entry.calls, replied=True)
                said = []
            case ToolMessage(result=result):
                if turn:
                    turn.results[result.call_id] = result
            case UserMessage():
                said.append(entry.content)
            case Compaction():
                pass
    if turn:
        yield turn
    if said:
        yield Turn(step=step + 1, said=said)


def _differences(left: Turn, right: Turn) -> Iterator[Difference]:
    if left.said != right.said:
        yield Difference(what="said", left=left.said, right=right.said)
    if left.replied != right.replied:
        yield Difference(what="end", left=_brief(left), right=_brief(right))
        return
    if left.text != right.text:
        yield Difference(what="text", left=left.text, right=right.text)
    names = [[call.name for call in turn.calls] for turn in (left, right)]
    if names[0] != names[1]:
        yield Difference(what="calls", left=names[0], right=names[1])
        return
    for index, (one, other) in enumerate(zip(left.calls, right.calls, strict=True)):
        yield from _of_call(left.position(index), one, other, left.results.get(one.id), right.results.get(other.id))


def _of_call(
    position: str, left: ToolCall, right: ToolCall, ours: ToolResult | None, theirs: ToolResult | None
) -> Iterator[Difference]:
    if left.arguments != right.arguments:
        yield Difference(what="arguments", call=position, left=left.arguments, right=right.arguments)
    states = [result.status if result else None for result in (ours, theirs)]
    if states[0] != states[1]:
        yield Difference(what="status", call=position, left=states[0], right=states[1])
    given = [(result.content or result.message) if result else None for result in (ours, theirs)]
    if given[0] != given[1]:
        yield Difference(what="result", call=position, left=given[0], right=given[1])


def _brief(turn: Turn) -> JSON:
    """Return what a turn is, where the other run has none."""
    if not turn.replied:
        return None
    return {"text": turn.text, "calls": [call.name for call in turn.calls]}
