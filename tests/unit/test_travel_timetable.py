"""What the booking service has to sell."""

from datetime import date

import pytest

from perdure.examples.travel.timetable import CITIES, YEARS, find_city, find_flight, find_hotel, flights, hotels

BEIJING, SHANGHAI = CITIES[:2]
DAY = date(2026, 12, 7)


@pytest.mark.parametrize("text", ["Shanghai", "shanghai, China", " SHA ", "Shanghai (PVG)", "上海", "上海市"])
def test_city_is_found_by_its_usual_names(text):
    assert find_city(text) == SHANGHAI


@pytest.mark.parametrize("text", ["", "Atlantis", "Shang"])
def test_other_text_names_no_city(text):
    assert find_city(text) is None


def test_timetable_of_a_day_is_the_same_each_time_it_is_asked_for():
    assert flights(BEIJING, SHANGHAI, DAY) == flights(BEIJING, SHANGHAI, DAY)
    assert flights(BEIJING, SHANGHAI, DAY) != flights(BEIJING, SHANGHAI, date(2026, 12, 8))


@pytest.mark.parametrize("day", [date(YEARS[0], 1, 1), DAY, date(2028, 2, 29), date(YEARS[-1], 12, 31)])
def test_each_day_has_several_flights_in_order_one_of_them_sold_out_and_never_the_first(day):
    found = flights(BEIJING, SHANGHAI, day)
    assert len({flight["id"] for flight in found}) == len(found) >= 8
    assert [flight["departure"] for flight in found] == sorted(flight["departure"] for flight in found)
    assert [flight["seats"] for flight in found].count(0) == 1
    assert found[0]["seats"]


def test_no_flight_ends_where_it_began():
    assert flights(BEIJING, BEIJING, DAY) == []


def test_flights_and_hotels_are_found_again_by_their_ids():
    for flight in flights(BEIJING, SHANGHAI, DAY):
        assert find_flight(flight["id"]) == flight
    for hotel in hotels(SHANGHAI, "", DAY):
        assert find_hotel(hotel["id"], DAY) == hotel


@pytest.mark.parametrize(
    "flight_id",
    ["", "CA1000", "CA1-PEK-SHA-20261207", "CA1000-XXX-SHA-20261207", "CA1000-PEK-SHA-20261340", "A-PEK-SHA-99991231"],
)
def test_id_of_no_flight_finds_none(flight_id):
    assert find_flight(flight_id) is None


@pytest.mark.parametrize("hotel_id", ["", "SHA-LUJIAZUI-99", "XXX-LUJIAZUI-01"])
def test_id_of_no_hotel_finds_none(hotel_id):
    assert find_hotel(hotel_id, DAY) is None


def test_hotels_near_a_place_are_those_of_its_area_nearest_first():
    found = hotels(SHANGHAI, "near Lujiazui", DAY)
    assert len(found) > 10
    assert {hotel["area"] for hotel in found} == {"Lujiazui"}
    assert [hotel["distance_km"] for hotel in found] == sorted(hotel["distance_km"] for hotel in found)
    assert hotels(SHANGHAI, "Eiffel Tower", DAY) == []
