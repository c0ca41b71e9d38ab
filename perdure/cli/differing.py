"""What `perdure diff` says of two runs, for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from perdure.cli import standing, story
from perdure.cli.output import as_json, columns, one_line, paint, safe, span
from perdure.comparing import Difference, parting
from perdure.messages import JSON, CallRecord, content_hash
from perdure.state import RunState

if TYPE_CHECKING:
    from perdure.telemetry.projection import Projection

_WIDEST, _LONGEST = 60, 500
"""Characters of a cell of the summary, and of what differs."""

_WORDS = {
    "said": "what it was told",
    "text": "what the model said",
    "calls": "the tools that it called",
    "arguments": "arguments",
    "status": "status",
    "result": "result",
    "end": "only one goes on",
    "approval": "whether a person was asked",
}


class Told:
    """Two runs, compared.

    Args:
        left: The first one, whole.
        right: The second one.
    """

    def __init__(self, left: Projection, right: Projection) -> None:
        self._runs = (left, right)
        self.parting = parting(left.entries, right.entries)

    @property
    def same(self) -> bool:
        """Whether they did the same, and came to the same end."""
        left, right = ([_brief(record) for record in run.records] for run in self._runs)
        ends = [standing.status(run) for run in self._runs]
        return self.parting is None and left == right and ends[0] == ends[1]

    def as_data(self) -> dict[str, Any]:
        """Return it as data."""
        left, right = map(_summary, self._runs)
        return {"same": self.same, "parting": self.parting, "left": left, "right": right}

    def as_lines(self, stream: TextIO) -> Iterator[str]:
        """Yield the lines for a person."""
        for name, run in zip("AB", self._runs, strict=True):
            source = _state(run).forked_from
            forked = f", forked from {safe(source.run_id)} at step {source.step}" if source else ""
            yield f"{paint(name, 'bold', stream)}  {safe(run.run_id)}{forked}"
        yield ""
        if self.parting:
            yield paint(f"They part at step {self.parting.step}", "bold", stream)
            for one in self.parting.differences:
                yield from told_apart(one, stream)
        else:
            words = "They are the same" if self.same else "Their conversations are the same, what became of them is not"
            yield paint(words, "bold", stream)
        yield ""
        yield columns([["", "A", "B"], *self._table()], {0: lambda cell: paint(cell, "dim")})

    def _table(self) -> Iterator[list[str]]:
        left, right = map(_cells, self._runs)
        for name in left:
            row = [one_line(cells[name], _WIDEST) for cells in (left, right)]
            if any(row):
                yield [name, *row]


def told_apart(one: Difference, stream: TextIO, names: tuple[str, str] = ("A", "B")) -> Iterator[str]:
    """Yield the lines that tell of one difference."""
    where = f"call {one.call}: " if one.call else ""
    yield f"  {where}{_WORDS[one.what]}"
    for name, value in zip(names, (one.left, one.right), strict=True):
        yield f"    {paint(name, 'bold', stream)}  {_shown(value)}"


def _shown(value: JSON) -> str:
    if value is None:
        return "(nothing)"
    return one_line(value if isinstance(value, str) else as_json(value), _LONGEST)


def _state(run: Projection) -> RunState:
    assert run.state is not None  # noqa: S101 - a history begins with the start
    return run.state


def _brief(record: CallRecord) -> tuple[Any, ...]:
    return record.position, record.name, record.arguments, record.status


def _summary(run: Projection) -> dict[str, Any]:
    state, result = _state(run), run.result()
    spec = state.spec
    return {
        **result.model_dump(include={"run_id", "text", "steps", "usage", "cost_usd", "duration", "reason", "failure"}),
        "status": standing.status(run),
        "agent": spec.name,
        "model": spec.model,
        "spec_hash": content_hash(spec),
        "forked_from": state.forked_from,
        "calls": len(run.records),
    }


def _cells(run: Projection) -> dict[str, str]:
    """Return the summary's cells of a run, by the names of their rows."""
    state, result = _state(run), run.result()
    return {
        "Status": standing.status(run),
        "Agent": state.spec.name,
        "Model": state.spec.model,
        "Spec": content_hash(state.spec),
        "Steps": str(result.steps),
        "Calls": str(len(run.records)),
        "Tokens": story.tokens(result.usage),
        "Cost": story.money(result.cost_usd).removeprefix(", ") or "not known",
        "Took": span(result.duration),
        "Reason": result.reason or "",
        "Answer": result.text,
    }
