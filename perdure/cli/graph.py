"""`perdure graph`: the graph that leads an agent's runs, as Mermaid or SVG, and the way of one run in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from perdure.cli import session
from perdure.cli.output import AsJSON, Misuse, data, emit, paint, safe, say

if TYPE_CHECKING:
    from perdure.policies import AgentSpec
    from perdure.strategies.graph_drawing import Way
    from perdure.strategies.graph_shape import GraphSpec


def graph(
    agent: Annotated[
        str | None,
        typer.Argument(metavar="AGENT", help="FILE.py or .yaml[:name], module:name, or the name of a served one."),
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Draw the graph of this run, and its way.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture to this file instead.")] = None,
    as_json: AsJSON = False,
) -> None:
    """Draw the graph that leads an agent's runs, or the way of a run in it: as Mermaid on stdout, or as SVG.

    Of a run, nodes are marked in which it has been, with how often, and those where it is now; and the lines that it
    has gone along. GitHub and many editors draw Mermaid.
    """
    from perdure.strategies import graph_drawing

    if (agent is None) == (run is None):
        raise Misuse("Say either AGENT or --run RUN.")
    shape, way = session.finish(_of_run(run)) if run is not None else _of_agent(agent or "")
    if svg is not None:
        from perdure.cli.trace import write

        write(svg, graph_drawing.svg(shape, way))
        say(f"The graph of {safe(run or agent or '')} is in {safe(str(svg))}.")
    if as_json:
        emit({"graph": shape.model_dump(mode="json"), "visits": way.visits, "taken": way.taken, "now": way.now})
    elif svg is None:
        data(graph_drawing.mermaid(shape, way))


def _of_agent(reference: str) -> tuple[GraphSpec, Way]:
    from perdure.loading import load_agents, looks_like_file
    from perdure.strategies.graph_drawing import Way

    if not looks_like_file(reference) and "." not in reference:
        return _shape(session.finish(_served(reference))), Way()
    agents = load_agents(reference)
    led = [one for one in agents if one.strategy is not None and one.strategy.name == "graph"] or agents
    if len(led) > 1:
        names = ", ".join(f"{reference}:{one.name}" for one in led)
        raise Misuse(f"{reference} declares {len(led)} agents that it could be; say which: {names}.")
    return _shape(led[0].spec), Way()


async def _served(name: str) -> AgentSpec:
    from perdure.cli.choice import choose

    return (await choose(name, await session.connect())).spec


async def _of_run(run_id: str) -> tuple[GraphSpec, Way]:
    from perdure.strategies.graph_drawing import graph_of

    client = await session.connect()
    state = (await client.handle(run_id).projection()).state
    if state is None:
        raise Misuse(f"Run {run_id} has not begun yet.")
    found = graph_of(state)
    if found is None:
        raise _not_led(state.spec)
    return found


def _shape(spec: AgentSpec) -> GraphSpec:
    from perdure.strategies.graph_shape import GraphSpec

    if spec.strategy is None or spec.strategy.name != "graph":
        raise _not_led(spec)
    return GraphSpec.model_validate(spec.strategy.options)


def _not_led(spec: AgentSpec) -> Misuse:
    by = f"by strategy {spec.strategy.name!r}" if spec.strategy else "by its model alone"
    return Misuse(f"Agent {spec.name!r} is led {by}, not by a graph: there is none to be drawn.")


def line(shape: GraphSpec, way: Way, stream: TextIO) -> str:
    """Return the way of a run in a line: the nodes in which it has been, with how often, and where it is now."""
    return ", ".join(_visited(name, way, stream) for name in shape.in_order({*way.visits, *way.now}))


def _visited(name: str, way: Way, stream: TextIO) -> str:
    times = way.visits.get(name, 0)
    told = f"{safe(name)} \u00d7{times}" if times > 1 else safe(name)
    return paint(f"{told} (now)", "cyan", stream) if name in way.now else told
