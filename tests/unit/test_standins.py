"""What stands for private values in a case."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.testing.standins import StandIns, stand_in

PARAMETERS = {
    "type": "object",
    "properties": {"contact": {"type": "string", "x-sensitive": "phone"}, "salary": {"x-sensitive": "private"}},
}


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        ("13812345678", "phone", "13800000007"),
        ("+44 20 7946 0958", "phone", "+4400 0000 0007"[:3] + " 00 0000 0007"),
        ("310101199001011234", "identity", "310000000000000007"),
        ("4111 1111 1111 1111", "card", "0000 0000 0000 0007"),
        ("ann@acme.example", "email", "person7@example.com"),
        ("Zhang Wei", "name", "Person 7"),
        ("hunter2", "secret", "[secret 7]"),
        ("E12345678", "private", "X00000007"),
        ("abc", "private", "xxx7"),
    ],
)
def test_stand_in_has_the_form_of_the_value_and_shows_no_more_than_its_mask(value, kind, shown):
    assert stand_in(value, kind, 7) == shown


def test_value_has_one_stand_in_in_arguments_results_and_texts():
    standins = StandIns()
    standins.learn({"contact": "13812345678"}, PARAMETERS)
    shown: Any = standins.json({"contact": "13812345678", "note": "call 13812345678"}, PARAMETERS)
    assert shown["contact"] == "13800000001"
    assert shown["note"] == "call 13800000001"
    assert json.loads(standins.text('{"phone": "13812345678", "id": 13812345678}')) == {
        "phone": "13800000001",
        "id": 13800000001,
    }


def test_values_that_differ_have_stand_ins_that_differ():
    standins = StandIns()
    standins.learn([{"phone": "13812345678"}, {"phone": "13812349678"}], None)
    assert standins.text("13812345678 13812349678") == "13800000001 13800000002"


def test_field_whose_name_says_what_it_holds_needs_no_schema():
    standins = StandIns()
    standins.learn('{"guest": {"passenger_name": "Zhang Wei", "email": "wei@acme.example"}}', None)
    assert standins.text("Zhang Wei (wei@acme.example)") == "Person 1 (person2@example.com)"


def test_number_stays_a_number_and_what_is_not_private_stays_as_it_is():
    standins = StandIns()
    shown: Any = standins.json({"salary": 48210, "nights": 3, "late": True, "room": None}, PARAMETERS)
    assert isinstance(shown["salary"], int)
    assert shown == {"salary": shown["salary"], "nights": 3, "late": True, "room": None}
    assert shown["salary"] != 48210


def test_argument_that_a_detector_finds_private_keeps_its_form_so_that_it_fits_its_schema():
    standins = StandIns()
    standins.learn({"to": "13812345678", "cc": "wei@acme.example"}, None)
    assert standins.json({"to": "13812345678", "cc": "wei@acme.example"}) == {
        "to": "13800000001",
        "cc": "person2@example.com",
    }


def test_what_only_a_detector_finds_in_a_text_is_masked():
    assert "13812345678" not in StandIns().text("call 13812345678")
