"""The travel agent's tools, called as plain functions against the booking service or a stand-in of it."""

import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest

from perdure import Done, NotDone, ToolContext, ToolError, Unknown
from perdure.examples.travel import agent
from perdure.examples.travel.booking_service import BookingService
from perdure.shaping import trim

DAY = date(2026, 12, 7)
SECRETS_OF_A_FLIGHT = {"aircraft", "baggage_kg", "meal", "refund_fee_cny"}


@dataclass
class Context:
    """What the runtime hands to a tool."""

    shared: Any
    idempotency_key: str = "run-1/2.1"
    run_id: str = "run-1"
    agent: str = "travel"
    step: int = 2
    call: str = "2.1"
    call_id: str = "call-1"
    attempt: int = 1
    deadline: datetime = datetime.now(UTC) + timedelta(seconds=10)
    cancelled: bool = False
    undoes: str = ""
    vars: Any = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    traceparent: str = ""

    def progress(self, text: str, fraction: float | None = None) -> None:
        del text, fraction

    async def open(self, key: str, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        pytest.fail("no tool of the example opens anything")


def answering(handler: Callable[[httpx2.Request], httpx2.Response]) -> Context:
    """Return a context whose booking service is `handler`."""
    return Context(httpx2.AsyncClient(base_url="http://service", transport=httpx2.MockTransport(handler)))


def failing(error: Exception) -> Context:
    """Return a context whose requests raise `error`."""

    def handler(request: httpx2.Request) -> httpx2.Response:
        raise error

    return answering(handler)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[BookingService]:
    with BookingService(tmp_path / "ledger.db") as service:
        yield service


@pytest.fixture
async def ctx(service: BookingService, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Context]:
    monkeypatch.setenv("TRAVEL_BOOKING_URL", service.address)
    assert agent.travel.lifespan is not None
    async with agent.travel.lifespan() as client:
        yield Context(client)


async def first_flight(ctx: Context) -> dict[str, Any]:
    flights = (await agent.flight_search(ctx, "Beijing", "Shanghai", DAY))["flights"]
    return dict(flights[0])


async def book_flight(ctx: Context) -> dict[str, Any]:
    return dict(await agent.flight_book(ctx, (await first_flight(ctx))["id"], "Zhang Wei"))


async def book_hotel(ctx: Context, nights: int = 2) -> dict[str, Any]:
    hotels = (await agent.hotel_search(ctx, "Shanghai", DAY, nights, near="Lujiazui"))["hotels"]
    return dict(await agent.hotel_book(ctx, hotels[0]["id"], DAY, nights, "Zhang Wei"))


# -- what each tool says of itself -------------------------------------------------------------------------


def test_context_is_a_tool_context():
    assert isinstance(Context(None), ToolContext)


def test_tools_that_change_something_ask_first_and_the_others_are_reads():
    for tool in agent.TOOLS:
        searches = tool.name.endswith("_search")
        assert (tool.spec.effect == "read") == searches
        assert tool.spec.approval == (None if searches else "always")


def test_only_booking_a_flight_is_unsafe_and_it_can_be_looked_up():
    assert [tool.name for tool in agent.TOOLS if tool.spec.effect == "unsafe"] == ["flight_book"]
    assert [tool.name for tool in agent.TOOLS if tool.spec.probe] == ["flight_book"]


@pytest.mark.parametrize("booking_id", ["", "H00001", "F1/../../../hotels/bookings/H1", "../counts"])
def test_only_a_booking_id_can_be_cancelled(booking_id):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"booking_id": booking_id}, agent.flight_cancel.spec.parameters)


@pytest.mark.parametrize(("setting", "there"), [("1", True), ("0", False), (None, False)])
def test_slow_tool_is_there_only_if_asked_for(monkeypatch, setting, there):
    monkeypatch.delenv("TRAVEL_SLOW_TOOL", raising=False)
    if setting is not None:
        monkeypatch.setenv("TRAVEL_SLOW_TOOL", setting)
    spec = importlib.util.spec_from_file_location("travel_agent_again", agent.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.travel.tool("wait_a_moment") is not None) == there


# -- searching ---------------------------------------------------------------------------------------------


async def test_flight_search_gives_the_five_earliest_flights_with_what_a_decision_needs(ctx):
    flights = (await agent.flight_search(ctx, "Beijing", "Shanghai", DAY))["flights"]
    departures = [flight["departure"] for flight in flights]
    assert len(flights) == 5
    assert departures == sorted(departures)
    assert all(not SECRETS_OF_A_FLIGHT & set(flight) and flight["seats"] for flight in flights)


async def test_hotel_search_gives_the_ten_nearest_hotels_of_the_area(ctx):
    hotels = (await agent.hotel_search(ctx, "Shanghai", DAY, 2, near="Lujiazui"))["hotels"]
    assert len(hotels) == 10
    assert {hotel["area"] for hotel in hotels} == {"Lujiazui"}
    assert all(hotel["price_cny_total"] == 2 * hotel["price_cny_per_night"] for hotel in hotels)


