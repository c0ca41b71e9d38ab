"""The examples of several agents, as they stand, with their scripted models."""

from pathlib import Path

import pytest

from perdure.loading import load_agents

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("example", "agent", "words", "began"),
    [
        ("handoff", "desk", "Order A-1017 is paid back: it leaks. Anything else?", ["find_order", "refund"]),
        ("sub_agents", "guide", "Be outside from noon on.", ["weather", "culture"]),
        ("team", "organiser", "All is booked for the four of you.", ["planner", "researcher", "booker", "auditor"]),
    ],
)
async def test_the_example_does_what_it_says(stage, example, agent, words, began) -> None:
    declared = load_agents(str(EXAMPLES / f"{example}.py"))
    await stage.serve(*declared)
    chosen = next(one for one in declared if one.name == agent)
    done = await stage.end(await stage.start_again(chosen))
    assert done.result.status == "completed"
    assert done.result.text.startswith(words)
    assert list(dict.fromkeys(event.name for event in done.told("tool_started"))) == began
