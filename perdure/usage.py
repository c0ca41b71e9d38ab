"""What runs have used: one row for each request to a model, and their sums. Plain data, no I/O."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Literal

from pydantic import Field

from perdure.messages import Data, Usage

Kind = Literal["model", "summary", "memory"]


class Prompt(Data):
    """What a prompt was made of, in tokens: estimated, by the bytes of its parts.

    Attributes:
        instructions: Instructions, and the schemas of tools.
        reread: What the model was shown before, results of tools included.
        results: Results of tools by the tool's name, new ones and those that are read again.
    """

    instructions: int = 0
    reread: int = 0
    results: dict[str, int] = Field(default_factory=dict)


class UsageRow(Data):
    """One request to a model.

    Attributes:
        position: Of the event with which the call begins, as in events; "memory" for what followed the run.
        at: When that was: a resumed run uses positions once more.
        attempt: The requests of a call are counted from 1.
        kind: `model`: a turn; `summary`: a compaction; `memory`: facts were picked out of a run that had ended.
        model: As the agent names it: PROVIDER:NAME.
        sent_at: When the request was sent, as far as that is known.
        usage: What it used; `usage.estimated` where no provider said.
        cost_usd: None where the price is not known; never zero for unknown.
        input_usd: What its input has cost of that.
        status: `ok`; `failed`; `lost`: with its worker, or since it was broken off.
        why: Why it gave nothing, in a word.
        prompt: What its input was made of; None where that is not known.
    """

    namespace: str
    run_id: str
    position: str
    at: datetime
    attempt: int
    kind: Kind
    agent: str
    model: str
    step: int = 0
    tenant: str = ""
    session: str = ""
    user: str = ""
    sent_at: datetime | None = None
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    input_usd: Decimal | None = None
    status: Literal["ok", "failed", "lost"] = "ok"
    why: str = ""
    prompt: Prompt | None = None

    @property
    def key(self) -> tuple[str, str, str, datetime, int]:
        """What no other row has."""
        return (self.namespace, self.run_id, self.position, self.at, self.attempt)

    @property
    def time(self) -> datetime:
        """When it was made."""
        return self.sent_at or self.at
