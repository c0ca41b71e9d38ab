"""How old is written on the command line."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.cli.history import parse_age
from perdure.cli.output import Misuse


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("30d", timedelta(days=30)),
        ("12h", timedelta(hours=12)),
        ("2w", timedelta(weeks=2)),
        ("45m", timedelta(minutes=45)),
        ("0s", timedelta()),
        (" 1.5 h ", timedelta(minutes=90)),
    ],
)
def test_an_age_is_a_number_and_a_unit(text: str, age: timedelta) -> None:
    assert parse_age(text) == age


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "30 days", "1d2h", "٣d", "1e3d", "9" * 40 + "w"])
def test_anything_else_is_refused_with_what_can_be_written(text: str) -> None:
    with pytest.raises(Misuse, match="such as 30d, 12h or 2w"):
        parse_age(text)
