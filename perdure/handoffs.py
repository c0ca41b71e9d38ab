"""To whom an agent may pass its conversation, as its author declares it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import AgentError
from perdure.policies import AgentSpec, ToolSpec

if TYPE_CHECKING:
    from perdure.agents import Agent

_REASON = {
    "type": "object",
    "properties": {"reason": {"type": "string", "default": "", "description": "Why, in a few words."}},
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Handoff:
    """An agent to which another may pass the conversation; see `Agent(handoffs=…)`.

    Args:
        agent: The agent, or the name of one that is met elsewhere among the agents that hand over to each other: so
            they can hand back.
        description: When that is right: the model has only that to go by.
        name: Of the tool, as the model sees it. Default: `transfer_to_NAME`.
    """

    agent: Agent | str
    description: str = ""
    name: str = ""

    @property
    def to(self) -> str:
        """The name of the agent."""
        return self.agent if isinstance(self.agent, str) else self.agent.name

    @property
    def spec(self) -> ToolSpec:
        """The tool by which it is done."""
        said = f"Pass the whole conversation to the agent {self.to}, which goes on with it in your place."
        return ToolSpec(
            name=self.name or f"transfer_to_{self.to}",
            description=f"{said} {self.description}".strip(),
            parameters=_REASON,
            effect="read",
            approval="never",
            local=True,
            hands_to=self.to,
        )


def declared(agent: Agent) -> list[Handoff]:
    """Return to whom an agent may hand over.

    Raises:
        AgentError: If that is no list of agents, names or `Handoff`s, it names itself, or one twice.
    """
    from perdure.agents import Agent as Agents

    given: Any = agent.handoffs  # whatever a user has put there
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise AgentError(f"Agent {agent.name!r}: handoffs has to be a list, not {given!r}.")
    found = list[Handoff]()
    for one in cast("Sequence[Any]", given):
        if not isinstance(one, Agents | str | Handoff):
            raise AgentError(f"Agent {agent.name!r}: handoffs are agents, their names or Handoffs, not {one!r}.")
        found.append(one if isinstance(one, Handoff) else Handoff(one))
    names = [one.to for one in found]
    if twice := next((name for name in names if name == agent.name or names.count(name) > 1), None):
        what = "itself" if twice == agent.name else f"{twice!r} in two ways"
        raise AgentError(f"Agent {agent.name!r} can't hand over to {what}.")
    return found


def network(agent: Agent) -> dict[str, Agent]:
    """Return all agents that a run of `agent` may be passed to, itself first.

    Raises:
        AgentError: If two different ones have one name, or not all have the same variables.
    """
    found, left = {agent.name: agent}, [agent]
    while left:
        for handoff in declared(left.pop()):
            other = handoff.agent
            if isinstance(other, str):
                continue
            if other.name not in found:
                found[other.name] = other
                left.append(other)
            elif found[other.name] is not other:
                raise AgentError(f"Agent {agent.name!r}: two of the agents it hands over to are {other.name!r}.")
    kinds = {id(one.variables) for one in found.values()}  # what is no class may have no hash
    if len(kinds - {id(None)}) > 1 or (agent.variables is None and len(kinds) > 1):
        raise AgentError(f"Agent {agent.name!r}: agents that hand over have the variables of the first one, or none.")
    return found


def unknown(agents: Sequence[Agent]) -> Iterator[tuple[str, str]]:
    """Yield who hands over, and the name of the agent, where no such agent is among `agents`."""
    names = {one.name for one in agents}
    yield from ((one.name, to.to) for one in agents for to in declared(one) if to.to not in names)


def with_network(agent: Agent) -> AgentSpec:
    """Return the rules of an agent, with those of all agents that a run of it may be passed to.

    Names that none of these has are left out: `unknown` finds them among what a worker serves.

    Raises:
        AgentError: As `network` does, or if a hand-off has the name of a tool.
    """
    found = network(agent)
    if not agent.handoffs:
        return agent.alone
    specs = {name: _edges(one, found) for name, one in found.items()}
    own = specs.pop(agent.name)
    return own.model_copy(update={"peers": specs})


def _edges(agent: Agent, found: dict[str, Agent]) -> AgentSpec:
    tools = [handoff.spec for handoff in declared(agent) if handoff.to in found]
    taken = {tool.name for tool in agent.alone.tools}
    if same := next((tool.name for tool in tools if tool.name in taken), None):
        raise AgentError(f"Agent {agent.name!r}: a hand-off has the name of its tool {same!r}; name it with Handoff.")
    return agent.alone.model_copy(update={"handoffs": tools})
