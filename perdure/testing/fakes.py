"""Fake tools: a body of the test's own, under the schema, the effect and the approval of the tool itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from perdure.agents import Agent
from perdure.errors import AgentError
from perdure.handoffs import Handoff
from perdure.tools import Done, NotDone, ProbeOutcome, Tool

if TYPE_CHECKING:
    from perdure.tools import ToolContext

_CONTEXT = "perdure_context"


@dataclass(frozen=True)
class FakeCall:
    """One call that a fake has taken.

    Attributes:
        arguments: As the function would have had them, without the context.
        key: The idempotency key, the same on every attempt.
        attempt: From 1.
    """

    arguments: Mapping[str, Any]
    key: str = ""
    attempt: int = 1


@dataclass(init=False)
class Fake:
    """What stands in for a tool's function. What the model sees of the tool, and who is asked about it, stays.

    A probe of the tool is answered by what the fake has done, and a compensation is noted in `undone`.

    Args:
        results: What its calls give, one after the other; the last one again and again, None without any. An exception
            is raised, and a function is called with the arguments as keywords, async or sync.

    Attributes:
        calls: Every call, oldest first.
        done: The idempotency keys of those that returned, oldest first; see `assert_never_twice`.
        undone: The idempotency keys of those that were compensated.
    """

    calls: list[FakeCall] = field(default_factory=list[FakeCall])
    done: list[str] = field(default_factory=list[str])
    undone: list[str] = field(default_factory=list[str])

    def __init__(self, *results: Any) -> None:
        self._results = results or (None,)
        self._returned: dict[str, Any] = {}
        self.calls, self.done, self.undone = [], [], []

    @property
    def arguments(self) -> list[dict[str, Any]]:
        """The arguments of every call, oldest first."""
        return [dict(call.arguments) for call in self.calls]

    def into(self, tool: Tool) -> Tool:
        """Return `tool` with this as its body."""
        context = tool.context_parameter or _CONTEXT

        async def body(**keywords: Any) -> Any:
            return await self._called(keywords.pop(context), keywords)

        return replace(
            tool,
            spec=tool.spec.model_copy(update={"remote": None, "agent": None}),
            function=body,
            context_parameter=context,
            probe=self._probed if tool.probe else None,
            compensate=self._compensated if tool.compensate else None,
            agent=None,
        )

    async def _called(self, context: ToolContext, arguments: Mapping[str, Any]) -> Any:
        due = self._results[min(len(self.calls), len(self._results) - 1)]
        self.calls.append(FakeCall(arguments, context.idempotency_key, context.attempt))
        if isinstance(due, BaseException):
            raise due
        value = due(**arguments) if callable(due) else due
        value = await value if inspect.isawaitable(value) else value
        self.done.append(context.idempotency_key)
        self._returned[context.idempotency_key] = value
        return value

    async def _probed(self, context: ToolContext, **arguments: Any) -> ProbeOutcome:
        del arguments
        key = context.idempotency_key
        return Done(self._returned[key]) if key in self._returned else NotDone()

    async def _compensated(self, context: ToolContext, result: Any, **arguments: Any) -> str:
        del result, arguments
        self.undone.append(context.undoes)
        return "undone"


# -- putting them in ---------------------------------------------------------------------------------------


def rewired(agent: Agent, tools: Mapping[str, Any] | None = None, models: Mapping[str, str] | None = None) -> Agent:
    """Return an agent with other bodies of tools, and other models; those of the agents below it as well.

    Args:
        tools: By name: a `Fake`, or what its calls give. A tool that is an agent becomes a plain one.
        models: By the agent's name: the name of the model that it is to have.

    Raises:
        AgentError: If no agent has a tool of such a name.
    """
    given = {name: one if isinstance(one, Fake) else Fake(one) for name, one in (tools or {}).items()}
    used = set[str]()
    new = _rewired(agent, given, models or {}, used)
    if strangers := sorted(set(given) - used):
        known = ", ".join(sorted({tool.name for one in (agent, *agent.below) for tool in one.own_tools})) or "none"
        raise AgentError(f"Agent {agent.name!r} has no tool {strangers[0]!r} to be faked; its own tools: {known}.")
    return new


def _rewired(agent: Agent, fakes: Mapping[str, Fake], models: Mapping[str, str], used: set[str]) -> Agent:
    def tool(one: Any) -> Any:
        if not isinstance(one, Tool):
            return one
        if one.name in fakes:
            used.add(one.name)
            return fakes[one.name].into(one)
        if one.agent is None or one.spec.agent is None:
            return one
        below = _rewired(one.agent, fakes, models, used)
        spec = one.spec.model_copy(update={"agent": one.spec.agent.model_copy(update={"spec": below.spec})})
        return replace(one, spec=spec, agent=below)

    def handoff(one: Agent | Handoff | str) -> Agent | Handoff | str:
        if isinstance(one, Agent):
            return _rewired(one, fakes, models, used)
        if isinstance(one, Handoff) and isinstance(one.agent, Agent):
            return replace(one, agent=_rewired(one.agent, fakes, models, used))
        return one

    return replace(
        agent,
        model=models.get(agent.name, agent.model),
        tools=[tool(one) for one in agent.tools],
        handoffs=[handoff(one) for one in agent.handoffs],
    )


# -- what was done -----------------------------------------------------------------------------------------


def assert_never_twice(ledger: Any, key: str | Callable[[Any], Any] | None = None) -> None:
    """Fail if an effect is in a ledger more than once.

    Args:
        ledger: What was done, one entry each; or a `Fake`, whose effects are its `done`.
        key: What tells one effect from another: the name of a field, or a function of an entry. Default: the entry.

    Raises:
        AssertionError: The text names each effect that was done more than once, and how often.
    """
    counts: dict[str, int] = {}
    for entry in ledger.done if isinstance(ledger, Fake) else cast("Sequence[Any]", ledger):
        told = str(_key_of(entry, key))
        counts[told] = counts.get(told, 0) + 1
    if twice := [f"{told}: {count} times" for told, count in counts.items() if count > 1]:
        raise AssertionError(f"Done more than once: {', '.join(twice)}")


def _key_of(entry: Any, key: str | Callable[[Any], Any] | None) -> Any:
    if key is None:
        return entry
    if callable(key):
        return key(entry)
    return cast("Mapping[str, Any]", entry)[key] if isinstance(entry, Mapping) else getattr(entry, key)
