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


def test_rates_and_weights_are_json_objects(monkeypatch):
    monkeypatch.setenv("PERDURE_MODEL_RATE", '{"openai": 2.5}')
    assert Settings().model_rate == {"openai": 2.5}


@pytest.mark.parametrize("said", ["openai=5", "5", "[5]", '{"openai": 0}', '{"openai": "many"}'])
def test_what_is_no_rate_is_refused(monkeypatch, said):
    monkeypatch.setenv("PERDURE_MODEL_RATE", said)
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize("said", ["soon", "7s", "", "nan", "inf", None, [7]])
def test_what_is_no_duration_is_told_the_forms_of_one(said):
    with pytest.raises(ValidationError, match=r"a duration is a number of seconds \(7, 0.5\) or ISO 8601 \(PT7S\)"):
        Settings.model_validate({"grace": said})


def test_tokens_per_minute_are_json_by_model(monkeypatch):
    monkeypatch.setenv("PERDURE_TPM", '{"openai:gpt-5": 200000}')
    assert Settings().tpm == {"openai:gpt-5": 200_000}


@pytest.mark.parametrize("said", ["200000", "openai:gpt-5=7", "", '{"openai:gpt-5": 0}', '{"openai:gpt-5": "many"}'])
def test_what_are_no_tokens_per_minute_is_told_the_form_of_them(monkeypatch, said):
    monkeypatch.setenv("PERDURE_TPM", said)
    with pytest.raises(ValidationError, match="tokens per minute are JSON such as"):
        Settings()


DEEPSEEK = '{"deepseek": {"base_url": "https://api.deepseek.com/v1", "api_key_env": "DEEPSEEK_API_KEY"}}'


def test_providers_are_json_by_name(monkeypatch):
    monkeypatch.setenv("PERDURE_PROVIDERS", DEEPSEEK)
    assert Settings().providers["deepseek"].api_key_env == "DEEPSEEK_API_KEY"


@pytest.mark.parametrize(
    "said",
    [
        "deepseek",
        "{}}",
        '{"a": {}}',
        '{"a:b": {"base_url": "http://x"}}',
        '{"a": {"base_url": "x"}}',
        '{"a": {"base_url": "http://x", "key": "sk"}}',
    ],
)
def test_what_are_no_providers_is_told_the_form_of_them(monkeypatch, said):
    monkeypatch.setenv("PERDURE_PROVIDERS", said)
    with pytest.raises(ValidationError, match="providers are JSON such as"):
        Settings()
