"""Tables of ratios, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Column:
    """What was measured under one heading: for each subject one value a round, in the order of the rounds."""

    heading: str
    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, name: str, value: float) -> None:
        """Add one round's value."""
        self.values.setdefault(name, []).append(value)


def table(title: str, columns: Sequence[Column], reference: str | None) -> str:
    """Return a table of medians over the rounds, with their range in brackets.

    Args:
        title: What the columns have in common, with its unit.
        columns: All of the same subjects.
        reference: The subject that is shown in its unit; all others are ratios to it, taken round by round. None
            shows all in their unit.
    """
    names = list(columns[0].values)
    rows = [["", *(column.heading for column in columns)], ["---"] * (len(columns) + 1)]
    rows += [[name, *(_cell(column, name, reference) for column in columns)] for name in names]
    return "\n".join([f"\n**{title}**\n", *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(column: Column, name: str, reference: str | None) -> str:
    values = column.values.get(name, [])
    if reference in (None, name):
        return f"{_number(median(values))}{_range(values)}"
    ratios = [value / base for value, base in zip(values, column.values[str(reference)], strict=True)]
    return f"{median(ratios):.2f}×{_range(ratios)}"


def _range(values: Sequence[float]) -> str:
    low, high = _number(min(values)), _number(max(values))
    return f" ({low}–{high})" if low != high else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"  # noqa: PLR2004
