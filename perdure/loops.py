"""Whether a run goes round in circles: the same calls with the same results, over and over. Pure.

Turns are compared, not single calls: what a turn asked for and what it was given, in whatever order. A turn is like an
earlier one if it made the same calls with the same results, or said the same words and met the same errors. A result
that changes is progress, and so is a message from a person.

A single turn counts as often as it was made, a cycle as often as it came back: real conversations do go the same round
three times, and then get on.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.messages import AssistantMessage, UserMessage, content_hash
from perdure.state import CallState, Outcome, RunState, Trail, TurnSeen

NO_PROGRESS = "no_progress"
"""The failure of a run that was ended because it went round in circles."""

PERIODS = (1, 2, 3, 4)
"""Turns of the cycles that are looked for: A-A, A-B-A-B, A-B-C-A-B-C, A-B-C-D-A-B-C-D."""

_STALE = PERIODS[-1]
"""So many turns in a row that bring nothing new count as one round of a cycle, whatever their order."""

_WINDOW = 12
"""Turns that are remembered; what was seen longer ago is new again."""


def fingerprint(call: CallState) -> str:
    """Return what tells a call from others: its tool and its arguments."""
    return content_hash([call.call.name, call.call.arguments])


def rounds(trail: Trail) -> int:
    """Return how often in a row the run has gone the same round; 1 or less: it does not repeat itself."""
    return max(_rounds(trail))


def _rounds(trail: Trail) -> list[int]:
    """Return the rounds of the cycles of each length, and last those of turns that brought nothing new."""
    once, *cycles = trail.streaks
    return [once + 1, *(streak // length for streak, length in zip(cycles, PERIODS[1:], strict=True)), _stale(trail)]


def _stale(trail: Trail) -> int:
    return trail.stale // _STALE


def refusal(state: RunState, call: CallState) -> str | None:
    """Return why `call` is not executed, where it would go the same round once more than is allowed; else None."""
    if _polls(state, call) or _spoken_to(state) or _led(state):
        return None
    trail, this, words = state.trail, fingerprint(call), _words(state)
    counted = _rounds(trail)
    for period, count in zip(PERIODS, counted, strict=False):
        due = trail.turns[-period] if len(trail.turns) >= period else TurnSeen()
        if count >= state.limits.repeat_refused - 1 and (this in due.calls or (words and words == due.words)):
            if period == 1 and len(due.calls) == 1:
                return f"this call gave the same result {count} times in a row."
            return f"the same calls gave the same results {count + (period > 1)} times in a row."
    known = any(this in turn.calls for turn in trail.turns)
    if known and _stale(trail) >= state.limits.repeat_refused - 1:
        return f"the last {trail.stale} turns brought nothing new, and this call was made before."
    return None


def watch(state: RunState) -> str | None:
    """Take a turn whose calls have their results into account; return what the model is to be told, or None.

    Where it has been told and refused often enough, the run ends.
    """
    seen = _seen(state)
    if not seen.calls or state.closing or _led(state):
        return None
    before = Trail() if _spoken_to(state) else state.trail
    state.trail = _extended(before, seen)
    count = rounds(state.trail)
    if count < state.limits.repeat_told or count == rounds(before):
        return None
    done = _done(state, seen, count)
    if count >= max(state.limits.repeat_ended, state.limits.repeat_refused + 1) and not state.outcome:
        state.outcome = Outcome(status="failed", reason=f"No progress: the model {done}.", failure=NO_PROGRESS)
    return f"You have {done}. Repeating it again will not help: do something else, or answer with what you know."


def one_more_chance(state: RunState) -> Trail:
    """Return the trail of a run that was ended for its loop and is resumed: the next round is executed once more."""
    most = state.limits.repeat_refused - 2
    once, *cycles = state.trail.streaks
    streaks = [min(streak, most * period) for streak, period in zip(cycles, PERIODS[1:], strict=True)]
    changed = {"streaks": [min(once, most - 1), *streaks], "stale": min(state.trail.stale, most * _STALE)}
    return state.trail.model_copy(update=changed)


_LONGEST_PHRASE = 500
_REPEATED_AT_LEAST = 200


def repeats_itself(text: str) -> bool:
    """Return whether `text` ends in one phrase over and over: at least four times, and for 200 characters or more."""
    text = text.rstrip()
    for length in range(1, _LONGEST_PHRASE + 1):
        times = max(4, -(-_REPEATED_AT_LEAST // length))
        tail = text[-length * times :]
        if len(tail) == length * times and tail == tail[:length] * times:
            return True
    return False


# -- what was seen -----------------------------------------------------------------------------------------


def _seen(state: RunState) -> TurnSeen:
    """Return the turn whose calls have just been closed, as it is remembered. A refused call's result is ""."""
    counted = [call for call in state.calls if call.call.problem is None and not _polls(state, call)]
    results = {fingerprint(call): _result(call) for call in counted}
    failed = all(call.result and call.result.status in ("error", "denied", "skipped") for call in counted)
    return TurnSeen(calls=results, words=_words(state) if failed else "")


