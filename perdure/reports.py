"""What activities report to a run. Kept in histories."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Literal

from pydantic import Field

from perdure.messages import JSON, AssistantMessage, Data, Problem, ToolResult, Usage, UserMessage


class ModelTurn(Data):
    """A model's reply, parsed, validated, judged and counted by the activity that got it.

    Attributes:
        finish: `interrupted` where a person's message came between: the reply is dropped.
        usage: Of the attempt that gave this reply.
        wasted: Of the attempts before it that failed half-way.
        cost_usd: Of both. None where a price is not known.
        model: Which of the agent's models answered, as it names them: PROVIDER:NAME.
        served: That model in the provider's words, which may be more exact.
        fallback: Why those before it did not, in the words of each, for a person; "" where it is the agent's first.
    """

    message: AssistantMessage
    finish: Literal["stop", "calls", "length", "filtered", "refusal", "interrupted"] = "stop"
    usage: Usage = Usage()
    wasted: Usage = Usage()
    cost_usd: Decimal | None = None
    model: str = ""
    served: str = ""
    fallback: str = ""


class ToolReport(Data):
    """How one attempt of a tool ended.

    Attributes:
        deadline: When the attempt was to be abandoned at the latest; set where the result is in doubt.
        abandoned: True if the tool is still running in spite of that: then no probe can say `NotDone`.
        wrote: The variables that it has changed; none where it failed, or is in doubt.
    """

    result: ToolResult
    deadline: datetime | None = None
    abandoned: bool = False
    wrote: dict[str, JSON] = Field(default_factory=dict)


class ProbeReport(Data):
    """What a probe found, and when it was asked (before it looked)."""

    outcome: Literal["done", "not_done", "unknown"]
    result: ToolResult | None = None
    asked_at: datetime
    message: str = ""
    wrote: dict[str, JSON] = Field(default_factory=dict)


class UndoReport(Data):
    """What became of undoing an effect; `message` is what the compensation returned, or why it could not be done."""

    status: Literal["undone", "failed"]
    message: str = ""
    wrote: dict[str, JSON] = Field(default_factory=dict)


class RecallReport(Data):
    """What is remembered: the message that says it, or why nothing could be looked up; None and "" where nothing is."""

    message: UserMessage | None = None
    problem: str = ""


class Judgement(Data):
    """What the judging activity says of edited arguments."""

    problem: Problem | None = None
    ask: str | None = None
