"""One attempt of a model call: which model is due, how long it may take, and what its failure leads to."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.heartbeats import Pulse, Tried
from perdure.activities.live import Voice
from perdure.activities.providers import UnknownProvider
from perdure.budgets import Allowance
from perdure.errors import ModelError
from perdure.messages import Usage
from perdure.reports import Spent
from perdure.results import short
from perdure.telemetry import signals
from perdure.telemetry.ids import SpanRef, of_attempt

_AT_ONCE = timedelta(milliseconds=1)
"""The engine takes a delay of zero for none given, and has its own idea of one so short: see `AtOnce`."""

_NOT_MINE = frozenset({"authentication", "quota", "overloaded"})
"""Kinds after which another model is asked at once, where there is one."""


_FAILS = "it failed again and again"

_LONGEST_WORDS = 300
"""Characters of what each of the models has said."""


class AtOnce(ApplicationError):
    """A failure after which to go on at once, in the same attempt: the engine would take about a second."""


def due(
    tried: Tried, models: Sequence[str], wait: Callable[[str], float], refused: Callable[[str], str]
) -> tuple[Tried, float]:
    """Return `tried` with the first model from the due one on that may be asked now, and 0.

    Where none may, `tried` as it is, and the seconds until one may be asked. `wait` tells them of a model. One of which
    `refused` tells why it has just refused is asked only if no other may be.
    """
    rest = models[tried.model :]
    waits = [wait(model) for model in rest]
    if 0 not in waits:
        return tried, min(waits)
    why = [_FAILS if seconds else refused(model) for model, seconds in zip(rest, waits, strict=True)]
    skipped = why.index("") if "" in why else waits.index(0)
    if not skipped:
        return tried, 0.0
    said = [
        f"{model} is not asked at present: {_brief(words)}" for model, words in zip(rest, why[:skipped], strict=False)
    ]
    return _moved(tried, skipped, "; ".join(said)), 0.0


def move_on(tried: Tried, models: Sequence[str], words: str) -> Tried | None:
    """Return what is tried next after the due model, which failed with these words; None if it was the last."""
    if tried.model + 1 >= len(models):
        return None
    return _moved(tried, 1, f"{models[tried.model]}: {_brief(words)}")


def _moved(tried: Tried, by: int, said: str) -> Tried:
    changes = {"model": tried.model + by, "failed": 0, "place": None, "reason": _joined(tried, said)}
    return tried.model_copy(update=changes)


def _joined(tried: Tried, said: str) -> str:
    return short(f"{tried.reason}; {said}" if tried.reason else said)


def _brief(words: str) -> str:
    return (words if len(words) <= _LONGEST_WORDS else f"{words[:_LONGEST_WORDS]}…").strip().removesuffix(".")


def next_try(error: ModelError, tried: Tried, models: Sequence[str], attempts: int) -> Tried | None:
    """Return what is tried after a failure; None if nothing is, since it would not help, or all were tried."""
    if (error.kind in _NOT_MINE or isinstance(error, UnknownProvider)) and (
        moved := move_on(tried, models, error.message)
    ):
        return moved
    if not error.transient:
        return None
    if tried.failed + 1 < attempts:
        return tried.model_copy(update={"failed": tried.failed + 1})
    return move_on(tried, models, error.message)


def backoff(failed: int) -> timedelta:
    """Return the time between two tries: 0.5 s, doubling up to 30 s, with jitter."""
    return timedelta(seconds=min(0.5 * 2 ** min(failed - 1, 10), 30) * random.uniform(0.8, 1.2))  # noqa: S311


class Attempt:
    """What one attempt knows.

    Args:
        models: The agent's, in order.
        allowance: What the run may still spend, as of when the call was scheduled.
        pulse: Holds what earlier attempts have left.
        voice: Tells those who watch what a model writes.
    """

    def __init__(self, models: Sequence[str], allowance: Allowance, pulse: Pulse, voice: Voice | None = None) -> None:
        self._models = models
        self._voice = voice
        self._seconds = allowance.seconds
        self._pulse = pulse
        self.tried = pulse.tried
        self._begun = self.tried.begun

    @property
    def model(self) -> str:
        """The model that is due."""
        return self._models[self.tried.model]

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the run's time is up; None: no limit."""
        if self._seconds is None:
            return None
        return self._seconds - (datetime.now(UTC) - activity.info().scheduled_time).total_seconds()

    def hearing(self, heard: list[str]) -> Callable[[str], None]:
        """Return what the due model's request is given to tell each piece of the reply to; `heard` gets them, too."""
        if self._voice is None:
            return heard.append
        tell = self._voice.begin(self.model)

        def hear(text: str) -> None:
            heard.append(text)
            tell(text)

        return hear

    def resume(self) -> None:
        """Go on with what a failure has left, as the next attempt would."""
        self.tried = self._pulse.tried
        self._pulse.beat()

    def choose(self, wait: Callable[[str], float], refused: Callable[[str], str]) -> None:
        """Take the first model that may be asked now.

        Raises:
            ApplicationError: If none may, to be tried again when one may; or if the run's time is up by then.
        """
        if self.seconds_left is not None and self.seconds_left <= 0:
            raise self.ended("budget", "The run's time is up.")
        self.tried, seconds = due(self.tried, self._models, wait, refused)
        if seconds:
            spread = timedelta(seconds=seconds * random.uniform(1, 1.2))  # noqa: S311 - or all would come at once
            raise self.later("overloaded", f"{self.model} is not asked at present: {_FAILS}.", spread)

    def begin(self, tokens: int) -> None:
        """Note that a request is sent: should this worker be lost now, its tokens are."""
        self.tried, self._begun = self.tried.model_copy(update={"place": None}), datetime.now(UTC)
        self._pulse.keep(self.tried.model_copy(update={"sent": tokens, "begun": self._begun}))

    @property
    def span(self) -> SpanRef:
        """The span of the request that was begun last."""
        info, number = activity.info(), sum(one.times for one in self.tried.spent) + 1
        ids = (info.namespace, info.workflow_id or "", info.workflow_run_id or "", info.activity_id, number)
        return of_attempt(*ids, info.scheduled_time)

    def waste(
        self,
        usage: Usage,
        cost_usd: Decimal | None,
        status: Literal["ok", "failed", "lost"],
        why: str = "",
        *,
        now: datetime | None = None,
    ) -> None:
        """Count what a request has cost that gave nothing; one that did has, unless its reply gets recorded.

        Args:
            status: As in `Spent`, like `why`.
            now: When it ended; None: it is not known.
        """
        spent, begun, self._begun = self.tried.spent, self._begun, None
        if begun or usage != Usage():  # else nothing was sent: it has no key, say
            took = now - begun if now and begun else None
            last = Spent(model=self.model, status=status, why=why, usage=usage, cost_usd=cost_usd, at=begun, took=took)
            spent = last.after(spent)
            signals.current().asked(last)
        changes = {"wasted": self.tried.wasted + usage, "cost_usd": added(self.tried.cost_usd, cost_usd)}
        self.tried = self.tried.model_copy(update={**changes, "spent": spent, "sent": 0, "begun": None, "seen": None})
        self._pulse.keep(self.tried)

    def in_time(self, delay: timedelta) -> bool:
        """Return whether the run's time is not up after `delay`."""
        left = self.seconds_left
        return left is None or delay.total_seconds() <= left

    def after(self, error: ModelError, attempts: int) -> ApplicationError:
        """Return what the engine is told of a failure: the provider's words, whether to try again, and when.

        A rate limit is no failure: see `later`. `attempts` are the tries of one model.
        """
        following = next_try(error, self.tried, self._models, attempts)
        if following is None:
            return self.ended(error.kind, self._told(error.message), *([error.window] if error.window else []))
        same = following.model == self.tried.model
        return self._again(
            error.kind, error.message, error.retry_after or backoff(following.failed) if same else _AT_ONCE, following
        )

    def _told(self, words: str) -> str:
        """Return the last words of the due model, after those of the models before it."""
        if not self.tried.reason:
            return short(words)
        which = "All models failed" if self.model == self._models[-1] else "Models failed"
        return f"{which}: {_joined(self.tried, f'{self.model}: {_brief(words)}')}."

    def ended(self, kind: str, words: str, *details: object) -> ApplicationError:
        """Return what the engine is told of a call that is not to be tried again, with what it has cost."""
        told = costs_of(self.tried)
        return ApplicationError(words, told[0], *details, *told[1:], type=kind, non_retryable=True)

    def later(self, kind: str, words: str, delay: timedelta = _AT_ONCE, **changes: object) -> ApplicationError:
        """Return what the engine is told of an attempt to be made again after `delay`, which uses up no try."""
        return self._again(kind, words, delay, self.tried.model_copy(update=changes))

    def _again(self, kind: str, words: str, delay: timedelta, following: Tried) -> ApplicationError:
        """Leave `following` to the next attempt. Without time for it, another model is asked, or the call is over."""
        if not self.in_time(delay):
            moved = move_on(self.tried, self._models, words)
            if moved is None:
                text = f"{words} It would be tried again in {delay.total_seconds():.1f} s, too late."
                return self.ended("budget", f"The run's time is up: {short(text)}")
            following, delay = moved, _AT_ONCE
        self._pulse.leave(following)
        failure = AtOnce if delay is _AT_ONCE else ApplicationError
        return failure(short(words), type=kind, next_retry_delay=delay)


def costs_of(tried: Tried) -> list[Any]:
    """Return what a failure tells of what a call has cost: tokens, and the requests, if there were any."""
    return [tried.wasted, *([tried.spent] if tried.spent else [])]


def added(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """Return the sum of two costs, which is not known where either is not."""
    return None if one is None or other is None else one + other
