"""A model that is down: another one answers, on whichever worker the next attempt is made."""

from datetime import timedelta
from decimal import Decimal

import pytest

from perdure.activities.providers import unregister
from perdure.agents import Agent
from perdure.errors import ModelError
from perdure.messages import Usage
from perdure.models import ModelReply
from perdure.policies import Limits, ModelSettings, Price
from perdure.settings import Provider
from perdure.testing import ModelServer

SOON = timedelta(milliseconds=10)


@pytest.fixture
def agent_of(stage):
    """Makes an agent of several models, the first of which is asked first."""

    def make(*models, **options):
        names = [stage.agent(model).spec.model for model in models]
        return Agent("subject", names, **options)

    return make


def fails(kind, **more):
    def fail(_request):
        raise ModelError(kind, "It is down.", retry_after=SOON, **more)

    return fail


async def run(stage, agent):
    await stage.serve(agent)
    return await stage.end(await stage.start_again(agent))


async def test_the_next_model_answers_once_the_tries_of_the_first_are_used(stage, raw_model, agent_of):
    first, second = raw_model(fails("server")), raw_model("done")
    done = await run(stage, agent_of(first, second))
    assert (done.result.status, done.result.text) == ("completed", "done")
    assert (first.calls, second.calls) == (3, 1)
    [event] = done.told("model_finished")
    assert event.attempt == 3


async def test_all_down_ends_the_run_in_the_words_of_each(stage, raw_model, agent_of):
    first, second = raw_model(fails("authentication")), raw_model(fails("quota"))
    agent = agent_of(first, second)
    done = await run(stage, agent)
    assert (done.result.status, done.result.failure) == ("failed", "quota")
    one, other = agent.spec.models
    assert done.result.reason == f"All models failed: {one}: It is down; {other}: It is down."
    assert (first.calls, second.calls) == (1, 1)


async def test_a_provider_that_is_down_costs_later_runs_no_try(stage, stage_settings, raw_model, agent_of):
    first, second = raw_model(fails("connection")), raw_model("done")
    agent = agent_of(first, second)
    await stage.serve(agent, settings=stage_settings.model_copy(update={"breaker_failures": 3}))
    for _ in range(3):
        done = await stage.end(await stage.start_again(agent))
        assert done.result.text == "done"
    assert (first.calls, second.calls) == (3, 3)


async def test_a_model_is_found_again_where_there_is_no_other(stage, stage_settings, raw_model, agent_of):
    broken = [True] * 3

    def recovers(_request):
        return fails("connection")(_request) if broken and broken.pop() else "done"

    changes = {"breaker_failures": 2, "breaker_open": timedelta(seconds=0.2)}
    agent = agent_of(raw_model(recovers), settings=ModelSettings(attempts=4))
    await stage.serve(agent, settings=stage_settings.model_copy(update=changes))
    done = await stage.end(await stage.start_again(agent))
    assert (done.result.status, done.result.text) == ("completed", "done")


async def test_the_runs_of_a_worker_share_the_tokens_per_minute_of_a_model(stage, stage_settings, raw_model, agent_of):
    model = raw_model(ModelReply(text="done", usage=Usage(input_tokens=11_500)))
    agent = agent_of(model, settings=ModelSettings(attempts=1))
    limits = {agent.spec.model: 60_000}  # 10,000 at once, and 1,000 a second
    await stage.serve(agent, settings=stage_settings.model_copy(update={"tpm": limits}))
    attempts = []
    for _ in range(2):
        done = await stage.end(await stage.start_again(agent))
        assert done.result.text == "done"
        attempts.append(done.told("model_finished")[0].attempt)
    assert attempts == [1, 2]
    assert model.calls == 2


async def test_a_model_on_another_server_answers_where_the_first_is_down(stage, stage_settings, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    down = {"error": {"kind": "overloaded", "message": "Busy."}, "times": 9, "text": "never"}
    async with ModelServer([down]) as first, ModelServer(["done"]) as second:
        agent = Agent("subject", ["openai:m", "other:m"], settings=ModelSettings(base_url=first.base_url))
        servers = {"other": Provider(base_url=second.base_url)}
        try:
            await stage.serve(agent, settings=stage_settings.model_copy(update={"providers": servers}))
            done = await stage.end(await stage.start_again(agent))
        finally:
            unregister("other")
        assert (done.result.status, done.result.text) == ("completed", "done")
        assert (len(first.requests), len(second.requests)) == (1, 1)


# -- what a run may spend ----------------------------------------------------------------------------------------------

PRICE = Price(input=Decimal(1), output=Decimal(10))


async def test_what_an_attempt_has_cost_that_broke_off_is_counted_and_paid(stage, raw_model, agent_of):
    whole, half = Usage(input_tokens=1_000, output_tokens=100), Usage(input_tokens=1_000, output_tokens=50)
    broken = [True]

    def reply(_request):
        return fails("connection", usage=half)(_request) if broken and broken.pop() else ModelReply("done", usage=whole)

    done = await run(stage, agent_of(raw_model(reply), settings=ModelSettings(price=PRICE)))
    assert done.result.usage == whole + half
    assert done.result.cost_usd == Decimal("0.0035")


@pytest.mark.reported(35)
async def test_a_run_with_a_limit_in_usd_needs_a_price(stage, raw_model, agent_of):
    model = raw_model("done")
    done = await run(stage, agent_of(model, limits=Limits(usd=Decimal(1))))
    assert (done.result.status, done.result.failure, model.calls) == ("failed", "price_unknown", 0)
    assert "ModelSettings(price=Price(" in done.result.reason


async def test_a_call_that_the_run_can_not_pay_is_not_made(stage, raw_model, agent_of):
    model = raw_model("done")
    settings, limits = ModelSettings(price=PRICE), Limits(usd=Decimal("0.00001"))
    done = await run(stage, agent_of(model, settings=settings, limits=limits))
    assert (done.result.status, model.calls) == ("budget_exhausted", 0)
    assert done.result.reason.startswith("The run's money is used up")
    assert done.result.cost_usd is not None


async def test_a_rate_limit_that_outlasts_the_runs_time_ends_it_at_once(stage, raw_model, agent_of):
    def limited(_request):
        raise ModelError("rate_limited", "Slow down.", retry_after=timedelta(hours=1))

    done = await run(stage, agent_of(raw_model(limited)))
    assert done.result.status == "budget_exhausted"
    assert done.result.reason.startswith("The run's time is up: Slow down.")
