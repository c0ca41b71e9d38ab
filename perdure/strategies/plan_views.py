"""How far a run's plan is, for people: each step, where it stands, and which run it is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from perdure.messages import JSON, CallRecord, Data
from perdure.outcomes import records
from perdure.policies import AgentSpec
from perdure.state import RunState
from perdure.strategies.planning import PLAN, Course, Status


class StepView(Data):
    """A step of a plan, as people see it.

    Attributes:
        goal: The beginning of it.
        call: Position of the call that it is, or was last; "" where it has not begun.
        run: The run that it is.
    """

    id: str
    goal: str
    depends_on: list[str] = Field(default_factory=list[str])
    tools: list[str] = Field(default_factory=list[str])
    status: Status = "todo"
    call: str = ""
    run: str = ""


class PlanView(Data):
    """A plan, and how far it is.

    Attributes:
        amended: How often it was amended.
        since: Entries of the transcript before what the user wants of the run.
    """

    steps: list[StepView] = Field(default_factory=list[StepView])
    amended: int = 0
    since: int = 0


def view(course: Course, before: PlanView, begins: Mapping[str, str]) -> PlanView:
    """Return how far a plan is.

    Args:
        before: What was said of it last.
        begins: Steps that begin now, and the positions of their calls.
    """
    called = {**{step.id: step.call for step in before.steps}, **begins}
    stand = course.statuses
    steps = [
        StepView(
            id=step.id,
            goal=step.goal if len(step.goal) <= _SHORT else f"{step.goal[:_SHORT]}…",
            depends_on=step.depends_on,
            tools=step.tools,
            status="running" if step.id in begins else stand[step.id],
            call=called.get(step.id, ""),
        )
        for step in course.steps
    ]
    return PlanView(steps=steps, amended=course.amended, since=before.since)


_SHORT = 100


def live(told: PlanView, records: Iterable[CallRecord], runs: Iterable[str]) -> PlanView:
    """Return how far a plan is now.

    Args:
        told: What was said of it when the last steps began.
        records: Calls of the run, as they stand.
        runs: The runs that calls of it are or were, oldest first.
    """
    ends = {record.position: record.status for record in records}
    names = {run.rpartition("/")[2].partition("~")[0]: run for run in runs}

    def now(step: StepView) -> StepView:
        end = ends.get(step.call, "open")
        over: Status = step.status if step.status != "running" or end == "open" else "done" if end == "ok" else "failed"
        return step.model_copy(update={"status": over, "run": names.get(step.call, "")})

    return told.model_copy(update={"steps": [now(step) for step in told.steps]})


def plan_of(state: RunState) -> PlanView | None:
    """Return how far a run's plan is; None where it has none."""
    told = _read(state.spec, state.progress)
    return live(told, records(state), state.leases) if told else None


def changed(before: Mapping[str, JSON], state: RunState) -> PlanView | None:
    """Return a run's plan where it is another one, or further, than `before` says; else None."""
    now = _read(state.spec, state.progress)
    return now if now and before.get("steps") != state.progress.get("steps") else None


def _read(spec: AgentSpec, progress: Mapping[str, Any]) -> PlanView | None:
    if spec.strategy is None or spec.strategy.name != PLAN or not progress.get("steps"):
        return None
    return PlanView.model_validate(progress)
