"""What a context that is too full does to a run's state. No clock, no I/O: workflow and projection fold alike.

A context is too full where a request would fill too much of the model's window, or a provider refuses it. Then it is
compacted until the model replies: each time in a row more tightly, until nothing is left to make it shorter.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure import budgets
from perdure.messages import canonical_json
from perdure.reports import CompactReport, ModelTurn
from perdure.results import short
from perdure.state import CallStatus, Outcome, RunState

TOO_LONG = "context_too_long"
"""The type of a model call's failure that means: its provider takes no request of that length."""

MOST = 8
"""So often in a row it is compacted at most."""

WORTH = 2_000
"""Tokens that the last request had at least where it is compacted for the sake of the budget."""

_MONEY = {"input_tokens", "usd"}
"""Limits that last longer where requests are shorter."""


def fill(state: RunState, turn: ModelTurn) -> None:
    """Take in that the model was not asked, since the request would have filled too much of its context."""
    state.context = turn.context
    _set(state, due="full")


def refuse(state: RunState, words: str, window: int | None) -> bool:
    """Take in that a provider refused a request as too long; return whether anything can be done about it.

    Args:
        words: What it said.
        window: Tokens that the model can take, where it said so.
    """
    if not state.shape or state.pressure.over:
        return False
    _set(state, due="refused", words=words, window=window or state.pressure.window)
    return True


def relax(state: RunState, turn: ModelTurn | None = None) -> None:
    """Take in that the model has replied, or was broken off."""
    state.context = (turn and turn.context) or state.context
    _set(state, due="", tight=0, over=False)


def relief_is_due(state: RunState, turns: int) -> bool:
    """Return whether the context is to be compacted, without cost, since the budget allows so few more turns.

    Once where it allows one at most, and once more where it allows none, not even the one for an answer. Never while
    calls have no results yet: no compaction comes between them.
    """
    often = state.pressure.relieved
    if not state.shape or state.closing or state.calls or often > (0 if turns else 1):
        return False
    if state.last.input_tokens < WORTH:
        return False
    return bool(budgets.scarce(state) & _MONEY)


def begin(state: RunState, decided: int) -> None:
    """Take in that the context is being compacted; the first so many decisions go into its summary."""
    _set(state, under_way=True, decided=decided)


def fold(state: RunState, report: CompactReport) -> None:
    """Take into the state what was done about the context, and what it has cost."""
    budgets.waste(state, report.usage)
    if report.cost_usd is None:
        state.unpriced = True
    else:
        state.cost += report.cost_usd
    state.context = report.after if report.after.tokens else state.context
    if state.pressure.due == "refused" and report.entry:
        most = report.before.tokens  # so many are too many
        _set(state, window=min(most, state.pressure.window or most))
    if report.entry:
        state.messages.append(report.entry)
        state.last = state.last.model_copy(update={"input_tokens": report.after.tokens})
    if report.how == "summarised":
        state.decided = state.decided[state.pressure.decided :]
    _go_on(state, over=report.entry is None)


def give_up(state: RunState) -> None:
    """Take in that the context could not be compacted."""
    _go_on(state, over=True)


def _go_on(state: RunState, *, over: bool) -> None:
    """Go on to the model. Where its context stays as it is, the model is asked in spite of that, unless it refused."""
    pressure = state.pressure
    if over and pressure.due == "refused":
        state.outcome = state.outcome or Outcome(status="failed", reason=pressure.words, failure=TOO_LONG)
    if not pressure.due:
        _set(state, under_way=False, relieved=pressure.relieved + 1)
        return
    tight = pressure.tight + 1
    _set(state, under_way=False, due="", words="", tight=tight, over=over or tight >= MOST)


def _set(state: RunState, **changes: object) -> None:
    state.pressure = state.pressure.model_copy(update=changes)


def waiting(state: RunState) -> Iterator[str]:
    """Yield what waits for a person now, in words, whole: it must not be lost with the calls that it is about."""
    words = {CallStatus.ASKING: "waits for approval", CallStatus.IN_DOUBT: "is in doubt: a person looks it up"}
    for call in state.open_calls:
        if call.status in words:
            yield short(
                f"{call.position} {call.call.name}({canonical_json(call.arguments)[1:-1]}) {words[call.status]}"
            )
