"""How a budget is shared over a tree of runs: lent to children, raised when they ask, and taken back. Pure.

A lease is gone from the lender's budget from the moment it is carved out; what the child has not used comes back when
it has ended. So whatever the runs of a tree do at once, together they never spend more than its root may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Any, TypeVar

from perdure.budgets import allowance, gone, scarce
from perdure.messages import Data, RunResult, Usage
from perdure.policies import Limits
from perdure.state import Amounts, Bill, Lease, RunState

PATIENCE = timedelta(minutes=1)
"""How long a run waits for its parent's answer, at most, before it goes on with what it has."""

SUMMARY = "lease: does the parent answer? "
"""Of the timer for it; the request's id follows."""

_PICO = Decimal("0.000000000001")


class LeaseRequest(Data):
    """A child asks its parent for more. `patience`: how long it will wait."""

    id: str
    child: str
    wanted: Amounts
    patience: timedelta = PATIENCE


class Grant(Data):
    """A parent's answer: how much more the child may spend. All zero: it has nothing to give."""

    id: str
    amounts: Amounts = Amounts()


# -- the lender --------------------------------------------------------------------------------------------


def carve(state: RunState, child: str, wanted: Limits, share: float = 0.5, least: int = 0) -> Limits | None:
    """Reserve a part of the run's budget for a child that is about to start, and return the limits that it gets.

    Args:
        child: Its run id. Carved out twice, it gets the same.
        wanted: The child's own limits: it gets no more than these.
        share: The most that it gets of what is free; it can ask for more later.
        least: So many steps it gets nonetheless, if they are there.

    Returns:
        `wanted`, lowered to what it gets. Time is not divided: a child has what its parent has left.
        None where there is nothing to give.
    """
    if lease := state.leases.get(child):
        return None if lease.bill else lease.limits
    seconds = allowance(state).seconds
    free = dict(_free(state))
    given: dict[str, Any] = {name: _least(getattr(wanted, name), _part(left, share)) for name, left in free.items()}
    given["steps"] = max(given["steps"], min(least, free["steps"]))
    given["wall_time"] = _least(wanted.wall_time, None if seconds is None else timedelta(seconds=seconds))
    if not all(amount is None or amount for amount in given.values()):
        return None
    limits = wanted.model_copy(update=given)
    state.leases[child] = Lease(limits=limits)
    return limits


def lacking(state: RunState, wanted: Amounts) -> Amounts | None:
    """Return what the run would need itself to give all that is wanted; None where it has it."""
    missing = {name: max(getattr(wanted, name) - left, 0) for name, left in _free(state) if left is not None}
    return Amounts.model_validate(missing) if any(missing.values()) else None


def answered(state: RunState, request: LeaseRequest) -> bool:
    """Return whether nothing is to be done about a request: it came before, or from a stranger."""
    lease = state.leases.get(request.child)
    return lease is None or request.id in lease.answered


def more(state: RunState, request: LeaseRequest) -> Grant:
    """Return how much of what a child wants the run has to give. Changes nothing: `lend` does."""
    lease = state.leases[request.child]
    if lease.bill or state.outcome or state.closing:
        return Grant(id=request.id)
    wanted = {name: _least(getattr(request.wanted, name), left) for name, left in _free(state)}
    limited = {name: amount for name, amount in wanted.items() if getattr(lease.limits, name) is not None}
    return Grant(id=request.id, amounts=Amounts.model_validate(limited))


def lend(state: RunState, child: str, grant: Grant) -> None:
    """Reserve what is granted to a child; an answer that is given twice counts once."""
    lease = state.leases.get(child)
    if lease and grant.id not in lease.answered:
        changed = {"limits": grant.amounts.to(lease.limits), "answered": [*lease.answered, grant.id]}
        state.leases[child] = lease.model_copy(update=changed)


def give_back(state: RunState, child: str, result: RunResult | None) -> None:
    """Charge what a child has used that has ended, with all runs under it, and free the rest; only the first time.

    Args:
        result: None where its end does not say what it has used: then what it has told before is charged, or all that
            it was lent. So is the money where its cost is not known.
    """
    lease = state.leases.get(child)
    if lease and lease.bill is None:
        bill = lease.told if result is None and lease.told else _bill(lease.lent, result)
        usd = lease.lent.usd if bill.unpriced else bill.usd
        state.leases[child] = lease.model_copy(update={"bill": bill.model_copy(update={"usd": usd})})


