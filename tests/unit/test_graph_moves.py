"""Where a graph goes: every valid one comes to its end, along its lines alone, and joins in declared order."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perdure.errors import AgentError
from perdure.strategies.graph_checks import check, links, reached
from perdure.strategies.graph_moves import Ended, advance, begin, wave
from perdure.strategies.graph_shape import (
    END,
    START,
    BranchSpec,
    EdgeSpec,
    GraphSpec,
    JoinSpec,
    NodeSpec,
    Progress,
)


@st.composite
def graphs(draw: st.DrawFn) -> GraphSpec:
    """Graphs of all kinds, most of them valid: lines go forward, and back to nodes with a bound."""
    size = draw(st.integers(1, 7))
    names = [f"n{number}" for number in range(size)]
    bound = {name: draw(st.one_of(st.none(), st.integers(1, 3))) for name in names}
    bounded = [name for name in names if bound[name]]
    nodes, edges, branches = [], [], []

    def later(place: int, *, back: bool = True) -> st.SearchStrategy[str]:
        return st.sampled_from([*names[place + 1 :], END, *(bounded if back else [])])

    for place, name in enumerate(names):
        nodes.append(
            NodeSpec(
                name=name,
                kind="function",
                at_most=bound[name],
                instead=draw(later(place, back=False)) if bound[name] else "",
                on_error=draw(st.one_of(st.just(""), later(place))),
                on_denied=draw(st.one_of(st.just(""), later(place))),
            )
        )
        targets = draw(st.lists(later(place), min_size=1, max_size=3, unique=True))
        if draw(st.booleans()):
            edges.append(EdgeSpec(source=name, targets=targets))
        else:
            branches.append(BranchSpec(source=name, by="x", cases=list(enumerate(targets))))
    starts = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    joins = []
    fixed = [edge.source for edge in edges]
    if len(fixed) > 1 and draw(st.booleans()):
        sources = draw(st.lists(st.sampled_from(fixed), min_size=2, unique=True))
        joins.append(JoinSpec(sources=sources, target=draw(later(max(map(names.index, sources))))))
    graph = GraphSpec(nodes=nodes, edges=edges, branches=branches, joins=joins)
    for name in names:  # what nothing leads to, the start leads to
        starts += [name] if name not in reached({START: [], **links(graph)}, starts) else []
    graph = graph.model_copy(update={"edges": [*edges, EdgeSpec(source=START, targets=starts)]})
    try:
        check(graph)
    except AgentError:
        assume(False)
    return graph


def outcome(graph: GraphSpec, name: str, draw: st.DataObject) -> Ended:
    node, branch = graph.node(name), graph.branch(name)
    ends = ["ok", *(["error"] if node.on_error else []), *(["denied"] if node.on_denied else [])]
    match draw.draw(st.sampled_from(ends)):
        case "error":
            return Ended(name, (node.on_error,))
        case "denied":
            return Ended(name, (node.on_denied,))
        case _ if branch:
            return Ended(name, (draw.draw(st.sampled_from([target for _, target in branch.cases])),))
        case _:
            return Ended(name)


def walked(graph: GraphSpec, draw: st.DataObject) -> list[tuple[list[str], Progress]]:
    """Return the waves of a run of which each node ends somehow, in whatever order."""
    at, waves = begin(graph, 0), list[tuple[list[str], Progress]]()
    bounds = sum(node.at_most or 0 for node in graph.nodes)
    longest = (bounds + 1) * (len(graph.nodes) + 1) * 2
    while not at.over:
        assert len(waves) <= longest, "it does not come to its end"
        names, at = wave(at, draw.draw(st.integers(1, 8)))
        assert names, "it is not over, and nothing is due"
        waves.append((names, at))
        ended = draw.draw(st.permutations([outcome(graph, name, draw) for name in names]))
        at = advance(graph, at, ended)
    return waves


@given(graphs(), st.data())
@settings(max_examples=60, deadline=None)
def test_any_valid_graph_ends_along_its_lines(graph: GraphSpec, data: st.DataObject):
    waves = walked(graph, data)
    lines = {line.key for line in graph.lines()}
    for names, at in waves:
        assert set(at.taken) <= lines
        assert names == graph.in_order(names)
        for node in graph.nodes:
            assert node.at_most is None or at.visits.get(node.name, 0) <= node.at_most


@given(graphs(), st.data())
@settings(max_examples=40, deadline=None)
def test_the_order_in_which_nodes_end_changes_nothing(graph: GraphSpec, data: st.DataObject):
    at = begin(graph, 0)
    while not at.over:
        names, at = wave(at, 8)
        ended = [outcome(graph, name, data) for name in names]
        after = advance(graph, at, ended)
        assert advance(graph, at, data.draw(st.permutations(ended))) == after
        at = after


def plain(*names: str, **rest: object) -> GraphSpec:
    return GraphSpec.model_validate({"nodes": [NodeSpec(name=name, kind="function") for name in names], **rest})


def test_a_join_waits_for_all_of_its_sources():
    graph = plain(
        "a",
        "b",
        "slow",
        "c",
        edges=[
            EdgeSpec(source=START, targets=["a", "b"]),
            EdgeSpec(source="b", targets=["slow"]),
            EdgeSpec(source="c", targets=[END]),
        ],
        joins=[JoinSpec(sources=["a", "slow"], target="c")],
    )
    _, at = wave(begin(graph, 0), 8)
    at = advance(graph, at, [Ended("b"), Ended("a")])
    assert at.due == ["slow"]
    _, at = wave(at, 8)
    at = advance(graph, at, [Ended("slow")])
    assert at.due == ["c"]
    assert at.taken["a>c"] == at.taken["slow>c"] == 1


def test_a_join_does_not_wait_for_what_the_run_never_comes_to():
    graph = plain(
        "a",
        "b",
        "c",
        edges=[
            EdgeSpec(source=START, targets=["a"]),
            EdgeSpec(source="b", targets=[END]),
            EdgeSpec(source="c", targets=[END]),
        ],
        joins=[JoinSpec(sources=["a", "b"], target="c")],
    )
    _, at = wave(begin(graph, 0), 8)
    assert advance(graph, at, [Ended("a")]).due == ["c"]


def test_what_has_arrived_at_a_join_is_kept_in_declared_order_whoever_ended_first():
    graph = plain(
        "a",
        "b",
        "slow",
        "c",
        edges=[EdgeSpec(source=START, targets=["a", "b", "slow"]), EdgeSpec(source="c", targets=[END])],
        joins=[JoinSpec(sources=["a", "b", "slow"], target="c")],
    )
    _, at = wave(begin(graph, 0), 8)
    under_way = at.model_copy(update={"due": ["slow"]})  # the wave was too large for one turn
    assert advance(graph, under_way, [Ended("b"), Ended("a")]).arrived == {"0": ["a", "b"]}
