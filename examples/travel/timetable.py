"""What there is to book: flights and hotels of six cities, made up from route and date alone.

The same question gets the same answer on every day and machine. All times are China's (+08:00).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from random import Random
from typing import Any

CHINA = timezone(timedelta(hours=8))
YEARS = range(2000, 2100)
"""The years that there is a timetable for."""


@dataclass(frozen=True)
class City:
    """A city with its airport, what people call it, and the areas that have hotels."""

    name: str
    code: str
    airport: str
    aliases: tuple[str, ...]
    areas: tuple[str, ...]


CITIES = (
    City("Beijing", "PEK", "Beijing Capital", ("bjs", "pkx", "北京"), ("Wangfujing", "Guomao", "Zhongguancun")),
    City("Shanghai", "SHA", "Shanghai Hongqiao", ("pvg", "上海"), ("Lujiazui", "The Bund", "Hongqiao")),
    City("Guangzhou", "CAN", "Guangzhou Baiyun", ("广州",), ("Zhujiang New Town", "Beijing Road")),
    City("Shenzhen", "SZX", "Shenzhen Bao'an", ("深圳",), ("Futian", "Nanshan")),
    City("Chengdu", "TFU", "Chengdu Tianfu", ("ctu", "成都"), ("Chunxi Road", "Jinsha")),
    City("Hangzhou", "HGH", "Hangzhou Xiaoshan", ("杭州",), ("West Lake", "Binjiang")),
)
AIRLINES = {"CA": "Air China", "MU": "China Eastern", "CZ": "China Southern", "HU": "Hainan Airlines"}
HOTEL_NAMES = ("Garden", "Grand", "Harbour", "Lotus", "Park", "Royal", "Skyline", "Pavilion", "Jade", "Plaza", "Star")


def find_city(text: str) -> City | None:
    """Return the city that `text` names in English, in Chinese or by airport code, else None."""
    said = text.strip().casefold()
    words = {*re.findall(r"[a-z]+", said), said.removesuffix("市")}
    return next((city for city in CITIES if words & {city.name.casefold(), city.code.casefold(), *city.aliases}), None)


def flights(origin: City, destination: City, day: date) -> list[dict[str, Any]]:
    """Return the day's flights by departure; exactly one of them, never the first, has `seats` 0."""
    if origin == destination:
        return []
    draw = Random(f"{origin.code}-{destination.code}-{day}")
    departures = sorted(draw.sample(range(6 * 12, 22 * 12), draw.randint(8, 11)))  # in units of five minutes
    sold_out = draw.randrange(1, len(departures))
    minutes = draw.randint(24, 36) * 5
    return [
        _flight(draw, origin, destination, datetime.combine(day, time(), CHINA) + timedelta(minutes=5 * unit), minutes)
        | ({"seats": 0} if position == sold_out else {})
        for position, unit in enumerate(departures)
    ]


def _flight(draw: Random, origin: City, destination: City, departure: datetime, minutes: int) -> dict[str, Any]:
    code = draw.choice(list(AIRLINES))
    # A flight's number follows from its departure, so that no day has it twice.
    number = f"{code}{1000 + departure.hour * 60 + departure.minute}"
    return {
        "id": f"{number}-{origin.code}-{destination.code}-{departure:%Y%m%d}",
        "flight_number": number,
        "airline": AIRLINES[code],
        "airline_code": code,
        "origin": origin.name,
        "origin_airport": origin.airport,
        "origin_terminal": f"T{draw.randint(1, 3)}",
        "destination": destination.name,
        "destination_airport": destination.airport,
        "destination_terminal": f"T{draw.randint(1, 2)}",
        "departure": departure.isoformat(timespec="minutes"),
        "arrival": (departure + timedelta(minutes=minutes)).isoformat(timespec="minutes"),
        "duration_minutes": minutes,
        "aircraft": draw.choice(["A320neo", "A330-300", "B737-800", "C919"]),
        "fare_class": draw.choice("YBMH"),
        "price_cny": draw.randint(45, 165) * 10,
        "seats": draw.randint(4, 40),
        "baggage_kg": 20,
        "meal": draw.choice(["none", "snack", "hot"]),
        "on_time_rate": round(draw.uniform(0.72, 0.97), 2),
        "refund_fee_cny": draw.randint(5, 30) * 10,
    }


def find_flight(flight_id: str) -> dict[str, Any] | None:
    """Return the flight with that id, else None."""
    try:
        _, origin, destination, day = flight_id.split("-")
        departs = datetime.strptime(day, "%Y%m%d").replace(tzinfo=CHINA).date()
    except ValueError:
        return None
    places = find_city(origin), find_city(destination)
    if places[0] is None or places[1] is None or departs.year not in YEARS:
        return None
    return next((flight for flight in flights(places[0], places[1], departs) if flight["id"] == flight_id), None)


def hotels(city: City, near: str, check_in: date) -> list[dict[str, Any]]:
    """Return the hotels of the area that `near` names, nearest first; those of all areas where it is ""."""
    wanted = near.casefold()
    areas = [area for area in city.areas if not wanted or area.casefold() in wanted or wanted in area.casefold()]
    found = [_hotel(city, area, number, check_in) for area in areas for number in range(len(HOTEL_NAMES))]
    return sorted(found, key=lambda hotel: (hotel["distance_km"], hotel["id"]))


def _hotel(city: City, area: str, number: int, check_in: date) -> dict[str, Any]:
    hotel_id = f"{city.code}-{re.sub('[^A-Z]', '', area.upper())}-{number + 1:02}"
    draw = Random(hotel_id)
    stars = draw.randint(3, 5)
    hotel = {
        "id": hotel_id,
        "name": f"{area} {HOTEL_NAMES[number]} Hotel",
        "city": city.name,
        "area": area,
        "address": f"{draw.randint(1, 999)} {area} Road",
        "distance_km": round(draw.uniform(0.1, 3.0), 1),
        "stars": stars,
        "rating": round(draw.uniform(3.5, 4.9), 1),
        "reviews": draw.randint(40, 9000),
        "breakfast": draw.random() < 0.6,  # noqa: PLR2004 most have it
        "check_in_from": "14:00",
        "check_out_until": "12:00",
        "amenities": draw.sample(["wifi", "gym", "pool", "laundry", "parking", "restaurant"], 4),
    }
    on_the_day = Random(f"{hotel_id}-{check_in}")
    return hotel | {
        "price_cny_per_night": (stars * 14 + on_the_day.randint(0, 30)) * 10,
        "rooms": on_the_day.randint(2, 12),
        "free_cancellation_until": (check_in - timedelta(days=1)).isoformat(),
    }


def find_hotel(hotel_id: str, check_in: date) -> dict[str, Any] | None:
    """Return the hotel with that id, priced for `check_in`, else None."""
    city = find_city(hotel_id.partition("-")[0])
    return next((hotel for hotel in hotels(city, "", check_in) if hotel["id"] == hotel_id), None) if city else None
