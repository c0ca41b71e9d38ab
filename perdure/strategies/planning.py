"""Plans: steps, what they need, how far they are, and which of them may begin. Pure.

How far a plan is, is read from the transcript alone: the calls of the run that follows it, and their results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal, cast

from pydantic import Field, ValidationError

from perdure.messages import (
    JSON,
    AssistantMessage,
    Data,
    Entry,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    canonical_json,
)
from perdure.schemas import sentence

PLAN, AMEND, KEEP, STEP = "plan", "amend_plan", "keep_plan", "step"
"""The tools of a run that follows a plan."""

MOST_STEPS = 30
"""So many may a plan have at most, whatever `max_steps` says: it has to be read by a person, and by every turn."""

LONGEST = 24_000
"""Bytes of a plan as JSON."""

Status = Literal["todo", "running", "done", "failed", "skipped"]


class PlanStep(Data):
    """One step of a plan: a run of its own.

    Attributes:
        id: By which others name it.
        goal: What is to be found or done.
        depends_on: Steps that have to be done before; it is told their results.
        tools: Those that it may call; none: it only thinks.
    """

    id: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,40}$")
    goal: str = Field(min_length=1, max_length=1_000)
    depends_on: list[str] = Field(default_factory=list, max_length=MOST_STEPS)
    tools: list[str] = Field(default_factory=list)


def schema(tools: Sequence[str] | None, most: int, *, empty: bool = False) -> dict[str, JSON]:
    """Return the JSON Schema of a plan's arguments: at most so many steps, which use `tools` (None: not known yet)."""
    named: dict[str, JSON] = {"type": "string", "enum": list(tools)} if tools else {"type": "string"}
    step = {
        "type": "object",
        "properties": {
            "id": {
                "type": "string",
                "pattern": "^[A-Za-z0-9_.-]{1,40}$",
                "description": "A short name of the step, such as `hotels`.",
            },
            "goal": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1_000,
                "description": "What is to be found or done in it, with every detail that it needs.",
            },
            "depends_on": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Ids of the steps whose results it needs. Steps that need nothing of each other are "
                "done at the same time.",
            },
            "tools": {
                "type": "array",
                "items": named,
                **({"maxItems": 0} if tools == [] else {}),
                "description": "Names of the tools that it may call; it has no others.",
            },
        },
        "required": ["id", "goal", "depends_on", "tools"],
        "additionalProperties": False,
    }
    steps = {"type": "array", "items": step, "minItems": 0 if empty else 1, "maxItems": most}
    return {"type": "object", "properties": {"steps": steps}, "required": ["steps"], "additionalProperties": False}


def read(steps: JSON) -> list[PlanStep]:
    """Return the steps that `steps` is, as a model or a person has written them.

    Raises:
        ValueError: If it is no list of steps; the text says where.
    """
    if not isinstance(steps, list):
        raise ValueError("The steps of a plan have to be a list.")  # noqa: TRY004 - it is data from outside
    try:
        return [PlanStep.model_validate(step) for step in cast("list[JSON]", steps)]
    except ValidationError as error:
        raise ValueError(sentence(error)) from None


def problem(
    steps: Sequence[PlanStep], tools: Iterable[str] | None, most: int, settled: AbstractSet[str] | None = None
) -> str | None:
    """Return what is wrong with the steps of a plan, in a sentence, or None.

    Args:
        tools: Those that there are. None: nobody knows.
        most: So many steps at most.
        settled: Steps that are done or under way: nothing may be changed about them, but others may depend on them.
            None: nobody knows which there are.
    """
    ids = [step.id for step in steps]
    if len(steps) > most:
        return f"A plan has at most {most} steps; this one has {len(steps)}."
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        return f"Two steps have the id {twice!r}; give each one of its own."
    if settled is not None and (again := next((one for one in ids if one in settled), None)):
        return f"Step {again!r} is done or under way, and can't be changed; leave it out."
    if tools is not None and (unknown := _unknown(steps, set(tools))):
        return unknown
    if settled is not None and (lost := _lost(steps, {*ids, *settled})):
        return lost
    if circle := _circle(steps):
        return f"Steps wait for each other in a circle: {' → '.join(circle)}."
    size = len(canonical_json([step.model_dump() for step in steps]).encode())
    return f"The plan is too long: {size:,} bytes; at most {LONGEST:,}. Be brief." if size > LONGEST else None


def _unknown(steps: Sequence[PlanStep], tools: AbstractSet[str]) -> str | None:
    for step in steps:
        if strangers := [name for name in step.tools if name not in tools]:
            known = f"The tools are: {', '.join(sorted(tools))}." if tools else "There are no tools."
            return f"Step {step.id!r} wants the tool {strangers[0]!r}, which there is not. {known}"
    return None


def _lost(steps: Sequence[PlanStep], known: AbstractSet[str]) -> str | None:
    for step in steps:
        if strangers := [name for name in step.depends_on if name not in known]:
            return f"Step {step.id!r} depends on {strangers[0]!r}, which is no step of the plan that is done or to do."
    return None


def _circle(steps: Sequence[PlanStep]) -> list[str]:
    """Return steps that depend on each other in a circle, the first one again at the end; none where none do."""
    needs = {step.id: [one for one in step.depends_on if any(one == other.id for other in steps)] for step in steps}
    while free := [name for name, needed in needs.items() if not any(one in needs for one in needed)]:
        for name in free:
            del needs[name]
    if not needs:
        return []
    path = [next(iter(needs))]
    while path[-1] not in path[:-1]:
        path.append(next(one for one in needs[path[-1]] if one in needs))
    return path[path.index(path[-1]) :]


