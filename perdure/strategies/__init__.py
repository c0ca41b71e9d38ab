"""How a run is led: what its next turn is. A strategy decides on plain data; the loop does not know of it.

Without one, the model is asked what to do, over and over. A strategy comes before that: it has the model asked in a
certain way, or makes calls as if the model had, or ends the run. It is asked where the model would be, in an activity,
so that what it decided is in the history, and a run that waits goes on as it began whatever is deployed meanwhile.
All that a call or a run of another agent is (approvals, doubt, budgets, events …) holds for those that it makes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pydantic import Field

from perdure.errors import AgentError
from perdure.messages import JSON, AssistantMessage, Data, Entry, ToolMessage, ToolResult, UserMessage
from perdure.policies import AgentSpec, StrategySpec

if TYPE_CHECKING:
    from perdure.agents import Agent
    from perdure.mcp import MCPServer
    from perdure.tools import Tool

__all__ = ["Answer", "Ask", "Directed", "Do", "Fail", "Move", "Situation", "Strategy", "StrategySpec"]

UNAVAILABLE = "strategy_unavailable"
"""The type of a run's failure whose agent has no strategy of that name any more."""

FAILED = "strategy_failed"
"""The type of a run's failure whose strategy raised an error, or gave what is no move."""


class Directed(Data):
    """A call that a strategy makes: validated, and judged for approval, as a model's is."""

    name: str
    arguments: dict[str, JSON] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Move:
    """What every move may carry.

    Attributes:
        progress: What the strategy wants to know next time, at most a few KB of JSON; None: what it knows already.
        variables: What it changes of the run's variables, as JSON that fits them.
    """

    progress: dict[str, JSON] | None = None
    variables: dict[str, JSON] = field(default_factory=dict[str, JSON])


@dataclass(frozen=True)
class Ask(_Move):
    """Ask the model.

    Attributes:
        instructions: Told behind the agent's own.
        tools: Names of those that it may call. Default: all.
        note: Told at the end of the request, and not kept in the transcript.
        answer_only: It is shown its tools, but may not call them.
        must_call: It has to call one of them, where its provider can have it do so: an answer would end the run.
    """

    instructions: str = ""
    tools: Sequence[str] | None = None
    note: str = ""
    answer_only: bool = False
    must_call: bool = False


@dataclass(frozen=True)
class Do(_Move):
    """Make calls, without asking the model. Those that may run beside each other do so.

    Attributes:
        calls: At most as many as `Limits.calls_per_turn`.
        text: Said with them, for people and for models that read the transcript.
    """

    calls: Sequence[Directed]
    text: str = ""


@dataclass(frozen=True)
class Answer(_Move):
    """End the run, completed, with this answer."""

    text: str


@dataclass(frozen=True)
class Fail(_Move):
    """End the run as failed, with what it has done; it can be resumed.

    Attributes:
        reason: One sentence for a person.
        kind: The failure's type.
    """

    reason: str
    kind: str = FAILED


Move = Ask | Do | Answer | Fail


@dataclass(frozen=True)
class Situation:
    """A run whose next turn is to be decided.

    Attributes:
        spec: The run's own rules, which may be older than those deployed.
        progress: What the strategy said with its last move; empty at first.
        entries: The whole transcript, oldest first.
        variables: The run's variables.
        step: The number of the turn, from 1.
        answer_only: It is the last one: nothing can be called any more.
    """

    run_id: str
    spec: AgentSpec
    entries: Sequence[Entry]
    progress: dict[str, JSON] = field(default_factory=dict[str, JSON])
    variables: dict[str, JSON] = field(default_factory=dict[str, JSON])
    step: int = 1
    answer_only: bool = False

    @property
    def options(self) -> dict[str, JSON]:
        """The strategy as this run has it."""
        return self.spec.strategy.options if self.spec.strategy else {}

    @property
    def last(self) -> AssistantMessage | None:
        """The last turn."""
        return next((entry for entry in reversed(self.entries) if isinstance(entry, AssistantMessage)), None)

    @property
    def since(self) -> Sequence[Entry]:
        """What came after the last turn; everything, where there was none."""
        turns = (place for place in range(len(self.entries), 0, -1) if _is_turn(self.entries[place - 1]))
        return self.entries[next(turns, 0) :]

    @property
    def results(self) -> list[ToolResult]:
        """Results of the last turn's calls, in call order."""
        return [entry.result for entry in self.since if isinstance(entry, ToolMessage)]

    @property
    def said(self) -> list[UserMessage]:
        """What the user has said since; at the first turn, what the run was begun with."""
        return [entry for entry in self.since if isinstance(entry, UserMessage) and entry.source == "user"]

    @property
    def handed_over(self) -> bool:
        """Whether the last turn has passed the conversation to the agent that is led."""
        peers = self.spec.peers.values()
        names = {tool.name for peer in peers for tool in peer.handoffs if tool.hands_to == self.spec.name}
        return any(result.name in names and result.status == "ok" for result in self.results)

    @property
    def asked_at(self) -> int:
        """At the first move, where in the transcript that begins which is to be done: with what the user has said.

        That is after the last turn; of a conversation that was handed over, after the last answer that the user was
        given.
        """
        first = len(self.entries) - len(self.since)
        if not self.handed_over:
            return first
        return next((at for at in range(first, 0, -1) if _answered(self.entries[at - 1], self.entries[at])), 0)


def refuse_handoffs(agent: Agent, strategy: str, instead: str) -> None:
    """Refuse an agent whose strategy never offers its hand-offs.

    Raises:
        AgentError: If it has some.
    """
    if agent.handoffs:
        text = f"handoffs= would never be offered in the runs of a {strategy}; leave them out, and {instead}"
        raise AgentError(f"Agent {agent.name!r}: {text}.")


def _is_turn(entry: Entry) -> bool:
    return isinstance(entry, AssistantMessage)


def _answered(entry: Entry, following: Entry) -> bool:
    answers = isinstance(entry, AssistantMessage) and not entry.calls
    return answers and isinstance(following, UserMessage) and following.source == "user"


@runtime_checkable
class Strategy(Protocol):
    """How runs of an agent are led."""

    @property
    def name(self) -> str:
        """Under which it is known to the runs that it leads, such as `plan`."""
        ...

    def spec(self) -> StrategySpec:
        """Return what a run keeps of it.

        Raises:
            AgentError: If it can't be.
        """
        ...

    def tools(self, agent: Agent) -> Sequence[Tool | MCPServer]:
        """Return all that calls of the agent's runs can be: of its own tools, and of what the strategy adds."""
        ...

    def move(self, seen: Situation) -> Move | Awaitable[Move]:
        """Return what the run does next, within 10 s, by what it is given alone: after a crash, it is asked again."""
        ...
