"""The travel example, tested as its users would test it: the real service, a scripted model, a recorded journey."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from perdure.examples.travel import script
from perdure.examples.travel.agent import travel
from perdure.examples.travel.booking_service import BookingService
from perdure.testing import Case, ScriptedModel, assert_never_twice, record, replay

DAY = date(2026, 12, 1)


@pytest.fixture(scope="module")
def journey(perdure_env, tmp_path_factory) -> Case:
    """A journey that was booked, recorded."""
    model = ScriptedModel(script.replies(DAY))
    with (
        pytest.MonkeyPatch.context() as patch,
        BookingService(tmp_path_factory.mktemp("service") / "ledger.db") as service,
    ):
        patch.setenv("TRAVEL_BOOKING_URL", service.address)
        with perdure_env.start(travel, script.task(DAY), model=model) as run:
            run.approve("2.1")
            run.approve("2.2")
            assert run.result().text.startswith("You fly with")
            recorded: Case = run.call(record(perdure_env.engine.client, run.id))
        for kind in ("flights", "hotels"):
            assert_never_twice([*service.ledger.bookings(kind)], key="booking_id")
            assert service.ledger.counts(kind)["booked"] == 1
    model.assert_finished()
    model.assert_shown("Search first", "flight_search", turn=1)
    return recorded


def test_booked_journey_goes_the_same_way_without_the_service(journey, perdure_env):
    assert "Zhang Wei" not in journey.model_dump_json()
    replay(journey, travel, environment=perdure_env).assert_same()


def test_prompt_that_breaks_the_booking_step_is_caught_by_the_recorded_journey(journey, perdure_env):
    search, book, answer = script.replies(DAY)
    [passenger] = {
        call.arguments["passenger"]
        for entry in journey.entries
        if entry.role == "assistant"
        for call in entry.calls
        if call.name == "flight_book"
    }
    for call, name in zip(book["calls"], ("passenger", "guest"), strict=True):
        call["arguments"][name] = passenger

    def obedient(request: Any) -> Any:
        return book if "Then book what fits best" in request.instructions else "I found these. Shall I book them?"

    model: list[Any] = [search, obedient, answer]
    replay(journey, travel, model=model, environment=perdure_env).assert_same()
    careless = replace(travel, instructions=travel.instructions.replace("Then book what fits best", "Say what fits"))
    replayed = replay(journey, careless, model=model, environment=perdure_env)
    with pytest.raises(
        AssertionError, match=r"at step 2:\n  calls: recorded \['flight_book', 'hotel_book'\], today \[\]"
    ):
        replayed.assert_same()
