"""Tokens per minute: the limit is kept, nobody waits for ever, and refusals are learnt from."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.throttle import Throttle


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_without_a_limit_and_a_refusal_nobody_waits(clock):
    throttle = Throttle(clock=clock)
    assert [throttle.take(1_000_000) for _ in range(100)] == [0] * 100
    assert math.isinf(throttle.rate)


def test_calls_over_the_limit_are_told_to_come_one_after_another(clock):
    throttle = Throttle(60_000, clock)  # 1,000 a second, 10,000 at once
    assert [throttle.take(5_000) for _ in range(5)] == pytest.approx([0, 0, 5, 10, 15])
    clock.now += 20
    assert throttle.take(5_000) == 0


def test_a_call_larger_than_what_may_be_sent_at_once_passes_and_the_next_one_waits_for_it(clock):
    throttle = Throttle(60_000, clock)
    assert throttle.take(100_000) == 0
    assert throttle.wait(1) == pytest.approx(90, abs=0.01)


def test_asking_how_long_to_wait_takes_nothing(clock):
    throttle = Throttle(60_000, clock)
    assert [throttle.wait(10_000) for _ in range(3)] == [0, 0, 0]


def test_what_was_not_used_is_given_back(clock):
    throttle = Throttle(60_000, clock)
    throttle.take(10_000)
    throttle.correct(10_000, 2_000)
    assert throttle.wait(8_000) == 0
    throttle.correct(0, 8_000)
    assert throttle.wait(1_000) == pytest.approx(1)


def test_after_a_refusal_all_wait_as_long_as_the_server_asks_and_then_come_one_by_one(clock):
    throttle = Throttle(60_000, clock)
    throttle.refused(1_000, clock.now, 7.5)
    assert throttle.held
    assert [throttle.take(1_000) for _ in range(3)] == pytest.approx([7.5, 9.5, 11.5])  # at half the rate
    clock.now += 7.5
    assert not throttle.held


def test_a_refusal_halves_the_rate_which_comes_back_in_a_straight_line(clock):
    throttle = Throttle(60_000, clock)
    throttle.refused(1, clock.now, 0)
    rates = [throttle.rate]
    for _ in range(4):
        clock.now += 40
        rates.append(throttle.rate)
    assert rates == pytest.approx([30_000, 40_000, 50_000, 60_000, 60_000])


def test_refusals_of_requests_sent_together_lower_the_rate_once(clock):
    throttle = Throttle(60_000, clock)
    sent_at = clock.now
    clock.now += 1
    for _ in range(20):
        throttle.refused(1, sent_at, 1)
    assert throttle.rate == pytest.approx(30_000)
    clock.now += 1
    throttle.refused(1, clock.now, 1)
    assert throttle.rate < 16_000


def test_a_limit_that_nobody_has_told_is_guessed_from_what_was_sent_and_forgotten_in_time(clock):
    throttle = Throttle(clock=clock)
    for _ in range(600):
        throttle.take(2_000)  # 120,000 a minute
        clock.now += 1
    throttle.refused(2_000, clock.now, 1)
    assert throttle.rate == pytest.approx(60_000, rel=0.02)
    clock.now += 361
    assert math.isinf(throttle.rate)


def test_a_guess_is_never_below_what_any_account_may_send(clock):
    throttle = Throttle(clock=clock)
    for _ in range(20):
        clock.now += 0.001
        throttle.refused(1, clock.now, 0)
    assert throttle.rate >= 30_000


def test_a_late_refusal_after_the_rate_has_recovered_only_holds_back(clock):
    throttle = Throttle(clock=clock)
    sent_at = clock.now
    clock.now += 1
    throttle.refused(1, clock.now, 1)
    clock.now += 1_000
    throttle.refused(1, sent_at, 0)
    assert throttle.wait(5) == 0
    throttle.refused(1, sent_at, 3)
    assert throttle.wait(5) == 3


CALLS = st.lists(st.tuples(st.integers(1, 8_000), st.floats(0, 20)), min_size=1, max_size=80)


@given(CALLS)
def test_whatever_is_asked_no_minute_holds_more_than_the_limit_and_what_may_be_sent_at_once(calls):
    clock = Clock()
    throttle = Throttle(60_000, clock)
    sent = []
    for tokens, seconds in calls:
        clock.now += seconds
        sent.append((clock.now + throttle.take(tokens), tokens))
    for start, _ in sent:
        within = sum(tokens for at, tokens in sent if start <= at < start + 60)
        assert within <= 60_000 + 10_000 + 8_000


EVENTS = st.lists(
    st.tuples(st.sampled_from(["take", "refused", "correct"]), st.integers(0, 50_000), st.floats(0, 100)), max_size=80
)


@given(EVENTS, st.sampled_from([None, 600, 60_000]))
def test_whatever_happens_waits_are_finite_and_the_rate_stays_within_its_bounds(events, limit):
    clock = Clock()
    throttle = Throttle(limit, clock)
    for event, tokens, seconds in events:
        clock.now += seconds
        match event:
            case "take":
                throttle.take(tokens)
            case "refused":
                throttle.refused(tokens, clock.now - seconds / 2, seconds)
            case _:
                throttle.correct(tokens, tokens // 2)
        assert 0 <= throttle.wait(tokens) < math.inf
        assert (limit or 30_000) / 10 * 0.999 <= throttle.rate <= (limit or math.inf)
    clock.now += 10_000_000
    assert throttle.wait(50_000) == 0
