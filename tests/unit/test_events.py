"""Events as a closed union, and their positions."""

import typing

import pytest
from pydantic import TypeAdapter, ValidationError

from perdure.events import Event, EventBase, RunStarted, position_key

ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)
MEMBERS = typing.get_args(typing.get_args(Event)[0])
FIELDS = {
    "run_id": "r",
    "position": "1.0",
    "time": "2026-01-01T00:00:00Z",
    "agent": "a",
    "model": "m:m",
    "spec_hash": "h",
}


def test_positions_order_as_they_happened_and_nothing_comes_before_all():
    positions = ["", "1.0", "2.0", "2.1", "2.10", "10.0", "10.2"]
    assert sorted(set(positions), key=position_key) == positions
    assert position_key("7") == position_key("7.0")


def test_every_event_is_in_the_union_under_a_type_of_its_own():
    kinds = [
        kind for kind in EventBase.__subclasses__() if kind.__module__ in ("perdure.events", "perdure.people_events")
    ]
    assert set(MEMBERS) == set(kinds)
    types = {typing.get_args(kind.model_fields["type"].annotation) for kind in kinds}
    assert len(types) == len(kinds)
    assert all(kind.model_fields["type"].is_required() for kind in kinds)


def test_event_comes_back_from_json_as_what_it_was():
    event = ADAPTER.validate_python({"type": "run_started", **FIELDS})
    assert isinstance(event, RunStarted)
    assert ADAPTER.validate_json(ADAPTER.dump_json(event)) == event


def test_event_of_a_newer_version_is_read_as_far_as_it_is_known():
    assert ADAPTER.validate_python({"type": "run_started", **FIELDS, "news": 1}) == ADAPTER.validate_python(
        {"type": "run_started", **FIELDS}
    )


def test_event_of_an_unknown_type_is_refused():
    with pytest.raises(ValidationError, match="does not match any of the expected tags"):
        ADAPTER.validate_python({"type": "run_dreamt", **FIELDS})


def test_event_cannot_be_changed():
    event = ADAPTER.validate_python({"type": "run_started", **FIELDS})
    with pytest.raises(ValidationError, match="frozen"):
        event.step = 3  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
