"""What requests to models have used, summed up by run, agent, model, tool, tenant, day … Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Literal

from pydantic import Field

from perdure.messages import Data, Usage
from perdure.usage import Prompt, UsageRow

By = Literal["run", "agent", "model", "tool", "tenant", "session", "user", "day", "kind", "step"]


class Cost(Data):
    """What some requests to models have used.

    Attributes:
        name: What they have in common: the name of an agent, a day such as 2026-11-30; "" for those that have none.
        runs: How many runs made them.
        requests: How many there were, those that gave nothing included.
        failed: Those of them that failed.
        lost: Those that were lost with their worker, or broken off.
        estimated: Those whose usage no provider has told.
        usage: The sum; of a tool, what its results took in prompts, and nothing else.
        cost_usd: The sum; None where the price of one of them is not known.
        known_usd: The sum of those whose price is known.
        unpriced: How many have no known price.
        wasted: What failed and lost ones have used.
        wasted_usd: What that has cost; None where the price of one of them is not known.
        prompt: What all that was sent was made of, as far as it is known of what.
        weighed: Input tokens of which it is known.
    """

    name: str = ""
    runs: int = 0
    requests: int = 0
    failed: int = 0
    lost: int = 0
    estimated: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    known_usd: Decimal = Decimal(0)
    unpriced: int = 0
    wasted: Usage = Usage()
    wasted_usd: Decimal | None = None
    prompt: Prompt = Prompt()
    weighed: int = 0

    def share(self, tokens: int) -> float | None:
        """Return which part of what was sent `tokens` are; None where it is not known what it was made of."""
        return tokens / self.weighed if self.weighed else None


class CostReport(Data):
    """What runs have cost.

    Attributes:
        groups: What costs most comes first; days and steps in their order.
        total: Of all requests.
        live: Runs that are counted from their histories, since they go on, or have just ended.
    """

    by: By
    groups: list[Cost] = Field(default_factory=list[Cost])
    total: Cost = Cost()
    live: list[str] = Field(default_factory=list[str])


def report(rows: Sequence[UsageRow], by: By, live: Iterable[str] = ()) -> CostReport:
    """Return what those requests have cost, and what those of each group have."""
    parts, runs = dict[str, list[UsageRow]](), {row.run_id for row in rows}
    for row in rows:
        for name, part in _of_tools(row) if by == "tool" else [(_NAMES[by](row), row)]:
            several = by == "step" and len(runs) > 1
            parts.setdefault(f"{row.run_id} {name}" if several else name, []).append(part)
    groups = [summed(part, name) for name, part in parts.items()]
    if by == "step":
        groups.sort(key=lambda one: (one.name.rpartition(" ")[0], int(one.name.rpartition(" ")[2])))
    elif by == "day":
        groups.sort(key=lambda one: one.name)
    else:
        groups.sort(key=_dearest)
    return CostReport(by=by, groups=groups, total=summed(rows), live=sorted(live))


def summed(rows: Sequence[UsageRow], name: str = "") -> Cost:
    """Return the sum of those requests."""
    wasted = [row for row in rows if row.status != "ok"]
    known, unpriced = _money(rows)
    lost_usd, lost_unpriced = _money(wasted)
    return Cost(
        name=name,
        runs=len({row.run_id for row in rows}),
        requests=len(rows),
        failed=sum(row.status == "failed" for row in rows),
        lost=sum(row.status == "lost" for row in rows),
        estimated=sum(row.usage.estimated for row in rows),
        usage=_tokens(rows),
        cost_usd=None if unpriced else known,
        known_usd=known,
        unpriced=unpriced,
        wasted=_tokens(wasted),
        wasted_usd=None if lost_unpriced else lost_usd,
        prompt=_prompt([row.prompt for row in rows if row.prompt]),
        weighed=sum(row.usage.input_tokens for row in rows if row.prompt),
    )


_NAMES: dict[By, Callable[[UsageRow], str]] = {
    "run": lambda row: row.run_id,
    "agent": lambda row: row.agent,
    "model": lambda row: row.model,
    "tenant": lambda row: row.tenant,
    "session": lambda row: row.session,
    "user": lambda row: row.user,
    "day": lambda row: row.time.astimezone().date().isoformat(),
    "kind": lambda row: row.kind,
    "step": lambda row: str(row.step),
}


def _of_tools(row: UsageRow) -> Iterable[tuple[str, UsageRow]]:
    """Yield what the results of each tool took of a prompt, as if it had been a request of their own."""
    sent = row.usage.input_tokens
    for name, tokens in row.prompt.results.items() if row.prompt else ():
        usd = None if row.input_usd is None else row.input_usd * tokens / max(sent, 1)
        usage = Usage(input_tokens=tokens, estimated=True)
        yield name, row.model_copy(update={"usage": usage, "cost_usd": usd, "prompt": Prompt(results={name: tokens})})


def _money(rows: Sequence[UsageRow]) -> tuple[Decimal, int]:
    """Return what is known of a cost, and how many requests have none that is."""
    known = [row.cost_usd for row in rows if row.cost_usd is not None]
    return sum(known, Decimal(0)), len(rows) - len(known)


def _tokens(rows: Sequence[UsageRow]) -> Usage:
    return sum((row.usage for row in rows), Usage())


def _prompt(prompts: Sequence[Prompt]) -> Prompt:
    results = Counter[str]()
    for prompt in prompts:
        results.update(prompt.results)
    return Prompt(
        instructions=sum(prompt.instructions for prompt in prompts),
        reread=sum(prompt.reread for prompt in prompts),
        results=dict(results),
    )


def _dearest(cost: Cost) -> tuple[Decimal, int, str]:
    return (-cost.known_usd, -cost.usage.input_tokens - cost.usage.output_tokens, cost.name)
