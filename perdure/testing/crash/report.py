"""What is counted, and how it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

COLUMNS = {
    "duplicates": "Duplicate effects",
    "lost": "Lost effects",
    "orphans": "Orphaned calls",
    "approvals": "Lost approvals",
    "wedged": "Wedged runs",
    "drift": "Cost drift",
}


@dataclass(frozen=True)
class Counts:
    """What went wrong in a run, or in many.

    Attributes:
        duplicates: Effects that the ledger has more often than it has them without a kill.
        lost: Effects that it lacks although the run does not say so.
        orphans: Calls without an end, or without a result in the conversation.
        approvals: What was approved and is asked for again, or was not executed.
        wedged: Runs that did not end, or ended otherwise than without a kill.
        drift: Runs whose steps or tokens are not the sum of what their model was asked.
    """

    duplicates: int = 0
    lost: int = 0
    orphans: int = 0
    approvals: int = 0
    wedged: int = 0
    drift: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, its = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + its[name] for name in mine})

    def __bool__(self) -> bool:
        return any(asdict(self).values())


@dataclass(frozen=True)
class Judged:
    """A run, and what went wrong with it.

    Attributes:
        part: `each` or `random`.
        point: Where its worker was killed; "" for none of its own.
        reached: Whether it came there.
        story: What happened to it, for a person.
    """

    run: str
    part: str
    counts: Counts
    point: str = ""
    reached: bool = True
    story: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What came of all runs.

    Attributes:
        broken: How often what was broken: `kill`, `stop`, `freeze`, `server`, `store`.
    """

    runs: tuple[Judged, ...]
    broken: Mapping[str, int] = field(default_factory=dict[str, int])
    seed: int = 0

    @property
    def counts(self) -> Counts:
        """What went wrong in all of them."""
        return total(self.runs)

    @property
    def unsound(self) -> list[Judged]:
        """The runs in which something went wrong."""
        return [run for run in self.runs if run.counts]

    def parts(self) -> dict[str, list[Judged]]:
        """Return the runs by part, in order."""
        parts: dict[str, list[Judged]] = {}
        for run in self.runs:
            parts.setdefault(run.part, []).append(run)
        return parts

    def assert_sound(self) -> None:
        """Fail if anything was counted.

        Raises:
            AssertionError: The text names each run, where its worker was killed, and what happened.
        """
        if self.unsound:
            raise AssertionError("\n\n".join(told(run) for run in self.unsound))

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        parts = {
            part: {"runs": len(runs), "missed": sum(not one.reached for one in runs), **asdict(total(runs))}
            for part, runs in self.parts().items()
        }
        unsound = [
            {"run": one.run, "part": one.part, "point": one.point, **asdict(one.counts), "story": list(one.story)}
            for one in self.unsound
        ]
        return {"seed": self.seed, "broken": dict(self.broken), "parts": parts, "unsound": unsound}


def total(runs: Iterable[Judged]) -> Counts:
    """Return what went wrong in these runs."""
    return sum((run.counts for run in runs), Counts())


def told(run: Judged) -> str:
    """Return what went wrong in a run, in lines for a person."""
    wrong = ", ".join(f"{COLUMNS[name].lower()}: {count}" for name, count in asdict(run.counts).items() if count)
    where = f", killed at {run.point!r}" if run.point else ""
    return "\n".join([f"{run.run} ({run.part}{where}): {wrong}", *(f"  {line}" for line in run.story)])


def compared(effects: Iterable[str], right: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return what of `effects` is too much, and what it lacks of those that are `right`."""
    there, due = Counter(effects), Counter(right)
    return sorted((there - due).elements()), sorted((due - there).elements())
