"""What becomes of a call whose outcome is not plain, by the effect of its tool: the tables of outcomes."""

import asyncio

import pytest

from perdure.errors import DecisionRejected, ToolError
from perdure.tools import ToolContext, tool


def calling(*names):
    return {"calls": [{"name": name} for name in names]}


class Ledger:
    """An outside world: what was done, under which key, at which attempt."""

    def __init__(self):
        self.entries = []

    def note(self, ctx):
        self.entries.append((ctx.idempotency_key, ctx.attempt, ctx.call))

    @property
    def keys(self):
        return {key for key, _, _ in self.entries}


@pytest.fixture
def ledger():
    return Ledger()


def acting(ledger, error=None, times=1_000, name="act", **options):
    """A tool `act` that does its effect, and then raises `error` the first `times`."""

    @tool(name=name, **options)
    async def act(ctx: ToolContext) -> str:
        """Act."""
        ledger.note(ctx)
        if error and len(ledger.entries) <= times:
            raise error
        return f"done at {ctx.attempt}"

    return act


# -- lost, late, unexpected ------------------------------------------------------------------------------------


@pytest.mark.reported(9)
async def test_an_unsafe_effect_that_raises_is_tried_once_and_then_in_doubt(stage, ledger):
    handle = await stage.start([calling("act"), "done"], [acting(ledger, TimeoutError("read timed out"))])
    event = await stage.until(handle, "in_doubt")
    assert (event.call, event.name) == ("1.1", "act")
    assert "read timed out" in event.message
    assert {event.key} == ledger.keys
    [run] = [run for run in await listed(stage, "waiting_decision") if run.id == handle.id]
    assert run.status == "waiting_decision"
    assert len(ledger.entries) == 1


async def listed(stage, status):
    """The runs of that status, as soon as there are any: the engine's list lags behind by a moment."""
    for _ in range(200):
        if runs := await stage.client.list_runs(status=status):
            return runs
        await asyncio.sleep(0.02)
    return []


async def test_settled_as_done_the_model_gets_the_result_that_a_person_found(stage, ledger):
    handle = await stage.start([calling("act"), "seat ${act.seat}"], [acting(ledger, OSError("reset"))])
    await stage.until(handle, "in_doubt")
    await handle.settle("1.1", "done", result={"seat": "12A"}, by="Ann", reason="saw the booking")
    done = await stage.end(handle)
    [result] = done.results
    assert (result.status, result.content) == ("ok", '{"seat": "12A"}')
    assert result.note == "Ann looked it up and says that it was done. saw the booking"
    assert done.result.text == "seat 12A"
    assert len(ledger.entries) == 1
    [event] = done.told("settled")
    assert (event.outcome, event.by, event.reason) == ("done", "Ann", "saw the booking")


@pytest.mark.parametrize("result", [None, "", 0, False, [], "text", "half \ud83d", {"a": [1]}], ids=repr)
async def test_settled_as_done_with_anything_is_an_ok_result(stage, ledger, result):
    handle = await stage.start([calling("act"), "done"], [acting(ledger, OSError("reset"))])
    await stage.until(handle, "in_doubt")
    await handle.settle("1.1", "done", result=result)
    [given] = (await stage.end(handle)).results
    assert given.status == "ok"
    assert given.content == {"None": "It was done.", "''": "It was done."}.get(repr(result), given.content)
    assert given.content


async def test_settled_as_not_done_the_model_is_told_so_and_may_try_again(stage, ledger):
    act = acting(ledger, OSError("reset"), times=1)
    handle = await stage.start([calling("act"), calling("act"), "done"], [act])
    await stage.until(handle, "in_doubt")
    await handle.settle("1.1", "not-done")
    done = await stage.end(handle)
    assert [(result.status, result.error_type) for result in done.results] == [("error", "not_done"), ("ok", None)]
    assert len(ledger.keys) == 2


async def test_settled_as_retry_it_is_tried_again_with_the_same_key(stage, ledger):
    handle = await stage.start([calling("act"), "done"], [acting(ledger, OSError("reset"), times=2)])
    await stage.until(handle, "in_doubt")
    await handle.settle("1.1", "retry")
    await stage.until(handle, "in_doubt", nth=2)
    await handle.settle("1.1", "retry")
    done = await stage.end(handle)
    assert [result.status for result in done.results] == ["ok"]
    assert len(ledger.entries) == 3
    assert len(ledger.keys) == 1
    assert [event.outcome for event in done.told("settled")] == ["retry", "retry"]


async def test_a_retry_that_fails_before_its_effect_proves_nothing_about_the_first(stage, ledger):
    class SoldOut(Exception):
        pass

    errors = iter([OSError("reset"), SoldOut("no seat left")])

    @tool(not_done=[SoldOut])
    async def act(ctx: ToolContext) -> str:
        """Act."""
        ledger.note(ctx)
        raise next(errors)

    handle = await stage.start([calling("act"), "done"], [act])
    await stage.until(handle, "in_doubt")
    await handle.settle("1.1", "retry")
    assert "no seat left" in (await stage.until(handle, "in_doubt", nth=2)).message
    await handle.settle("1.1", "done")
    await stage.end(handle)


