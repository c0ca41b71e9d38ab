"""The travel agent's conversation as a script, for a demo that needs neither key nor network.

`python -m perdure.examples.travel.script > travel.json` writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from datetime import date, datetime, timedelta
from typing import Any


def next_monday(today: date) -> date:
    """Return the first Monday after `today`."""
    return today + timedelta(days=7 - today.weekday())


def task(today: date) -> str:
    """Return what the user says on that day."""
    return (
        f"Today is {today:%A}, {today.isoformat()}. I am Zhang Wei. Book me the earliest flight from Beijing to"
        " Shanghai next Monday, and a hotel near Lujiazui for two nights."
    )


TASK = task(datetime.now().astimezone().date())
"""What the user says today."""


FLIGHT = (
    "You fly with ${flight_book.airline} ${flight_book.flight_number} from Beijing to Shanghai: departure"
    " ${flight_book.departure}, arrival ${flight_book.arrival}, ${flight_book.price_cny} CNY, booking"
    " ${flight_book.booking_id}."
)
HOTEL = (
    "You stay at ${hotel_book.name} from ${hotel_book.check_in} to ${hotel_book.check_out}:"
    " ${hotel_book.price_cny_total} CNY, booking ${hotel_book.booking_id}."
)


def replies(today: date, *, slow: bool = False, denied: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the model's replies to `task(today)`, for `scripted:FILE`.

    Args:
        today: Dates follow from it.
        slow: Begin with a call of `wait_a_moment` (see TRAVEL_SLOW_TOOL).
        denied: The bookings that the user did not agree to, such as `flight_book`: the answer says so.
    """
    day = next_monday(today).isoformat()
    wait = {"calls": [_call("wait_a_moment")]}
    search = {
        "text": "I'll look for flights and hotels.",
        "calls": [
            _call("flight_search", origin="Beijing", destination="Shanghai", date=day),
            _call("hotel_search", city="Shanghai", near="Lujiazui", check_in=day, nights=2),
        ],
    }
    book = {
        "text": "The earliest flight is ${flight_search.flights.0.flight_number}, and ${hotel_search.hotels.0.name}"
        " is ${hotel_search.hotels.0.distance_km} km from Lujiazui. I'll book both.",
        "calls": [
            _call("flight_book", flight_id="${flight_search.flights.0.id}", passenger="Zhang Wei"),
            _call("hotel_book", hotel_id="${hotel_search.hotels.0.id}", check_in=day, nights=2, guest="Zhang Wei"),
        ],
    }
    flight = "As you did not agree to the flight, none is booked." if "flight_book" in denied else FLIGHT
    hotel = "As you did not agree to the hotel, none is booked." if "hotel_book" in denied else HOTEL
    answer = {"text": f"{flight} {hotel}"}
    return [*([wait] if slow else []), search, book, answer]


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def main() -> None:
    """Print today's script."""
    today = datetime.now().astimezone().date()
    print(json.dumps(replies(today, slow=os.environ.get("TRAVEL_SLOW_TOOL") == "1"), indent=2))


if __name__ == "__main__":
    main()
