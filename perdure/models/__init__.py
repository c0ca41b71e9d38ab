"""Models: the protocol that an adapter implements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from perdure.messages import JSON, Message, Usage
from perdure.policies import ModelSettings, OutputSpec, ToolSpec


@dataclass(frozen=True)
class ModelRequest:
    """What a model is asked.

    Attributes:
        instructions: The system prompt.
        messages: The whole conversation; a result follows its call.
        tools: What it may call.
        answer_only: True if it has to answer in text now; tools are shown, but not to be called.
        first: True on the run's first turn.
        output: What the answer has to be, where that is more than text. A model whose `takes_schema` is not True is
            given None, and told of it in the instructions.
        mending: The last answer was not what `output` says, and the model has just been told.
        hidden: Replies that are not shown any more: an id of a call that was given in one of them may come again.
        on_text: Called with each piece of the reply's text as it comes. It may come again with another attempt.
    """

    instructions: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    settings: ModelSettings
    answer_only: bool = False
    first: bool = False
    hidden: int = 0
    output: OutputSpec | None = None
    mending: bool = False
    on_text: Callable[[str], None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RawCall:
    """A call as the model wrote it: `name` mapped back, `id` unique in the conversation, text unparsed."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ModelReply:
    """What a model answered, levelled across providers.

    Attributes:
        finish: `stop`, `calls`, `length` (cut off), `filtered` or `refusal`.
        usage: Estimated, and flagged so, where the provider left it out.
        model: The model that answered, as the provider calls it.
    """

    text: str = ""
    calls: Sequence[RawCall] = ()
    finish: Literal["stop", "calls", "length", "filtered", "refusal"] = "stop"
    usage: Usage = field(default_factory=Usage)
    reasoning: Sequence[dict[str, JSON]] = ()
    model: str = ""


class Model(Protocol):
    """One model of one provider.

    One that can be held to the schema of an answer, or tells its model of it by itself, says `takes_schema = True`.
    """

    provider: str

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the reply.

        Raises:
            ModelError: If the call failed; its kind says what may be done.
        """
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...
