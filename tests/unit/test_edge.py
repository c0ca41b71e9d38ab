"""What a worker does about providers that fail, limits that are reached and money that is short, attempt by attempt."""

import dataclasses
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from perdure.activities import providers
from perdure.activities.edge import Edge
from perdure.activities.heartbeats import Pulse
from perdure.budgets import Allowance
from perdure.errors import ModelError
from perdure.messages import Usage, UserMessage
from perdure.models import ModelReply, ModelRequest
from perdure.policies import ModelSettings, Price
from perdure.settings import Settings

PRICE = Price(input=Decimal(1), output=Decimal(10))
ASKED = ModelRequest("", [UserMessage(role="user", content="x" * 4_000)], [], ModelSettings())  # 1,000 tokens


class Provider:
    """Answers with what is due: a text, a reply, an error; the last one again and again."""

    provider = "test"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        answer: Any = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        answer = answer(request) if callable(answer) else answer
        if isinstance(answer, BaseException):
            raise answer
        return ModelReply(text=answer) if isinstance(answer, str) else answer

    async def aclose(self):
        pass


class Engine:
    """Keeps what it hears of an attempt; or has given that up."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.gone = False

    def get_async_activity_handle(self, **_: object) -> "Engine":
        return self

    async def heartbeat(self, *details: Any) -> None:
        if self.gone:
            raise RPCError("no such activity", RPCStatusCode.NOT_FOUND, b"")
        self.heard = [*details]


class Worker:
    """A worker and its engine: repeats an attempt as often as it is told to, and its clock jumps over the delays."""

    def __init__(self, **settings):
        self.now = 1_000.0
        self.delays: list[float] = []
        self.edge = Edge(Settings.model_validate(settings), lambda: self.now)
        self.engine = Engine()

    async def attempt(self, models, left, asked, ago, number=1) -> Any:
        environment = ActivityEnvironment(client=cast("Client", self.engine))
        scheduled = datetime.now(UTC) - timedelta(seconds=ago)
        environment.info = dataclasses.replace(
            environment.info, heartbeat_details=left, scheduled_time=scheduled, attempt=number
        )

        async def answer():
            pulse = Pulse()
            try:
                return await self.edge.answer(models, asked, self.allowance, pulse)
            finally:
                left[:] = [pulse.tried]

        return await environment.run(answer)

    async def call(self, *models, asked=ASKED, ago=0.0, most=20, **allowance) -> Any:
        """Return the answer, or the failure that ends the call; its delays are in `delays`."""
        self.allowance, self.delays, left = Allowance(**allowance), [], list[Any]()
        for _ in range(most):
            try:
                return await self.attempt(models, left, asked, ago)
            except ApplicationError as error:
                if error.non_retryable:
                    return error
                self.delays.append(cast("timedelta", error.next_retry_delay).total_seconds())
                self.now += self.delays[-1]
        pytest.fail(f"it was tried {most} times: {self.delays}")


@pytest.fixture
def provide():
    """Makes providers by name."""
    made = []

    def make(name, *answers):
        provider = Provider(*answers)
        providers.register(name, lambda _name, _settings: provider)
        made.append(name)
        return provider

    yield make
    for name in made:
        providers.unregister(name)


def down(kind: Any = "server", words="It is down.", **more):
    return ModelError(kind, words, **more)


def rate_limited(seconds):
    return ModelError("rate_limited", "Slow down.", retry_after=timedelta(seconds=seconds))


# -- fallback ----------------------------------------------------------------------------------------------------------


async def test_the_first_model_answers_if_it_can(provide):
    first, second = provide("a", "hello"), provide("b", "never")
    answer = await Worker().call("a:1", "b:2")
    assert (answer.reply.text, answer.model, answer.fallback) == ("hello", "a:1", "")
    assert (len(first.asked), len(second.asked)) == (1, 0)


async def test_the_next_model_answers_once_the_tries_of_the_first_are_used(provide):
    first = provide("a", down())
    provide("b", "hello")
    worker = Worker()
    answer = await worker.call("a:1", "b:2")
    assert (answer.reply.text, answer.model) == ("hello", "b:2")
    assert answer.fallback == "a:1: It is down"
    assert len(first.asked) == 3
    assert len(worker.delays) == 2  # to the next one within the attempt
    assert all(0.4 <= delay <= 1.2 for delay in worker.delays)


@pytest.mark.parametrize("kind", ["authentication", "quota", "overloaded"])
async def test_a_model_that_can_not_answer_is_asked_once(provide, kind):
    first = provide("a", down(kind))
    provide("b", "hello")
    worker = Worker()
    assert (await worker.call("a:1", "b:2")).model == "b:2"
    assert len(first.asked) == 1
    assert worker.delays == []


async def test_each_model_that_failed_is_told_in_its_own_words_and_what_it_has_used_is_counted(provide):
    provide("a", down("overloaded", "Down for maintenance (HTTP 503).", usage=Usage(input_tokens=10)))
    provide("b", down("authentication", "invalid key (HTTP 401)", usage=Usage(input_tokens=5)))
    provide("c", "hello")
    worker = Worker()
    answer = await worker.call("a:1", "b:2", "c:3")
    assert (answer.model, answer.wasted, worker.delays) == ("c:3", Usage(input_tokens=15), [])
    assert answer.fallback == "a:1: Down for maintenance (HTTP 503); b:2: invalid key (HTTP 401)"


async def test_a_failure_that_took_long_leaves_the_next_model_an_attempt_of_its_own(provide):
    worker = Worker()

    def slow(_request):
        worker.now += 60
        return down("overloaded")

    provide("a", slow)
    provide("b", "hello")
    assert (await worker.call("a:1", "b:2")).model == "b:2"
    assert worker.delays == [0.001]


@pytest.mark.parametrize("kind", ["authentication", "quota"])
async def test_a_model_that_refuses_is_left_alone_for_a_while_by_agents_that_have_another(provide, kind):
    first = provide("a", down(kind, "Not you."), down(kind, "Not you."), "welcome")
    provide("b", "hello")
    worker = Worker(breaker_open=20)
    assert (await worker.call("a:1", "b:2")).reply.text == "hello"
    again = await worker.call("a:1", "b:2")
    assert (again.reply.text, again.fallback) == ("hello", "a:1 is not asked at present: Not you")
    assert len(first.asked) == 1
    worker.now += 20
    assert (await worker.call("a:1", "b:2")).reply.text == "hello"
    assert (await worker.call("a:1")).reply.text == "welcome"  # it has no other
    assert (await worker.call("a:1", "b:2")).reply.text == "welcome"


async def test_a_model_without_a_key_falls_back_too(provide, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    provide("b", "hello")
    asked = dataclasses.replace(ASKED, settings=ModelSettings(api_key_env="NO_SUCH_KEY"))
    answer = await Worker().call("openai:gpt-5", "b:2", asked=asked)
    assert (answer.model, "set NO_SUCH_KEY" in answer.fallback) == ("b:2", True)


async def test_a_model_of_a_provider_that_is_not_known_falls_back_too(provide):
    provide("b", "hello")
    answer = await Worker().call("nosuch:x", "b:2")
    assert (answer.model, "provider 'nosuch' is not known" in answer.fallback) == ("b:2", True)


async def test_all_down_ends_in_the_words_of_each(provide):
    provide("a", down("quota"))
    provide("b", down("server", "Fire."))
    failure = await Worker().call("a:1", "b:2")
    assert (failure.type, failure.message) == ("server", "All models failed: a:1: It is down; b:2: Fire.")


async def test_a_bad_request_is_not_repeated_elsewhere(provide):
    provide("a", down("bad_request", "What?"))
    second = provide("b", "hello")
    failure = await Worker().call("a:1", "b:2")
    assert (failure.type, failure.message, second.asked) == ("bad_request", "What?", [])


# -- circuit breaker ---------------------------------------------------------------------------------------------------


async def test_a_provider_that_keeps_failing_is_not_asked_by_other_runs_and_found_again(provide):
    first = provide("a", *[down()] * 6, "back")
    provide("b", "hello")
    worker = Worker()
    for _ in range(5):
        assert (await worker.call("a:1", "b:2")).model == "b:2"
    assert len(first.asked) == 5
    assert "a:1 is not asked at present" in (await worker.call("a:1", "b:2")).fallback
    worker.now += 30
    await worker.call("a:1", "b:2")  # the probe, which fails
    assert len(first.asked) == 6
    worker.now += 31
    assert (await worker.call("a:1", "b:2")).reply.text == "back"


async def test_without_an_alternative_a_call_waits_for_the_probe_and_uses_up_no_try(provide):
    first = provide("a", *[down()] * 3, "back")
    worker = Worker(breaker_failures=2, breaker_open=20)
    answer = await worker.call("a:1", asked=dataclasses.replace(ASKED, settings=ModelSettings(attempts=4)))
    assert (answer.reply.text, answer.fallback) == ("back", "")
    assert len(first.asked) == 4
    waits = [delay for delay in worker.delays if delay > 10]
    assert len(waits) == 2
    assert all(15 <= wait <= 24 for wait in waits)


async def test_a_wait_for_a_probe_never_passes_the_runs_time(provide):
    provide("a", down())
    worker = Worker(breaker_failures=1)
    failure = await worker.call("a:1", seconds=10)
    assert failure.type == "budget"
    assert failure.message.startswith("The run's time is up: a:1 is not asked at present")


@pytest.mark.parametrize("kind", ["rate_limited", "bad_request", "authentication", "quota", "context_too_long"])
async def test_answers_that_say_no_do_not_open_the_breaker(provide, kind):
    provide("a", *[down(kind, retry_after=timedelta(seconds=1))] * 9, "hello")
    worker = Worker(breaker_failures=1)
    for _ in range(9):
        answer = await worker.call("a:1")
        assert max(worker.delays, default=0) <= 1
        if not isinstance(answer, ApplicationError):
            break
    assert (await worker.call("a:1")).reply.text == "hello"


# -- what a run may spend ----------------------------------------------------------------------------------------------


def settings(**changes):
    return dataclasses.replace(ASKED, settings=ModelSettings(price=PRICE, **changes))


async def test_a_reply_is_limited_to_what_is_left(provide):
    model = provide("a", "hello")
    await Worker().call("a:1", asked=settings(), output_tokens=500)
    await Worker().call("a:1", asked=settings(max_output_tokens=100), output_tokens=500)
    await Worker().call("a:1", asked=settings(), usd=Decimal("0.003"))
    await Worker().call("a:1", asked=settings())
    assert [asked.settings.max_output_tokens for asked in model.asked] == [500, 100, 200, None]


@pytest.mark.parametrize("left", [{"input_tokens": 900}, {"output_tokens": 3}, {"usd": Decimal("0.0005")}])
async def test_a_call_that_can_not_be_paid_is_not_made(provide, left):
    model = provide("a", "hello")
    failure = await Worker().call("a:1", asked=settings(), **left)
    assert (failure.type, model.asked) == ("budget", [])
    assert failure.message.startswith("The run's")


async def test_a_limit_in_usd_with_a_model_of_unknown_price_is_refused(provide):
    model = provide("a", "hello")
    failure = await Worker().call("a:1", usd=Decimal(1))
    assert (failure.type, model.asked) == ("price_unknown", [])
    assert "ModelSettings(price=Price(" in failure.message


async def test_tokens_are_estimated_as_the_model_has_counted_them_so_far(provide):
    model = provide("a", ModelReply(text="hello", usage=Usage(input_tokens=2_000)))
    worker = Worker()
    await worker.call("a:1", input_tokens=1_500)
    assert (await worker.call("a:1", input_tokens=1_500)).type == "budget"
    assert len(model.asked) == 1


async def test_a_model_that_refuses_the_limit_of_a_reply_is_asked_without_it_and_not_asked_so_again(provide):
    def fussy(request):
        most = request.settings.max_output_tokens
        return down("bad_request", "max_tokens is too large") if most and most > 4_096 else "hello"

    model = provide("a", fussy)
    worker = Worker()
    for _ in range(2):
        assert (await worker.call("a:1", output_tokens=20_000)).reply.text == "hello"
    assert (await worker.call("a:1", output_tokens=2_000)).reply.text == "hello"
    assert [asked.settings.max_output_tokens for asked in model.asked] == [20_000, None, None, 2_000]


async def test_a_bad_request_stays_one_where_the_limit_of_a_reply_is_not_the_reason(provide):
    model = provide("a", down("bad_request", "What?"))
    assert (await Worker().call("a:1", output_tokens=500)).message == "What?"
    assert len(model.asked) == 2


async def test_a_call_costs_what_its_tokens_cost(provide):
    provide("a", ModelReply(text="hello", usage=Usage(input_tokens=1_000, output_tokens=100)))
    assert (await Worker().call("a:1", asked=settings())).cost_usd == Decimal("0.002")
    assert (await Worker().call("a:1")).cost_usd is None


async def test_the_price_in_the_settings_is_that_of_the_first_model(provide):
    provide("a", down("quota"))
    provide("b", ModelReply(text="hello", usage=Usage(input_tokens=1_000)))
    assert (await Worker().call("a:1", "b:2", asked=settings())).cost_usd is None


async def test_a_model_is_priced_by_the_address_it_is_served_at(provide, monkeypatch):
    edge, asked = Worker(), ModelSettings(api_key_env="SOME_KEY")
    monkeypatch.setenv("SOME_KEY", "sk-test")
    usage = Usage(input_tokens=1_000_000)

    async def generate(_self, _request):
        return ModelReply(text="hello", usage=usage, model="gpt-4o-2024-08-06")

    monkeypatch.setattr("perdure.activities.providers.openai_chat.OpenAIChat.generate", generate)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    there = dataclasses.replace(ASKED, settings=asked)
    here = dataclasses.replace(ASKED, settings=asked.model_copy(update={"base_url": "http://localhost:8000/v1"}))
    assert (await edge.call("openai:gpt-4o", asked=there)).cost_usd > 0
    assert (await edge.call("openai:gpt-4o", asked=here)).cost_usd is None


async def test_what_failed_half_way_is_counted_and_paid(provide):
    half = Usage(input_tokens=1_000, output_tokens=50)
    whole = Usage(input_tokens=1_000, output_tokens=100)
    provide("a", down("connection", usage=half), down("timeout"), ModelReply(text="hello", usage=whole))
    answer = await Worker().call("a:1", asked=settings())
    assert answer.reply.usage == whole
    assert answer.wasted == Usage(input_tokens=2_000, output_tokens=50, estimated=True)
    assert answer.cost_usd == Decimal("0.0015") + Decimal("0.001") + Decimal("0.002")
    assert [(one.why, one.cost_usd) for one in answer.spent] == [
        ("connection", Decimal("0.0015")),
        ("timeout", Decimal("0.001")),
    ]


async def test_requests_that_are_held_off_are_counted_together(provide):
    provide("a", rate_limited(1), rate_limited(1), rate_limited(1), down("connection"), rate_limited(1), "hello")
    answer = await Worker().call("a:1")
    assert [(one.why, one.times) for one in answer.spent] == [
        ("rate_limited", 3),
        ("connection", 1),
        ("rate_limited", 1),
    ]


async def test_what_was_never_sent_is_not_counted(provide, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    provide("b", "hello")
    answer = await Worker().call("nobody:1", "b:2")
    assert (answer.model, answer.spent) == ("b:2", [])


async def test_what_failed_half_way_is_not_there_for_the_next_try(provide):
    model = provide("a", down("connection", usage=Usage(input_tokens=1_000, output_tokens=300)), "hello")
    await Worker().call("a:1", output_tokens=1_000)
    assert [asked.settings.max_output_tokens for asked in model.asked] == [1_000, 700]


async def test_a_call_that_fails_for_good_tells_what_it_has_cost(provide):
    provide("a", down("connection", usage=Usage(input_tokens=1_000, output_tokens=50)))
    failure = await Worker().call("a:1")
    used, requests = failure.details
    assert used == Usage(input_tokens=3_000, output_tokens=150)
    assert [(one.model, one.status, one.why, one.usage.output_tokens) for one in requests] == [
        ("a:1", "failed", "connection", 50)
    ] * 3


async def test_a_request_lost_with_its_worker_is_counted(provide):
    provide("a", "hello")
    worker, left = Worker(), list[Any]([{"sent": 1_000}])
    worker.allowance = Allowance()
    answer = await worker.attempt(["a:1"], left, settings(), 0)
    assert answer.wasted == Usage(input_tokens=1_000, estimated=True)
    assert [(one.status, one.usage) for one in answer.spent] == [("lost", answer.wasted)]


async def test_an_attempt_that_was_lost_before_it_told_anything_may_have_sent_a_request_and_is_counted(provide):
    provide("a", "hello")
    worker = Worker()
    worker.allowance = Allowance()
    answer = await worker.attempt(["a:1"], [], ASKED, 0, number=2)  # the first one told nothing
    assert [(one.status, one.why, one.usage.estimated) for one in answer.spent] == [("lost", "worker", True)]
    assert answer.wasted.input_tokens > 0
    left = worker.engine.heard  # and this one is lost after it has told that it goes on, with that request under way
    again = await worker.attempt(["a:1"], left, ASKED, 0, number=4)  # the third did not come so far
    assert [one.why for one in again.spent] == ["worker"] * 2


async def test_an_attempt_that_has_told_how_it_failed_or_came_too_late_is_not_taken_for_a_lost_one(provide):
    provide("a", down("connection"), "hello")
    worker, left = Worker(), list[Any]()
    worker.allowance = Allowance()
    with pytest.raises(ApplicationError):
        await worker.attempt(["a:1"], left, ASKED, 0)
    worker.engine.gone = True
    late = [*left]
    with pytest.raises(ApplicationError, match="too late"):
        await worker.attempt(["a:1"], late, ASKED, 0, number=2)
    worker.engine.gone = False
    answer = await worker.attempt(["a:1"], left, ASKED, 0, number=3)
    assert [one.status for one in answer.spent] == ["failed"]


async def test_a_run_whose_time_is_up_asks_nobody(provide):
    model = provide("a", "hello")
    failure = await Worker().call("a:1", seconds=5, ago=6)
    assert (failure.type, failure.message, model.asked) == ("budget", "The run's time is up.", [])


async def test_a_model_that_does_not_answer_within_the_runs_time_is_given_up(provide):
    async def hang(_request):
        import asyncio

        await asyncio.Event().wait()

    provide("a", "").generate = hang
    failure = await Worker().call("a:1", seconds=5, ago=4.95)
    assert (failure.type, "a:1 had not answered yet" in failure.message) == ("budget", True)
    used, (request,) = failure.details
    assert used == request.usage == Usage(input_tokens=1_000, estimated=True)
    assert request.why == "budget"


# -- tokens per minute -------------------------------------------------------------------------------------------------


async def test_calls_over_the_tokens_per_minute_wait_for_their_turn_and_use_up_no_try(provide):
    provide("a", ModelReply(text="hello", usage=Usage(input_tokens=1_000)))
    worker = Worker(tpm={"a:1": 6_000})  # 100 a second, a call's worth at once
    once = dataclasses.replace(ASKED, settings=ModelSettings(attempts=1))
    for _ in range(3):
        assert (await worker.call("a:1", asked=once)).reply.text == "hello"
    assert worker.delays == pytest.approx([10])


async def test_a_rate_limit_holds_back_the_other_runs_too(provide):
    model = provide("a", rate_limited(7), "hello")
    worker = Worker()
    one: list[Any] = []
    worker.allowance = Allowance()
    with pytest.raises(ApplicationError) as caught:
        await worker.attempt(["a:1"], one, ASKED, 0)
    assert caught.value.next_retry_delay == timedelta(seconds=7)
    with pytest.raises(ApplicationError, match="is held to") as caught:
        await worker.attempt(["a:1"], [], ASKED, 0)
    other = caught.value.next_retry_delay
    assert other
    assert other > timedelta(seconds=7)  # they do not come back together
    assert len(model.asked) == 1
    worker.now += 7
    assert (await worker.attempt(["a:1"], one, ASKED, 0)).reply.text == "hello"


async def test_a_turn_that_comes_while_the_server_asks_for_a_pause_is_put_off(provide):
    model = provide("a", rate_limited(10), rate_limited(100))
    worker, first, second = Worker(tpm={"a:1": 6_000}), list[Any](), list[Any]()
    worker.allowance = Allowance()
    with pytest.raises(ApplicationError):
        await worker.attempt(["a:1"], first, ASKED, 0)
    worker.now += 10
    with pytest.raises(ApplicationError, match="held to"):
        await worker.attempt(["a:1"], second, ASKED, 0)
    with pytest.raises(ApplicationError, match="Slow down"):
        await worker.attempt(["a:1"], first, ASKED, 0)
    worker.now += 50  # the turn of the second would have come
    with pytest.raises(ApplicationError, match="is held to"):
        await worker.attempt(["a:1"], second, ASKED, 0)
    assert len(model.asked) == 2


async def test_tokens_of_a_request_that_failed_are_there_for_the_next_try(provide):
    provide("a", down(), "hello")
    worker = Worker(tpm={"a:1": 6_000})
    assert (await worker.call("a:1")).reply.text == "hello"
    assert max(worker.delays) <= 1


async def test_the_pause_that_a_server_asks_for_is_kept_to_the_millisecond(provide):
    provide("a", rate_limited(1.234), "hello")
    worker = Worker()
    await worker.call("a:1")
    assert worker.delays == [1.234]


async def test_a_rate_limit_that_passes_the_runs_time_ends_the_call(provide):
    provide("a", rate_limited(60))
    failure = await Worker().call("a:1", seconds=30)
    assert failure.type == "budget"
    assert failure.message == "The run's time is up: Slow down. It would be tried again in 60.0 s, too late."


async def test_another_model_is_asked_where_a_rate_limit_would_pass_the_runs_time(provide):
    provide("a", rate_limited(60))
    provide("b", "hello")
    answer = await Worker().call("a:1", "b:2", seconds=30)
    assert (answer.model, answer.fallback) == ("b:2", "a:1: Slow down")
