"""Where a team stands, for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from perdure.cli.output import one_line, paint, safe
from perdure.strategies.team import standing_of

if TYPE_CHECKING:
    from perdure.state import RunState


def lines(state: RunState, stream: TextIO) -> Iterator[str]:
    """Yield how many events a team has told each other, who has yet to be told of some, and what is undeliverable."""
    standing = standing_of(state.spec, state.progress)
    if standing is None:
        return
    yield from ("", paint("Team", "bold", stream))
    waiting = ", ".join(f"{safe(name)} {count}" for name, count in standing.waiting.items())
    more = f"; yet to be told: {waiting}" if waiting else ""
    yield f"  {standing.events} event{'' if standing.events == 1 else 's'}{more}"
    for letter in standing.dead_letters:
        yield f"  {paint('dead letter', 'yellow', stream)}  {one_line(letter, 500)}"
