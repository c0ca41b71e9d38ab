"""The booking service as a process of its own, over HTTP."""

import json
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from perdure.examples.travel.booking_service import BookingService, main

ROUTE = {"origin": "Beijing", "destination": "Shanghai", "date": "2026-12-07"}
STAY = {"hotel_id": "SHA-LUJIAZUI-01", "check_in": "2026-12-07", "nights": 2, "guest": "Zhang Wei"}


def client_of(address: str) -> httpx2.Client:
    return httpx2.Client(base_url=address, trust_env=False, timeout=30)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[BookingService]:
    with BookingService(tmp_path / "ledger.db") as service:
        yield service


@pytest.fixture
def client(service: BookingService) -> Iterator[httpx2.Client]:
    with client_of(service.address) as client:
        yield client


def flights(client: httpx2.Client) -> list[dict[str, Any]]:
    return list(client.get("/flights", params=ROUTE).json()["flights"])


def order(client: httpx2.Client, reference: str = "ref-1") -> dict[str, Any]:
    return {"flight_id": flights(client)[0]["id"], "passenger": "Zhang Wei", "reference": reference}


def book_hotel(client: httpx2.Client, key: str | None, **changes: Any) -> httpx2.Response:
    return client.post("/hotels/bookings", json=STAY | changes, headers={"Idempotency-Key": key} if key else {})


# -- bookings ----------------------------------------------------------------------------------------------


def test_every_post_of_a_flight_books_again_whatever_its_key(client):
    body = order(client)
    answers = [client.post("/flights/bookings", json=body, headers={"Idempotency-Key": "one"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert client.get("/counts").json()["flights"] == {"booked": 2, "cancelled": 0}


def test_hotel_posted_twice_with_one_key_is_one_booking_with_one_answer(client):
    first, second = book_hotel(client, "one"), book_hotel(client, "one")
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert client.get("/counts").json()["hotels"]["booked"] == 1


def test_hotel_without_a_key_or_with_another_books_again(client):
    for key in ("one", "two", None, None):
        assert book_hotel(client, key).status_code == 201
    assert client.get("/counts").json()["hotels"]["booked"] == 4


def test_key_with_another_body_is_refused(client):
    book_hotel(client, "one")
    refused = book_hotel(client, "one", nights=3)
    assert (refused.status_code, refused.json()["error"]) == (422, "key_reused")
    assert client.get("/counts").json()["hotels"]["booked"] == 1


def test_flights_are_looked_up_by_reference(client):
    booked = [client.post("/flights/bookings", json=order(client, f"ref-{number}")).json() for number in range(3)]
    found = client.get("/flights/bookings", params={"reference": "ref-1"}).json()["bookings"]
    assert found == [booked[1]]
    assert client.get("/flights/bookings", params={"reference": "ref-9"}).json() == {"bookings": []}
    assert client.get("/bookings").json() == {"flights": booked, "hotels": []}


def test_booking_takes_a_seat_and_cancelling_gives_it_back(client):
    before = flights(client)[0]["seats"]
    booking_id = client.post("/flights/bookings", json=order(client)).json()["booking_id"]
    assert flights(client)[0]["seats"] == before - 1
    assert client.delete(f"/flights/bookings/{booking_id}").json()["already_cancelled"] is False
    assert client.delete(f"/flights/bookings/{booking_id}").json()["already_cancelled"] is True
    assert flights(client)[0]["seats"] == before
    assert client.get("/counts").json()["flights"] == {"booked": 1, "cancelled": 1}


def test_sold_out_flight_is_refused(client):
    sold_out = next(flight for flight in flights(client) if flight["seats"] == 0)
    refused = client.post("/flights/bookings", json=order(client) | {"flight_id": sold_out["id"]})
    assert (refused.status_code, refused.json()["error"]) == (409, "sold_out")


# -- bad requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_line", "body", "status", "says"),
    [
        ("GET /flights?origin=Beijing&destination=Shanghai", None, 400, "date is missing"),
        ("GET /flights?origin=Beijing&destination=Shanghai&date=Monday", None, 400, "has to be a date"),
        ("GET /flights?origin=Beijing&destination=Shanghai&date=9999-12-31", None, 400, "outside the timetable"),
        ("GET /hotels?city=Shanghai&check_in=2026-12-07&nights=0", None, 400, "nights has to be"),
        ("POST /flights/bookings", b"{", 400, "has to be JSON"),
        ("POST /flights/bookings", b"[]", 400, "JSON object"),
        ("POST /flights/bookings", b"{}", 400, "flight_id is missing"),
        ("POST /flights/bookings", json.dumps({"flight_id": "x"}).encode(), 404, "no flight x"),
        ("POST /hotels/bookings", json.dumps(STAY | {"hotel_id": "x"}).encode(), 404, "no hotel x"),
        ("POST /hotels/bookings", json.dumps(STAY | {"nights": 1.5}).encode(), 400, "nights has to be"),
        ("POST /hotels/bookings", json.dumps(STAY | {"guest": 7}).encode(), 400, "guest is missing"),
        ("DELETE /flights/bookings/F00007", None, 404, "no booking F00007"),
        ("DELETE /hotels/bookings/F00001", None, 404, "no booking F00001"),
        ("PUT /flights/bookings", b"{}", 404, "no PUT"),
        ("BREW /coffee", None, 501, "Unsupported method"),
    ],
)
def test_bad_request_is_answered_in_json_and_books_nothing(client, request_line, body, status, says):
    answer = client.request(*request_line.split(" "), content=body)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "message"}
    assert says in answer.json()["message"]
    assert client.get("/bookings").json() == {"flights": [], "hotels": []}


# -- many at once ------------------------------------------------------------------------------------------


def test_many_posts_at_once_with_one_key_are_one_booking(client):
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: book_hotel(client, "one").content, range(32)))
    assert len(set(answers)) == 1
    assert client.get("/counts").json()["hotels"]["booked"] == 1


