"""Tokens per minute: the limit is kept, nobody waits for ever, and refusals are learnt from."""

import heapq
import math
from dataclasses import dataclass
from typing import Any

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


def join(throttle, tokens):
    """Join the queue; return the seconds to the turn."""
    place = throttle.take(tokens)
    return 0 if place is None else throttle.until(place)


def test_without_a_limit_and_a_refusal_nobody_waits(clock):
    throttle = Throttle(clock=clock)
    assert [join(throttle, 1_000_000) for _ in range(100)] == [0] * 100
    assert throttle.wait() == 0
    assert math.isinf(throttle.rate)


def test_calls_over_the_limit_are_told_to_come_one_after_another(clock):
    throttle = Throttle(60_000, clock)  # 1,000 a second, and 10,000 at once
    assert [join(throttle, 5_000) for _ in range(6)] == pytest.approx([0, 0, 0, 5, 10, 15])
    clock.now += 20
    assert throttle.wait() == 0


def test_a_call_larger_than_what_may_go_at_once_passes_and_the_next_one_waits_for_it(clock):
    throttle = Throttle(60_000, clock)
    assert join(throttle, 100_000) == 0
    assert throttle.wait() == pytest.approx(90)


def test_asking_how_long_to_wait_takes_no_place(clock):
    throttle = Throttle(60_000, clock)
    throttle.take(20_000)
    assert [throttle.wait() for _ in range(3)] == pytest.approx([10] * 3)


def test_what_was_not_used_is_given_back(clock):
    throttle = Throttle(60_000, clock)
    place = throttle.take(30_000)
    throttle.correct(place, 30_000, 12_000)
    assert throttle.wait() == pytest.approx(2)


def test_after_a_refusal_all_wait_as_long_as_the_server_asks_and_then_come_one_by_one(clock):
    throttle = Throttle(60_000, clock)
    place = throttle.take(1_000)
    throttle.correct(place, 1_000, 0)
    throttle.refused(place, clock.now, 7.5)
    waits = [join(throttle, 1_000) for _ in range(3)]
    assert waits[0] == 7.5
    assert waits == pytest.approx([7.5, 9.5, 11.5], abs=0.1)  # at half the rate


def test_the_time_that_is_told_is_right_though_the_rate_grows(clock):
    throttle = Throttle(60_000, clock)
    throttle.refused(None, clock.now, 5)
    places = [throttle.take(tokens) or 0.0 for tokens in (40_000, 40_000, 40_000, 1)]
    for place in places:
        clock.now += throttle.until(place)
        assert throttle.until(place) == pytest.approx(0, abs=0.001)


def test_places_keep_their_order_and_come_later_when_the_rate_is_lowered(clock):
    throttle = Throttle(60_000, clock)
    refused, *waiting = [throttle.take(10_000) or 0.0 for _ in range(4)]
    before = [throttle.until(place) for place in waiting]
    throttle.refused(refused, clock.now, 3)
    after = [throttle.until(place) for place in waiting]
    assert after == sorted(after)
    assert all(later >= 3 + sooner for later, sooner in zip(after, before, strict=True))


def test_a_refusal_halves_the_rate_which_grows_again_in_a_straight_line(clock):
    throttle = Throttle(60_000, clock)
    throttle.refused(None, clock.now, 0)
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
        throttle.refused(None, sent_at, 1)
    assert throttle.rate == pytest.approx(30_000)
    clock.now += 11
    throttle.refused(None, clock.now, 1)
    assert throttle.rate < 20_000


def test_a_limit_that_nobody_has_told_is_guessed_from_what_was_sent(clock):
    throttle = Throttle(clock=clock)
    for _ in range(600):
        throttle.take(2_000)  # 120,000 a minute
        clock.now += 1
    throttle.refused(None, clock.now, 1)
    assert throttle.rate == pytest.approx(60_000, rel=0.02)
    clock.now += 1 + 3_600
    assert throttle.rate > 1_000_000