def _result(call: CallState) -> str:
    result = call.result
    if result is None or result.status == "skipped":
        return ""
    return content_hash([result.status, result.content, result.message])


def _extended(trail: Trail, seen: TurnSeen) -> Trail:
    past = trail.turns
    last = {call: given for turn in past for call, given in turn.calls.items()}
    nothing_new = all(call in last and given in ("", last[call]) for call, given in seen.calls.items())
    streaks = [
        streak + 1 if len(past) >= period and _alike(seen, past[-period], nothing_new=nothing_new) else 0
        for streak, period in zip(trail.streaks, PERIODS, strict=True)
    ]
    kept = TurnSeen(calls={call: given or last.get(call, "") for call, given in seen.calls.items()}, words=seen.words)
    stale = trail.stale + 1 if nothing_new else 0
    return Trail(turns=[*past, kept][-_WINDOW:], streaks=streaks, stale=stale)


def _alike(this: TurnSeen, other: TurnSeen, *, nothing_new: bool) -> bool:
    if nothing_new and this.calls.keys() == other.calls.keys():
        return True
    return this.words != "" and this.words == other.words and _given(this.calls) <= _given(other.calls)


def _given(calls: Mapping[str, str]) -> set[str]:
    return {given for given in calls.values() if given}


def _polls(state: RunState, call: CallState) -> bool:
    tool = state.tool_of(call)
    return tool is not None and tool.polling


def _words(state: RunState) -> str:
    """Return a hash of what the model said in its last turn, "" for nothing."""
    said = next((message.text for message in reversed(state.messages) if isinstance(message, AssistantMessage)), "")
    return content_hash(said.split()) if said.strip() else ""


def _led(state: RunState) -> bool:
    """Return whether no model wanted the last turn, but the strategy: which has bounds of its own."""
    turns = (message for message in reversed(state.messages) if isinstance(message, AssistantMessage))
    last = next(turns, None)
    return last is not None and last.source == "strategy"


def _spoken_to(state: RunState) -> bool:
    """Return whether a person has said something between the model's last two turns."""
    replies = 0
    for message in reversed(state.messages):
        replies += isinstance(message, AssistantMessage)
        if replies > 1:
            return False
        if replies and isinstance(message, UserMessage) and message.source == "user":
            return True
    return False


# -- in words ----------------------------------------------------------------------------------------------


def _done(state: RunState, seen: TurnSeen, count: int) -> str:
    *cycles, _ = _rounds(state.trail)
    if count not in cycles:
        return f"made only calls that you had made before, with the same results, for {state.trail.stale} turns"
    period = PERIODS[cycles.index(count)]
    times, turns = count + (period > 1), state.trail.turns[-period:]
    calls = {call for turn in turns for call in turn.calls}
    if seen.calls.keys() != state.trail.turns[-1 - period].calls.keys():
        return f"said the same {times} times in a row, and met the same errors"
    if len(calls) == 1:
        return f"made the same call to {state.calls[-1].call.name} {times} times in a row with the same result"
    return f"made the same {len(calls)} calls {times} times in a row with the same results"
