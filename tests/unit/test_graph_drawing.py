"""A graph as Mermaid and as SVG, with the way of a run in it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.strategies.graph_drawing import Way, mermaid, svg, way_of
from perdure.strategies.graph_layout import GAP, layout
from perdure.strategies.graph_shape import END, START, BranchSpec, EdgeSpec, GraphSpec, NodeSpec, Progress

LOOP = GraphSpec(
    nodes=[
        NodeSpec(name="look", kind="tool", at_most=3, instead=END, on_error="say"),
        NodeSpec(name='a"<b', kind="function"),
        NodeSpec(name="say", kind="agent"),
    ],
    edges=[
        EdgeSpec(source=START, targets=["look"]),
        EdgeSpec(source="look", targets=['a"<b']),
        EdgeSpec(source="say", targets=[END]),
    ],
    branches=[BranchSpec(source='a"<b', by="fine", cases=[(True, "say"), (False, "look")])],
)
GONE = Progress(
    visits={"look": 2, 'a"<b': 1},
    taken={"__start__>look": 1, 'look>a"<b': 1, 'a"<b>look': 1},
    active=["look"],
)


def test_mermaid_has_all_nodes_and_lines_and_what_they_say():
    assert mermaid(LOOP).splitlines() == [
        "flowchart TD",
        "    s((start))",
        '    n1[["look"]]',
        '    n2["a&quot;&lt;b"]',
        '    n3(["say"])',
        "    e((end))",
        "    s --> n1",
        "    n1 --> n2",
        "    n3 --> e",
        '    n2 -->|"fine: yes"| n3',
        '    n2 -->|"fine: no"| n1',
        '    n1 -.->|"error"| n3',
        '    n1 -.->|"after 3"| e',
    ]


def test_the_way_of_a_run_is_marked():
    drawn = mermaid(LOOP, way_of(GONE, is_open=True))
    assert '"look \u00d72"' in drawn
    assert "class s,n2 been" in drawn
    assert "class n1 now" in drawn
    assert "linkStyle 0,1,4 " in drawn
    assert " now" not in mermaid(LOOP, way_of(GONE, is_open=False)).split("classDef")[0]


def test_the_picture_has_a_box_for_each_node_and_a_path_for_each_line():
    picture = ET.fromstring(svg(LOOP, way_of(GONE, is_open=True)))
    space = "{http://www.w3.org/2000/svg}"
    styles = [path.get("class", "") for path in picture.findall(f"{space}path")]
    assert len(styles) == 7
    assert sum("gone" in style for style in styles) == 3
    assert len(picture.findall(f"{space}rect")) == 3
    assert len(picture.findall(f"{space}circle")) == 2
    texts = [text.text for text in picture.findall(f"{space}text")]
    assert 'a"<b' in texts
    assert "look \u00d72" in texts
    assert svg(LOOP) == svg(LOOP, Way())


NAMES = [f"n{number}" for number in range(8)]
LINES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=20, unique=True)


@given(LINES)
@settings(max_examples=60, deadline=None)
def test_boxes_never_overlap_whatever_the_lines(lines: list[tuple[str, str]]):
    widths = {name: 40.0 + 10 * place for place, name in enumerate(NAMES)}
    laid = layout(NAMES, lines, widths)
    assert set(laid.ways) == set(lines)
    for one, other in combinations(NAMES, 2):
        (x, y), (other_x, other_y) = laid.places[one], laid.places[other]
        apart = abs(x - other_x) - (widths[one] + widths[other]) / 2
        assert y != other_y or apart >= GAP - 0.01
    assert all(0 <= x <= laid.width and 0 <= y <= laid.height for x, y in laid.places.values())