def test_many_posts_at_once_never_sell_a_seat_twice(client):
    flight = min((flight for flight in flights(client) if flight["seats"]), key=lambda flight: flight["seats"])
    body = order(client) | {"flight_id": flight["id"]}
    with ThreadPoolExecutor(16) as pool:
        posts = range(flight["seats"] + 8)
        codes = list(pool.map(lambda _: client.post("/flights/bookings", json=body).status_code, posts))
    assert (codes.count(201), codes.count(409)) == (flight["seats"], 8)
    assert len({booking["booking_id"] for booking in client.get("/bookings").json()["flights"]}) == flight["seats"]


def test_two_services_on_one_ledger_never_sell_a_seat_twice(service, client, tmp_path):
    flight = min((flight for flight in flights(client) if flight["seats"]), key=lambda flight: flight["seats"])
    body = order(client) | {"flight_id": flight["id"]}
    with BookingService(tmp_path / "ledger.db") as other, client_of(other.address) as second:
        clients = [client, second] * flight["seats"]
        with ThreadPoolExecutor(8) as pool:
            codes = list(pool.map(lambda one: one.post("/flights/bookings", json=body).status_code, clients))
    assert codes.count(201) == codes.count(409) == flight["seats"]


# -- delays and crashes ------------------------------------------------------------------------------------


@contextmanager
def process(ledger: Path, *options: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run the service as a process; yield it and its address; kill it with SIGKILL at the end."""
    command = [sys.executable, "-m", "perdure.examples.travel.booking_service", "--ledger", str(ledger), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running, json.loads(running.stdout.readline())["address"]
        finally:
            running.kill()


def wait_until_booked(client: httpx2.Client, kind: str) -> None:
    deadline = time.monotonic() + 20
    while not client.get("/counts").json()[kind]["booked"]:
        assert time.monotonic() < deadline, "nothing was booked"


def test_booking_whose_answer_is_held_back_is_done_already(tmp_path):
    service = BookingService(tmp_path / "ledger.db", booking_delay=timedelta(hours=1))
    with service, closing(client_of(service.address)) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, "/flights/bookings", json=order(client))
        wait_until_booked(client, "flights")
        assert not answer.done()
        service.close()  # lets go of what is held back


def test_ledger_survives_kill_minus_nine_between_a_booking_and_its_answer(tmp_path):
    ledger = tmp_path / "ledger.db"
    with (
        ThreadPoolExecutor(2) as pool,
        process(ledger, "--booking-delay", "60") as (running, address),
        client_of(address) as client,
    ):
        lost = [
            pool.submit(client.post, "/flights/bookings", json=order(client, "ref-lost")),
            pool.submit(book_hotel, client, "one"),
        ]
        wait_until_booked(client, "flights")
        wait_until_booked(client, "hotels")
        running.kill()
        for answer in lost:
            assert isinstance(answer.exception(), httpx2.TransportError)
    with process(ledger) as (_, address), client_of(address) as client:
        found = client.get("/flights/bookings", params={"reference": "ref-lost"}).json()["bookings"]
        assert [booking["status"] for booking in found] == ["confirmed"]
        again = book_hotel(client, "one").json()
        assert client.get("/bookings").json() == {"flights": found, "hotels": [again]}


def test_ledger_or_port_that_cannot_be_opened_is_one_sentence(tmp_path, service, capsys):
    port = service.address.rpartition(":")[2]
    assert main(["--ledger", str(tmp_path / "missing" / "ledger.db")]) == 2
    assert main(["--ledger", str(tmp_path / "other.db"), "--port", port]) == 2
    assert main(["--ledger", str(tmp_path / "other.db"), "--port", "99999"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("The booking service can't start: ") == said.err.count("\n") == 3
