"""Which model is asked next, and when none is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.attempts import due, move_on, next_try
from perdure.activities.heartbeats import Tried
from perdure.errors import TRANSIENT, ModelError

MODELS = ["a:1", "b:2", "c:3"]


def no_refusal(_model):
    return ""


def after(kind, tried=None, models=("a:1", "b:2"), attempts=3) -> Any:
    return next_try(ModelError(kind, "It is down."), tried or Tried(), models, attempts)


@pytest.mark.parametrize("kind", ["authentication", "quota", "overloaded"])
def test_a_model_that_will_not_answer_soon_is_left_at_once(kind):
    following = after(kind)
    assert (following.model, following.failed) == (1, 0)
    assert following.reason == "a:1: It is down"


@pytest.mark.parametrize("kind", ["connection", "timeout", "server"])
def test_a_model_that_keeps_failing_is_left_once_its_tries_are_used(kind):
    first = after(kind)
    second = after(kind, first)
    third = after(kind, second)
    assert [(one.model, one.failed) for one in (first, second, third)] == [(0, 1), (0, 2), (1, 0)]


@pytest.mark.parametrize("kind", ["bad_request", "content_filtered", "context_too_long"])
def test_what_another_model_would_refuse_as_well_is_not_asked_of_it(kind):
    assert after(kind) is None


@pytest.mark.parametrize("kind", ["connection", "server", "overloaded"])
def test_the_last_model_has_its_tries_and_then_it_is_over(kind):
    last = Tried(model=1, reason="a:1: It is down.")
    assert after(kind, last).failed == 1
    assert after(kind, last.model_copy(update={"failed": 2})) is None


def test_the_reason_has_the_words_of_each_model_that_failed():
    assert move_on(Tried(), MODELS, "No key.") == Tried(model=1, reason="a:1: No key")
    last = Tried(model=2, reason="a:1: No key; b:2: No money")
    assert move_on(Tried(model=1, reason="a:1: No key"), MODELS, "No money.") == last
    assert move_on(last, MODELS, "No luck.") is None


def test_the_reason_is_bounded_however_much_the_models_say():
    tried: Tried | None = Tried()
    for _ in range(99):
        assert tried
        tried = move_on(tried, ["a:1"] * 100, "x" * 1_000)
    assert tried
    assert len(tried.reason) <= 2_001
    assert tried.reason.startswith(f"a:1: {'x' * 300}…; a:1: x")


def test_a_model_whose_breaker_is_open_is_skipped():
    tried, wait = due(Tried(), MODELS, lambda model: 9.0 if model == "a:1" else 0.0, no_refusal)
    assert (tried.model, wait) == (1, 0)
    assert "a:1 is not asked at present" in tried.reason


@pytest.mark.parametrize(("refusing", "asked"), [("a", 1), ("ab", 2), ("b", 0), ("abc", 0)])
def test_a_model_that_has_just_refused_is_skipped_where_another_may_be_asked(refusing, asked):
    tried, wait = due(Tried(), MODELS, lambda _: 0.0, lambda model: "No key." if model[0] in refusing else "")
    assert (tried.model, wait) == (asked, 0)
    assert tried.reason == "; ".join(f"{model} is not asked at present: No key" for model in MODELS[:asked])


def test_a_model_that_has_just_refused_is_asked_where_the_others_may_not_be():
    waits = dict(zip(MODELS, (9.0, 0.0, 9.0), strict=True))
    tried, wait = due(Tried(), MODELS, waits.__getitem__, lambda model: "No key." if model == "b:2" else "")
    assert (tried.model, wait) == (1, 0)


def test_where_all_are_open_the_first_to_be_asked_again_is_waited_for():
    waits = dict(zip(MODELS, (9.0, 4.0, 7.0), strict=True))
    assert due(Tried(failed=2), MODELS, waits.__getitem__, no_refusal) == (Tried(failed=2), 4.0)
    assert due(Tried(model=2), MODELS, waits.__getitem__, no_refusal) == (Tried(model=2), 7.0)


@given(st.lists(st.sampled_from(sorted(TRANSIENT | {"authentication", "quota", "bad_request"})), max_size=40))
def test_whatever_fails_the_tries_end_and_no_model_has_more_than_its_own(kinds):
    tried: Tried | None = Tried()
    asked: list[int] = []
    for kind in kinds:
        if tried is None:
            break
        asked.append(tried.model)
        tried = after(kind, tried, MODELS)
    assert len(asked) <= 9
    assert asked == sorted(asked)
    assert all(asked.count(model) <= 3 for model in range(3))
