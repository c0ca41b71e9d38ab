"""A trip for a group, by a graph: two searches beside each other, a loop with a bound, an agent, a person who approves.

    perdure run examples/graph_trip.py:trip "Turin"
    perdure graph examples/graph_trip.py

The agent's model is scripted; TRIP_MODEL names another one.
"""

import os
from pathlib import Path

from pydantic import BaseModel

from perdure import Agent, tool
from perdure.strategies.graph import END, START, ApprovalNode, Branch, Edge, Graph, Join, Node

MODEL = os.environ.get("TRIP_MODEL", f"scripted:{Path(__file__).with_suffix('.json')}")


class Trip(BaseModel):
    """What is known of a trip: nodes read these fields, and write them."""

    city: str = ""
    people: int = 4
    budget: int = 900
    stars: int = 4
    hotel: str = ""
    hotel_price: int = 0
    train: str = ""
    train_price: int = 0
    total: int = 0
    note: str = ""
    booking: str = ""


class Hotel(BaseModel):
    """A hotel that was found."""

    hotel: str
    hotel_price: int


class Train(BaseModel):
    """A train that was found."""

    train: str
    train_price: int


@tool(effect="read")
def find_hotel(city: str, stars: int) -> Hotel:
    """Find a hotel."""
    return Hotel(hotel=f"{'*' * stars} {city} Palace", hotel_price=60 * stars)


@tool(effect="read")
def find_train(city: str) -> Train:
    """Find a train."""
    return Train(train=f"the 09:10 to {city}", train_price=45)


@tool  # "unsafe" is the default: done at most once, whatever crashes
def book(hotel: str, train: str, people: int) -> str:
    """Book hotel and train."""
    return f"{hotel} and {train}, for {people}"


def add_up(hotel_price: int, train_price: int, people: int) -> int:
    """Add up what it costs all of them."""
    return (hotel_price + train_price) * people


def affordable(trip: Trip) -> bool:
    """Decide whether the group can pay for it."""
    return trip.total <= trip.budget


def lower(stars: int) -> int:
    """Be content with less."""
    return stars - 1


writer = Agent("writer", MODEL, "Write to the group in one sentence what is planned.")
trip = Agent(
    "trip",
    MODEL,
    variables=Trip,
    strategy=Graph(
        Trip,
        takes="city",
        nodes=[
            Node("hotel", find_hotel, writes=["hotel", "hotel_price"], on_error="sorry"),
            Node("train", find_train, writes=["train", "train_price"]),
            Node("add_up", add_up, writes="total"),
            Node("lower", lower, writes="stars", at_most=3, instead="sorry"),
            Node("tell", writer, task="{hotel} and {train} for {people}: {total} EUR.", writes="note"),
            ApprovalNode(
                "confirm", "Book {hotel} for {people}, {total} EUR in all?", shows=["people"], on_denied="sorry"
            ),
            Node("book", book, writes="booking"),
            Node("sorry", writer, task="There is nothing in {city} for {budget} EUR that all want.", writes="note"),
        ],
        edges=[
            Edge(START, "hotel", "train"),
            Join(["hotel", "train"], "add_up"),
            Branch("add_up", affordable, {True: "tell", False: "lower"}),
            Edge("lower", "hotel"),
            Edge("tell", "confirm"),
            Edge("confirm", "book"),
            Edge("book", END),
            Edge("sorry", END),
        ],
        answer="{note} {booking}",
    ),
)
