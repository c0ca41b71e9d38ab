"""What a run has asked models, as its history tells it: model calls and compactions, with their requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, cast

from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.messages import Usage
from perdure.reports import CompactReport, ModelTurn, Spent
from perdure.wire import ModelInput

_NOT_SENT = ("full",)
"""How a call ends for which no request was made last."""


@dataclass
class Asking:
    """A call of a model, or a compaction, from when it was handed to the workers.

    Attributes:
        position: Of the event that begins it.
        scheduled: When that was.
        asked: Names the conversation, and how much of it is new.
        model: The agent's first one.
        started: When the attempt began that ended it; None where no worker had it.
        attempt: Which one that was, as the engine counts.
        ended: None while it is under way.
        spent: The requests that were made for it, as far as it has told of them, oldest first.
        lost: It ended without telling of a request that was under way.
        why: In a word, why it gave nothing; "" where it gave something.
        message: The same in a sentence.
        turn: The model's reply.
        report: What a compaction did.
    """

    position: str
    step: int
    kind: Literal["model", "summary"]
    scheduled: datetime
    asked: ModelInput
    model: str
    started: datetime | None = None
    attempt: int = 1
    ended: datetime | None = None
    spent: list[Spent] = field(default_factory=list[Spent])
    lost: bool = False
    why: str = ""
    message: str = ""
    turn: ModelTurn | None = None
    report: CompactReport | None = None

    def start(self, attempt: int, now: datetime) -> None:
        """Take that a worker has it."""
        self.started, self.attempt = now, attempt

    def reply(self, turn: ModelTurn, now: datetime) -> None:
        """Take a model's reply."""
        self.ended, self.spent, self.turn = now, list(turn.spent), turn
        if turn.finish == "interrupted":
            self.why = "interrupted"
            self._told(turn.usage, turn.cost_usd, "lost")
        elif turn.finish not in _NOT_SENT and not turn.directed:
            cost, model = _less(turn.cost_usd, turn.spent), turn.model or self.model
            if not turn.spent and turn.wasted != Usage():  # an older worker told no more of it
                self.spent = [Spent(model=self.model, usage=turn.wasted, cost_usd=Decimal(0))]
            self.spent.append(self._last(model, turn.usage, cost, now))

    def compact(self, report: CompactReport, now: datetime) -> None:
        """Take what a compaction has cost."""
        self.ended, self.spent, self.report = now, list(report.spent), report
        self._told(report.usage, report.cost_usd, "ok")

    def fail(self, error: BaseException, now: datetime) -> None:
        """Take that it gave nothing."""
        cause = error.cause if isinstance(error, ActivityError) and error.cause else error
        self.ended, self.why, self.message = now, type(cause).__name__, str(cause)
        if isinstance(cause, ApplicationError):
            self.why, self.message = cause.type or "error", cause.message
            lists = (cast("list[Any]", one) for one in cause.details if isinstance(one, list))
            told: list[Any] = next(lists, list[Any]())
            self.spent = [Spent.model_validate(one) for one in told]
            self._told(Usage.model_validate(cause.details[0]) if cause.details else Usage(), None, "failed")
            return
        if isinstance(cause, exceptions.TimeoutError):
            self.why = "timeout"
            self._left(cause.last_heartbeat_details)
        else:
            self.why = "interrupted"
        self.lost = self.started is not None

    def _told(self, usage: Usage, cost: Decimal | None, status: Literal["ok", "failed", "lost"]) -> None:
        """Take a sum, where no requests were told."""
        if not self.spent and usage != Usage():
            self.spent = [Spent(model=self.model, status=status, usage=usage, cost_usd=cost, at=self.started)]

    def _left(self, details: Sequence[Any]) -> None:
        """Take what a worker had told before it was lost."""
        left: Any = details[0] if details else {}
        told = cast("dict[str, Any]", left) if isinstance(left, dict) else {}
        self.spent = [Spent.model_validate(one) for one in told.get("spent", ())]

    def _last(self, model: str, usage: Usage, cost: Decimal | None, now: datetime) -> Spent:
        before = self.spent[-1] if self.spent else None
        ended = before.at + before.took if before and before.at and before.took else None
        at = max(filter(None, (self.started, ended)), default=None)
        took = max(now - at, now - now) if at else None
        return Spent(model=model, status="ok", usage=usage, cost_usd=cost, at=at, took=took)


def _less(total: Decimal | None, spent: Sequence[Spent]) -> Decimal | None:
    """Return what is left of a sum without those requests; None where one of them is not known."""
    for one in spent:
        if total is None or one.cost_usd is None:
            return None
        total -= one.cost_usd
    return total
