"""Where the nodes of a graph are drawn: in layers from the top down, with few crossings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

ROW, GAP, HEIGHT = 96.0, 36.0, 40.0
"""Between the middles of layers, between boxes beside each other, and of a box, in pixels."""

_SWEEPS = 6


@dataclass(frozen=True)
class Layout:
    """Where all is.

    Attributes:
        places: The middle of each box.
        ways: The points at which each line passes the layers, its two boxes included; a line that goes back up has only
            those two.
    """

    places: Mapping[str, tuple[float, float]]
    ways: Mapping[tuple[str, str], Sequence[tuple[float, float]]]
    width: float
    height: float


@dataclass
class _Rows:
    """Boxes, and points of long lines, by layer; both by name."""

    rows: list[list[str]]
    widths: Mapping[str, float]
    up: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    down: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


def layout(names: Sequence[str], lines: Sequence[tuple[str, str]], widths: Mapping[str, float]) -> Layout:
    """Return where boxes and lines are drawn.

    Args:
        names: Of the boxes, the first one at the top.
        lines: From box to box, each once; they may go round.
        widths: Of the boxes.
    """
    forward = _forward(names, [line for line in lines if line[0] != line[1]])
    levels = _levels(names, forward)
    rows = _Rows([[] for _ in range(max(levels.values()) + 1)], dict(widths))
    for name in names:
        rows.rows[levels[name]].append(name)
    chains = {line: _chain(line, levels, rows) for line in forward}
    for sweep in range(_SWEEPS):
        _sort(rows, down=sweep % 2 == 0)
    across = _across(rows)
    left = min(across[name] - _width(rows, name) / 2 for row in rows.rows for name in row)
    right = max(across[name] + _width(rows, name) / 2 for row in rows.rows for name in row)
    points = {
        name: (across[name] - left, level * ROW + HEIGHT / 2) for level, row in enumerate(rows.rows) for name in row
    }
    ways = {line: [points[name] for name in chain] for line, chain in chains.items()}
    back = {line: [points[line[0]], points[line[1]]] for line in lines if line not in ways}
    height = (len(rows.rows) - 1) * ROW + HEIGHT
    return Layout({name: points[name] for name in names}, {**ways, **back}, right - left, height)


def _forward(names: Sequence[str], lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the lines without those that close a way round, as seen from the top."""
    out: dict[str, list[str]] = {name: [] for name in names}
    for line in lines:
        out[line[0]].append(line[1])
    back: set[tuple[str, str]] = set()
    done, open_ = set[str](), list[str]()
    target: str | None
    for begin in names:
        left = [(begin, iter(out[begin]))] if begin not in done else []
        open_ = [begin] if left else []
        while left:
            name, targets = left[-1]
            if (target := next(targets, None)) is None:
                done.add(name)
                open_.remove(name)
                left.pop()
            elif target in open_:
                back.add((name, target))
            elif target not in done:
                open_.append(target)
                left.append((target, iter(out[target])))
    return [line for line in lines if line not in back]


def _levels(names: Sequence[str], lines: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the layer of each box: below all that lead to it."""
    levels = dict.fromkeys(names, 0)
    for _ in names:
        for source, target in lines:
            levels[target] = max(levels[target], levels[source] + 1)
    return levels


def _chain(line: tuple[str, str], levels: Mapping[str, int], rows: _Rows) -> list[str]:
    """Return the names that a line passes, with a point of its own in each layer between."""
    source, target = line
    chain = [source]
    for level in range(levels[source] + 1, levels[target]):
        point = f"{source}>{target}@{level}"
        rows.rows[level].append(point)
        chain.append(point)
    chain.append(target)
    for above, below in pairwise(chain):
        rows.down.setdefault(above, []).append(below)
        rows.up.setdefault(below, []).append(above)
    return chain


def _sort(rows: _Rows, *, down: bool) -> None:
    """Put each layer in the order of what it is joined with in the one before."""
    order = range(1, len(rows.rows)) if down else range(len(rows.rows) - 2, -1, -1)
    for level in order:
        before = {name: place for place, name in enumerate(rows.rows[level - 1 if down else level + 1])}
        links = rows.up if down else rows.down
        row = rows.rows[level]

        def middle(name: str, before: Mapping[str, int] = before, row: list[str] = row) -> float:
            found = [before[other] for other in links.get(name, ()) if other in before]  # noqa: B023 - used at once
            return sum(found) / len(found) if found else row.index(name)

        places = {name: middle(name) for name in row}
        row.sort(key=lambda name: places[name])


def _width(rows: _Rows, name: str) -> float:
    return rows.widths.get(name, 0.0)


def _across(rows: _Rows) -> dict[str, float]:
    """Return how far from the left each is: near to what it is joined with, in order, with room between."""
    across: dict[str, float] = {}
    for row in rows.rows:
        at = 0.0
        for name in row:
            across[name] = at + _width(rows, name) / 2
            at += _width(rows, name) + GAP
        for name in row:
            across[name] -= at / 2
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        links = rows.up if down else rows.down
        for row in rows.rows if down else reversed(rows.rows):
            wanted = [_mean([across[other] for other in links.get(name, ())], across[name]) for name in row]
            _spread(rows, row, wanted, across)
    return across


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _spread(rows: _Rows, row: Sequence[str], wanted: Sequence[float], across: dict[str, float]) -> None:
    """Put a layer where it wants to be, moved apart as far as it has to, and back by what that has shifted it."""
    at: list[float] = []
    for place, name in enumerate(row):
        least = at[-1] + (_width(rows, row[place - 1]) + _width(rows, name)) / 2 + GAP if at else wanted[place]
        at.append(max(wanted[place], least))
    shift = _mean([have - want for have, want in zip(at, wanted, strict=True)], 0.0)
    for name, have in zip(row, at, strict=True):
        across[name] = have - shift
