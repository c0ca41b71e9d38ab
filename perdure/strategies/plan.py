"""Plan and execute: the model makes a plan, its steps are done beside each other, and what is left may be amended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field, ValidationError

from perdure.errors import AgentError, ToolError
from perdure.mcp import MCPServer
from perdure.messages import JSON, Data
from perdure.policies import AgentSpec, Limits, StrategySpec, SubAgent, ToolSpec
from perdure.results import preview
from perdure.schemas import sentence
from perdure.strategies import Ask, Directed, Do, Move, Situation, plan_views, planning, refuse_handoffs
from perdure.strategies.plan_views import PlanView
from perdure.strategies.planning import AMEND, KEEP, MOST_STEPS, PLAN, STEP, Course, PlanStep
from perdure.tools import Tool

if TYPE_CHECKING:
    from perdure.agents import Agent

Asks = Callable[[list[dict[str, JSON]]], bool | Awaitable[bool]]
"""Called with the steps of a plan, as data; True has a person approve it."""


class Options(Data):
    """The strategy as a run keeps it. See `Plan`."""

    max_steps: int = Field(default=10, ge=1, le=MOST_STEPS)
    replan: bool | Literal["failures"] = True
    max_amendments: int = Field(default=5, ge=0)


@dataclass(frozen=True)
class Plan:
    """The model plans; each step of the plan is a run of its own; then the model sums up.

    Steps that need nothing of each other are done at the same time. After each round of them the model may amend what
    is left of the plan, also because of what the user has said meanwhile; what is done stays done.

    Args:
        approve: Whether a person has to approve, and may edit, each plan and each amendment before it is followed.
            A function that is called with the steps (`id`, `goal`, `depends_on`, `tools`) decides it. Default False.
        max_steps: Of a plan, and of an amendment; at most 30. Default 10.
        replan: Whether the model looks at the plan after each round. `"failures"`: only where a step has failed.
            False: never; steps that need one that failed are skipped. What the user says, it is always told.
        max_amendments: So often at most the plan is amended. Default 5.
        step_model: `PROVIDER:NAME` that does the steps, or a list of them. Default: the agent's.
        step_limits: Of each step; as data, too, such as `{"steps": 5}`. Default: the agent's.
        share: The most of what the run may still spend that a round of steps is lent at once; they can ask for more.
            Default 0.7.

    Raises:
        AgentError: If an option can't be.
    """

    approve: bool | Asks = False
    max_steps: int = 10
    replan: bool | Literal["failures"] = True
    max_amendments: int = 5
    step_model: str | Sequence[str] | None = None
    step_limits: Limits | dict[str, JSON] | None = None
    share: float = 0.7

    def __post_init__(self) -> None:
        """Check what it is made of."""
        if not (isinstance(self.approve, bool) or callable(self.approve)):  # pyright: ignore[reportUnnecessaryIsInstance] # users
            raise AgentError(f"Plan: approve has to be True, False or a function of the steps, not {self.approve!r}.")
        if isinstance(self.step_limits, dict):  # from YAML
            object.__setattr__(self, "step_limits", _limits(self.step_limits))
        if not 0 < self.share <= 1:
            raise AgentError(f"Plan: share has to be above 0 and at most 1, not {self.share!r}.")
        self.spec()

    @property
    def name(self) -> str:
        """`plan`."""
        return "plan"

    def spec(self) -> StrategySpec:
        """Return what a run keeps of it."""
        try:
            options = Options(max_steps=self.max_steps, replan=self.replan, max_amendments=self.max_amendments)
        except ValidationError as error:
            raise AgentError(f"Plan: {sentence(error)}") from None
        return StrategySpec(name=self.name, options=options.model_dump())

    def tools(self, agent: Agent) -> Sequence[Tool | MCPServer]:
        """Return the tools by which a plan is made and amended, the one that does a step, and servers to be listed.

        Raises:
            AgentError: If the agent has hand-offs: a plan never offers them.
        """
        refuse_handoffs(agent, self.name, "give the other agent to its steps as a tool")
        return (*self._planning(agent), self._step(agent), *_servers(agent))

    def _planning(self, agent: Agent) -> Sequence[Tool]:
        names = None if _servers(agent) else [tool.name for tool in agent.own_tools]
        most = self.max_steps

        def plan(steps: list[dict[str, JSON]]) -> JSON:
            return _checked(steps, names, most, set())

        def amend(steps: list[dict[str, JSON]]) -> JSON:
            return _checked(steps, names, most, None)

        def keep() -> str:
            return "It goes on as planned."

        given: dict[str, Any] = {"effect": "read", "local": True}
        first: dict[str, Any] = {**given, "approval": self._policy(names, set())}
        later: dict[str, Any] = {**given, "approval": self._policy(names, None)}
        made = Tool.from_schema(plan, planning.schema(names, most), name=PLAN, description=_PLAN, **first)
        amended = planning.schema(names, most, empty=True)
        changed = Tool.from_schema(amend, amended, name=AMEND, description=_AMEND, **later)
        return (
            replace(made, check=partial(_wrong, tools=names, most=most, settled=set[str]())),
            replace(changed, check=partial(_wrong, tools=names, most=most, settled=None)),
            Tool.from_schema(keep, _NOTHING, name=KEEP, description=_KEEP, **given, approval="never", polling=True),
        )

    def _policy(self, tools: Sequence[str] | None, settled: set[str] | None) -> Any:
        """Return who is asked about a plan: nobody about one that can't be."""
        ask, most = self.approve, self.max_steps
        if ask is False:
            return "never"

        async def asks(steps: list[dict[str, JSON]]) -> bool:
            if planning.problem(planning.read(steps), tools, most, settled):
                return False
            wanted = True if ask is True else ask(steps)
            return bool(await wanted if isinstance(wanted, Awaitable) else wanted)

        return asks

    def _step(self, agent: Agent) -> Tool:
        own = agent.rules
        approval: Any = agent.approval
        if own.tools:
            rules = {name: rule for name, rule in own.tools.items() if name not in _OWN}
            approval = own.model_copy(update={"tools": rules})
        does = replace(
            agent,
            name=f"{agent.name}-step",
            model=self.step_model or agent.model,
            instructions="\n\n".join(filter(None, (agent.instructions, _DO_STEP))),
            limits=cast("Limits | None", self.step_limits) or agent.limits,
            settings=agent.settings.model_copy(update={"tool_choice": None}),  # it may name what a step does not have
            approval=approval,
            memory=False,
            strategy=None,
            output_type=None,
            handoffs=(),
        )
        made = does.as_tool(_STEP, name=STEP, approval="never", parallel=True, share=self.share)
        below = SubAgent(spec=does.spec, share=self.share, part=True)
        return replace(made, spec=made.spec.model_copy(update={"parameters": _STEP_SCHEMA, "agent": below}))

    def move(self, seen: Situation) -> Move:
        """Return what is next: the plan is made or amended, steps begin, or the model sums up."""
        options = Options.model_validate(seen.options)
        before = PlanView.model_validate(seen.progress or {"since": seen.asked_at})
        tools = [tool.name for tool in tools_of(seen.spec)]
        course = planning.follow(seen.entries[before.since :], tools, options.max_steps)
        made = next_move(course, options, seen.spec, answer_only=seen.answer_only)
        begins = {}
        if isinstance(made, Do):
            begins = {str(call.arguments["step"]): f"{seen.step}.{at}" for at, call in enumerate(made.calls, 1)}
        now = plan_views.view(course, before, begins)
        return replace(made, progress={"since": now.since, **now.model_dump(mode="json", exclude_defaults=True)})


