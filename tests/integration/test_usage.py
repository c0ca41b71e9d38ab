"""What a run has used is written down at its end, request by request."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from decimal import Decimal
from typing import Any

from perdure.activities.ledger import rows_of
from perdure.activities.stores import store_of
from perdure.errors import ModelError
from perdure.messages import Usage
from perdure.models import ModelReply
from perdure.policies import Limits, ModelSettings, Price
from perdure.tools import tool
from perdure.usage import UsageRow
from tests.integration.archiving import archived, until

PRICED = ModelSettings(price=Price(input=Decimal(1), output=Decimal(10)))


@tool(effect="read")
async def look(q: str) -> str:
    """Look."""
    return f"result of {q} " + "x" * 400


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


async def kept(stage: Any, run_id: str, least: int = 1) -> list[UsageRow]:
    """Return the rows of a run once there are so many."""
    found: list[UsageRow] = []

    async def there() -> bool:
        found[:] = await store.usage(stage.client.temporal.namespace, run_id=run_id)
        return len(found) >= least

    async with aclosing(store_of(stage.client.settings)) as store:
        await until(there)
    return found


def used(rows: list[UsageRow]) -> Usage:
    return sum((row.usage for row in rows), Usage())


def asks(q: str) -> dict[str, Any]:
    return {"calls": [{"name": "look", "arguments": {"q": q}}]}


async def test_each_request_of_a_run_is_a_row_and_their_sum_is_what_the_run_has_used(stage: Any) -> None:
    run = await stage.run([asks("a"), asks("b"), "done"], [look], settings=PRICED, instructions="Look things up.")
    rows = await kept(stage, run.handle.id, 3)
    assert used(rows) == run.result.usage
    assert sum(row.cost_usd or Decimal("nan") for row in rows) == run.result.cost_usd
    assert [(row.kind, row.step, row.attempt, row.status, row.agent) for row in rows] == [
        ("model", step, 1, "ok", "subject") for step in (1, 2, 3)
    ]
    prompts = [row.prompt for row in rows]
    assert all(prompt and prompt.instructions > 0 for prompt in prompts)
    first, second, third = prompts
    assert first
    assert second
    assert third
    assert (first.reread, first.results) == (0, {})
    assert 0 < second.reread < third.reread < rows[2].usage.input_tokens
    assert 0 < second.results["look"] < third.results["look"]


async def test_attempts_that_failed_are_rows_of_their_own(stage: Any, raw_model: Any) -> None:
    errors = [ModelError("server", "down", usage=Usage(input_tokens=5)), ModelError("rate_limited", "slow")]

    def reply(_: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return ModelReply(text="done", usage=Usage(input_tokens=10, output_tokens=3))

    run = await stage.run(raw_model(reply), settings=PRICED)
    rows = await kept(stage, run.handle.id, 3)
    assert [(row.attempt, row.status, row.why, row.usage.input_tokens) for row in rows] == [
        (1, "failed", "server", 5),
        (2, "failed", "rate_limited", 0),
        (3, "ok", "", 10),
    ]
    assert used(rows) == run.result.usage
    assert [row.sent_at for row in rows] == sorted(row.sent_at for row in rows if row.sent_at)


async def test_a_call_that_fails_for_good_leaves_its_requests(stage: Any, raw_model: Any) -> None:
    def refuse(_: Any) -> None:
        raise ModelError("authentication", "no", usage=Usage(input_tokens=4))

    run = await stage.run(raw_model(refuse))
    (row,) = await kept(stage, run.handle.id)
    assert (row.status, row.why, row.usage.input_tokens, row.cost_usd) == ("failed", "authentication", 4, None)


async def test_rows_of_all_executions_of_a_run_make_up_its_usage(stage: Any) -> None:
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 40})
    limits = Limits(steps=100, input_tokens=None, output_tokens=None)
    run = await stage.run([*(asks(str(n)) for n in range(9)), "done"], [look], limits=limits, settings=PRICED)
    assert run.projection.executions >= 1
    rows = await kept(stage, run.handle.id, 10)
    assert used(rows) == run.result.usage
    assert [row.step for row in rows] == list(range(1, 11))
    assert all(row.prompt and row.prompt.results for row in rows[1:])
    assert (await archived(stage, run.handle.id, 2)).result


async def test_a_resumed_run_adds_to_its_rows(stage: Any) -> None:
    run = await stage.run([asks("a"), "half", "all"], [look], limits=Limits(steps=2), settings=PRICED)
    await run.handle.resume(add_steps=3)
    again = await stage.end(run.handle)
    rows = await kept(stage, run.handle.id, 3)
    assert len(rows) == 3
    assert used(rows) == again.result.usage


async def test_what_a_run_has_cost_is_what_it_has_used_with_the_runs_that_it_called(stage: Any) -> None:
    scout = stage.agent([asks("a"), "Rome it is"], [look], name="scout", settings=PRICED)
    guide = [{"calls": [{"name": "scout", "arguments": {"task": "find a place"}}]}, "go to Rome"]
    run = await stage.run(guide, [scout.as_tool("Finds places.")], name="guide", settings=PRICED)
    stage.audit(stage.client.handle(f"{run.handle.id}/1.1"))
    found = await stage.client.cost(run=run.handle.id, by="run")
    assert [(one.name, one.requests) for one in sorted(found.groups, key=lambda one: one.name)] == [
        (run.handle.id, 2),
        (f"{run.handle.id}/1.1", 2),
    ]
    assert (found.total.usage, found.total.cost_usd) == (run.result.usage, run.result.cost_usd)


async def test_a_request_that_was_broken_off_by_the_end_of_its_run_is_estimated(stage: Any, raw_model: Any) -> None:
    async def hang(_: Any) -> None:
        await asyncio.Event().wait()

    model = raw_model(lambda _: None)
    model.generate = hang
    agent = stage.agent(model, settings=PRICED)
    await stage.serve(agent)
    handle = await stage.client.start(agent, "say " * 400, task_queue=stage.queue)
    await stage.until_held(handle, "perdure.model")
    await stage.client.temporal.get_workflow_handle(handle.id).terminate("enough")
    await stage.end(handle)

    async def load(_: Any) -> Any:
        raise LookupError

    (row,) = await rows_of(await handle.projection(), "default", load)
    assert (row.status, row.usage.estimated, row.cost_usd) == ("lost", True, None)
    assert 400 <= row.usage.input_tokens < 600
