"""How full a model's context was, and what was done about it, as a history tells it."""

from __future__ import annotations

import io
from decimal import Decimal

import pytest

from perdure.cli import report, story
from perdure.cli.standing import Now
from perdure.messages import AssistantMessage, Compaction, ContextHealth, Usage, Verbatim
from perdure.pressure import TOO_LONG
from perdure.reports import CompactReport, ModelTurn
from tests.unit.histories import History, own_failure

FULL = ContextHealth(tokens=3_100, window=4_000)
ROOMY = ContextHealth(tokens=1_200, window=4_000)
SUMMED = CompactReport(
    entry=Compaction(
        role="compaction", covers=1, summary="They looked.", written_by="m:m", verbatim=Verbatim(done=["pay(): ok"])
    ),
    how="summarised",
    before=FULL,
    after=ROOMY,
    usage=Usage(input_tokens=900, output_tokens=40),
    cost_usd=Decimal("0.002"),
)


async def full() -> History:
    """Return a run whose model was not asked, since its context is full."""
    history = History()
    await history.start(shape=1)
    turn = ModelTurn(message=AssistantMessage(role="assistant"), finish="full", context=FULL)
    await history.complete(await history.ask_model(), turn)
    return history


def shown(history: History, *, transcript: bool = False) -> str:
    return "\n".join(report.as_lines(history.projection, Now([], None), None, io.StringIO(), transcript=transcript))


async def test_a_model_that_was_not_asked_is_not_told_to_have_replied():
    history = await full()
    assert history.told("model_finished") == []
    assert history.state.steps == 0
    assert history.state.context == FULL
    assert "Context  3,100 of 4,000 tokens (78%)" in shown(history)


async def test_a_compaction_is_told_with_what_it_brought_and_cost():
    history = await full()
    await history.compact(SUMMED)
    (event,) = history.told("context_compacted")
    assert (event.why, event.how, event.by, event.before, event.after) == ("full", "summarised", "m:m", FULL, ROOMY)
    assert history.state.usage.input_tokens == 900
    assert history.state.cost == Decimal("0.002")
    assert not history.state.pressure.under_way
    line = story.what(event, io.StringIO())
    assert line == (
        "context was too full: old turns are summed up by m:m, from 3,100 to 1,200 of 4,000 tokens (30%), "
        "900 tokens in, 40 out, $0.0020"
    )


async def test_the_transcript_is_shown_whole_with_a_mark_where_it_was_compacted():
    history = await full()
    await history.compact(SUMMED)
    await history.turn("look")
    text = shown(history, transcript=True)
    assert "compacted 1 time" in text
    transcript = text.partition("Transcript")[2]
    go, mark, look = (
        transcript.index(part) for part in ("user  go", "compacted: from here on, the model is shown less", "look()")
    )
    assert go < mark < look
    assert "They looked." in transcript
    assert "- pay(): ok" in transcript


async def test_a_refused_request_that_is_made_shorter_is_no_failure():
    history = History()
    await history.start(shape=1)
    failure = own_failure("The prompt is too long.", TOO_LONG)
    await history.add("activity_task_failed", {"scheduled_event_id": await history.ask_model(), "failure": failure})
    assert history.told("model_failed") == []
    await history.compact(SUMMED, why="refused")
    assert history.state.pressure.window == FULL.tokens
    assert history.state.outcome is None


async def test_a_refused_request_that_can_not_be_made_shorter_fails_in_the_providers_words():
    history = History()
    await history.start(shape=1)
    failure = own_failure("The prompt is too long.", TOO_LONG)
    await history.add("activity_task_failed", {"scheduled_event_id": await history.ask_model(), "failure": failure})
    await history.compact(CompactReport(before=FULL, after=FULL), why="refused")
    (failed,) = history.told("model_failed")
    assert (failed.error_type, failed.message) == (TOO_LONG, "The prompt is too long.")
    assert history.state.outcome
    assert history.state.outcome.failure == TOO_LONG


async def test_a_run_of_an_older_client_ends_where_its_provider_refuses():
    history = History()
    await history.start()
    failure = own_failure("The prompt is too long.", TOO_LONG)
    await history.add("activity_task_failed", {"scheduled_event_id": await history.ask_model(), "failure": failure})
    assert [event.error_type for event in history.told("model_failed")] == [TOO_LONG]


@pytest.mark.parametrize("why", ["full", "budget"])
async def test_a_compaction_that_failed_is_told_and_the_model_is_asked_as_it_is(why):
    history = await full() if why == "full" else History()
    if why == "budget":
        await history.start(shape=1)
    scheduled = await history.compact(why=why)
    assert history.state.pressure.under_way
    failure = own_failure("KeyError: 'x'", "internal_error")
    await history.add("activity_task_failed", {"scheduled_event_id": scheduled, "failure": failure})
    (event,) = history.told("context_compacted")
    assert (event.how, event.message) == ("nothing", "KeyError: 'x'")
    assert "could not be compacted: KeyError: 'x'" in story.what(event, io.StringIO())
    assert history.state.pressure.over == (why == "full")
    assert not history.state.pressure.under_way