def _limits(told: dict[str, JSON]) -> Limits:
    try:
        return Limits.model_validate(told)
    except ValidationError as error:
        raise AgentError(f"Plan: step_limits: {sentence(error)}") from None


def _servers(agent: Agent) -> list[MCPServer]:
    return [tool for tool in agent.tools if isinstance(tool, MCPServer)]


_OWN = (PLAN, AMEND, KEEP, STEP)


def _wrong(steps: JSON, tools: Sequence[str] | None, most: int, settled: set[str] | None) -> str | None:
    """Return what is wrong with a plan as it was written, in a sentence, or None."""
    try:
        return planning.problem(planning.read(steps), tools, most, settled)
    except ValueError as error:
        return str(error)


def _checked(steps: list[dict[str, JSON]], tools: Sequence[str] | None, most: int, settled: set[str] | None) -> JSON:
    if wrong := _wrong(cast("JSON", steps), tools, most, settled):
        raise ToolError(wrong, error_type="invalid_plan", suggestion="Give the whole plan again.")
    return {"steps": [step.model_dump() for step in planning.read(cast("JSON", steps))]}


# -- what is next ------------------------------------------------------------------------------------------

TRIES = 3
"""So many plans in a row that can't be taken, and it is gone on without."""


def tools_of(spec: AgentSpec) -> list[ToolSpec]:
    """Return the tools that steps of a run may use: the agent's own, and those that its servers have listed."""
    step = spec.tool(STEP)
    own = step.agent.spec.tools if step and step.agent else []
    return [*own, *(tool for tool in spec.tools if tool.mcp)]


def next_move(course: Course, options: Options, spec: AgentSpec, *, answer_only: bool = False) -> Ask | Do:
    """Return what a plan's run does next. Pure and total: each round of steps ends some, and amendments are bounded."""
    if answer_only:
        return _ask(spec, _note(course, LAST), last=True)
    if not course.steps:
        if course.refused >= TRIES:
            return _ask(spec, f"{course.why} {NO_PLAN}", last=True)
        return _ask(spec, PLAN_WAITS if course.waits else f"{course.why} {MAKE}".strip(), [PLAN])
    if is_due(course, options):
        may_amend = course.amended < options.max_amendments
        note, tools = (AMEND_NOW, [AMEND, KEEP]) if may_amend else (KEEP_NOW, [KEEP])
        return replace(_ask(spec, _note(course, note), tools), must_call=True)
    if ready := course.ready[: spec.limits.calls_per_turn]:
        return Do([_begin(course, step) for step in ready])
    return _ask(spec, _note(course, STEPS_WAIT if course.begun else SUM_UP), last=True)


