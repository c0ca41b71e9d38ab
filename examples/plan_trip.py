"""A weekend is planned in steps: two at the same time, one that needs both, and one that was not foreseen.

`python examples/plan_trip.py` runs it by itself, with a scripted model; TRIP_MODEL names another one. With a worker, a
person approves the plan, or edits it, before anything of it is done:

    perdure worker examples/plan_trip.py
    perdure run trip "A weekend in Lisbon, by train if that can be, for 300 euros." --no-wait
    perdure approvals
    perdure approve RUN 1.1
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from perdure import Agent, Limits, Plan, run, tool

SCRIPT = Path(__file__).with_name("plan_trip.json")


@tool(effect="read")
def connections(start: str, end: str, means: str) -> str:
    """Look up how to get from one city to another by `train` or `plane`, and the price for both ways in euros."""
    if means == "train":
        return f"no train goes from {start} to {end} on that weekend: the line is closed"
    return f"{start} to {end} on Friday 17:40, back on Sunday 19:05: 140 euros"


@tool(effect="read")
def hotels(city: str, nights: int) -> str:
    """Look up hotels of a city and what they cost in euros."""
    return f"Casa do Largo in {city}, {nights} nights: {nights * 65} euros"


trip = Agent(
    "trip",
    os.environ.get("TRIP_MODEL", f"scripted:{SCRIPT}"),
    "You plan trips.",
    tools=[connections, hotels],
    strategy=Plan(approve=True),
    limits=Limits(steps=40),
)

if __name__ == "__main__":
    alone = replace(trip, strategy=Plan())
    print(asyncio.run(run(alone, "A weekend in Lisbon, by train if that can be, for 300 euros.")).text)
