"""What a run may still spend, by every limit that it has. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from perdure.messages import Data, Usage
from perdure.policies import Limits
from perdure.reports import ModelTurn
from perdure.state import Amounts, Bill, Outcome, RunState

LimitName = Literal["steps", "input_tokens", "output_tokens", "usd", "wall_time"]
"""The limits that end a run, by their names in `Limits`."""


class Allowance(Data):
    """What one model call may spend: what is left of the run's budget. None: no limit."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    usd: Decimal | None = None
    seconds: float | None = None


class Additions(Amounts):
    """What a person adds to a run's limits. A limit that is None stays so, and so does a tool's that has none.

    Attributes:
        calls: Calls of tools, by name.
    """

    wall_time: timedelta = Field(default=timedelta(), ge=timedelta())
    calls: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)

    def to(self, limits: Limits) -> Limits:
        """Return `limits`, raised."""
        most = {name: limit + self.calls.get(name, 0) for name, limit in limits.calls_per_tool.items()}
        return super().to(limits).model_copy(update={"calls_per_tool": most})


def spend(state: RunState, turn: ModelTurn) -> None:
    """Count what a turn has cost, its failed attempts included."""
    waste(state, turn.wasted)
    state.usage += turn.usage
    state.last = turn.usage
    if turn.cost_usd is None:
        state.unpriced = True
    else:
        state.cost += turn.cost_usd
        state.last_cost = turn.cost_usd


def waste(state: RunState, usage: Usage) -> None:
    """Count tokens that gave nothing."""
    state.usage += usage


def bill(state: RunState) -> Bill:
    """Return what the run has used so far, with what children have used that have ended."""
    total = Bill(steps=state.steps, usage=state.usage, usd=state.cost, unpriced=state.unpriced)
    for lease in state.leases.values():
        if each := lease.bill:
            usage, unpriced = total.usage + each.usage, total.unpriced or each.unpriced
            total = Bill(steps=total.steps + each.steps, usage=usage, usd=total.usd + each.usd, unpriced=unpriced)
    return total


def cost(state: RunState) -> Decimal | None:
    """Return what the run has cost so far in USD, its children included; None where that is not known."""
    total = bill(state)
    return None if total.unpriced else total.usd


def gone(state: RunState) -> Amounts:
    """Return what of the run's budget is used, or lent to a child that has not ended yet."""
    total = bill(state)
    used = Amounts(
        steps=total.steps,
        input_tokens=total.usage.input_tokens,
        output_tokens=total.usage.output_tokens,
        usd=total.usd,
    )
    return sum((lease.lent for lease in state.leases.values() if lease.bill is None), used)


def allowance(state: RunState) -> Allowance:
    """Return what the next model call may spend."""
    return _left(state, gone(state))


def _left(state: RunState, used: Amounts) -> Allowance:
    limits = state.limits
    return Allowance(
        input_tokens=None if limits.input_tokens is None else max(limits.input_tokens - used.input_tokens, 0),
        output_tokens=None if limits.output_tokens is None else max(limits.output_tokens - used.output_tokens, 0),
        usd=None if limits.usd is None else max(limits.usd - used.usd, Decimal(0)),
        seconds=None if limits.wall_time is None else max((limits.wall_time - state.ran).total_seconds(), 0.0),
    )


def turns_left(state: RunState) -> int:
    """Return how many more turns the run can afford, at least where it is 0 or 1, by its scarcest limit."""
    return _scarcest(state)[0]


def asks_for_more(state: RunState) -> bool:
    """Return whether the run pauses itself at a limit, instead of taking its last turn."""
    return state.limits.on_exhausted == "ask" and not state.conceded


def exhausted(state: RunState) -> Outcome:
    """Return the outcome of a run that has used up one of its limits, and says which."""
    return Outcome(status="budget_exhausted", reason=f"The limit of {_scarcest(state)[2]} is reached.")


def scarce(state: RunState) -> set[str]:
    """Return the names of the limits that allow one more turn at most."""
    return {name for turns, name, _ in _turns(state) if turns <= 1}


