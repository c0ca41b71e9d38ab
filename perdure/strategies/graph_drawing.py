"""A graph as a picture: Mermaid, or SVG; with the way of a run in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from perdure.state import RunState
from perdure.strategies.graph_layout import HEIGHT, layout
from perdure.strategies.graph_shape import END, START, GraphSpec, Line, NodeKind, Progress

_MERMAID: dict[NodeKind, tuple[str, str]] = {
    "tool": ("[[", "]]"),
    "function": ("[", "]"),
    "agent": ("([", "])"),
    "graph": ("[(", ")]"),
    "approval": ("{{", "}}"),
}
_GREEN, _BLUE = "#2e7d32", "#1565c0"
TIMES = "\u00d7"
"""A multiplication sign."""
_DASHED = ("error", "denied", "instead")


@dataclass(frozen=True)
class Way:
    """The way of a run.

    Attributes:
        visits: How often each node was visited.
        taken: How often each line was gone along, by its key.
        now: Nodes that are under way, or wait.
        over: The run has come to the end of the graph.
    """

    visits: Mapping[str, int] = field(default_factory=dict[str, int])
    taken: Mapping[str, int] = field(default_factory=dict[str, int])
    now: Sequence[str] = ()
    over: bool = False

    def count(self, name: str) -> int:
        """Return how often a run was there; at the start and the end, once."""
        if name == END:
            return sum(times for key, times in self.taken.items() if key.endswith(f">{END}")) and 1
        return int(bool(self.taken)) if name == START else self.visits.get(name, 0)


def way_of(at: Progress, *, is_open: bool) -> Way:
    """Return the way that a run has gone so far."""
    now = [*at.active, *at.due] if is_open else []
    return Way(at.visits, at.taken, now, at.over)


def graph_of(state: RunState) -> tuple[GraphSpec, Way] | None:
    """Return the graph that leads a run, and the way that it has gone in it so far; None where none does."""
    strategy = state.spec.strategy
    if strategy is None or strategy.name != "graph":
        return None
    at = Progress.model_validate(state.progress)
    return GraphSpec.model_validate(strategy.options), way_of(at, is_open=state.outcome is None)


def _title(name: str, way: Way) -> str:
    times = way.visits.get(name, 0)
    label = {START: "start", END: "end"}.get(name, name)
    return f"{label} {TIMES}{times}" if times > 1 else label


def drawn_lines(graph: GraphSpec, way: Way) -> list[tuple[Line, str, int]]:
    """Return the lines as they are drawn: those between the same two once, with what they say, and how often taken."""
    found: dict[str, tuple[Line, list[str]]] = {}
    for line in graph.lines():
        _, labels = found.setdefault(line.key, (line, []))
        labels.extend([line.label] if line.label else [])
    lines: list[tuple[Line, str, int]] = []
    for key, (line, labels) in found.items():
        times = way.taken.get(key, 0)
        count = [f"{TIMES}{times}"] if times > 1 else []
        lines.append((line, " ".join([", ".join(labels), *count]).strip(), times))
    return lines


# -- Mermaid -----------------------------------------------------------------------------------------------


def mermaid(graph: GraphSpec, way: Way | None = None) -> str:
    """Return a graph as a Mermaid flowchart, which GitHub and many editors draw."""
    return "\n".join(_mermaid(graph, way or Way()))


def _mermaid(graph: GraphSpec, way: Way) -> Iterator[str]:
    ids = {START: "s", END: "e", **{node.name: f"n{place}" for place, node in enumerate(graph.nodes, 1)}}
    yield "flowchart TD"
    yield "    s((start))"
    for node in graph.nodes:
        left, right = _MERMAID[node.kind]
        yield f'    {ids[node.name]}{left}"{_quoted(_title(node.name, way))}"{right}'
    yield "    e((end))"
    lines = drawn_lines(graph, way)
    for line, label, _ in lines:
        arrow = "-.->" if line.way in _DASHED else "-->"
        words = f"{line.by}: {label}" if line.by else label
        said = f'|"{_quoted(words)}"|' if label else ""
        yield f"    {ids[line.source]} {arrow}{said} {ids[line.target]}"
    if not way.taken:
        return
    been = [ids[name] for name in ids if way.count(name) and name not in way.now]
    now = [ids[name] for name in ids if name in way.now]
    for names, style in ((been, "been"), (now, "now")):
        if names:
            yield f"    class {','.join(names)} {style}"
    yield f"    classDef been fill:#e8f5e9,stroke:{_GREEN},stroke-width:2px"
    yield f"    classDef now fill:#e3f2fd,stroke:{_BLUE},stroke-width:3px"
    gone = [str(place) for place, (_, _, times) in enumerate(lines) if times]
    yield f"    linkStyle {','.join(gone)} stroke:{_GREEN},stroke-width:3px"


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


# -- SVG ---------------------------------------------------------------------------------------------------

_LETTER, _MARGIN, _ROUND = 7.6, 28.0, 34.0
_STYLE = f"""
  text {{ font: 13px ui-sans-serif, system-ui, sans-serif; fill: #222; text-anchor: middle; }}
  .label {{ font-size: 11px; fill: #555; paint-order: stroke; stroke: #fff; stroke-width: 4px; }}
  .kind {{ font-size: 9px; fill: #777; }}
  .node {{ fill: #fafafa; stroke: #777; stroke-width: 1.3; }}
  .line {{ fill: none; stroke: #999; stroke-width: 1.3; marker-end: url(#tip); }}
  .aside {{ stroke-dasharray: 5 4; }}
  .been {{ fill: #e8f5e9; stroke: {_GREEN}; stroke-width: 2; }}
  .now {{ fill: #e3f2fd; stroke: {_BLUE}; stroke-width: 3; }}
  .gone {{ stroke: {_GREEN}; stroke-width: 2.5; }}
"""

_TIP = """<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" \
markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="context-stroke"/>\
</marker></defs>"""


def svg(graph: GraphSpec, way: Way | None = None) -> str:
    """Return a graph as an SVG picture that needs nothing else."""
    way = way or Way()
    lines = drawn_lines(graph, way)
    names = [START, *(node.name for node in graph.nodes), END]
    widths = {name: _width(graph, name, way) for name in names}
    laid = layout(names, [(line.source, line.target) for line, _, _ in lines], widths)
    places = {name: (x + _MARGIN, y + _MARGIN) for name, (x, y) in laid.places.items()}
    edge = laid.width + _MARGIN
    back = sum(1 for line, _, _ in lines if _goes_back(places, line))
    room = max([len(label) * 6.2 for _, label, _ in lines], default=0)
    width = edge + _MARGIN + (_ROUND + back * 16 + room / 2 if back else room / 2)
    height = laid.height + 2 * _MARGIN
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', f"<style>{_STYLE}</style>", _TIP]
    rounds = 0
    for line, label, times in lines:
        passed = [(x + _MARGIN, y + _MARGIN) for x, y in laid.ways[line.source, line.target]]
        goes_back = _goes_back(places, line)
        rounds += goes_back
        out = edge + _ROUND + (rounds - 1) * 16
        parts.extend(_line(line, label, times, passed, (widths, out) if goes_back else None))
    parts.extend(_box(graph, name, places[name], widths[name], way) for name in names)
    return "\n".join([*parts, "</svg>", ""])


def _width(graph: GraphSpec, name: str, way: Way) -> float:
    if name in (START, END):
        return 48.0
    branch = graph.branch(name)
    below = len(branch.by) * 5.2 + 50 if branch and not branch.by.startswith("<") else 0
    return max(len(_title(name, way)) * _LETTER, below) + 36


def _goes_back(places: Mapping[str, tuple[float, float]], line: Line) -> bool:
    return places[line.target][1] <= places[line.source][1]


def _line(
    line: Line,
    label: str,
    times: int,
    passed: Sequence[tuple[float, float]],
    back: tuple[Mapping[str, float], float] | None,
) -> Iterator[str]:
    styles = " ".join(["line", *(["aside"] if line.way in _DASHED else []), *(["gone"] if times else [])])
    (x, y), (end_x, end_y) = passed[0], passed[-1]
    if back is None:
        points = [(x, y + HEIGHT / 2), *passed[1:-1], (end_x, end_y - HEIGHT / 2 - 2)]
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        for (ax, ay), (bx, by) in pairwise(points):
            half = (by - ay) / 2
            path += f" C{ax:.1f} {ay + half:.1f} {bx:.1f} {by - half:.1f} {bx:.1f} {by:.1f}"
        (ax, ay), (bx, by) = points[0], points[1]
        at = (ax + (bx - ax) * 0.55, ay + (by - ay) * 0.55 + 4)
    else:
        widths, out = back
        x, end_x = x + widths[line.source] / 2, end_x + widths[line.target] / 2 + 2
        path = f"M{x:.1f} {y:.1f} C{out:.1f} {y:.1f} {out:.1f} {end_y:.1f} {end_x:.1f} {end_y:.1f}"
        at = ((x + end_x) / 8 + out * 0.75, (y + end_y) / 2 + 4)
    yield f'<path class="{styles}" d="{path}"/>'
    if label:
        yield f'<text class="label" x="{at[0]:.1f}" y="{at[1]:.1f}">{escape(label)}</text>'


def _box(graph: GraphSpec, name: str, at: tuple[float, float], width: float, way: Way) -> str:
    style = "now" if name in way.now else "been" if way.count(name) else ""
    x, y = at
    left, top = x - width / 2, y - HEIGHT / 2
    title = f'<text x="{x:.1f}" y="{y + 4:.1f}">{escape(_title(name, way))}</text>'
    if name in (START, END):
        return f'<circle class="node {style}" cx="{x:.1f}" cy="{y:.1f}" r="20"/>{title}'
    kind, branch = graph.node(name).kind, graph.branch(name)
    by = f" \u00b7 {escape(branch.by)}?" if branch and not branch.by.startswith("<") else ""
    title = title.replace(f'y="{y + 4:.1f}"', f'y="{y + 1:.1f}"', 1)
    title += f'<text class="kind" x="{x:.1f}" y="{y + 13:.1f}">{kind}{by}</text>'
    if kind == "approval":
        points = [(left - 8, y), (left + 6, top), (left + width - 6, top), (left + width + 8, y)]
        points += [(left + width - 6, top + HEIGHT), (left + 6, top + HEIGHT)]
        corners = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        return f'<polygon class="node {style}" points="{corners}"/>{title}'
    radius = 20 if kind in ("agent", "graph") else 4
    box = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{HEIGHT:.0f}" rx="{radius}"'
    return f'<rect class="node {style}" {box}/>{title}'