def is_due(course: Course, options: Options) -> bool:
    """Return whether the model is to be heard on the plan before anything else of it begins."""
    if course.refused >= TRIES:
        return False
    if course.said:
        return True
    if options.replan is False or course.amended >= options.max_amendments:
        return False
    if course.failed_lately or course.why:
        return True
    return options.replan is True and bool(course.fresh) and bool(course.having("todo"))


def _ask(spec: AgentSpec, note: str, tools: Sequence[str] = (AMEND, KEEP), *, last: bool = False) -> Ask:
    return Ask(instructions=how(spec), tools=list(tools), note=note, answer_only=last)


def _begin(course: Course, step: PlanStep) -> Directed:
    return Directed(
        name=STEP, arguments={"step": step.id, "task": task_of(course, step), "tools": list[JSON](step.tools)}
    )


RESULT_BYTES = 16_000
"""Of the result of a step, so much is told to one that depends on it."""


def task_of(course: Course, step: PlanStep) -> str:
    """Return what a step is told: what the user wants, its goal, and what those before it gave."""
    said = [text for text in course.request if text]
    parts = ["What the user wants in the end, for you to know:", *said, f"Your step ({step.id}):", step.goal]
    goals = {one.id: one.goal for one in course.steps}
    for needed in step.depends_on:
        shown, size = preview(course.ends[needed].content, RESULT_BYTES)
        cut = f"\n(the first {RESULT_BYTES:,} of {size:,} bytes)" if size else ""
        parts += [f"Result of the step {needed} ({goals[needed]}):", f"{shown}{cut}"]
    return "\n\n".join(parts)


def _note(course: Course, wanted: str) -> str:
    """Return what the model is told at the end of a request: how far the plan is, and what is wanted."""
    stand = course.statuses
    lines = [f"- {step.id}: {_stand(stand[step.id], step)}" for step in course.steps]
    refused = f"Your last change was not taken: {course.why}" if course.why else ""
    told = "\n".join(["How far the plan is:", *lines]) if lines else ""
    return "\n\n".join(filter(None, (told, refused, wanted)))


def _stand(status: planning.Status, step: PlanStep) -> str:
    if status != "todo":
        return "skipped, for it needs one that failed" if status == "skipped" else status
    return f"to do, after {', '.join(step.depends_on)}" if step.depends_on else "to do"


# -- what models are told ----------------------------------------------------------------------------------

_NOTHING: Mapping[str, JSON] = {"type": "object", "properties": {}, "additionalProperties": False}
_STEP_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "step": {"type": "string"},
        "task": {"type": "string", "minLength": 1},
        "tools": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["step", "task", "tools"],
    "additionalProperties": False,
}

_PLAN = "Make the plan: all steps, those that depend on others among them."
_AMEND = (
    "Replace all steps that are still to be done by these: repeat those that shall stay, drop others, add new ones. A "
    "step that failed may be tried again, otherwise put. What is done or under way stays, and may be depended on by "
    "its id; leave it out here. No steps: nothing is left to do."
)
_KEEP = "Go on with the plan as it is."
_STEP = "Does one step of the plan."
_DO_STEP = (
    "You do one step of a larger plan, and nothing beyond it; others do the rest. You can't ask back. Answer with what "
    "you found or did, with every name, number, date and reference that later steps may need. If it can't be done, say "
    "what is in the way."
)

_HOW = """\
The work is done by a plan. You make the plan, and see what comes of it; you do none of the work yourself. Each step \
is done by a helper that is told the user's words, the step's goal, and the results of the steps that it depends on, \
and nothing else. Use as few steps as do it well, and let steps depend on others only where they need their results.\
"""


def how(spec: AgentSpec) -> str:
    """Return how a plan is made, with the tools that steps may use."""
    lines = [f"- {tool.name}: {' '.join(tool.description.split())}" for tool in tools_of(spec)]
    return "\n".join([_HOW, "", "Tools that steps may use:", *lines] if lines else [_HOW, "", "Steps have no tools."])


MAKE = f"Call {PLAN} now. Only where nothing has to be found out or done for it, answer at once instead."
PLAN_WAITS = f"Your plan waits for a person. Where what was said since changes it, call {PLAN} with another one."
NO_PLAN = "No plan came about. Tell the user so, and what you can say without one."
AMEND_NOW = (
    f"If what came out, or what the user has said, changes what is to be done, call {AMEND}; otherwise call {KEEP}. "
    "To tell the user something meanwhile, write it in the same reply."
)
KEEP_NOW = f"The plan can't be amended any more: call {KEEP}, and tell the user so if they have asked for a change."
STEPS_WAIT = "Some steps wait for a person. Tell the user what is known so far, and what is waited for."
SUM_UP = "The plan is over. Answer the user now, with what the steps found and did; say what failed or was skipped."
LAST = "Answer the user now, with what the steps have found and done so far; say what is left undone."