# -- how far a plan is -------------------------------------------------------------------------------------


@dataclass
class Course:
    """A plan, and how far it is.

    Attributes:
        steps: All that it has, those that are over among them, in the order in which they were planned.
        ends: Results of those that have ended.
        begun: Those under way, or that wait for a person: the ids of their calls.
        amended: How often it was amended.
        refused: Plans in a row that could not be taken, or were denied.
        why: Why the last one was not.
        waits: A plan waits for a person.
        fresh: Steps that have ended since the model was last heard on the plan.
        said: The user has said something since then.
        request: What the user wants, in the order in which it was said.
    """

    steps: list[PlanStep] = field(default_factory=list[PlanStep])
    ends: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    begun: dict[str, str] = field(default_factory=dict[str, str])
    amended: int = 0
    refused: int = 0
    why: str = ""
    waits: bool = False
    fresh: list[str] = field(default_factory=list[str])
    said: bool = False
    request: list[str] = field(default_factory=list[str])

    @property
    def statuses(self) -> dict[str, Status]:
        """Where each step stands; one that needs a step which has failed, or was skipped, is skipped."""
        stand: dict[str, Status] = {step.id: self._alone(step.id) for step in self.steps}
        lost = {step for step, status in stand.items() if status == "failed"}
        todo = [step for step in self.steps if stand[step.id] == "todo"]
        while more := {one.id for one in todo if one.id not in lost and lost.intersection(one.depends_on)}:
            stand.update((one, "skipped") for one in more)
            lost |= more
        return stand

    def _alone(self, step: str) -> Status:
        if end := self.ends.get(step):
            return "done" if end.status == "ok" else "failed"
        return "running" if step in self.begun else "todo"

    def having(self, *statuses: Status) -> list[PlanStep]:
        """Return the steps that stand so."""
        stand = self.statuses
        return [step for step in self.steps if stand[step.id] in statuses]

    @property
    def ready(self) -> list[PlanStep]:
        """Steps that may begin now: all that they depend on is done."""
        done = {step.id for step in self.having("done")}
        return [step for step in self.having("todo") if done.issuperset(step.depends_on)]

    @property
    def settled(self) -> set[str]:
        """Steps about which nothing can be changed any more."""
        return {step.id for step in self.having("done", "running")}

    @property
    def failed_lately(self) -> list[str]:
        """Steps that have failed since the model was last heard on the plan."""
        stand = self.statuses
        return [step for step in self.fresh if stand.get(step) == "failed"]


def follow(entries: Sequence[Entry], tools: Sequence[str], most: int) -> Course:
    """Return how far the plan is of which `entries` tell: those from what the user wants on.

    Args:
        tools: Those that steps may use.
        most: Steps of a plan, or of an amendment.
    """
    course, calls = Course(), dict[str, ToolCall]()
    for entry in entries:
        match entry:
            case AssistantMessage():
                calls |= {call.id: call for call in entry.calls}
                course.begun |= {_step_of(call): call.id for call in entry.calls if call.name == STEP}
            case ToolMessage(result=result) | UserMessage(result=ToolResult() as result):
                if call := calls.get(result.call_id):
                    _take(course, call, result, tools, most)
            case UserMessage(source="user"):
                course.request.append(text_of(entry))
                course.said = bool(course.steps)
            case _:
                pass
    return course


def _step_of(call: ToolCall) -> str:
    return str(call.arguments.get("step", ""))


def _take(course: Course, call: ToolCall, result: ToolResult, tools: Sequence[str], most: int) -> None:
    """Take the result of a call into the course."""
    if call.name == STEP:
        _end_step(course, _step_of(call), result)
    elif result.status == "waiting":
        course.waits = True
    elif call.name in (PLAN, AMEND):
        course.waits = False
        _take_plan(course, result, tools, most)
    elif call.name == KEEP and result.status == "ok":
        _heard(course)


def _end_step(course: Course, step: str, result: ToolResult) -> None:
    if result.status == "waiting":
        return
    course.begun.pop(step, None)
    if result.status != "skipped":  # else it has not begun, and may do so yet
        course.ends[step] = result
        course.fresh.append(step)
        course.refused, course.why = 0, ""


def _take_plan(course: Course, result: ToolResult, tools: Sequence[str], most: int) -> None:
    """Take a plan, or what takes the place of all that is left of one; or say why it can't be taken."""
    wrong, steps = _planned(course, result, tools, most)
    if wrong:
        by_people = result.status == "denied" and not course.steps  # who asks for another one may do so again
        course.refused, course.why = course.refused + (not by_people), wrong
        return
    course.amended += 1 if course.steps else 0
    ids = {step.id for step in steps}
    kept = [step for step in course.having("done", "running", "failed") if step.id not in ids]
    course.steps = [*kept, *steps]
    for step in steps:
        course.ends.pop(step.id, None)  # one that had failed is tried again
    _heard(course)


def _planned(
    course: Course, result: ToolResult, tools: Sequence[str], most: int
) -> tuple[str | None, Sequence[PlanStep]]:
    if result.status != "ok":
        return result.message or f"It was {result.status}.", ()
    try:
        steps = read(json.loads(result.content)["steps"])
    except (ValueError, KeyError, TypeError):
        return "It can't be read.", ()
    if not steps and not course.steps:
        return "A plan has at least one step.", ()
    return problem(steps, tools, most, course.settled), steps


def _heard(course: Course) -> None:
    course.fresh, course.said, course.refused, course.why = [], False, 0, ""


def text_of(message: UserMessage) -> str:
    """Return what a user has said, as text."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content if part.kind == "text")
