"""The edge to the model providers: what all runs of a worker share, and one request to a model."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import cast
from uuid import uuid4

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.allowances import NotAllowed, left_of, reply_limit
from perdure.activities.attempts import AtOnce, Attempt, added, backoff
from perdure.activities.breakers import Breaker, Ended, breaker_of
from perdure.activities.heartbeats import Pulse
from perdure.activities.live import Voice
from perdure.activities.prices import cost
from perdure.activities.providers import address_of, open_model
from perdure.activities.throttle import Throttle
from perdure.budgets import Allowance
from perdure.errors import ModelError
from perdure.messages import Usage
from perdure.models import Model, ModelReply, ModelRequest
from perdure.models.dialect import request_tokens, usage_of_part
from perdure.models.shapes import prompted
from perdure.policies import ModelSettings
from perdure.reports import Spent
from perdure.settings import Settings
from perdure.telemetry import signals

_DOWN = frozenset({"connection", "timeout", "server", "overloaded"})
"""Kinds of failures that say that a provider is down."""

_REFUSES = frozenset({"authentication", "quota"})
"""Kinds of failures that say that a model refuses this customer, which a person has to mend."""

_HASTE = 3.0
"""Seconds: a failure that took longer leaves the next model an attempt of its own, with the whole time for it."""

_SMALL_REPLY = 4_096
"""Tokens: a limit of a reply that every model takes, even one that refuses larger limits."""

_AT_ONCE = 0.001
"""Seconds that nobody waits for: clocks differ by more."""

_LATE = timedelta(seconds=1)
"""Until the next attempt where the engine could not be asked about this one."""

_GRACE = timedelta(seconds=1)
"""An adapter that keeps to the timeout by itself knows what the call had used; any other is stopped here."""


@dataclass(frozen=True)
class Answer:
    """A model's reply.

    Attributes:
        model: Which one it was, as the agent names it.
        wasted: Tokens of the attempts before that failed half-way.
        cost_usd: Of all attempts; None where a price is not known.
        fallback: Why none of those before it did, in the words of each; "" where it was the first.
        spent: The requests of those attempts, oldest first.
    """

    reply: ModelReply
    model: str
    wasted: Usage
    cost_usd: Decimal | None
    fallback: str
    spent: list[Spent]


class Edge:
    """Models, breakers and limits of one worker.

    Args:
        settings: `breaker_…` and `tpm`.
        clock: Returns seconds; only differences count.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._id = uuid4().hex[:8]
        self._models: dict[str, Model] = {}
        self._breakers: dict[str, Breaker] = {}
        self._refusals: dict[str, tuple[float, str]] = {}  # until when a model is left alone, and what it said
        self._throttles: dict[str, Throttle] = {}
        self._measured: dict[str, float] = {}  # tokens as a model counts them, by those estimated
        self._uncapped: set[str] = set()

    async def answer(
        self,
        models: Sequence[str],
        asked: ModelRequest,
        allowance: Allowance,
        pulse: Pulse,
        voice: Voice | None = None,
    ) -> Answer:
        """Ask the first of `models` that may be asked, and those after it where it fails at once.

        Args:
            voice: Tells those who watch what they write.

        Raises:
            ApplicationError: If there is no reply; says whether and when to try again. What there is to know for
                the next attempt is left with `pulse`.
        """
        attempt, began = Attempt(models, allowance, pulse, voice), self._clock()
        if attempt.tried.sent or pulse.lost_one:
            tokens = attempt.tried.sent or self.tokens(attempt.model, asked)
            lost, seen = Usage(input_tokens=tokens, estimated=True), attempt.tried.seen
            attempt.waste(lost, _price(attempt, asked.settings, lost), "lost", "worker", now=seen)
        if await pulse.given_up():
            raise attempt.later("lost", "This attempt has come too late.", _LATE)
        while True:
            try:
                return await self._ask(attempt, asked, allowance)
            except AtOnce:
                if self._clock() - began > _HASTE:
                    raise
            attempt.resume()

    def tokens(self, model: str, asked: ModelRequest) -> int:
        """Return the tokens of a request, estimated, as `model` has counted those before."""
        return math.ceil(request_tokens(asked) * self._measured.get(model, 1.0))

    async def _ask(self, attempt: Attempt, asked: ModelRequest, allowance: Allowance) -> Answer:
        """Make one request, to the first model that may be asked."""
        settings = asked.settings
        attempt.choose(
            lambda model: self._breaker(model, settings).wait(), lambda model: self._refusal(_key(model, settings))
        )
        estimated = request_tokens(asked)
        tokens = self.tokens(attempt.model, asked)
        limited = self._limited(attempt, asked, allowance, tokens)
        place = self._queue(attempt, tokens)
        reply = await self._send(attempt, limited, settings, tokens, place)
        self._learn(attempt, settings, reply, estimated)
        before, cost_usd = attempt.tried, _price(attempt, settings, reply.usage, reply.model)
        attempt.waste(reply.usage, cost_usd, "ok", now=datetime.now(UTC))  # until it is recorded
        total = added(before.cost_usd, cost_usd)
        return Answer(reply, attempt.model, before.wasted, total, before.reason, before.spent)

    def _limited(self, attempt: Attempt, asked: ModelRequest, allowance: Allowance, tokens: int) -> ModelRequest:
        """Return the request, its reply limited to what the run may still spend."""
        model, settings = attempt.model, asked.settings
        left = left_of(allowance, attempt.tried.wasted, attempt.tried.cost_usd)
        try:
            limit = reply_limit(left, tokens, model, partial(_price, attempt, settings))
        except NotAllowed as error:
            raise attempt.ended(error.kind, error.message) from None
        own = settings.max_output_tokens or math.inf
        refused = attempt.tried.uncapped or (model in self._uncapped and (limit or 0) > _SMALL_REPLY)
        if limit is None or limit >= own or refused:
            return asked
        return replace(asked, settings=settings.model_copy(update={"max_output_tokens": limit}))

    def _queue(self, attempt: Attempt, tokens: int) -> float | None:
        """Wait for the call's turn among those for the model's tokens per minute; return its place in that queue.

        A place in another worker's queue has been waited for there, and does not count here.
        """
        throttle, tried = self._throttle(attempt.model), attempt.tried
        mine = tried.place if tried.queue == self._id else None
        joins = tried.place is None
        wait = throttle.wait() if joins else throttle.until(-math.inf if mine is None else mine)
        if wait < _AT_ONCE:
            return throttle.take(tokens) if joins else mine
        words = f"{attempt.model} is held to {throttle.rate:,.0f} tokens a minute on this worker."
        if joins:
            raise self._queued(attempt, words, tokens, _seconds(wait))
        raise attempt.later("rate_limited", words, _seconds(wait))

    async def _send(
        self, attempt: Attempt, asked: ModelRequest, settings: ModelSettings, tokens: int, place: float | None
    ) -> ModelReply:
        throttle, sent_at, heard = self._throttle(attempt.model), self._clock(), list[str]()
        try:
            reply = await self._guarded(attempt, replace(asked, on_text=attempt.hearing(heard)), settings, tokens)
        except asyncio.CancelledError:
            part = usage_of_part(asked, sum(map(len, heard)))
            self._lose(attempt, settings, part, "broken_off")
            throttle.correct(place, tokens, part.input_tokens + part.output_tokens)
            raise
        except ModelError as error:
            half_way = Usage(input_tokens=tokens, estimated=True) if error.kind == "timeout" else Usage()
            lost = error.usage or half_way
            self._lose(attempt, settings, lost, error.kind)
            throttle.correct(place, tokens, lost.input_tokens + lost.output_tokens)
            if error.kind in _REFUSES:
                until = self._clock() + self._settings.breaker_open.total_seconds()
                self._refusals[_key(attempt.model, settings)] = until, error.message or error.kind
            if asked.settings != settings and error.kind in ("bad_request", "context_too_long"):
                raise attempt.later(error.kind, error.message, uncapped=True) from None  # that limit may be the reason
            if error.kind != "rate_limited":
                raise attempt.after(error, settings.attempts) from None
            pause = error.retry_after or backoff(activity.info().attempt)
            throttle.refused(place, sent_at, pause.total_seconds())
            raise self._queued(attempt, error.message, tokens, max(pause, _seconds(throttle.wait()))) from None
        throttle.correct(place, tokens, reply.usage.input_tokens + reply.usage.output_tokens)
        return reply

    async def _guarded(self, attempt: Attempt, asked: ModelRequest, settings: ModelSettings, tokens: int) -> ModelReply:
        """Make the request, watched by the provider's breaker, within its own time and the run's."""
        model, breaker = self._model(attempt.model, settings), self._breaker(attempt.model, settings)
        patience = (settings.timeout + _GRACE).total_seconds()
        left = attempt.seconds_left
        if prepare := getattr(model, "prepare", None):
            await prepare()  # before it counts as sent
        entered, end = breaker.enter(), cast("Ended", "unknown")
        attempt.begin(tokens)
        try:
            async with asyncio.timeout(patience if left is None else min(patience, left)):
                with signals.current().within(attempt.span):
                    reply = await model.generate(asked if getattr(model, "takes_schema", False) else prompted(asked))
            end = "answered"
        except TimeoutError:
            if left is not None and left < patience:
                self._lose(attempt, settings, Usage(input_tokens=tokens, estimated=True), "budget")
                raise attempt.ended("budget", f"The run's time is up: {attempt.model} had not answered yet.") from None
            end = "failed"
            text = f"{attempt.model} did not answer within {settings.timeout.total_seconds():g} s."
            raise ModelError("timeout", text) from None
        except ModelError as error:
            end = "failed" if error.kind in _DOWN else "answered"
            raise
        finally:
            breaker.leave(entered, end)
        return reply

    def _lose(self, attempt: Attempt, settings: ModelSettings, lost: Usage, why: str) -> None:
        """Count what a request has cost that gave no reply."""
        price, now = _price(attempt, settings, lost), datetime.now(UTC)
        attempt.waste(lost, price, "lost" if why == "broken_off" else "failed", why, now=now)

    def _learn(self, attempt: Attempt, settings: ModelSettings, reply: ModelReply, estimated: int) -> None:
        """Take from a reply how a model counts tokens, and that it takes no larger limit of a reply."""
        usage = reply.usage
        if not usage.estimated and usage.input_tokens:
            ratio = usage.input_tokens / max(estimated, 1)
            self._measured[attempt.model] = min(max(ratio, 0.2), 5.0)  # whatever a server reports
        self._refusals.pop(_key(attempt.model, settings), None)
        if attempt.tried.uncapped:
            self._uncapped.add(attempt.model)

    def _queued(self, attempt: Attempt, words: str, tokens: int, wait: timedelta) -> ApplicationError:
        """Return what the engine is told of a call that joins the queue, in which it has its turn after `wait`."""
        place = self._throttle(attempt.model).take(tokens) if attempt.in_time(wait) else None
        return attempt.later("rate_limited", words, wait, place=place, queue=self._id)

    def _model(self, name: str, settings: ModelSettings) -> Model:
        key = _key(name, settings)
        if key not in self._models:
            self._models[key] = open_model(name, settings)
        return self._models[key]

    def _refusal(self, key: str) -> str:
        """Return in what words a model has just refused this customer, or ""."""
        until, words = self._refusals.get(key, (0.0, ""))
        return words if self._clock() < until else ""

    def _breaker(self, model: str, settings: ModelSettings) -> Breaker:
        key = f"{model.partition(':')[0]} {address_of(model, settings)}"
        if key not in self._breakers:
            self._breakers[key] = breaker_of(self._settings, self._clock)
        return self._breakers[key]

    def _throttle(self, model: str) -> Throttle:
        if model not in self._throttles:
            self._throttles[model] = Throttle(self._settings.tpm.get(model), self._clock)
        return self._throttles[model]

    async def aclose(self) -> None:
        """Release the models' connections."""
        for model in self._models.values():
            with contextlib.suppress(Exception):
                await model.aclose()


def _price(attempt: Attempt, settings: ModelSettings, usage: Usage, answered: str = "") -> Decimal | None:
    """Return what `usage` costs with the due model. The settings have the price of the first one only.

    `answered` is the model's name in the reply, which may be more exact, or nonsense.
    """
    price = None if attempt.tried.model else settings.price
    names, address = (answered, attempt.model.partition(":")[2]), address_of(attempt.model, settings)
    found = (cost(name, usage, price, address=address) for name in names if name)
    return next((usd for usd in found if usd is not None), None)


def _key(model: str, settings: ModelSettings) -> str:
    return f"{model} {settings.model_dump_json()}"


def _seconds(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
