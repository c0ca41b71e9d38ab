"""Remembering what was said in a run that has ended: a model picks it out, then the store keeps it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from perdure.failures import error_type, explain
from perdure.reports import LearnReport, Remembered
from perdure.wire import AfterRun, RememberInput
from perdure.workflows import later

_PAUSES = (timedelta(minutes=1), timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6))
"""Before a model that is down, or refuses this customer, is asked again."""

_HOPELESS = frozenset({"bad_request", "context_too_long", "price_unknown", "budget", "internal_error"})
"""Failures that no time mends."""


async def remember(request: AfterRun) -> Remembered:
    """Return what is remembered of a run, what that cost, and why where nothing could be.

    The model's answer is recorded before anything is kept: however often a worker is lost, a run leaves the same facts.
    """
    learnt = await _learn(request)
    told: dict[str, Any] = {
        name: getattr(learnt, name) for name in ("dropped", "usage", "cost_usd", "model", "problem")
    }
    if learnt.circle is None or not learnt.facts:
        return Remembered(**told)
    keep = RememberInput(run_id=request.run_id, circle=learnt.circle, facts=learnt.facts, at=workflow.now())
    try:
        return Remembered(facts=await later.remember(keep), **told)
    except ActivityError as error:
        return Remembered(**told).model_copy(update={"problem": explain(error)})


async def _learn(request: AfterRun) -> LearnReport:
    for number, pause in enumerate((*_PAUSES, None), 1):
        try:
            return await later.learn(request, number)
        except ActivityError as error:
            if pause is None or error_type(error) in _HOPELESS:
                return LearnReport(problem=explain(error))
            why = explain(error)
        await workflow.sleep(pause, summary=f"before the model is asked again: {why}"[:200])
    raise AssertionError  # the last pause is None
