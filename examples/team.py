"""A team books a trip for a group: a planner, a researcher, a booker and an auditor, who tell each other what happens.

`python examples/team.py` runs it by itself, with scripted models; TEAM_MODEL names another one for all.
"""

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from perdure import Agent, Limits, Member, Team, run, tool

HERE = Path(__file__).parent
DEAREST = 500


def model(name: str) -> str:
    """Return the model that a member asks."""
    return os.environ.get("TEAM_MODEL", f"scripted:{HERE}/team_{name}.json")


class Search(BaseModel):
    """Something is to be found for the group."""

    what: str
    city: str
    people: int


class Offer(BaseModel):
    """Something was found that could be booked."""

    what: str
    name: str
    total: int


class Booking(BaseModel):
    """Something was booked."""

    what: str
    reference: str
    total: int


class Objection(BaseModel):
    """A booking is not as it should be."""

    reference: str
    why: str


@tool(effect="read")
def look_up(what: str, city: str, people: int) -> dict[str, str | int]:
    """Look up what there is for a group: `hotel` or `train`."""
    name, price = {"hotel": (f"Hotel Centrale {city}", 80), "train": (f"the 8:05 to {city}", 45)}[what]
    return {"what": what, "name": name, "total": price * people}


@tool(effect="idempotent")
def book(name: str, total: int) -> str:
    """Book an offer."""
    return f"{name.rsplit(maxsplit=1)[-1].upper()}-{total}"


@tool(effect="read")
def check(what: str, total: int) -> str:
    """Check a booking against the rules of the house."""
    return "fine" if total <= DEAREST else f"a {what} for {total} is too dear"


team = Team(
    topics={"search": Search, "offer": Offer, "booking": Booking, "objection": Objection},
    members=[
        Member(
            Agent("planner", model("planner"), "Say what has to be found for the trip."),
            hears=["request", "objection"],
            publishes=["search"],
        ),
        Member(
            Agent("researcher", model("researcher"), "Find the best offer.", tools=[look_up]),
            hears=["search"],
            publishes=["offer"],
        ),
        Member(
            Agent("booker", model("booker"), "Book what is offered.", tools=[book]),
            hears=["offer"],
            publishes=["booking"],
        ),
        Member(
            Agent("auditor", model("auditor"), "Check each booking, and object where it is too dear.", tools=[check]),
            hears=["booking"],
            publishes=["objection"],
        ),
    ],
)
organiser = Agent(
    "organiser",
    model("organiser"),
    "You organise trips for groups.",
    strategy=team,
    limits=Limits(steps=60),  # those of all members are among them
)

if __name__ == "__main__":
    result = asyncio.run(run(organiser, "Four of us want to go to Turin: hotel and train, please."))
    print(result.text)
