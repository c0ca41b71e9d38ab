"""A guide plans a day, and has two other agents do a part of it, each in a run of its own, both at once.

`python examples/sub_agents.py` runs it by itself, with scripted models; GUIDE_MODEL names another one for all.
"""

import asyncio
import os
from pathlib import Path

from perdure import Agent, run, tool

HERE = Path(__file__).parent


def model(script: str) -> str:
    """Return the model that is asked."""
    return os.environ.get("GUIDE_MODEL", f"scripted:{HERE / script}")


@tool(effect="read")
def forecast(city: str) -> str:
    """Say what the weather will be."""
    return f"{city}: rain in the morning, sun from noon on"


@tool(effect="read")
def museums(city: str) -> list[str]:
    """List the museums of a city that are open."""
    return [f"Museum of {city}", "Gallery of Prints"]


weather = Agent("weather", model("sub_agents_weather.json"), "Say in one sentence when to be outside.", [forecast])
culture = Agent("culture", model("sub_agents_culture.json"), "Pick one museum.", [museums])
guide = Agent(
    "guide",
    model("sub_agents_guide.json"),
    "Plan a day out of what the others find.",
    tools=[
        weather.as_tool("Says when to be outside in a city."),
        culture.as_tool("Picks a museum of a city."),
    ],
)

if __name__ == "__main__":
    print(asyncio.run(run(guide, "I have one day in Turin.")).text)
