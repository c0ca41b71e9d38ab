"""What is known of one run of a case, and what was found about it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import Field

from perdure.evals.suites import Case
from perdure.messages import CallRecord, Data, RunResult


@dataclass(frozen=True)
class Evidence:
    """One run of a case, as checks are given it.

    Attributes:
        result: What the run gave, complete or partial.
        world: What the suite's `environment` yields; None without one.
    """

    case: Case
    result: RunResult
    world: Any = None

    @property
    def text(self) -> str:
        """The answer."""
        return self.result.text

    @property
    def calls(self) -> list[CallRecord]:
        """All calls of tools, in call order."""
        return self.result.calls

    def called(self, tool: str) -> list[CallRecord]:
        """Return the calls of a tool."""
        return [call for call in self.calls if call.name == tool]


class Verdict(Data):
    """What one check has found. `reason` says why it did not pass, and for rubrics also why it did."""

    check: str
    passed: bool
    reason: str = ""


class Attempt(Data):
    """One run of a case with one model.

    Attributes:
        repeat: From 1.
        status: How the run ended.
        text: Its answer.
        judge_usd: What judging cost; None where that is not known. No part of `cost_usd`.
    """

    case: str
    model: str
    repeat: int
    run_id: str
    status: str
    verdicts: list[Verdict] = Field(default_factory=list[Verdict])
    text: str = ""
    steps: int = 0
    seconds: float = 0
    cost_usd: Decimal | None = None
    judge_usd: Decimal | None = Decimal(0)

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(one.passed for one in self.verdicts)

    @property
    def reason(self) -> str:
        """Why not, in the words of the first check that did not pass."""
        first = next((one for one in self.verdicts if not one.passed), None)
        return f"{first.check}: {first.reason}" if first and first.reason else first.check if first else ""
