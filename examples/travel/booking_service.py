"""A small booking service over HTTP that keeps its own books, for the travel agent to book with.

    python -m perdure.examples.travel.booking_service --port 8123 --ledger bookings.db

| request | answer |
|---|---|
| `GET /flights?origin&destination&date` | `{"flights": […]}`, by departure |
| `GET /hotels?city&near&check_in&nights` | `{"hotels": […]}`, nearest first; `near` may be left out |
| `POST /flights/bookings` `{flight_id, passenger, reference}` | 201 and the booking; **every POST books again** |
| `POST /hotels/bookings` `{hotel_id, check_in, nights, guest}` | 201 and the booking; honours `Idempotency-Key` |
| `GET /flights/bookings?reference`, `GET /hotels/bookings` | `{"bookings": […]}`; `reference` may be left out |
| `DELETE /flights/bookings/ID`, `DELETE /hotels/bookings/ID` | the booking; `already_cancelled` tells a second time |
| `GET /bookings` | `{"flights": […], "hotels": […]}`: all bookings, cancelled ones too |
| `GET /counts` | `{"flights": {"booked", "cancelled"}, "hotels": …}`: ever booked, and cancelled of those |

An error is `{"error": word, "message": sentence}` with a 4xx status: nothing was done.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast
from urllib.parse import parse_qsl, urlsplit

from perdure.examples.travel import timetable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Kind = Literal["flights", "hotels"]
Booking = dict[str, Any]


class RefusalError(Exception):
    """A request that is not served; nothing was done.

    Args:
        status: HTTP status, 4xx.
        error: A short word for programs, such as `sold_out`.
        message: A sentence for people.
    """

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(message)
        self.status, self.error, self.message = status, error, message


# -- the books ---------------------------------------------------------------------------------------------


class Ledger:
    """All bookings, in one SQLite file. What a method did survives `kill -9` as soon as it returns."""

    def __init__(self, path: Path | str) -> None:
        """Open the ledger at `path`, made if missing.

        Raises:
            sqlite3.Error: If there can be none.
        """
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS bookings (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,"
            " slot TEXT NOT NULL, reference TEXT, key TEXT UNIQUE, request TEXT NOT NULL, details TEXT NOT NULL,"
            " cancelled INTEGER NOT NULL DEFAULT 0)"
        )

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        # IMMEDIATE: another process may have the same ledger open, and two readers must not both go on to book.
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database

    def book(
        self, kind: Kind, slot: str, capacity: int, *, request: Booking, details: Booking, key: str | None = None
    ) -> Booking:
        """Book one of the `capacity` places of `slot` and return the booking.

        Args:
            slot: What can be sold out: a flight, or a hotel on one day of arrival.
            request: What the client sent; its `reference` can be looked up.
            details: What the booking says besides its id and status.
            key: The same key again gives the first booking again.

        Raises:
            RefusalError: 409 `sold_out`, or 422 `key_reused` if the key came with another request.
        """
        body = json.dumps(request, sort_keys=True)
        with self._transaction() as database:
            earlier = database.execute("SELECT id, request, details FROM bookings WHERE key = ?", (key,)).fetchone()
            if earlier and earlier[1] != body:
                raise RefusalError(422, "key_reused", "This Idempotency-Key was used for another request.")
            if earlier:
                return _booking(kind, earlier[0], earlier[2])
            if _taken(database, slot) >= capacity:
                raise RefusalError(409, "sold_out", f"{slot} is sold out.")
            row = database.execute(
                "INSERT INTO bookings (kind, slot, reference, key, request, details) VALUES (?, ?, ?, ?, ?, ?)",
                (kind, slot, request.get("reference"), key, body, json.dumps(details)),
            ).lastrowid
            return _booking(kind, row or 0, json.dumps(details))

    def cancel(self, kind: Kind, booking_id: str) -> Booking:
        """Cancel a booking and return it; `already_cancelled` says whether it was before.

        Raises:
            RefusalError: 404 `not_found`.
        """
        with self._transaction() as database:
            found = database.execute(
                "SELECT id, details, cancelled FROM bookings WHERE kind = ? AND id = ?", (kind, _row(kind, booking_id))
            ).fetchone()
            if not found:
                raise RefusalError(404, "not_found", f"There is no booking {booking_id} among the {kind}.")
            database.execute("UPDATE bookings SET cancelled = 1 WHERE id = ?", (found[0],))
        return _booking(kind, found[0], found[1], cancelled=True) | {"already_cancelled": bool(found[2])}

    def bookings(self, kind: Kind, reference: str | None = None) -> list[Booking]:
        """Return the bookings of `kind`, oldest first, cancelled ones too; with `reference` only those of it."""
        with self._transaction() as database:
            rows = database.execute(
                "SELECT id, details, cancelled FROM bookings WHERE kind = ? AND ifnull(reference = ?, ? IS NULL)"
                " ORDER BY id",
                (kind, reference, reference),
            ).fetchall()
        return [_booking(kind, row, details, cancelled=bool(cancelled)) for row, details, cancelled in rows]

    def taken(self, slot: str) -> int:
        """Return how many places of `slot` are booked and not cancelled."""
        with self._transaction() as database:
            return _taken(database, slot)

    def counts(self, kind: Kind) -> dict[str, int]:
        """Return how many were ever booked, and how many of those were cancelled."""
        bookings = self.bookings(kind)
        return {"booked": len(bookings), "cancelled": sum(booking["status"] == "cancelled" for booking in bookings)}

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()


def _taken(database: sqlite3.Connection, slot: str) -> int:
    (number,) = database.execute("SELECT count(*) FROM bookings WHERE slot = ? AND NOT cancelled", (slot,)).fetchone()
    return int(number)


def _booking(kind: Kind, row: int, details: str, *, cancelled: bool = False) -> Booking:
    status = "cancelled" if cancelled else "confirmed"
    return {"booking_id": f"{kind[0].upper()}{row:05}", "status": status, **json.loads(details)}


def _row(kind: Kind, booking_id: str) -> int:
    digits = booking_id.removeprefix(kind[0].upper())
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else 0  # noqa: PLR2004


# -- the service -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """An HTTP request, taken apart. `fields` are those of the query or of the JSON body."""

    method: str
    path: list[str]
    fields: dict[str, Any]
    key: str | None = None

    def text(self, name: str) -> str:
        """Return the text of a field that has to be there."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value.strip():
            raise RefusalError(400, "invalid_request", f"{name} is missing, or is no text.")
        return value

    def day(self, name: str) -> date:
        """Return the date of a field that has to be there."""
        try:
            day = date.fromisoformat(self.text(name))
        except ValueError:
            raise RefusalError(400, "invalid_request", f"{name} has to be a date such as 2027-01-31.") from None
        if day.year not in timetable.YEARS:
            raise RefusalError(400, "invalid_request", f"{name} is outside the timetable.")
        return day

    def number(self, name: str) -> int:
        """Return the number, from 1 to 30, of a field that has to be there."""
        try:
            value = int(str(self.fields.get(name)))  # as text, so that 2.7 and true are no numbers of nights
        except ValueError:
            value = 0
        if not 1 <= value <= 30:  # noqa: PLR2004 nobody stays longer
            raise RefusalError(400, "invalid_request", f"{name} has to be a number from 1 to 30.")
        return value