async def test_search_without_a_find_suggests_what_to_do(ctx):
    flights = await agent.flight_search(ctx, "Beijing", "Atlantis", DAY)
    hotels = await agent.hotel_search(ctx, "Shanghai", DAY, 2, near="Eiffel Tower")
    assert flights["flights"] == hotels["hotels"] == []
    assert flights["suggestion"]
    assert hotels["suggestion"]


async def test_flights_that_are_full_are_not_offered():
    fields = dict.fromkeys(agent.FLIGHT.split(), "x")
    full, free = fields | {"seats": 0}, fields | {"seats": 1}
    ctx = answering(lambda request: httpx2.Response(200, json={"flights": [full, free]}))
    assert (await agent.flight_search(ctx, "Beijing", "Shanghai", DAY))["flights"] == [free]


# -- booking and cancelling --------------------------------------------------------------------------------


async def test_flight_is_booked_with_the_key_as_its_reference(ctx, service):
    booking = await book_flight(ctx)
    assert booking["status"] == "confirmed"
    assert [found["booking_id"] for found in service.ledger.bookings("flights", ctx.idempotency_key)] == [
        booking["booking_id"]
    ]


async def test_hotel_booked_twice_with_one_key_is_one_booking(ctx, service):
    assert await book_hotel(ctx) == await book_hotel(ctx)
    assert service.ledger.counts("hotels") == {"booked": 1, "cancelled": 0}


async def test_key_used_for_another_stay_is_refused(ctx):
    await book_hotel(ctx)
    with pytest.raises(ToolError) as refused:
        await book_hotel(ctx, nights=3)
    assert refused.value.error_type == "key_reused"


async def test_cancelling_again_says_so(ctx):
    flight, hotel = (await book_flight(ctx))["booking_id"], (await book_hotel(ctx))["booking_id"]
    for cancel, booking_id in ((agent.flight_cancel, flight), (agent.hotel_cancel, hotel)):
        first, second = [trim(await cancel(ctx, booking_id), cancel.spec.shaping)[0] for _ in range(2)]
        assert first == {"booking_id": booking_id, "status": "cancelled", "already_cancelled": False}
        assert second == first | {"already_cancelled": True}


async def test_what_was_booked_can_be_undone_and_undone_again(ctx, service):
    booked = await book_flight(ctx), await book_hotel(ctx)
    undoing = replace(ctx, undoes=ctx.idempotency_key, idempotency_key=f"{ctx.idempotency_key}:undo")
    for tool, result in zip((agent.flight_book, agent.hotel_book), booked, strict=True):
        assert tool.compensate
        for _ in range(2):
            assert await tool.compensate(undoing, result, whatever="it was called with") == (
                f"cancelled {result['booking_id']}"
            )
    counts = {"booked": 1, "cancelled": 1}
    assert [service.ledger.counts(kind) for kind in ("flights", "hotels")] == [counts, counts]


# -- what may go wrong -------------------------------------------------------------------------------------


async def test_refusal_of_the_service_is_a_known_failure(ctx):
    with pytest.raises(ToolError, match="There is no flight") as refused:
        await agent.flight_book(ctx, "CA1-PEK-SHA-20261207", "Zhang Wei")
    assert refused.value.error_type == "not_found"


async def test_request_that_could_not_connect_is_listed_as_not_done():
    with pytest.raises(agent.flight_book.not_done):
        await agent.flight_book(failing(httpx2.ConnectError("refused")), "CA1", "Zhang Wei")


@pytest.mark.parametrize(
    "ctx",
    [
        failing(httpx2.ReadTimeout("no answer")),
        failing(httpx2.RemoteProtocolError("gone")),
        answering(lambda request: httpx2.Response(502, text="Bad gateway")),
    ],
    ids=["read timeout", "gone", "502"],
)
async def test_lost_answer_to_a_booking_stays_unknown(ctx):
    with pytest.raises(httpx2.HTTPError) as lost:
        await agent.flight_book(ctx, "CA1", "Zhang Wei")
    assert not isinstance(lost.value, agent.flight_book.not_done)


async def test_nothing_listening_is_not_done(service):
    service.close()
    async with httpx2.AsyncClient(base_url=service.address, trust_env=False) as client:
        with pytest.raises(agent.flight_book.not_done):
            await agent.flight_book(Context(client), "CA1", "Zhang Wei")


async def test_probe_finds_the_booking_whose_answer_was_lost(ctx):
    arguments = {"flight_id": (await first_flight(ctx))["id"], "passenger": "Zhang Wei"}
    assert await agent.flight_booked(ctx, **arguments) == NotDone()
    booking = await agent.flight_book(ctx, **arguments)
    assert await agent.flight_booked(ctx, **arguments) == Done(booking)


@pytest.mark.parametrize(
    "ctx",
    [
        failing(httpx2.ConnectError("refused")),
        answering(lambda request: httpx2.Response(500)),
        answering(lambda request: httpx2.Response(400, json={"error": "x", "message": "x"})),
    ],
    ids=["refused", "500", "400"],
)
async def test_probe_without_an_answer_is_unknown(ctx):
    assert await agent.flight_booked(ctx) == Unknown()
