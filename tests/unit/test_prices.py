"""What a model call costs: cached tokens at their own price, and unknown is never zero."""

from decimal import Decimal

import pytest

from perdure.activities.prices import cost
from perdure.messages import Usage
from perdure.policies import Price

OPENAI = "https://api.openai.com/v1"
USAGE = Usage(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("no price is fetched")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


def test_the_price_of_a_known_model_comes_from_the_table_with_cached_tokens_at_less():
    whole = cost("gpt-4o", USAGE.model_copy(update={"cached_tokens": 0}), address=OPENAI)
    cached = cost("gpt-4o", USAGE, address=OPENAI)
    assert whole is not None
    assert cached is not None
    assert 0 < cached < whole


def test_a_dated_name_is_the_model_that_it_is_a_version_of():
    assert cost("gpt-4o-2024-08-06", USAGE, address=OPENAI) == cost("gpt-4o", USAGE, address=OPENAI)


@pytest.mark.parametrize(
    ("model", "address"),
    [
        ("no-such-model", OPENAI),
        ("gpt-4o", "http://localhost:8000/v1"),
        ("gpt-4o", "scripted"),
        ("", OPENAI),
        ("gpt-4o", ""),
        ("字\ud800", OPENAI),
    ],
)
def test_what_the_table_does_not_have_is_unknown(model, address):
    assert cost(model, USAGE, address=address) is None


def test_a_price_of_ones_own_beats_the_table():
    price = Price(input=Decimal("0.50"), output=Decimal(2), cached=Decimal("0.10"))
    assert cost("gpt-4o", USAGE, price, address=OPENAI) == Decimal("0.54")  # 0.30 + 0.04 + 0.20


def test_cached_tokens_cost_as_others_where_nothing_else_is_said():
    price = Price(input=Decimal(1), output=Decimal(0))
    assert cost("mine", USAGE, price) == Decimal(1)


def test_what_is_free_costs_nothing_which_is_known():
    assert cost("mine", USAGE, Price(input=Decimal(0), output=Decimal(0))) == 0
    assert cost("no-such-model", Usage()) == 0


@pytest.mark.parametrize("cached", [0, 1, 999, 5_000])
def test_usage_that_a_server_reports_oddly_never_costs_less_than_nothing(cached):
    usage = Usage(input_tokens=1_000, cached_tokens=cached, output_tokens=0)
    for price in (None, Price(input=Decimal(1), output=Decimal(1), cached=Decimal(1) / 10)):
        found = cost("gpt-4o", usage, price, address=OPENAI)
        assert found is not None
        assert found > 0