async def test_a_settlement_that_does_not_fit_is_refused_with_the_reason(stage, ledger):
    handle = await stage.start([calling("act"), "done"], [acting(ledger, OSError("reset"))])
    await stage.until(handle, "in_doubt")
    with pytest.raises(DecisionRejected) as refused:
        await handle.settle("7.7", "done")
    assert refused.value.reason == "unknown_call"
    assert "waiting are 1.1 (act)" in str(refused.value)
    with pytest.raises(DecisionRejected) as refused:
        await handle.approve("1.1")
    assert refused.value.reason == "not_waiting"
    await handle.settle("1.1", "done")
    with pytest.raises(DecisionRejected) as refused:
        await handle.settle("1.1", "not-done")
    assert refused.value.reason in ("already_decided", "closed")
    done = await stage.end(handle)
    assert done.results[0].status == "ok"


async def test_effects_after_one_in_doubt_wait_for_it_and_reads_do_not(stage, ledger):
    other = acting(ledger, name="other")
    look = acting(ledger, name="look", effect="read")
    tools = [acting(ledger, OSError("reset"), times=2), other, look]  # the read may be the first of both
    handle = await stage.start([calling("act", "other", "look"), "done"], tools)
    await stage.until(handle, "in_doubt")
    await stage.until(handle, lambda e: e.type == "tool_finished" and e.name == "look")
    assert sorted(call for _, _, call in ledger.entries) == ["1.1", "1.3"]
    await handle.settle("1.1", "not-done")
    done = await stage.end(handle)
    assert [result.status for result in done.results] == ["error", "ok", "ok"]


@pytest.mark.reported(10)
async def test_an_idempotent_effect_is_repeated_with_the_same_key_and_then_in_doubt(stage, ledger):
    act = acting(ledger, OSError("reset"), effect="idempotent", attempts=2)
    handle = await stage.start([calling("act"), "done"], [act])
    await stage.until(handle, "in_doubt")
    assert [attempt for _, attempt, _ in ledger.entries] == [1, 2]
    assert len(ledger.keys) == 1
    await handle.settle("1.1", "retry")
    await stage.until(handle, "in_doubt", nth=2)
    assert len(ledger.entries) == 4
    assert len(ledger.keys) == 1
    await handle.settle("1.1", "done")
    await stage.end(handle)


async def test_an_idempotent_effect_that_succeeds_at_its_second_attempt_is_plainly_done(stage, ledger):
    act = acting(ledger, OSError("reset"), times=1, effect="idempotent")
    done = await stage.run([calling("act"), "done"], [act])
    assert [result.content for result in done.results] == ["done at 2"]
    assert len(ledger.keys) == 1
    assert done.told("tool_finished")[0].attempt == 2


async def test_a_read_that_raises_is_tried_once_more_and_then_an_error_result(stage, ledger):
    done = await stage.run([calling("act"), "done"], [acting(ledger, OSError("reset"), effect="read")])
    assert [(result.status, result.error_type) for result in done.results] == [("error", "OSError")]
    assert len(ledger.entries) == 2
    assert not done.told("in_doubt")


@pytest.mark.parametrize(("effect", "tries"), [("read", 2), ("idempotent", 2), ("unsafe", 1)])
async def test_a_timeout_is_an_unknown_outcome(stage, ledger, effect, tries):
    @tool(effect=effect, timeout=0.2, attempts=2)
    async def act(ctx: ToolContext) -> str:
        """Act, and then wait for an answer for too long."""
        ledger.note(ctx)
        await asyncio.sleep(30)
        return "late"

    handle = await stage.start([calling("act"), "done"], [act])
    if effect != "read":
        assert "did not end within 0.2 s" in (await stage.until(handle, "in_doubt")).message
        [call] = (await stage.state(handle)).calls
        assert call.doubt.believed_from is not None  # it unwound: from its deadline on, a look-up can tell
        await handle.settle("1.1", "done")
    done = await stage.end(handle)
    assert [result.status for result in done.results] == ["error" if effect == "read" else "ok"]
    assert len(ledger.entries) == tries


# -- known failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "idempotent", "unsafe"])
async def test_a_known_failure_is_an_error_result_at_once(stage, ledger, effect):
    error = ToolError("Sold out.", suggestion="Take a later one.", error_type="sold_out")
    done = await stage.run([calling("act"), "done"], [acting(ledger, error, effect=effect)])
    [result] = done.results
    assert (result.status, result.error_type, result.message) == ("error", "sold_out", "Sold out.")
    assert result.suggestion == "Take a later one."
    assert len(ledger.entries) == 1
    assert not done.told("in_doubt")


