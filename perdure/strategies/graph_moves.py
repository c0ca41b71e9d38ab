"""Where a graph goes next. Pure: by the graph, how far a run has come, and what has ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perdure.strategies.graph_shape import END, START, GraphSpec, Progress


@dataclass(frozen=True)
class Ended:
    """A node that has ended, or the start.

    Attributes:
        targets: Where its branch, its error or its denial leads; None where its edges and joins are gone along.
    """

    node: str
    targets: tuple[str, ...] | None = None


def begin(graph: GraphSpec, began: int, targets: tuple[str, ...] | None = None) -> Progress:
    """Return how far a run has come that begins."""
    return advance(graph, Progress(began=began), [Ended(START, targets)])


def advance(graph: GraphSpec, at: Progress, ended: Iterable[Ended]) -> Progress:
    """Return how far a run has come once these have ended: what is due then, or that it is over.

    The order in which they have ended is of no account: that in which the nodes are declared is. A join goes on when
    all of its sources have ended, or when nothing else is due: one that was never reached is not waited for.
    """
    course = _Course(graph, at)
    for one in _in_order(graph, ended):
        course.leave(one)
    if not course.due:
        course.join_what_came()
    due = graph.in_order(course.due)
    return at.model_copy(
        update={
            "visits": course.visits,
            "taken": course.taken,
            "arrived": {number: sources for number, sources in course.arrived.items() if sources},
            "due": due,
            "active": [],
            "over": not due,
        }
    )


def _in_order(graph: GraphSpec, ended: Iterable[Ended]) -> list[Ended]:
    places = {name: place for place, name in enumerate([START, *(node.name for node in graph.nodes)])}
    return sorted(ended, key=lambda one: places[one.node])


def wave(at: Progress, most: int) -> tuple[list[str], Progress]:
    """Return the nodes to be called now, at most so many, and how far the run has come with them under way."""
    return at.due[:most], at.model_copy(update={"active": at.due[:most], "due": at.due[most:]})


class _Course:
    """What becomes of a run's progress while it goes along lines."""

    def __init__(self, graph: GraphSpec, at: Progress) -> None:
        self._graph = graph
        self.visits = dict(at.visits)
        self.taken = dict(at.taken)
        self.due = set(at.due)
        self.arrived = {number: list(sources) for number, sources in at.arrived.items()}

    def leave(self, one: Ended) -> None:
        if one.targets is not None:
            for target in one.targets:
                self._go(one.node, target)
            return
        for edge in self._graph.edges:
            if edge.source == one.node:
                for target in edge.targets:
                    self._go(one.node, target)
        for number, join in enumerate(self._graph.joins):
            if one.node in join.sources:
                self._arrive(str(number), one.node)

    def _go(self, source: str, target: str) -> None:
        """Go from one node to another, or to where that one sends what is too much for it."""
        self._count(source, target)
        while target != END and target not in self.due:
            node = self._graph.node(target)
            if node.at_most is None or self.visits.get(target, 0) < node.at_most:
                self.visits[target] = self.visits.get(target, 0) + 1
                self.due.add(target)
                return
            self._count(target, node.instead)
            target = node.instead

    def _count(self, source: str, target: str) -> None:
        key = f"{source}>{target}"
        self.taken[key] = self.taken.get(key, 0) + 1

    def _arrive(self, number: str, source: str) -> None:
        came = self.arrived.setdefault(number, [])
        if source not in came:
            came.append(source)
        if len(came) == len(self._graph.joins[int(number)].sources):
            self._join(number)

    def _join(self, number: str) -> None:
        join = self._graph.joins[int(number)]
        came = self.arrived.pop(number)
        first, *rest = [source for source in join.sources if source in came]
        for source in rest:
            self._count(source, join.target)
        self._go(first, join.target)

    def join_what_came(self) -> None:
        """Go on from the first join that waits for what nobody will send any more."""
        for number in sorted(self.arrived, key=int):
            if self.arrived[number]:
                self._join(number)
            if self.due:
                return
