"""What activities report to a run. Kept in histories."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from pydantic import Field

from perdure.attempts import Made
from perdure.memory import Circle, Learnt
from perdure.messages import (
    JSON,
    AssistantMessage,
    Compaction,
    ContextHealth,
    Data,
    Problem,
    ToolResult,
    Usage,
    UserMessage,
)
from perdure.policies import ToolSpec

_ONE_BY_ONE = 20
"""Requests of one call that are told of one by one, whatever they are like, but for those that are held off."""


class Spent(Data):
    """One request to a model, as the activity that made it tells of it.

    Attributes:
        model: As the agent names it: PROVIDER:NAME.
        status: `ok` where it gave a reply, `failed`, or `lost`: with its worker, or since it was broken off.
        why: Of what kind its failure was, in a word.
        usage: What it used; estimated where no provider said.
        cost_usd: None where a price is not known.
        at: When it was sent.
        took: Until it had ended.
        times: So many in a row ended like that and used nothing, as those do that are held off.
    """

    model: str
    status: Literal["ok", "failed", "lost"] = "failed"
    why: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = Decimal(0)
    at: datetime | None = None
    took: timedelta | None = None
    times: int = 1

    def after(self, before: list[Spent]) -> list[Spent]:
        """Return `before` with this one. Of many, the last one counts it, where it is like that and used nothing."""
        last = before[-1] if before else None
        like = last and (last.model, last.status, last.why) == (self.model, self.status, self.why)
        few = len(before) < _ONE_BY_ONE and self.why != "rate_limited"
        if last is None or not like or few or not last.usage == self.usage == Usage():
            return [*before, self]
        ended = self.at + self.took if self.at and self.took else None
        changes = {"times": last.times + self.times, "took": ended - last.at if ended and last.at else None}
        return [*before[:-1], last.model_copy(update=changes)]


class Structured(Data):
    """An answer as data; None is one as well."""

    value: JSON = None


class ModelTurn(Data):
    """A model's reply, parsed, validated, judged and counted by the activity that got it.

    Attributes:
        finish: `interrupted` where a person's message came between: the reply is dropped. `full`: the model was not
            asked, since the request would have filled too much of its context.
        usage: Of the attempt that gave this reply.
        wasted: Of the attempts before it that failed half-way.
        cost_usd: Of both. None where a price is not known.
        model: Which of the agent's models answered, as it names them: PROVIDER:NAME; "" where it was the first one.
        served: That model in the provider's words, which may be more exact.
        fallback: Why those before it did not, in the words of each, for a person; "" where it is the agent's first.
        context: How full the model's context is with this request.
        spent: The requests of `wasted`, oldest first.
        progress: What the strategy that leads the run knows from now on; None: what it knew, or there is none.
        output: The answer as data, where the agent's answer is more than text, and this one fits.
        misfit: Else what is wrong with it, in words for the model.
        wrote: What the strategy changes of the run's variables.
        failure: The type of failure by which the strategy ends the run, for the reason that is the message's text; "":
            it does not.
    """

    message: AssistantMessage
    finish: Literal["stop", "calls", "length", "filtered", "refusal", "interrupted", "full"] = "stop"
    usage: Usage = Usage()
    wasted: Usage = Usage()
    cost_usd: Decimal | None = None
    model: str = ""
    served: str = ""
    fallback: str = ""
    context: ContextHealth | None = None
    spent: list[Spent] = Field(default_factory=list[Spent])
    output: Structured | None = None
    misfit: str = ""
    progress: dict[str, JSON] | None = None
    wrote: dict[str, JSON] = Field(default_factory=dict)
    failure: str = ""

    @property
    def directed(self) -> bool:
        """Whether the strategy decided it, and no model was asked."""
        return self.message.source == "strategy"


class CompactReport(Data):
    """What was done about a conversation that is too long for the model.

    Attributes:
        entry: From here on the model is shown less; None where nothing is left to make it shorter.
        how: `summarised` also where long results were shortened besides.
        before: How full the context would be as it was.
        after: How full it is now.
        usage: Of the model calls made for it, attempts that failed half-way included.
        cost_usd: Of those. None where a price is not known.
        message: What did not go as it should, for a person, such as why no model wrote the summary.
        spent: The requests made for it, oldest first.
    """

    entry: Compaction | None = None
    how: Literal["shortened", "summarised", "nothing"] = "nothing"
    before: ContextHealth = ContextHealth()
    after: ContextHealth = ContextHealth()
    usage: Usage = Usage()
    cost_usd: Decimal | None = Decimal(0)
    message: str = ""
    spent: list[Spent] = Field(default_factory=list[Spent])


class Unshaped(Data):
    """What a tool returned before it was shaped, as text: its compensation is given that.

    Attributes:
        content: Only the beginning where there is a `ref`.
        ref: The blob that holds the whole.
    """

    content: str = ""
    ref: str | None = None


class ToolReport(Data):
    """How one attempt of a tool ended.

    Attributes:
        returned: Where `result` is shaped and can be undone.
        deadline: When the attempt was to be abandoned at the latest; set where the result is in doubt.
        abandoned: True if the tool is still running in spite of that: then no probe can say `NotDone`.
        wrote: The variables that it has changed; none where it failed, or is in doubt.
        made: The attempts before this one.
    """

    result: ToolResult
    returned: Unshaped | None = None
    deadline: datetime | None = None
    abandoned: bool = False
    wrote: dict[str, JSON] = Field(default_factory=dict)
    made: list[Made] = Field(default_factory=list[Made])

    def having(self, result: ToolResult) -> ToolReport:
        """Return the same report of another result."""
        return self.model_copy(update={"result": result})


class ProbeReport(Data):
    """What a probe found, and when it was asked (before it looked). `returned` as in `ToolReport`."""

    outcome: Literal["done", "not_done", "unknown"]
    result: ToolResult | None = None
    returned: Unshaped | None = None
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


class Listed(Data):
    """The tools of one MCP server, as a run has them from now on.

    Attributes:
        notes: What of its list, or of the agent's rules for it, could not be used, each in a sentence.
    """

    server: str
    tools: list[ToolSpec] = Field(default_factory=list[ToolSpec])
    notes: list[str] = Field(default_factory=list[str])


class ToolsReport(Data):
    """The tools of MCP servers, in the order in which the agent names those."""

    servers: list[Listed] = Field(default_factory=list[Listed])


class LearnReport(Data):
    """What a model has found worth remembering of a run.

    Attributes:
        circle: In whose memory it is to be kept; None where nothing is to be remembered.
        dropped: Why each of the facts that are not believed is not.
        usage: Of all that was asked, attempts that failed half-way included, as in `cost_usd`.
        cost_usd: None where a price is not known.
        model: Which model answered.
        problem: Why nothing could be made of the run; "" where something could.
    """

    circle: Circle | None = None
    facts: list[Learnt] = Field(default_factory=list[Learnt])
    dropped: list[str] = Field(default_factory=list)
    usage: Usage = Usage()
    cost_usd: Decimal | None = Decimal(0)
    model: str = ""
    problem: str = ""


class Remembered(Data):
    """What became of remembering a run: `facts` are the ids of those kept; the rest is as in `LearnReport`."""

    facts: list[str] = Field(default_factory=list)
    dropped: list[str] = Field(default_factory=list)
    usage: Usage = Usage()
    cost_usd: Decimal | None = Decimal(0)
    model: str = ""
    problem: str = ""


class Judgement(Data):
    """What the judging activity says of edited arguments."""

    problem: Problem | None = None
    ask: str | None = None
