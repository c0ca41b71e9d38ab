"""An answer that is data: the agent looks flights up, and gives an itinerary of that very type.

    perdure run examples/itinerary.py "Three days in Lisbon"

`ITINERARY_MODEL=scripted:examples/itinerary.json` plays a script, in which the first answer does not fit.
"""

import os
from datetime import date
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from perdure import Agent, tool


class Leg(BaseModel):
    """One leg of a journey."""

    by: Literal["plane", "train", "bus"]
    start: str
    end: str
    day: date


class Itinerary(BaseModel):
    """A journey, there and back."""

    title: str
    days: int = Field(ge=1, le=30)
    legs: list[Leg] = Field(min_length=2)
    note: str | None = None

    @model_validator(mode="after")
    def _returns(self) -> "Itinerary":
        if self.legs[0].start != self.legs[-1].end:
            raise ValueError("the last leg has to end where the first one starts")
        return self


@tool(effect="read")
def flights(start: str, end: str) -> list[str]:
    """Look up flights."""
    return [f"{start}-{end} 09:10", f"{start}-{end} 17:45"]


planner = Agent(
    "planner",
    model=os.environ.get("ITINERARY_MODEL", "openai:gpt-5-mini"),
    instructions="Plan the journey that the user asks for. It starts and ends in Oslo.",
    tools=[flights],
    output_type=Itinerary,
)