def test_a_guess_is_never_below_what_any_account_may_send(clock):
    throttle = Throttle(clock=clock)
    for _ in range(20):
        clock.now += 11
        throttle.refused(None, clock.now, 0)
    assert throttle.rate >= 30_000


CALLS = st.lists(st.tuples(st.integers(1, 8_000), st.floats(0, 20)), min_size=1, max_size=80)


@given(CALLS)
def test_whatever_is_asked_no_minute_holds_more_than_the_limit_and_what_may_go_at_once(calls):
    clock = Clock()
    throttle = Throttle(60_000, clock)
    sent = []
    for tokens, seconds in calls:
        clock.now += seconds
        sent.append((clock.now + join(throttle, tokens), tokens))
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
    place = None
    for event, tokens, seconds in events:
        clock.now += seconds
        match event:
            case "take":
                place = throttle.take(tokens)
            case "refused":
                throttle.refused(place, clock.now - seconds / 2, seconds)
            case _:
                throttle.correct(place, tokens, tokens // 2)
        assert 0 <= throttle.wait() < math.inf
        assert (limit or 30_000) / 10 * 0.999 <= throttle.rate <= (limit or math.inf)
    clock.now += 10_000_000
    assert throttle.wait() == 0


# -- many runs at a server that refuses what is over its limit ---------------------------------------------------------

LATENCY, PAUSE_BETWEEN = 3.0, 0.5


@dataclass
class Server:
    """Takes so many tokens a minute, a minute's worth at once, as providers do; its refusals come with a pause."""

    limit: int
    level: float = 0.0
    at: float = 0.0
    refused: int = 0

    def pause(self, now: float, tokens: int) -> float:
        rate = self.limit / 60
        self.level, self.at = min(self.limit, self.level + (now - self.at) * rate), now
        if self.level >= tokens:
            self.level -= tokens
            return 0.0
        self.refused += 1
        return max((tokens - self.level) / rate, 0.1)


def play(throttle, clock, server, *, runs, turns, tokens):
    """Let runs make their calls, as the model activity does; return the seconds until all are done."""
    began, server.at, server.level = clock.now, clock.now, server.limit
    queue: list[Any] = [(clock.now, number, turns, None) for number in range(runs)]
    while queue:
        clock.now, number, left, place = heapq.heappop(queue)
        if place is None and (wait := throttle.wait()):
            heapq.heappush(queue, (clock.now + wait, number, left, throttle.take(tokens)))
        elif place is not None and (wait := throttle.until(place)) > 0.001:
            heapq.heappush(queue, (clock.now + wait, number, left, place))
        else:
            place = throttle.take(tokens) if place is None else place
            if pause := server.pause(clock.now, tokens):
                throttle.correct(place, tokens, 0)
                throttle.refused(place, clock.now, pause)
                wait = max(pause, throttle.wait())
                heapq.heappush(queue, (clock.now + wait, number, left, throttle.take(tokens)))
            elif left > 1:
                heapq.heappush(queue, (clock.now + LATENCY + PAUSE_BETWEEN, number, left - 1, None))
    return clock.now - began


@pytest.mark.parametrize(("limit", "runs"), [(200_000, 100), (1_000_000, 200), (60_000, 30)])
def test_a_limit_that_nobody_has_told_is_found_with_few_refusals_and_used_well(clock, limit, runs):
    throttle, server = Throttle(clock=clock), Server(limit)
    seconds = play(throttle, clock, server, runs=runs, turns=5, tokens=4_000)
    least = (runs * 5 * 4_000 - limit) / limit * 60
    assert seconds < 1.1 * least + 10
    assert server.refused <= 10


def test_a_limit_that_is_told_is_used_without_refusals(clock):
    throttle, server = Throttle(200_000, clock), Server(200_000)
    seconds = play(throttle, clock, server, runs=100, turns=5, tokens=4_000)
    assert seconds < 100 * 5 * 4_000 / 200_000 * 60
    assert server.refused == 0