def told(state: RunState, child: str, used: Bill) -> None:
    """Take in what a child says that it has used, before its end."""
    if lease := state.leases.get(child):
        state.leases[child] = lease.model_copy(update={"told": used})


def _bill(lent: Amounts, result: RunResult | None) -> Bill:
    if result is None:
        usage = Usage(input_tokens=lent.input_tokens, output_tokens=lent.output_tokens, estimated=True)
        return Bill(steps=lent.steps, usage=usage, usd=lent.usd, unpriced=True)
    cost = result.cost_usd
    usd = lent.usd if cost is None else cost
    return Bill(steps=result.steps, usage=result.usage, usd=usd, unpriced=cost is None)


def _free(state: RunState) -> Iterator[tuple[str, Any]]:
    """Yield how much of each amount may be lent, None for no limit: the run keeps what two turns of its own need."""
    used, needs = gone(state), _two_turns(state)
    for name in Amounts.model_fields:
        limit = getattr(state.limits, name)
        yield name, None if limit is None else max(limit - getattr(used, name) - getattr(needs, name), 0)


def _two_turns(state: RunState) -> Amounts:
    """Return what is certainly enough for two more turns, the closing one among them."""
    last = state.last
    tokens = {"input_tokens": 3 * (last.input_tokens + last.output_tokens), "output_tokens": 3 * last.output_tokens}
    return Amounts(steps=2, usd=3 * state.last_cost, **tokens)


def _part(amount: Any, share: float) -> Any:
    if amount is None:
        return None
    part = amount * Decimal(str(share))
    return int(part) if isinstance(amount, int) else part.quantize(_PICO, ROUND_DOWN)


def _least(one: Any, other: Any) -> Any:
    return min((amount for amount in (one, other) if amount is not None), default=None)


# -- the borrower ------------------------------------------------------------------------------------------


def wanted(state: RunState) -> Amounts | None:
    """Return what a run asks its parent for before it would take its last turn, or None: it has no need, or no parent.

    That is half as much again as it had, of what is scarce; time is not lent.
    """
    low = scarce(state)
    if state.borrowing.unfit:
        low |= {"input_tokens", "output_tokens", "usd"}
    if not state.borrowing.possible or state.closing or not low or "wall_time" in low:
        return None
    needs = _two_turns(state)
    limits = {name: getattr(state.limits, name) for name in low}
    asked = {
        name: max(limit / 2 if isinstance(limit, Decimal) else -(-limit // 2), getattr(needs, name))
        for name, limit in limits.items()
        if limit is not None
    }
    return Amounts.model_validate(asked) if asked else None


def ask(state: RunState, wanted: Amounts, patience: timedelta = PATIENCE) -> LeaseRequest:
    """Return the next request to the parent."""
    asked = state.borrowing.asked + 1
    state.borrowing = state.borrowing.model_copy(update={"asked": asked})
    return LeaseRequest(id=f"{state.execution}-{asked}", child=state.run_id, wanted=wanted, patience=patience)


def take(state: RunState, grant: Grant) -> None:
    """Raise the run's limits by what was granted, the first time that it comes; one that comes late counts as well."""
    answers = state.borrowing.answers
    if grant.id in answers:
        return
    state.limits = grant.amounts.to(state.limits)
    over = grant.amounts == Amounts() or bool(scarce(state))
    changed = {"answers": [*answers, grant.id], "over": over, "unfit": False}
    state.borrowing = state.borrowing.model_copy(update=changed)


def unanswered(state: RunState, request: str) -> None:
    """Go on without the parent, unless it has answered after all."""
    if request not in state.borrowing.answers:
        state.borrowing = state.borrowing.model_copy(update={"over": True, "unfit": False})


# -- what travels ------------------------------------------------------------------------------------------

Travelling = TypeVar("Travelling", bound=Data)


def read(kind: type[Travelling], values: Sequence[Any]) -> Travelling | str:
    """Return what a signal holds, or why it can't be understood."""
    try:
        (value,) = values
        return kind.model_validate(value)
    except ValueError:
        return f"It takes one {kind.__name__}, as one run sends it to another."
