"""Where the travel agent is evaluated: a booking service with books of its own, and what has to be in them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.examples.travel.booking_service import BookingService

if TYPE_CHECKING:
    from perdure.evals import Evidence


@contextmanager
def booking_service(folder: Path) -> Generator[Path]:
    """Serve bookings while the evaluation is under way, and yield the books; taken up again, it finds them."""
    before = os.environ.get("TRAVEL_BOOKING_URL")
    books = folder / "bookings.db"
    with BookingService(books) as service:
        os.environ["TRAVEL_BOOKING_URL"] = service.address
        try:
            yield books
        finally:
            del os.environ["TRAVEL_BOOKING_URL"]
            if before is not None:
                os.environ["TRAVEL_BOOKING_URL"] = before


def booked(evidence: Evidence) -> tuple[int, int]:
    """Return how many flights and hotels a run has booked by the service's own books, cancelled ones left out.

    The service knows a booking by its call's idempotency key, which begins with the run's id.
    """
    query = "SELECT count(*) FROM bookings WHERE NOT cancelled AND kind = ? AND instr(ifnull(reference, key), ?) = 1"
    with closing(sqlite3.connect(evidence.world)) as books:
        flights, hotels = (
            books.execute(query, (kind, f"{evidence.result.run_id}:")).fetchone()[0] for kind in ("flights", "hotels")
        )
    return flights, hotels


def _differs(counts: tuple[int, int], wanted: tuple[int, int]) -> str:
    return "" if counts == wanted else f"booked are {counts[0]} flights and {counts[1]} hotels"


def flight_and_hotel_are_booked(evidence: Evidence) -> str:
    """One of each is in the books."""
    return _differs(booked(evidence), (1, 1))


def only_the_flight_is_booked(evidence: Evidence) -> str:
    """A flight is in the books, and no hotel."""
    return _differs(booked(evidence), (1, 0))


def nothing_is_booked(evidence: Evidence) -> str:
    """The books know nothing of the run."""
    return _differs(booked(evidence), (0, 0))
