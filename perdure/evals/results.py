"""What an evaluation has found: by attempt, by case and by model, and beside an earlier one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median
from typing import Any

from pydantic import Field

from perdure.evals.evidence import Attempt
from perdure.evals.statistics import mean_pass_hat, wilson
from perdure.messages import Data


@dataclass(frozen=True)
class Row:
    """The attempts of one case with one model, or all of a model.

    Attributes:
        case: "" for all cases.
        cost_usd: Of all of them; None where one is not known.
        seconds: Median of one.
    """

    case: str
    model: str
    attempts: Sequence[Attempt]

    @property
    def passed(self) -> int:
        """How many passed."""
        return sum(one.passed for one in self.attempts)

    @property
    def of(self) -> int:
        """How many there were."""
        return len(self.attempts)

    @property
    def rate(self) -> float:
        """The part that passed."""
        return self.passed / self.of if self.of else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Within what the true rate is, with 95 % confidence."""
        return wilson(self.passed, self.of)

    @property
    def seconds(self) -> float:
        """Of one, as the median."""
        return median(one.seconds for one in self.attempts) if self.attempts else 0.0

    @property
    def steps(self) -> float:
        """Of one, as the median."""
        return float(median(one.steps for one in self.attempts)) if self.attempts else 0.0

    @property
    def cost_usd(self) -> Decimal | None:
        """Of all of them; None where one is not known."""
        costs = [one.cost_usd for one in self.attempts]
        known = [cost for cost in costs if cost is not None]
        return sum(known, Decimal(0)) if len(known) == len(costs) else None

    def pass_hat(self, k: int) -> float | None:
        """Return how likely `k` attempts at a case all pass, as the mean over its cases; None with fewer attempts."""
        counts = dict[str, tuple[int, int]]()
        for one in self.attempts:
            passed, of = counts.get(one.case, (0, 0))
            counts[one.case] = (passed + one.passed, of + 1)
        return mean_pass_hat(list(counts.values()), k)

    def as_data(self, repeat: int) -> dict[str, Any]:
        """Return it for programs."""
        return {
            **({"case": self.case} if self.case else {}),
            "model": self.model,
            "passed": self.passed,
            "of": self.of,
            "rate": self.rate,
            "interval": list(self.interval),
            "pass_hat": {str(k): self.pass_hat(k) for k in range(1, repeat + 1)},
            "steps": self.steps,
            "seconds": self.seconds,
            "cost_usd": self.cost_usd,
        }


class Report(Data):
    """What an evaluation has found.

    Attributes:
        id: The evaluation's; the same id again takes up what was done.
        models: In the order in which they were named.
        attempts: By case, model and repetition, in that order.
    """

    suite: str
    id: str
    models: list[str]
    cases: list[str]
    repeat: int = 1
    attempts: list[Attempt] = Field(default_factory=list[Attempt])

    @property
    def passed(self) -> bool:
        """Whether every attempt passed."""
        return all(one.passed for one in self.attempts)

    def rows(self) -> list[Row]:
        """Return one row for each case with each model."""
        return [
            Row(case, model, [one for one in self.attempts if (one.case, one.model) == (case, model)])
            for case in self.cases
            for model in self.models
        ]

    def totals(self) -> list[Row]:
        """Return one row for each model."""
        return [Row("", model, [one for one in self.attempts if one.model == model]) for model in self.models]

    def as_data(self) -> dict[str, Any]:
        """Return all of it for programs; `Report.model_validate` reads it again."""
        attempts = [{**one.model_dump(), "passed": one.passed} for one in self.attempts]
        return {
            **self.model_dump(exclude={"attempts"}),
            "passed": self.passed,
            "totals": [row.as_data(self.repeat) for row in self.totals()],
            "rows": [row.as_data(self.repeat) for row in self.rows()],
            "attempts": attempts,
        }


# -- beside an earlier one -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drop:
    """A rate that is lower than it was, and not by chance; `case` is "" for all cases of a model."""

    case: str
    model: str
    before: float
    now: float

    @property
    def sentence(self) -> str:
        """Return it for a person."""
        what = f"{self.case}, {self.model}" if self.case else f"all cases, {self.model}"
        return f"{what}: {self.before:.0%} → {self.now:.0%}"


def drops(now: Report, before: Report) -> list[Drop]:
    """Return what has dropped: the earlier rate lies above the whole interval of today's.

    Cases and models that only one of them has are left out; where each has one model, those are compared, whatever
    they are called.
    """
    renamed = {before.models[0]: now.models[0]} if len(now.models) == len(before.models) == 1 else {}
    common = set(now.cases) & set(before.cases)
    earlier = _rates(before, common, renamed)
    today = _rates(now, common, {})
    found = [
        Drop(case, model, earlier[case, model].rate, row.rate)
        for (case, model), row in today.items()
        if (case, model) in earlier and earlier[case, model].of and row.of
        if earlier[case, model].rate > row.interval[1]
    ]
    return sorted(found, key=lambda one: (bool(one.case), one.case, one.model))


def _rates(report: Report, cases: set[str], renamed: dict[str, str]) -> dict[tuple[str, str], Row]:
    rows = [row for row in report.rows() if row.case in cases]
    rows += [
        Row("", model, [one for one in report.attempts if one.model == model and one.case in cases])
        for model in report.models
    ]
    return {(row.case, renamed.get(row.model, row.model)): row for row in rows}