class BookingService:
    """The service. In a test: `with BookingService(tmp_path / "ledger.db") as service: … service.address`.

    Args:
        ledger: File of the bookings.
        port: 0 takes a free one; `address` tells which.
        booking_delay: How long the reply to a booking is held back *after* it was booked.

    Raises:
        OSError: If the port is taken.
        sqlite3.Error: If the ledger can't be opened.
    """

    def __init__(
        self, ledger: Path | str, *, host: str = "127.0.0.1", port: int = 0, booking_delay: timedelta = timedelta()
    ) -> None:
        """Open ledger and port; nothing is answered before `serve`."""
        self.ledger = Ledger(ledger)
        self.booking_delay = booking_delay
        self._closing = threading.Event()
        try:
            self._server = _Server((host, port), self.answer)
        except OSError:
            self.ledger.close()
            raise
        self.address = f"http://{host}:{self._server.server_port}"

    def serve(self) -> None:
        """Answer requests until `close`."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """Stop answering, replies held back included, and close the ledger."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self.ledger.close()

    def __enter__(self) -> Self:
        """Serve in a thread."""
        threading.Thread(target=self.serve, name="booking-service", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def answer(self, request: Request) -> tuple[int, Any]:
        """Return status and body of the reply.

        Raises:
            RefusalError: If the request is not served.
        """
        match request.method, request.path:
            case "GET", ["flights"]:
                return 200, {"flights": self._flights(request)}
            case "GET", ["hotels"]:
                return 200, {"hotels": self._hotels(request)}
            case "POST", ["flights", "bookings"]:
                return 201, self._held_back(self._book_flight(request))
            case "POST", ["hotels", "bookings"]:
                return 201, self._held_back(self._book_hotel(request))
            case "GET", ["flights" | "hotels" as kind, "bookings"]:
                return 200, {"bookings": self.ledger.bookings(kind, request.fields.get("reference"))}
            case "DELETE", ["flights" | "hotels" as kind, "bookings", booking_id]:
                return 200, self.ledger.cancel(kind, booking_id)
            case "GET", ["bookings"]:
                return 200, {"flights": self.ledger.bookings("flights"), "hotels": self.ledger.bookings("hotels")}
            case "GET", ["counts"]:
                return 200, {"flights": self.ledger.counts("flights"), "hotels": self.ledger.counts("hotels")}
            case method, path:
                raise RefusalError(404, "not_found", f"There is no {method} /{'/'.join(path)} here.")

    def _flights(self, request: Request) -> list[dict[str, Any]]:
        day = request.day("date")
        origin = timetable.find_city(request.text("origin"))
        destination = timetable.find_city(request.text("destination"))
        found = timetable.flights(origin, destination, day) if origin and destination else []
        return [flight | {"seats": max(0, flight["seats"] - self.ledger.taken(flight["id"]))} for flight in found]

    def _hotels(self, request: Request) -> list[dict[str, Any]]:
        check_in, nights = request.day("check_in"), request.number("nights")
        city = timetable.find_city(request.text("city"))
        found = timetable.hotels(city, request.fields.get("near", ""), check_in) if city else []
        return [
            hotel
            | {
                "rooms": max(0, hotel["rooms"] - self.ledger.taken(_stay(hotel["id"], check_in))),
                "price_cny_total": nights * hotel["price_cny_per_night"],
            }
            for hotel in found
        ]

    def _book_flight(self, request: Request) -> Booking:
        flight = timetable.find_flight(request.text("flight_id"))
        if flight is None:
            raise RefusalError(404, "not_found", f"There is no flight {request.text('flight_id')}.")
        passenger, reference = request.text("passenger"), request.text("reference")
        details = {"passenger": passenger, "reference": reference, "flight_id": flight["id"]}
        details |= {name: value for name, value in flight.items() if name not in ("id", "seats")}
        return self.ledger.book("flights", flight["id"], flight["seats"], request=request.fields, details=details)

    def _book_hotel(self, request: Request) -> Booking:
        check_in, nights, guest = request.day("check_in"), request.number("nights"), request.text("guest")
        hotel = timetable.find_hotel(request.text("hotel_id"), check_in)
        if hotel is None:
            raise RefusalError(404, "not_found", f"There is no hotel {request.text('hotel_id')}.")
        details = {"guest": guest, "hotel_id": hotel["id"], "check_in": str(check_in), "nights": nights}
        details |= {"check_out": str(check_in + timedelta(days=nights))}
        details |= {"price_cny_total": nights * hotel["price_cny_per_night"]}
        details |= {name: value for name, value in hotel.items() if name not in ("id", "rooms")}
        slot = _stay(hotel["id"], check_in)
        return self.ledger.book(
            "hotels", slot, hotel["rooms"], request=request.fields, details=details, key=request.key
        )

    def _held_back(self, booking: Booking) -> Booking:
        self._closing.wait(self.booking_delay.total_seconds())
        return booking


def _stay(hotel_id: str, check_in: date) -> str:
    return f"{hotel_id} from {check_in}"


# -- HTTP --------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, where: tuple[str, int], answer: Callable[[Request], tuple[int, Any]]) -> None:
        super().__init__(where, _Handler)
        self.answer = answer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a client has gone, killed perhaps."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one packet
    timeout = 60  # seconds that a connection may idle

    def _reply(self) -> None:
        try:
            status, body = cast("_Server", self.server).answer(self._request())
        except RefusalError as refusal:
            status, body = refusal.status, {"error": refusal.error, "message": refusal.message}
        self._send(status, body)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _reply  # noqa: N815 the base class's names

    def _request(self) -> Request:
        url = urlsplit(self.path)
        fields: Any = dict(parse_qsl(url.query))
        # Read in any case: what is left of a body would be taken for the next request.
        length = self.headers.get("Content-Length", "0")
        content = self.rfile.read(int(length)) if length.isascii() and length.isdigit() else b""
        if self.command == "POST":
            try:
                fields = json.loads(content)
            except ValueError:
                raise RefusalError(400, "invalid_request", "The body has to be JSON.") from None
            if not isinstance(fields, dict):
                raise RefusalError(400, "invalid_request", "The body has to be a JSON object.")
        path = url.path.strip("/").split("/")
        return Request(self.command, path, cast("dict[str, Any]", fields), self.headers.get("Idempotency-Key"))

    def _send(self, status: int, body: Any) -> None:
        content = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what isn't even HTTP in JSON as well."""
        self.close_connection = True  # what follows can't be told from the rest of this request
        self._send(code, {"error": "bad_request", "message": message or explain or "Bad request."})

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; the address is printed as a line of JSON as soon as it answers."""
    parser = argparse.ArgumentParser("booking_service", description="A booking service for the travel agent.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--ledger", type=Path, required=True, help="file of the bookings, made if missing")
    parser.add_argument(
        "--booking-delay", type=float, default=0, metavar="SECONDS", help="hold back the reply to each booking so long"
    )
    options = parser.parse_args(arguments)
    delay = timedelta(seconds=options.booking_delay)
    try:
        service = BookingService(options.ledger, host=options.host, port=options.port, booking_delay=delay)
    except (OSError, OverflowError, sqlite3.Error) as error:
        print(f"The booking service can't start: {error} ({options.ledger}, port {options.port}).", file=sys.stderr)
        return 2
    print(json.dumps({"address": service.address}), flush=True)
    try:
        service.serve()
    except KeyboardInterrupt:
        service.ledger.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
