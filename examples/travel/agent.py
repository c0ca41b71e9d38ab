"""A travel agent: it finds flights and hotels, and books them once somebody has agreed.

    perdure worker examples/travel/agent.py
    perdure run travel "From Beijing to Shanghai next Monday, and two nights near Lujiazui."

`booking_service.py` is what it books with; see the README beside this file.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated, Any

import httpx2
from pydantic import Field

from perdure import Agent, Done, NotDone, Sensitive, ToolContext, ToolError, Unknown, tool

# -- talking to the booking service ------------------------------------------------------------------------


@asynccontextmanager
async def booking_service() -> AsyncGenerator[httpx2.AsyncClient]:
    """Open the HTTP client that all calls of a worker share, as `ctx.shared`."""
    address = os.environ.get("TRAVEL_BOOKING_URL", "http://127.0.0.1:8123")
    # No proxy: the service is a neighbour. The timeout is below a tool's own ten seconds.
    async with httpx2.AsyncClient(base_url=address, timeout=8, trust_env=False) as client:
        yield client


NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""The request never left, so nothing was booked. After any other failure, nobody knows."""


async def ask(ctx: ToolContext, method: str, path: str, **request: Any) -> dict[str, Any]:
    """Send a request to the booking service and return its answer.

    Raises:
        ToolError: If the service refused: nothing was done, and it says why.
        httpx2.HTTPError: If there was no answer, or not the service's own: the outcome is unknown.
    """
    response = await ctx.shared.request(method, path, **request)
    if response.is_client_error:
        refusal = response.json()
        raise ToolError(refusal["message"], error_type=refusal["error"])
    answer: dict[str, Any] = response.raise_for_status().json()
    return answer


