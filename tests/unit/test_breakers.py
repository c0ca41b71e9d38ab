"""Circuit breakers: whatever happens, a service that is down is left alone, and found again when it is back."""

from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.breakers import Breaker


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


def request(breaker, ended):
    assert breaker.wait() == 0
    breaker.leave(breaker.enter(), ended)


def opened():
    clock = Clock()
    breaker = Breaker(failures=3, window=60, open_for=30, clock=clock)
    for _ in range(3):
        request(breaker, "failed")
    return breaker, clock


def test_failures_in_a_row_open_it_until_it_is_time_for_a_probe():
    breaker, clock = opened()
    assert breaker.wait() == 30
    clock.now += 29
    assert breaker.wait() == 1
    clock.now += 1
    assert breaker.wait() == 0


def test_an_answered_probe_closes_it():
    breaker, clock = opened()
    clock.now += 30
    request(breaker, "answered")
    request(breaker, "failed")
    request(breaker, "failed")
    assert breaker.wait() == 0  # counted anew


def test_a_failed_probe_opens_it_once_more():
    breaker, clock = opened()
    clock.now += 30
    request(breaker, "failed")
    assert breaker.wait() == 30


def test_one_probe_is_made_at_a_time():
    breaker, clock = opened()
    clock.now += 30
    probe = breaker.enter()
    assert 0 < breaker.wait() <= 30
    breaker.leave(probe, "answered")
    assert breaker.wait() == 0


def test_a_probe_that_is_given_up_leaves_its_place_to_the_next():
    breaker, clock = opened()
    clock.now += 30
    request(breaker, "unknown")
    assert breaker.wait() == 0


def test_an_answer_in_between_starts_the_count_anew():
    breaker = Breaker(failures=3)
    for ended in ("failed", "failed", "answered", "failed", "failed"):
        request(breaker, ended)
    assert breaker.wait() == 0


def test_failures_that_are_far_apart_do_not_open_it():
    clock = Clock()
    breaker = Breaker(failures=3, window=60, clock=clock)
    for _ in range(10):
        request(breaker, "failed")
        clock.now += 31
    assert breaker.wait() == 0


def test_a_request_that_began_before_it_opened_changes_nothing_by_its_end():
    for ended in ("answered", "failed", "unknown"):
        clock = Clock()
        breaker = Breaker(failures=1, clock=clock)
        late, first = breaker.enter(), breaker.enter()
        breaker.leave(first, "failed")
        clock.now += 10
        breaker.leave(late, ended)
        assert breaker.wait() == 20


MOVES = st.lists(
    st.tuples(st.sampled_from(["enter", "answered", "failed", "unknown"]), st.floats(0, 50), st.integers(0, 5)),
    max_size=80,
)


@given(MOVES)
def test_whatever_happens_an_open_one_lets_one_request_through_at_a_time_and_none_for_ever_out(moves):
    clock = Clock()
    breaker = Breaker(failures=3, window=60, open_for=30, clock=clock)
    under_way: list[tuple[int, bool]] = []
    probes = 0
    for move, seconds, which in moves:
        clock.now += seconds
        if move != "enter" and under_way:
            entered, probe = under_way.pop(which % len(under_way))
            breaker.leave(entered, move)
            probes -= probe
        elif breaker.wait() == 0:
            probe = breaker._until is not None
            under_way.append((breaker.enter(), probe))
            probes += probe
        assert 0 <= breaker.wait() <= 30
        assert probes <= 1
    for entered, _ in under_way:
        breaker.leave(entered, "unknown")
    clock.now += 30
    assert breaker.wait() == 0
    breaker.leave(breaker.enter(), "answered")
    assert breaker.wait() == 0
