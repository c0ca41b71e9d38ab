"""What a call may spend: never more than what is left, and unknown prices are not taken for free."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.allowances import NotAllowed, left_of, reply_limit
from perdure.activities.prices import cost
from perdure.budgets import Allowance
from perdure.messages import Usage
from perdure.policies import Price

PRICE = Price(input=Decimal(1), output=Decimal(10))  # USD per million


def price_of(usage):
    return cost("mine", usage, PRICE)


def limit(tokens=1_000, price=price_of, **left):
    return reply_limit(Allowance(**left), tokens, "mine:x", price)


def test_without_a_limit_a_reply_may_be_as_long_as_it_likes():
    assert limit() is None


def test_a_reply_may_have_what_is_left_of_the_output_tokens():
    assert limit(output_tokens=500) == 500


def test_a_reply_may_have_what_the_usd_pay_for_once_the_request_is_paid():
    assert limit(usd=Decimal("0.0110")) == 1_000  # 0.001 for the request
    assert limit(usd=Decimal("0.0110"), output_tokens=300) == 300


def test_a_limit_that_no_reply_gets_to_is_not_sent():
    assert limit(output_tokens=40_000) is None
    assert limit(output_tokens=32_000) == 32_000


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({"input_tokens": 999}, "input tokens are used up: the next model call needs about 1,000, and 999 are left"),
        ({"input_tokens": -5}, "and 0 are left"),
        ({"output_tokens": 15}, "output tokens are used up: 15 are left"),
        ({"output_tokens": 0}, "output tokens are used up: 0 are left"),
        ({"output_tokens": -1}, "output tokens are used up: 0 are left"),
        ({"usd": Decimal("0.001")}, "money is used up: the next model call costs about 0.001160 USD at least"),
        ({"usd": Decimal(0)}, "and 0 are left"),
        ({"usd": Decimal(-1)}, "and 0 are left"),
    ],
)
def test_a_call_that_costs_more_than_what_is_left_is_not_made(left, said):
    with pytest.raises(NotAllowed, match="The run's") as caught:
        limit(**left)
    assert caught.value.kind == "budget"
    assert said in caught.value.message


def test_a_limit_in_usd_needs_a_known_price():
    with pytest.raises(NotAllowed, match=r"price of mine:x is not known.*ModelSettings\(price=Price\(") as caught:
        limit(usd=Decimal(1), price=lambda usage: None)
    assert caught.value.kind == "price_unknown"
    assert limit(price=lambda usage: None) is None  # without one, it does not matter


def test_a_free_model_is_never_too_expensive():
    free = Price(input=Decimal(0), output=Decimal(0))
    assert limit(usd=Decimal("0.01"), price=lambda usage: cost("mine", usage, free)) is None


def test_what_failed_half_way_is_taken_off():
    allowance = Allowance(input_tokens=100, output_tokens=50, usd=Decimal(1), seconds=9)
    left = left_of(allowance, Usage(input_tokens=30, output_tokens=20), Decimal("0.25"))
    assert left == Allowance(input_tokens=70, output_tokens=30, usd=Decimal("0.75"), seconds=9)
    assert left_of(Allowance(), Usage(input_tokens=30), None) == Allowance()


@given(
    st.integers(0, 100_000),
    st.none() | st.integers(-10, 100_000),
    st.none() | st.integers(-10, 50_000),
    st.none() | st.decimals(-1, 1, places=6),
)
def test_whatever_is_left_a_call_that_is_made_can_be_paid(tokens, tokens_in, tokens_out, usd):
    try:
        most = limit(tokens, input_tokens=tokens_in, output_tokens=tokens_out, usd=usd)
    except NotAllowed:
        return
    assert tokens_in is None or tokens <= tokens_in
    assert most is None or most >= 16
    reply = 32_768 if most is None else most
    assert tokens_out is None or tokens_out >= reply
    assert usd is None or price_of(Usage(input_tokens=tokens, output_tokens=reply)) <= usd