def only(names: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the named fields: the model pays for each one it reads."""
    return {name: found[name] for name in names.split()}


# -- searching ---------------------------------------------------------------------------------------------

FLIGHT = "id flight_number airline departure arrival origin_airport destination_airport price_cny seats"
HOTEL = "id name area distance_km stars rating breakfast price_cny_per_night price_cny_total"
Nights = Annotated[int, Field(ge=1, le=30)]
FullName = Annotated[str, Sensitive("name")]


@tool(effect="read")
async def flight_search(ctx: ToolContext, origin: str, destination: str, date: date) -> dict[str, Any]:
    """Find flights with free seats on one day: the five earliest, by departure.

    Args:
        origin: City or airport code, such as Beijing or PEK.
        destination: City or airport code.
        date: Day of departure, such as 2027-01-31.
    """
    query = {"origin": origin, "destination": destination, "date": str(date)}
    found = (await ask(ctx, "GET", "/flights", params=query))["flights"]
    flights = [only(FLIGHT, flight) for flight in found if flight["seats"]][:5]
    if flights:
        return {"flights": flights}
    return {"flights": [], "suggestion": "Name the cities in English, without the country, or try the day after."}


@tool(effect="read")
async def hotel_search(ctx: ToolContext, city: str, check_in: date, nights: Nights, near: str = "") -> dict[str, Any]:
    """Find hotels with free rooms: the ten nearest.

    Args:
        city: Such as Shanghai.
        check_in: Day of arrival, such as 2027-01-31.
        nights: How long the stay is.
        near: An area or landmark, such as Lujiazui. Default: the whole city.
    """
    query = {"city": city, "near": near, "check_in": str(check_in), "nights": nights}
    found = (await ask(ctx, "GET", "/hotels", params=query))["hotels"]
    hotels = [only(HOTEL, hotel) for hotel in found if hotel["rooms"]][:10]
    if hotels:
        return {"hotels": hotels}
    return {"hotels": [], "suggestion": "Search again without `near`, or with the city's name in English."}


# -- booking and cancelling: somebody has to agree first ---------------------------------------------------

FLIGHT_BOOKING = ["booking_id", "status", "passenger", "flight_number", "airline", "departure", "arrival", "price_cny"]
HOTEL_BOOKING = ["booking_id", "status", "guest", "name", "address", "check_in", "check_out", "price_cny_total"]
CANCELLED = ["booking_id", "status", "already_cancelled"]


async def flight_booked(ctx: ToolContext, **_: Any) -> Done | NotDone | Unknown:
    """Look up whether a flight was booked under this call's key."""
    try:
        found = await ask(ctx, "GET", "/flights/bookings", params={"reference": ctx.idempotency_key})
    except (httpx2.HTTPError, ToolError):
        return Unknown()
    return Done(found["bookings"][0]) if found["bookings"] else NotDone()


async def flight_unbooked(ctx: ToolContext, _result: Any, **_: Any) -> str:
    """Cancel what was booked under the call's key. Cancelling what is cancelled changes nothing."""
    found = await ask(ctx, "GET", "/flights/bookings", params={"reference": ctx.undoes})
    for booking in found["bookings"]:
        await ask(ctx, "DELETE", f"/flights/bookings/{booking['booking_id']}")
    return f"cancelled {', '.join(booking['booking_id'] for booking in found['bookings'])}"


async def hotel_unbooked(ctx: ToolContext, booked: dict[str, Any], **_: Any) -> str:
    """Cancel the booking that the call made."""
    await ask(ctx, "DELETE", f"/hotels/bookings/{booked['booking_id']}")
    return f"cancelled {booked['booking_id']}"


# The airline's side books again with every request, so this one is never repeated. It can be looked up, though.
@tool(
    effect="unsafe",
    approval="always",
    not_done=NOT_SENT,
    probe=flight_booked,
    compensate=flight_unbooked,
    fields=FLIGHT_BOOKING,
)
async def flight_book(ctx: ToolContext, flight_id: str, passenger: FullName) -> dict[str, Any]:
    """Book a seat on a flight.

    Args:
        flight_id: The `id` from flight_search.
        passenger: The traveller's full name.
    """
    order = {"flight_id": flight_id, "passenger": passenger, "reference": ctx.idempotency_key}
    return await ask(ctx, "POST", "/flights/bookings", json=order)


# The hotels' side knows a request by its key, so this one may be repeated until there is an answer.
# No `not_done` here: that a second try can't connect says nothing of the first.
@tool(effect="idempotent", approval="always", compensate=hotel_unbooked, fields=HOTEL_BOOKING)
async def hotel_book(
    ctx: ToolContext, hotel_id: str, check_in: date, nights: Nights, guest: FullName
) -> dict[str, Any]:
    """Book a hotel room.

    Args:
        hotel_id: The `id` from hotel_search.
        check_in: Day of arrival, such as 2027-01-31.
        nights: How long the stay is.
        guest: The guest's full name.
    """
    order = {"hotel_id": hotel_id, "check_in": str(check_in), "nights": nights, "guest": guest}
    key = {"Idempotency-Key": ctx.idempotency_key}
    return await ask(ctx, "POST", "/hotels/bookings", json=order, headers=key)


# Cancelling what is cancelled changes nothing, so these may be repeated too.
@tool(effect="idempotent", approval="always", fields=CANCELLED)
async def flight_cancel(ctx: ToolContext, booking_id: Annotated[str, Field(pattern=r"^F\d+$")]) -> dict[str, Any]:
    """Cancel a flight's booking.

    Args:
        booking_id: Such as F00001.
    """
    return await ask(ctx, "DELETE", f"/flights/bookings/{booking_id}")


@tool(effect="idempotent", approval="always", fields=CANCELLED)
async def hotel_cancel(ctx: ToolContext, booking_id: Annotated[str, Field(pattern=r"^H\d+$")]) -> dict[str, Any]:
    """Cancel a hotel's booking.

    Args:
        booking_id: Such as H00001.
    """
    return await ask(ctx, "DELETE", f"/hotels/bookings/{booking_id}")


# -- the agent ---------------------------------------------------------------------------------------------


@tool(effect="read")
async def wait_a_moment() -> str:
    """Wait three seconds. It does nothing else."""
    await asyncio.sleep(3)
    return "Three seconds have passed."


TOOLS = [flight_search, hotel_search, flight_book, hotel_book, flight_cancel, hotel_cancel]
if os.environ.get("TRAVEL_SLOW_TOOL") == "1":  # to watch the loop at work
    TOOLS.append(wait_a_moment)

travel = Agent(
    "travel",
    model=os.environ.get("TRAVEL_MODEL", "scripted:travel.json"),
    instructions=(
        "You book journeys. Search first, flight and hotel at once where both are wanted; a hotel is wanted from the"
        " day of arrival. Then book what fits best: the user approves each booking before it is made, so don't ask."
        " Book nothing twice. At the end say in a few sentences what is booked: times, names, booking ids, total"
        " price in CNY."
    ),
    tools=TOOLS,
    lifespan=booking_service,
    compensate_on=["cancelled", "failed"],  # a journey half booked is none
)
