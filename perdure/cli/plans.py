"""How far a plan is, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from perdure.cli.output import one_line, paint, safe

if TYPE_CHECKING:
    from perdure import events as ev
    from perdure.strategies.plan_views import PlanView, StepView

_COLOURS = {"done": "green", "failed": "red", "skipped": "yellow", "running": "blue"}


def lines(plan: PlanView, stream: TextIO) -> Iterator[str]:
    """Yield a line for each step: where it stands, what it needs, which run it is."""
    width = max((len(step.id) for step in plan.steps), default=0)
    for step in plan.steps:
        status = paint(f"{step.status:<7}", _COLOURS.get(step.status, "dim"), stream)
        yield f"  {status}  {safe(step.id):<{width}}  {one_line(step.goal, 120)}{_more(step)}"
    if plan.amended:
        yield f"  amended {_times(plan.amended)}"


def _more(step: StepView) -> str:
    after = f"after {', '.join(map(safe, step.depends_on))}" if step.depends_on else ""
    run = f"run {safe(step.run)}" if step.run else ""
    more = "; ".join(part for part in (after, run) if part)
    return f"  ({more})" if more else ""


def in_words(event: ev.PlanChanged, stream: TextIO) -> str:
    """Return how far it is in a line: `plan: 2 of 5 steps done; running: hotel, train`."""
    done = sum(step.status == "done" for step in event.steps)
    told = [f"{paint('plan', 'bold', stream)}: {done} of {len(event.steps)} steps done", *_named(event.steps, stream)]
    return "; ".join([*told, f"amended {_times(event.amended)}"] if event.amended else told)


def _named(steps: Sequence[StepView], stream: TextIO) -> Iterator[str]:
    for status in ("running", "failed", "skipped", "todo"):
        if names := [safe(step.id) for step in steps if step.status == status]:
            word = "to do" if status == "todo" else status
            yield f"{paint(word, _COLOURS.get(status, 'dim'), stream)}: {', '.join(names)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
