"""The compaction: a conversation that is too long for its model is made shorter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities import windows
from perdure.activities.edge import Edge
from perdure.activities.heartbeats import Pulse, Tried, heartbeats
from perdure.activities.hooking import Hooks
from perdure.activities.model import ModelActivities, guarded, request_of
from perdure.activities.stores import Blobs, run_owner
from perdure.activities.stores.patience import patiently
from perdure.compaction import DefaultStrategy, is_new
from perdure.context import ContextStrategy, NotWritten, Situation, Written, fits
from perdure.messages import Compaction, ContextHealth, Message, UserMessage
from perdure.models import ModelRequest
from perdure.policies import READ_RESULT, AgentSpec, ModelSettings
from perdure.reports import CompactReport
from perdure.results import words
from perdure.wire import COMPACT, CompactInput

_TIGHTER = 0.6
"""What is left of the room each further time that it is compacted without a reply."""

_THOUGHTS = re.compile(r"(?s)\A\s*<think>.*?</think>")
"""What some servers leave before a reply."""

_FORMS = frozenset({"response_format", "text", "tools", "tool_choice", "parallel_tool_calls"})
"""Parts of a request's body that say what a reply has to be like, and mean nothing for a summary."""


class CompactActivities:
    """Compactions of one worker.

    Args:
        models: Knows the runs' conversations.
        edge: Writes summaries.
        blobs: Where what is shown in short is kept whole.
        hooks: Called before and after.
    """

    def __init__(self, models: ModelActivities, edge: Edge, blobs: Blobs, hooks: Hooks | None = None) -> None:
        self._hooks = hooks
        self._models = models
        self._edge = edge
        self._blobs = blobs

    @activity.defn(name=COMPACT)
    async def compact(self, request: CompactInput) -> CompactReport:
        """Return what is to be added to the transcript, and what it has cost.

        Raises:
            ApplicationError: To be tried again where that may help; else of the `ModelError`'s kind.
        """
        async with heartbeats() as pulse:
            if self._hooks:
                await self._hooks.compacting("before_compaction", request.agent, request.step, request.why)
            report = await guarded(pulse, lambda: self._report(request, pulse), _broken_off)
            if self._hooks:
                await self._hooks.compacting("after_compaction", request.agent, request.step, report.entry)
        if report.entry:
            self._models.remember(report.entry)
        return report

    async def _report(self, request: CompactInput, pulse: Pulse) -> CompactReport:
        talk = await self._models.conversation(request)
        spec, entries, strategy = talk.spec, talk.entries, talk.strategy
        window = windows.window_of(spec, request.window)

        def count(messages: Sequence[Message]) -> int:
            return self._edge.tokens(spec.model, request_of(talk, request, messages))

        before = count(windows.shown(strategy, entries))
        pen = _Pen(spec, self._edge, request, pulse)
        believed, window = window, min(window, before) if request.why == "refused" else window
        limit, target = _bounds(request, spec, window, before)
        situation = Situation(
            entries=entries,
            count=count,
            limit=limit,
            target=target,
            window=int(window * _TIGHTER**request.tight),
            tools=[*spec.offered, READ_RESULT],
            waiting=[talk.book.text(words) for words in request.waiting],
            decided=[talk.book.text(words) for words in request.decided],
            free=request.why == "budget",
            keep=self._keep,
            write=pen.write,
        )
        entry, problem = await _compacted(strategy, situation)
        after = count(windows.shown(strategy, [*entries, entry])) if entry else before
        return CompactReport(
            entry=entry,
            how="nothing" if entry is None else "summarised" if is_new(entry, entries) else "shortened",
            before=ContextHealth(tokens=before, window=believed),
            after=ContextHealth(tokens=after, window=window if entry else believed),
            usage=pulse.tried.wasted,
            cost_usd=pulse.tried.cost_usd,
            spent=pulse.tried.spent,
            message=". ".join(part.rstrip(".") for part in (problem, pen.problem) if part),
        )

    async def _keep(self, text: str) -> str:
        """Put a text into the store, however long that is away."""
        info = activity.info()
        owner = run_owner(info.workflow_namespace or "", info.workflow_id or "")
        put = partial(self._blobs.put, text.encode("utf-8", "surrogatepass"), owner)
        return await patiently(put, meanwhile="a compaction waits for the store")


def _bounds(request: CompactInput, spec: AgentSpec, window: int, before: int) -> tuple[int, int]:
    """Return how many tokens a request may have now at most, and had better have."""
    room, target = windows.room_of(spec, window), int(window * spec.context.compact_to)
    scale = _TIGHTER**request.tight
    match request.why:
        case "full":
            pass
        case "refused":
            room, target = min(room, int(before * 0.7)), min(target, int(before * 0.5))
        case "budget":
            left = request.allowance.input_tokens
            target = min(target, before // 2, *([] if left is None else [left // 3]))
            room = min(room, int(before * 0.8))
    return int(room * scale), min(int(target * scale), int(room * scale))


async def _compacted(strategy: ContextStrategy, situation: Situation) -> tuple[Compaction | None, str]:
    """Return what the strategy makes of it, or, where that is of no use, the default one, and why."""
    default = DefaultStrategy(strategy.policy)
    if strategy.name == default.name:
        return await strategy.compact(situation), ""
    try:
        entry = await strategy.compact(situation)
        if entry is None or fits(entry, situation.entries):
            return entry, ""
        problem = "it covers what is not there, or is too large"
    except ApplicationError:
        raise  # a model to be asked again
    except Exception as error:  # noqa: BLE001 - application code may raise anything
        problem = words(error)
    activity.logger.warning("context strategy %r failed: %s", strategy.name, problem)
    return await default.compact(situation), f"The strategy {strategy.name!r} failed: {problem}"


@dataclass
class _Pen:
    """Asks the agent's models for a text.

    Attributes:
        problem: Why none wrote it.
    """

    spec: AgentSpec
    edge: Edge
    request: CompactInput
    pulse: Pulse
    problem: str = ""

    async def write(self, instructions: str, text: str) -> Written:
        """Return what a model wrote: the one for summaries, or one of the agent's, whichever can."""
        if self.request.why == "budget":
            raise NotWritten("Too little is left of the budget.")
        chosen = self.spec.context.summary_model
        models = [chosen, *self.spec.models] if chosen else self.spec.models
        content = UserMessage(role="user", content=text, source="runtime")
        asked = ModelRequest(instructions, [content], (), _plain(self.spec.settings, other=bool(chosen)))
        try:
            answer = await self.edge.answer(models, asked, self.request.allowance, self.pulse)
        except ApplicationError as error:
            if not error.non_retryable:
                raise
            self.problem = f"No model wrote a summary: {error.message}"
            raise NotWritten(self.problem) from None
        text = _THOUGHTS.sub("", answer.reply.text).strip()
        if not text or answer.reply.finish in ("refusal", "filtered"):
            self.problem = f"No model wrote a summary: {answer.model} gave none."
            raise NotWritten(self.problem)
        return Written(text, answer.model)


def _plain(settings: ModelSettings, *, other: bool) -> ModelSettings:
    """Return settings for a summary: without what is asked of replies otherwise, and another model's price."""
    extra = {key: value for key, value in settings.extra_body.items() if key not in _FORMS}
    price = None if other else settings.price
    return settings.model_copy(update={"extra_body": extra, "tool_choice": None, "price": price})


def _broken_off(tried: Tried) -> CompactReport:
    """Return what a compaction has cost that was broken off."""
    return CompactReport(usage=tried.wasted, cost_usd=tried.cost_usd, spent=tried.spent)