def still_scarce(state: RunState, resumed: RunState) -> list[str]:
    """Return the limits that a resumed run would reach at once: no turn is left, or they ended it and are as before."""
    ended = scarce(state) if state.outcome and state.outcome.status == "budget_exhausted" else set[str]()
    same = {name for name in ended if getattr(state.limits, name) == getattr(resumed.limits, name)}
    return [name for turns, name, _ in _turns(resumed) if turns <= 0 or (turns == 1 and name in same)]


def _scarcest(state: RunState) -> tuple[int, str, str]:
    return min(_turns(state), key=lambda each: each[0])


def _turns(state: RunState) -> Iterator[tuple[int, str, str]]:
    """Yield how many turns each limit still allows, its name, and itself in words.

    A turn needs at least what the last one did.
    """
    limits, used = state.limits, gone(state)
    left = _left(state, used)
    yield limits.steps - used.steps, "steps", in_words(limits, "steps")
    if left.input_tokens is not None:
        next_input = max(state.last.input_tokens + state.last.output_tokens, 1)
        yield left.input_tokens // next_input, "input_tokens", in_words(limits, "input_tokens")
    if left.output_tokens is not None:
        turns = _few(left.output_tokens, max(state.last.output_tokens, 1))
        yield turns, "output_tokens", in_words(limits, "output_tokens")
    if left.usd is not None:
        yield _few(left.usd, state.last_cost), "usd", in_words(limits, "usd")
    if left.seconds is not None and limits.wall_time is not None:
        turns = _few(left.seconds, limits.wall_time.total_seconds() / 10)
        yield turns, "wall_time", in_words(limits, "wall_time")


NEAR = 0.8
"""The share of a limit from which on it is warned of."""


def near(state: RunState) -> dict[LimitName, float]:
    """Return the limits of which four fifths are gone or more, and how much is."""
    limits, used = state.limits, gone(state)
    spent: dict[LimitName, tuple[float, float | None]] = {
        "steps": (used.steps, limits.steps),
        "input_tokens": (used.input_tokens, limits.input_tokens),
        "output_tokens": (used.output_tokens, limits.output_tokens),
        "usd": (float(used.usd), None if limits.usd is None else float(limits.usd)),
        "wall_time": (state.ran.total_seconds(), limits.wall_time.total_seconds() if limits.wall_time else None),
    }
    found: dict[LimitName, float] = {}
    for name, (each, most) in spent.items():
        share = 0.0 if most is None else each / most if most else 1.0
        if share >= NEAR:
            found[name] = round(share, 4)
    return found


def in_words(limits: Limits, name: LimitName) -> str:
    """Return a limit for a person: `40 steps`."""
    match name:
        case "steps":
            return f"{limits.steps} step{'' if limits.steps == 1 else 's'}"
        case "input_tokens":
            return f"{limits.input_tokens:,} input tokens"
        case "output_tokens":
            return f"{limits.output_tokens:,} output tokens"
        case "usd":
            return f"{limits.usd} USD"
        case "wall_time":
            return f"{_time(limits.wall_time or timedelta())} of time"


def _time(limit: timedelta) -> str:
    """Return a limit in words: `10 s`, `2 min`, `1 h 1 min 30 s`."""
    minutes, seconds = divmod(limit.total_seconds(), 60)
    amounts = {"h": minutes // 60, "min": minutes % 60, "s": seconds}
    return " ".join(f"{amount:g} {unit}" for unit, amount in amounts.items() if amount) or "0 s"


def _few(left: float | Decimal, turn: float | Decimal) -> int:
    """Return 0 where nothing is left, 1 where it is no more than two turns need, else 2."""
    return 0 if left <= 0 else 1 if left <= 2 * turn else 2


class Clock:
    """How long a run has gone on, without the time spent waiting for people.

    Attributes:
        waits: Whether it waits for a person from now on, up to the next `tick`.
    """

    def __init__(self, ran: timedelta, now: datetime) -> None:
        self.waits = False
        self._ran = ran
        self._since = now

    def tick(self, now: datetime) -> timedelta:
        """Return how long it has gone on."""
        if not self.waits:
            self._ran += now - self._since
        self._since = now
        return self._ran
