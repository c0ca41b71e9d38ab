"""What is wrong with a graph, before any run of it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perdure.errors import AgentError
from perdure.strategies.graph_shape import END, START, GraphSpec, NodeSpec

Links = Mapping[str, Sequence[str]]


def check(graph: GraphSpec) -> None:
    """Refuse a graph that a run could not get through.

    Raises:
        AgentError: With one sentence about the first thing that is wrong.
    """
    for problems in (_names, _lines, _ways_out, _bounds, _reach, _cycles):
        for problem in problems(graph):
            raise AgentError(f"The graph can't be: {problem}")


# -- names and lines ---------------------------------------------------------------------------------------


def _names(graph: GraphSpec) -> Iterator[str]:
    seen: set[str] = set()
    for node in graph.nodes:
        if not node.name or not node.name.replace("-", "").replace("_", "").isalnum() or not node.name.isascii():
            yield f"a node's name is made of letters, digits, '-' and '_'; {node.name!r} is not."
        if node.name in (START, END):
            yield f"a node can't be named {node.name!r}, which stands for where a run begins or ends."
        if node.name in seen:
            yield f"two nodes are named {node.name!r}; rename one."
        seen.add(node.name)
    if not graph.nodes:
        yield "it has no nodes."


def _lines(graph: GraphSpec) -> Iterator[str]:
    known = [node.name for node in graph.nodes]
    seen: set[str] = set()
    for line in graph.lines():
        if line.source not in (*known, START):
            yield f"a line begins at {_shown(line.source)}, which is no node; the nodes are {', '.join(known)}."
        if line.target not in (*known, END):
            where = f"{_shown(line.source)} leads to {_shown(line.target)}"
            yield f"{where}, which is no node; the nodes are {', '.join(known)}."
        key = f"{line.key} {line.label}"
        if key in seen:
            yield f"the line from {_shown(line.source)} to {_shown(line.target)} is there twice."
        seen.add(key)
    for join in graph.joins:
        if len(join.sources) < 2:  # noqa: PLR2004
            yield f"the join to {_shown(join.target)} has less than two sources; an Edge will do."


def _shown(name: str) -> str:
    return {START: "START", END: "END"}.get(name, repr(name))


def _ways_out(graph: GraphSpec) -> Iterator[str]:
    fixed = {edge.source for edge in graph.edges} | {source for join in graph.joins for source in join.sources}
    branching = [branch.source for branch in graph.branches]
    for source in [START, *(node.name for node in graph.nodes)]:
        if branching.count(source) > 1:
            yield f"{_shown(source)} has two branches; put their cases into one."
        if source in branching and source in fixed:
            yield f"{_shown(source)} has a branch and other lines, so that it is not clear where it leads; keep one."
        if source not in fixed and source not in branching:
            yield f"{_shown(source)} leads nowhere; add an edge, to END if nothing follows."
    for edge in graph.edges:
        if not edge.targets:
            yield f"the edge from {_shown(edge.source)} has no target."
    for branch in graph.branches:
        if not branch.cases and not branch.otherwise:
            yield f"the branch of {_shown(branch.source)} has no cases."


def _bounds(graph: GraphSpec) -> Iterator[str]:
    for node in graph.nodes:
        if node.at_most is not None and node.at_most < 1:
            yield f"{node.name!r} can't be visited at most {node.at_most} times; at_most is 1 or more."
        if node.at_most is not None and not node.instead:
            text = f"{node.name!r} is visited at most {node.at_most} times, and does not say where the graph goes"
            yield f"{text} in place of one more visit; say instead=, a node or END."
        if node.instead and node.at_most is None:
            yield f"{node.name!r} says instead= but not at_most=, the visits after which it holds."


# -- reach -------------------------------------------------------------------------------------------------


def links(graph: GraphSpec) -> dict[str, list[str]]:
    """Return where each node may lead, START included."""
    found: dict[str, list[str]] = {START: [], **{node.name: [] for node in graph.nodes}}
    for line in graph.lines():
        found[line.source].append(line.target)
    return found


def reached(links: Links, begin: Iterable[str]) -> set[str]:
    """Return all that can be come to from `begin`, which is in it."""
    found, left = set(begin), list(begin)
    while left:
        for target in links.get(left.pop(), ()):
            if target not in found:
                found.add(target)
                left.append(target)
    return found


def _reach(graph: GraphSpec) -> Iterator[str]:
    there = links(graph)
    from_start = reached(there, [START])
    back: dict[str, list[str]] = {}
    for source, targets in there.items():
        for target in targets:
            back.setdefault(target, []).append(source)
    to_end = reached(back, [END])
    for node in graph.nodes:
        if node.name not in from_start:
            yield f"no line leads to {node.name!r}, so that it is never visited; add one, or leave it out."
    for node in graph.nodes:
        if node.name not in to_end:
            yield f"from {node.name!r} there is no way to the end; add an edge to END."


# -- cycles ------------------------------------------------------------------------------------------------


def _cycles(graph: GraphSpec) -> Iterator[str]:
    """Tell of a way round on which no node has a bound, also where those that have one are spent and passed by."""
    bounded = {node.name: node for node in graph.nodes if node.at_most is not None}
    if circle := _circle({name: [node.instead] for name, node in bounded.items()}):
        yield f"{' → '.join(circle)}: each is sent on to the next one when it is spent, for ever."
        return
    there = {
        source: [end for target in targets for end in _passed(target, bounded)]
        for source, targets in links(graph).items()
        if source not in bounded
    }
    if circle := _circle(there):
        way, spent = _told(graph, circle, bounded)
        text = f"choose another instead= for {spent!r}, or give" if spent else "give"
        others = "another of its nodes" if spent else "one of its nodes"
        yield f"{way} goes round without a bound; {text} {others} at_most= and instead=."


def _told(graph: GraphSpec, circle: Sequence[str], bounded: Mapping[str, NodeSpec]) -> tuple[str, str]:
    """Return a way round with all lines that it goes along, and the first node with a bound that it passes by."""
    way, spent = circle[0], ""
    for source, target in itertools.pairwise(circle):
        line = next(one for one in graph.lines() if one.source == source and _passed(one.target, bounded) == [target])
        at = line.target
        way += f" → {f'({line.way}) ' if line.way in ('denied', 'error') else ''}{at}"
        while at in bounded:
            spent, at = spent or at, bounded[at].instead
            way += f" → (instead) {at}"
    return way, spent


def _passed(target: str, bounded: Mapping[str, NodeSpec]) -> list[str]:
    """Return where a run may be in the end that goes to `target` while nodes with a bound are spent."""
    while target in bounded:
        target = bounded[target].instead
    return [target]


def _circle(links: Links) -> list[str]:
    """Return a way round, its first node again at its end; `[]` where there is none."""
    done: set[str] = set()
    for begin in links:
        way: list[str] = []
        left = [(begin, iter(links[begin]))]
        way.append(begin)
        while left and begin not in done:
            node, targets = left[-1]
            target = next(targets, None)
            if target is None:
                done.add(node)
                left.pop()
                way.pop()
            elif target in way:
                return [*way[way.index(target) :], target]
            elif target in links and target not in done:
                way.append(target)
                left.append((target, iter(links[target])))
    return []


# -- beside each other -------------------------------------------------------------------------------------


def beside(graph: GraphSpec) -> Iterator[tuple[str, str]]:
    """Yield pairs of nodes that may run beside each other: on one of several branches alone, up to where they join."""
    there, joined = links(graph), {join.target for join in graph.joins}
    cut = {source: [one for one in targets if one not in joined] for source, targets in there.items()}
    for source in there:
        targets = [target for edge in graph.edges if edge.source == source for target in edge.targets]
        targets += [join.target for join in graph.joins if source in join.sources]
        sides = [reached({**cut, source: []}, [target]) - {END, source} for target in dict.fromkeys(targets)]
        for at, one in enumerate(sides):
            for other in sides[at + 1 :]:
                for left in graph.in_order(one - other):
                    yield from ((left, right) for right in graph.in_order(other - one))


def clashes(graph: GraphSpec, merged: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield pairs of nodes that may run beside each other and write one field, and that field."""
    written = {node.name: set(node.written) - set(merged) for node in graph.nodes}
    for one, other in beside(graph):
        for name in sorted(written[one] & written[other]):
            yield one, other, name
