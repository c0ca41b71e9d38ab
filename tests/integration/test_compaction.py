"""A run whose conversation outgrows its model's window goes on, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import random
import string
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from perdure.activities.providers import openai_chat, openai_responses
from perdure.activities.providers.wire import encode
from perdure.compaction import DefaultStrategy
from perdure.context import visible
from perdure.errors import ModelError
from perdure.messages import AssistantMessage, Compaction, ToolMessage, Usage, UserMessage
from perdure.models import ModelReply
from perdure.models.dialect import Names, level_calls, request_tokens
from perdure.policies import ContextPolicy, Limits, ModelSettings, Price
from perdure.summaries import INSTRUCTIONS
from perdure.tools import tool
from tests.integration.test_reset import reset

ROOM = Limits(steps=1_000, input_tokens=None, output_tokens=None, wall_time=None)
SMALL = ContextPolicy(window=4_000)
SUMS_UP = INSTRUCTIONS[:40]
NOT_THAT = ModelError("content_filtered", "not that")


def text(seed: str, length: int = 1_000) -> str:
    return seed + "".join(random.Random(seed).choices(string.ascii_lowercase, k=length))


@tool(effect="read")
async def look(q: int) -> str:
    """Look."""
    return text(f"result {q} ")


@tool(effect="unsafe")
async def book(flight: str) -> dict[str, str]:
    """Book."""
    return {"reference": f"BK-{flight}-77", "note": text("booked ")}


class Summing:
    """A model that follows a script, and sums up what it is asked to."""

    provider = "summing"

    def __init__(self, steps, *, window=None, summary: Any = "They looked, and found nothing.", words="too long"):
        self.steps, self.window, self.summary, self.words = steps, window, summary, words
        self.requests: list[Any] = []
        self.summaries: list[Any] = []
        self.refused = 0
        self.before_summary: Any = None

    async def generate(self, request):
        tokens = request_tokens(request)
        if request.instructions.startswith(SUMS_UP):
            if self.before_summary:
                await self.before_summary()
            self.summaries.append(request)
            if isinstance(self.summary, Exception):
                raise self.summary
            if isinstance(self.summary, ModelReply):
                return self.summary
            return ModelReply(text=self.summary, usage=Usage(input_tokens=tokens, output_tokens=20), model="summing")
        self.requests.append(request)
        if self.window and tokens > self.window:
            self.refused += 1
            raise ModelError("context_too_long", self.words)
        due = request.hidden + sum(isinstance(message, AssistantMessage) for message in request.messages)
        usage = Usage(input_tokens=tokens, output_tokens=10)
        if due >= len(self.steps) or request.answer_only:
            return ModelReply(text=f"done after {due}", usage=usage)
        name, arguments = self.steps[due]
        calls = level_calls([("call_0", name, arguments)], request, Names(t.name for t in request.tools))
        return ModelReply(calls=calls, finish="calls", usage=usage)

    async def aclose(self):
        pass


LOOKS = [("look", {"q": number}) for number in range(60)]


def compactions(done):
    return [entry for entry in done.state.messages if isinstance(entry, Compaction)]


@pytest.mark.long
async def test_a_run_of_sixty_steps_stays_under_a_window_of_four_thousand_tokens(stage):
    model = Summing(LOOKS)
    done = await stage.run(model, [look, book], limits=ROOM, context=SMALL, task="Find it.")
    assert done.result.status == "completed"
    assert done.result.text == "done after 60"
    assert done.result.steps == 61
    assert max(map(request_tokens, model.requests)) <= 3_000
    assert len(compactions(done)) == len(model.summaries) == len(done.told("context_compacted")) > 3
    assert all(request.messages[0] == UserMessage(role="user", content="Find it.") for request in model.requests)
    ids = [call.id for m in done.state.messages if isinstance(m, AssistantMessage) for call in m.calls]
    assert len(set(ids)) == 60
    assert len(done.results) == 60


async def test_summaries_are_paid_from_the_budget_and_are_no_steps(stage):
    model = Summing(LOOKS[:20])
    settings = ModelSettings(price=Price(input=Decimal(1), output=Decimal(1)))
    done = await stage.run(model, [look], limits=ROOM, context=SMALL, settings=settings)
    sent = sum(map(request_tokens, [*model.requests, *model.summaries]))
    assert done.result.usage.input_tokens == sent
    assert done.result.usage.output_tokens == 10 * 21 + 20 * len(model.summaries)
    assert done.result.cost_usd == Decimal(sent + done.result.usage.output_tokens) / 1_000_000
    assert done.result.steps == 21
    told = done.told("context_compacted")
    assert [event.by for event in told] == [done.state.spec.model] * len(told)
    assert all(event.after.tokens <= 1_600 < event.before.tokens for event in told)
    assert all(event.why == "full" and event.how == "summarised" for event in told)


async def test_health_of_the_context_is_told_at_every_turn(stage):
    model = Summing(LOOKS[:3])
    done = await stage.run(model, [look], limits=ROOM, context=ContextPolicy(window=50_000))
    told = [event.context for event in done.told("model_finished")]
    assert [context.tokens for context in told] == [request_tokens(request) for request in model.requests]
    assert {context.window for context in told} == {50_000}
    assert done.state.context == told[-1]


async def test_what_was_booked_is_known_however_long_ago_it_was(stage):
    steps = [("book", {"flight": "MU5101"}), *LOOKS[:40]]
    model = Summing(steps, summary="Much was looked at.")
    done = await stage.run(model, [look, book], limits=ROOM, context=SMALL)
    assert done.result.status == "completed"
    last = "\n".join(message.model_dump_json() for message in model.requests[-1].messages)
    assert "BK-MU5101-77" in last
    assert "book(" in last


@pytest.mark.long
async def test_a_model_that_fails_to_sum_up_costs_the_run_nothing_but_words(stage):
    model = Summing(LOOKS[:30], summary=NOT_THAT)
    done = await stage.run(model, [look], limits=ROOM, context=SMALL)
    assert done.result.text == "done after 30"
    assert max(map(request_tokens, model.requests)) <= 3_000
    assert all("not that" in event.message and event.by == "" for event in done.told("context_compacted"))
    assert "search" not in compactions(done)[0].summary
    assert "look" in compactions(done)[0].summary


@pytest.mark.long
@pytest.mark.parametrize("finish", ["refusal", "filtered", "stop"])
async def test_a_model_that_declines_to_sum_up_is_stood_in_for(stage, finish):
    model = Summing(LOOKS[:12])
    model.summary = ModelReply(text="" if finish == "stop" else "I can't help with that.", finish=finish)
    done = await stage.run(model, [look], limits=ROOM, context=SMALL)
    assert done.result.text == "done after 12"
    assert "help with that" not in compactions(done)[0].summary
    assert compactions(done)[0].written_by == ""
    assert "gave none" in done.told("context_compacted")[0].message


async def test_a_model_that_is_down_for_a_moment_is_asked_again_for_the_summary(stage):
    model = Summing(LOOKS[:12])
    failures = [ModelError("server", "oops")]

    async def fail():
        if failures:
            raise failures.pop()

    model.before_summary = fail
    done = await stage.run(model, [look], limits=ROOM, context=SMALL)
    assert done.result.text == "done after 12"
    assert done.told("context_compacted")[0].attempt == 2
    assert all(event.by for event in done.told("context_compacted"))


async def test_a_provider_that_takes_less_than_was_believed_is_asked_with_less(stage):
    model = Summing(LOOKS[:40], window=2_000)
    done = await stage.run(model, [look], limits=ROOM, context=ContextPolicy(window=128_000))
    assert done.result.text == "done after 40"
    assert done.told("context_compacted")[0].why == "refused"
    assert done.told("model_failed") == []
    assert 0 < model.refused < 4


async def test_a_provider_that_says_what_it_takes_is_believed_from_then_on(stage):
    class Saying(Summing):
        async def generate(self, request):
            try:
                return await super().generate(request)
            except ModelError as error:
                raise ModelError(error.kind, error.message, window=self.window) from None

    model = Saying(LOOKS[:40], window=3_000)
    done = await stage.run(model, [look], limits=ROOM)
    assert done.result.text == "done after 40"
    assert model.refused == 1
    assert done.state.context.window == 3_000
    assert [event.why for event in done.told("context_compacted")].count("refused") == 1


async def test_a_provider_that_takes_nothing_ends_the_run_by_name_with_what_it_did(stage):
    model = Summing(LOOKS[:10], window=10)
    done = await stage.run(model, [look], limits=ROOM)
    assert (done.result.status, done.result.failure) == ("failed", "context_too_long")
    assert "too long" in done.result.reason
    assert model.refused == 1


async def test_a_large_result_in_a_small_window_is_shown_as_a_preview_and_can_be_read_on(stage):
    @tool(effect="read", result_limit=60_000)
    async def dump() -> str:
        """Dump."""
        return text("start ", 50_000) + "THE-END-99"

    def read(request):
        result = next(m.result for m in reversed(request.messages) if isinstance(m, ToolMessage))
        return {"calls": [{"name": "read_result", "arguments": {"handle": result.ref, "offset": 50_000, "limit": 500}}]}

    turns = [{"calls": [{"name": "dump"}]}, read, lambda request: str(request.messages[-1].result.content)[-10:]]
    done = await stage.run(turns, [dump], limits=ROOM, context=ContextPolicy(window=8_000))
    assert done.result.text == "THE-END-99"
    assert max(map(request_tokens, stage.model.requests)) <= 6_000
    assert len(done.results[0].content) == 50_016


async def test_a_message_that_does_not_fit_is_shown_without_its_middle(stage):
    long = "Sum up: " + text("", 60_000) + " Go."
    done = await stage.run(["Here it is."], context=ContextPolicy(window=4_000), task=long)
    assert done.result.text == "Here it is."
    (request,) = stage.model.requests
    assert request_tokens(request) <= 3_000
    assert request.messages[0].content.endswith(" Go.")
    assert [tool.name for tool in request.tools] == ["read_result"]
    assert done.state.messages[0].content == long


async def test_the_prefix_is_the_same_to_the_byte_between_two_compactions(stage):
    model = Summing(LOOKS[:40])
    done = await stage.run(model, [look], limits=ROOM, context=SMALL)
    assert done.result.status == "completed"
    for body_of, key in ((chat_body, "messages"), (responses_body, "input")):
        breaks = 0
        for one, other in pairwise(model.requests):
            before, after = body_of(one), body_of(other)
            shown = before.partition(f'"{key}":'.encode())
            until_tools = b"".join(shown[:2]) + shown[2].partition(b'}],"tools":')[0]
            assert until_tools.startswith(b'{"model":"m"')
            breaks += not after.startswith(until_tools)
        assert breaks == len(compactions(done))


def chat_body(request):
    body = openai_chat.request_body("m", request, custom=False)
    return encode({"model": body["model"], "messages": body["messages"], "tools": body["tools"]})


def responses_body(request):
    body = openai_responses.request_body("m", request)
    return encode({"model": body["model"], "input": body["input"], "tools": body["tools"]})


async def test_near_the_end_of_the_budget_it_goes_on_with_less_and_answers(stage):
    @tool(effect="read")
    async def dump(q: int) -> str:
        """Dump."""
        return text(f"result {q} ", 8_000)

    model = Summing([("dump", {"q": number}) for number in range(100)])
    limits = Limits(steps=1_000, input_tokens=60_000, output_tokens=None)
    done = await stage.run(model, [dump], limits=limits)
    assert done.result.status == "budget_exhausted"
    assert done.result.text.startswith("done after ")
    assert model.requests[-1].answer_only
    told = done.told("context_compacted")
    assert {event.why for event in told} == {"budget"}
    assert len(told) <= 2
    assert told[0].after.tokens < told[0].before.tokens // 2
    assert model.summaries == []
    assert done.result.usage.input_tokens <= 60_000


async def test_a_compaction_while_calls_wait_for_people_keeps_them_open(stage):
    @tool(effect="unsafe", approval="always")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}, receipt RC-{amount}-1"

    steps = [("pay", {"amount": 7_123}), *LOOKS[:20]]
    model = Summing(steps)
    handle = await stage.start(model, [look, pay], limits=ROOM, context=SMALL)
    await stage.until(handle, "approval_requested")
    await handle.say("Go on looking meanwhile.")
    await stage.until(handle, "context_compacted")
    waiting = (await stage.state(handle)).parked
    assert [call.position for call in waiting] == ["1.1"]
    await stage.until(handle, "model_finished", nth=21)
    await handle.approve("1.1", by="ann")
    done = await stage.end(handle)
    assert done.result.status == "completed"
    compacted = compactions(done)
    assert any("1.1 pay(" in line and "7123" in line for line in compacted[0].verbatim.waiting)
    assert [call.status for call in done.result.calls if call.name == "pay"] == ["ok"]


async def test_decisions_survive_with_who_made_them(stage):
    @tool(effect="unsafe", approval="always")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    steps = [("pay", {"amount": 1}), ("pay", {"amount": 2}), *LOOKS[:20]]
    model = Summing(steps)
    handle = await stage.start(model, [look, pay], limits=ROOM, context=SMALL)
    await stage.until(handle, "approval_requested")
    await handle.approve("1.1", by="ann", reason="it is due")
    await stage.until(handle, "approval_requested", nth=2)
    await handle.deny("2.1", by="ben", reason="not twice")
    done = await stage.end(handle)
    kept = compactions(done)[-1].verbatim.decided
    assert kept == ["1.1 pay approved by ann: it is due", "2.1 pay denied by ben: not twice"]
    assert done.state.decided == []


# -- strategies ----------------------------------------------------------------------------------------------


class KeepsTheLast:
    """Shows the first message and what came with the last reply."""

    name = "keeps-the-last"

    def __init__(self, policy):
        self.policy = policy
        self.asked = 0

    def view(self, entries):
        return visible(entries)

    async def compact(self, situation) -> Compaction | None:
        self.asked += 1
        last = max(at for at, entry in enumerate(situation.entries) if isinstance(entry, AssistantMessage))
        replies = sum(isinstance(entry, AssistantMessage) for entry in situation.entries[:last])
        return Compaction(role="compaction", covers=last, keeps=0, replies=replies)


async def test_a_strategy_of_ones_own_takes_the_place_of_the_default_one(stage):
    own = KeepsTheLast(SMALL)
    model = Summing(LOOKS[:30])
    done = await stage.run(model, [look], limits=ROOM, context=own)
    assert done.result.text == "done after 30"
    assert done.state.spec.context.strategy == "keeps-the-last"
    assert own.asked == len(compactions(done)) > 1
    assert model.summaries == []
    assert max(map(request_tokens, model.requests)) <= 3_000


@pytest.mark.long
@pytest.mark.parametrize("fault", ["raises", "nonsense", "torn"])
async def test_a_strategy_that_fails_is_stood_in_for(stage, fault):
    class Faulty(KeepsTheLast):
        def view(self, entries):
            if fault == "torn":
                return [entry for entry in entries if not isinstance(entry, AssistantMessage | Compaction)]
            return super().view(entries)

        async def compact(self, situation):
            if fault == "raises":
                raise ZeroDivisionError
            if fault == "nonsense":
                return Compaction(role="compaction", covers=10_000)
            return await DefaultStrategy(self.policy).compact(situation)

    model = Summing(LOOKS[:20])
    done = await stage.run(model, [look], limits=ROOM, context=Faulty(SMALL))
    assert done.result.text == "done after 20"
    if fault != "torn":
        assert all("keeps-the-last" in event.message for event in done.told("context_compacted"))


async def test_a_run_whose_strategy_is_gone_is_served_by_the_default_one(stage):
    @tool(approval="always")
    async def wait() -> str:
        """Wait."""
        return "waited"

    model = Summing([("wait", {}), *LOOKS[:20]])
    agent = stage.agent(model, [look, wait], limits=ROOM, context=KeepsTheLast(SMALL))
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    await stage.serve(replace(agent, context=SMALL))
    await handle.approve()
    done = await stage.end(handle)
    assert done.result.text == "done after 21"
    assert model.summaries


# -- whatever happens meanwhile -----------------------------------------------------------------------------


async def test_a_run_cancelled_while_it_is_compacted_ends_at_once(stage):
    model = Summing(LOOKS)
    begun = asyncio.Event()

    async def hang():
        begun.set()
        await asyncio.Event().wait()

    model.before_summary = hang
    handle = await stage.start(model, [look], limits=ROOM, context=SMALL)
    await asyncio.wait_for(begun.wait(), 60)
    await handle.cancel("enough")
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    assert done.result.reason == "enough"


async def test_a_worker_lost_while_it_is_compacted_is_stood_in_for(stage):
    model = Summing(LOOKS[:15])
    begun = asyncio.Event()

    async def hang_once():
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()

    model.before_summary = hang_once
    handle = await stage.start(model, [look], limits=ROOM, context=SMALL)
    await asyncio.wait_for(begun.wait(), 60)
    await stage.serve(*stage.agents)  # a new worker, with an empty memory
    done = await stage.end(handle)
    assert done.result.text == "done after 15"
    assert done.told("context_compacted")[0].attempt == 2


@pytest.mark.long
async def test_a_run_that_is_reset_to_before_a_compaction_is_compacted_anew(stage):
    model = Summing(LOOKS[:25])
    done = await stage.run(model, [look], limits=ROOM, context=SMALL)
    assert len(compactions(done)) > 1
    await reset(stage, done.handle.id, nth=6)
    model.summary = "Another summary."
    again = await stage.end(done.handle)
    assert again.result.text == "done after 25"
    assert {entry.summary for entry in compactions(again)} == {"Another summary."}


async def test_a_conversation_that_was_compacted_is_right_on_another_worker(stage):
    @tool(approval="always")
    async def wait() -> str:
        """Wait."""
        return "waited"

    model = Summing([*LOOKS[:20], ("wait", {}), *LOOKS[20:25]])
    handle = await stage.start(model, [look, wait], limits=ROOM, context=SMALL)
    await stage.until(handle, "approval_requested")
    before = model.requests[-1].messages
    await stage.serve(*stage.agents)  # with an empty memory
    await handle.approve()
    done = await stage.end(handle)
    assert done.result.text == "done after 26"
    assert model.requests[21].messages[: len(before)] == before


async def test_a_run_that_ended_for_its_context_can_be_resumed(stage):
    model = Summing(LOOKS[:10], window=10)
    done = await stage.run(model, [look], limits=ROOM)
    assert done.result.failure == "context_too_long"
    model.window = None
    await done.handle.resume(add_steps=1)
    again = await stage.end(done.handle)
    assert again.result.text == "done after 10"
