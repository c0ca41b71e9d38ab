"""Settings from the environment."""

from datetime import timedelta

import pytest
from pydantic import ValidationError

from perdure import Settings


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7), (7, 7), ("0.5", 0.5), ("PT7S", 7), (timedelta(minutes=1), 60), ("00:00:07", 7)]
)
def test_durations_are_seconds_or_iso_8601(monkeypatch, said, seconds):
    if isinstance(said, str):
        monkeypatch.setenv("PERDURE_GRACE", said)
        assert Settings().grace == timedelta(seconds=seconds)
    assert Settings.model_validate({"grace": said}).grace == timedelta(seconds=seconds)


@pytest.mark.parametrize("said", ["soon", "7s", "", "nan", "inf", None, [7]])
def test_what_is_no_duration_is_told_the_forms_of_one(said):
    with pytest.raises(ValidationError, match=r"a duration is a number of seconds \(7, 0.5\) or ISO 8601 \(PT7S\)"):
        Settings.model_validate({"grace": said})