@pytest.mark.parametrize("effect", ["read", "idempotent", "unsafe"])
async def test_an_exception_that_is_listed_as_not_done_is_an_error_result(stage, ledger, effect):
    act = acting(ledger, ConnectionRefusedError("no server there"), effect=effect, not_done=[ConnectionRefusedError])
    done = await stage.run([calling("act"), "done"], [act])
    [result] = done.results
    assert (result.status, result.error_type) == ("error", "ConnectionRefusedError")
    assert "no server there" in result.message
    assert len(ledger.entries) == 1


async def test_a_known_failure_of_a_subclass_that_says_nothing_is_still_known(stage, ledger):
    class Closed(ToolError):
        def __init__(self):
            pass

    done = await stage.run([calling("act"), "done"], [acting(ledger, Closed())])
    assert [result.status for result in done.results] == ["error"]


async def test_with_tell_model_the_model_is_told_in_words_fit_to_the_effect(stage, ledger):
    unsafe = acting(ledger, OSError("reset"), in_doubt="tell_model")
    safe = acting(ledger, OSError("gone"), name="safe", effect="idempotent", attempts=1, in_doubt="tell_model")
    done = await stage.run([calling("act", "safe"), "done"], [unsafe, safe])
    assert done.result.status == "completed"
    first, second = done.results
    assert (first.status, second.status) == ("in_doubt", "in_doubt")
    assert "reset" in first.message
    assert "Do not repeat it" in first.message
    assert "may safely be asked for once more" in second.message


# -- keys ------------------------------------------------------------------------------------------------------


@pytest.mark.reported(11)
async def test_every_call_has_a_key_of_its_own_whatever_its_arguments(stage, ledger):
    act = acting(ledger)
    done = await stage.run([calling("act", "act"), calling("act"), "done"], [act])
    assert [result.status for result in done.results] == ["ok"] * 3
    assert len(ledger.keys) == 3


async def test_two_runs_have_different_keys(stage, ledger):
    agent = stage.agent([calling("act"), "done"], [acting(ledger)])
    await stage.serve(agent)
    first, second = await stage.start_again(agent), await stage.start_again(agent)
    await asyncio.gather(stage.end(first), stage.end(second))
    assert len(ledger.keys) == 2


async def test_the_key_names_run_and_call_and_is_told_where_the_outcome_is_in_doubt(stage, ledger):
    handle = await stage.start([calling("act"), "done"], [acting(ledger, OSError("reset"))])
    event = await stage.until(handle, "in_doubt")
    assert {event.key} == ledger.keys
    assert event.key.startswith(f"{handle.id}:")
    assert event.key.endswith(":1.1")
    await handle.settle("1.1", "done")


# -- the end in the middle -------------------------------------------------------------------------------------


@pytest.mark.reported(15)
async def test_an_effect_under_way_when_its_run_is_cancelled_is_in_doubt_and_asked_about_when_resumed(stage, ledger):
    @tool(timeout=30)
    async def act(ctx: ToolContext) -> str:
        """Act."""
        ledger.note(ctx)
        await asyncio.sleep(30)
        return "late"

    handle = await stage.start([calling("act"), "done"], [act])
    await stage.until_held(handle, "act")
    await handle.cancel("enough")
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    assert [(call.status, call.execution_order) for call in done.result.calls] == [("in_doubt", 1)]
    await handle.resume()
    await handle.settle("1.1", "done", result="seat 1A")
    done = await stage.end(handle)
    assert (done.result.status, done.results[0].content) == ("completed", "seat 1A")
    assert len(ledger.entries) == 1


async def test_a_retry_after_the_run_was_resumed_has_the_same_key(stage, ledger):
    handle = await stage.start([calling("act"), "done"], [acting(ledger, OSError("reset"), times=1)])
    await stage.until(handle, "in_doubt")
    await handle.cancel()
    await stage.end(handle)
    await handle.resume()
    await handle.settle("1.1", "retry")
    done = await stage.end(handle)
    assert done.result.status == "completed"
    assert len(ledger.entries) == 2
    assert len(ledger.keys) == 1


async def test_an_idempotent_effect_that_is_cancelled_between_its_attempts_is_in_doubt(stage, ledger):
    act = acting(ledger, OSError("reset"), effect="idempotent", attempts=9)
    handle = await stage.start([calling("act"), "done"], [act])
    await between_attempts(stage, handle)
    await handle.cancel()
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    assert [call.status for call in done.result.calls] == ["in_doubt"]


async def between_attempts(stage, handle):
    """Wait until a call has failed once and is to be tried again."""
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    while True:
        pending = (await workflow.describe()).raw_description.pending_activities
        if any(one.attempt > 1 and one.activity_type.name == "act" for one in pending):
            return
        await asyncio.sleep(0.02)  # the engine can only be asked
