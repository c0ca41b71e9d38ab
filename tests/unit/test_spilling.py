"""Large results go into the store before they are reported: patiently, and never at the cost of the report."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from perdure.activities.spilling import NOT_KEPT, Spilling
from perdure.activities.stores import run_owner
from perdure.errors import ConnectionFailed
from perdure.messages import ToolResult
from perdure.reports import ToolReport, Unshaped
from perdure.results import RESULT_LIMIT, Output

CUT = ToolResult(call_id="c", name="read", status="ok", content="be", size=9)
SOON = timedelta(seconds=0.3)
LATE = timedelta(seconds=60)


class Flaky:
    """A store in memory that is away so many times, or always."""

    def __init__(self, failures: float = 0, error: Exception | None = None) -> None:
        self.left = failures
        self.error = error or ConnectionFailed("The store is away.")
        self.kept: dict[str, tuple[bytes, str]] = {}
        self.asked = asyncio.Event()

    def _answer(self) -> None:
        self.asked.set()
        if self.left > 0:
            self.left -= 1
            raise self.error

    async def put(self, data: bytes, owner: str) -> str:
        self._answer()
        self.kept["ref"] = (data, owner)
        return "ref"

    async def get(self, ref: str) -> bytes:
        self._answer()
        if ref not in self.kept:
            raise LookupError(ref)
        return self.kept[ref][0]

    async def own(self, refs: Any, owner: str) -> None:
        pytest.fail("what is put has its owner already")


class Silent(Flaky):
    """A store that takes everything and never answers."""

    async def put(self, data: bytes, owner: str) -> str:
        self.asked.set()
        await asyncio.Event().wait()
        return ""


async def keep(store: Flaky, patience: timedelta = LATE, whole: bytes | None = b"beginning") -> ToolResult:
    report: ToolReport = await ActivityEnvironment().run(Spilling(store, patience).keep, cut(whole))
    return report.result


def cut(whole: bytes | None = b"beginning", result: ToolResult = CUT) -> Output:
    return Output(ToolReport(result=result), whole)


async def test_the_whole_is_kept_for_the_run_and_the_result_says_where():
    store = Flaky()
    assert await keep(store) == CUT.model_copy(update={"ref": "ref"})
    assert store.kept == {"ref": (b"beginning", run_owner("default", "test"))}


async def test_a_result_that_is_whole_needs_no_store():
    store = Flaky(float("inf"))
    assert await keep(store, whole=None) == CUT
    assert not store.asked.is_set()


@pytest.mark.parametrize("error", [None, OSError("No space left on device"), RuntimeError("a driver's defect")])
async def test_a_store_that_is_away_for_a_while_is_waited_for(error):
    assert (await keep(Flaky(3, error))).ref == "ref"


@pytest.mark.parametrize("store", [Flaky(float("inf")), Silent()])
async def test_a_store_that_stays_away_costs_the_rest_and_never_the_report(store):
    kept = await keep(store, SOON)
    assert (kept.content, kept.size, kept.ref, kept.note) == ("be", 9, None, NOT_KEPT)


async def test_a_note_that_is_there_stays():
    noted = CUT.model_copy(update={"note": "It is not JSON."})
    kept = await ActivityEnvironment().run(Spilling(Flaky(9), timedelta()).keep, cut(result=noted))
    assert kept.result.note == f"It is not JSON. {NOT_KEPT}"


@pytest.mark.parametrize("store", [Flaky(float("inf")), Silent()])
async def test_a_cancellation_ends_the_waiting_and_the_call_is_reported(store):
    environment = ActivityEnvironment()
    keeping = asyncio.create_task(environment.run(Spilling(store, LATE).keep, cut()))
    await store.asked.wait()
    environment.cancel()
    assert (await keeping).result.note == NOT_KEPT


async def test_a_cancelled_call_still_keeps_its_result_where_the_store_is_there():
    environment, store = ActivityEnvironment(), Flaky(1)
    keeping = asyncio.create_task(environment.run(Spilling(store, LATE).keep, cut()))
    await store.asked.wait()
    environment.cancel()
    assert (await keeping).result.ref == "ref"


async def test_what_was_kept_is_read_once_the_store_is_back_and_what_is_gone_is_said_at_once():
    store = Flaky()
    await keep(store)
    store.left = 2
    assert await ActivityEnvironment().run(Spilling(store, LATE).read, "ref") == b"beginning"
    with pytest.raises(LookupError):
        await ActivityEnvironment().run(Spilling(store, LATE).read, "other")
    store.left = float("inf")
    with pytest.raises(ConnectionFailed, match="does not answer"):
        await ActivityEnvironment().run(Spilling(store, SOON).read, "ref")


@pytest.mark.parametrize("size", [0, RESULT_LIMIT, RESULT_LIMIT + 1])
async def test_what_a_compensation_needs_goes_along_and_a_large_one_is_kept(size):
    store, output = Flaky(1 if size > RESULT_LIMIT else 0), Output(ToolReport(result=CUT), None, b"x" * size)
    report = await ActivityEnvironment().run(Spilling(store, LATE).keep, output)
    kept = "ref" if size > RESULT_LIMIT else None
    assert report.returned == Unshaped(content="x" * min(size, RESULT_LIMIT), ref=kept)
    assert (report.result, store.asked.is_set()) == (CUT, bool(kept))
