"""What a run did is undone where it ends cancelled or failed, the last first, and it says what could not be."""

import asyncio

import pytest

from perdure.errors import ToolError
from perdure.tools import Done, NotDone, tool


def calling(*names):
    return {"calls": [{"name": name, "arguments": {"seat": name[-1]}} for name in names]}


class World:
    """What was done and undone, in order, and under which keys."""

    def __init__(self):
        self.done = []
        self.undone = []
        self.keys = {}
        self.given = []

    def booking(self, name, *, undo=None, error=None, **options):
        """Return a tool that books, and can be undone."""

        def compensate(ctx, result, *, seat):
            self.undone.append(name)
            self.keys.setdefault(name, set()).add((ctx.undoes, ctx.idempotency_key))
            self.given.append((result, seat))
            return undo(ctx) if undo else f"{name} cancelled"

        def book(seat: str) -> dict[str, str]:
            self.done.append(name)
            if error:
                raise error
            return {"booked": seat}

        return tool(name=name, description="Book.", compensate=compensate, **options)(book)


@pytest.fixture
def world():
    return World()


WAITING = {"approval": "always"}


async def cancelled(stage, replies, tools, *, at="approval_requested", on=("cancelled",)):
    handle = await stage.start(replies, tools, compensate_on=on)
    await stage.until(handle, at)
    await handle.cancel("enough")
    return await stage.end(handle)


def asking(world, name="c"):
    return world.booking(name, approval="always")


async def test_what_was_done_is_undone_in_reverse_order_when_the_run_is_cancelled(stage, world):
    tools = [world.booking("a"), world.booking("b"), asking(world)]
    done = await cancelled(stage, [calling("a"), calling("b"), calling("c"), "done"], tools)
    assert (done.result.status, done.result.reason) == ("cancelled", "enough")
    assert (world.done, world.undone) == (["a", "b"], ["b", "a"])
    assert world.given == [({"booked": "b"}, "b"), ({"booked": "a"}, "a")]
    assert [(one.position, one.name, one.status, one.message) for one in done.result.undone] == [
        ("2.1", "b", "undone", "b cancelled"),
        ("1.1", "a", "undone", "a cancelled"),
    ]
    assert [(event.type, event.call) for event in done.projection.events if event.type.startswith("undo")] == [
        ("undoing", "2.1"),
        ("undone", "2.1"),
        ("undoing", "1.1"),
        ("undone", "1.1"),
    ]
    assert done.result.calls[-1].status == "cancelled"  # nobody can approve it any more


async def test_nothing_is_undone_unless_the_agent_says_so(stage, world):
    done = await cancelled(stage, [calling("a"), calling("c")], [world.booking("a"), asking(world)], on=["failed"])
    assert done.result.status == "cancelled"
    assert (world.undone, done.result.undone) == ([], [])


async def test_what_was_done_is_undone_when_the_run_fails_which_says_why(stage, world):
    trouble = {"error": {"kind": "authentication", "message": "bad key"}}
    done = await stage.run([calling("a"), trouble], [world.booking("a")], compensate_on=["failed"])
    assert (done.result.status, done.result.failure) == ("failed", "authentication")
    assert [one.status for one in done.result.undone] == ["undone"]
    assert world.undone == ["a"]


async def test_nothing_is_undone_when_the_run_completes(stage, world):
    done = await stage.run([calling("a"), "done"], [world.booking("a")], compensate_on=["cancelled", "failed"])
    assert (done.result.status, done.result.undone, world.undone) == ("completed", [], [])


async def test_an_undo_that_fails_is_tried_again_with_the_same_key(stage, world):
    def undo(ctx):
        if ctx.attempt < 2:
            raise OSError("reset")
        return "at last"

    done = await cancelled(stage, [calling("a"), calling("c")], [world.booking("a", undo=undo), asking(world)])
    [one] = done.result.undone
    assert (one.status, one.message) == ("undone", "at last")
    assert world.undone == ["a", "a"]
    [(undoes, key)] = world.keys["a"]
    assert undoes == f"{done.handle.id}:{done.state.execution}:1.1"
    assert key == f"{undoes}:undo"
    assert [event.attempt for event in done.told("undone")] == [2]


def refuse(ctx):
    raise ToolError("The plane has left.")


def fail(ctx):
    raise OSError("reset")


@pytest.mark.parametrize(
    ("undo", "options", "says"),
    [(refuse, {}, "The plane has left."), (fail, {"undo_attempts": 1}, "OSError: reset")],
    ids=["refused", "given_up"],
)
async def test_what_can_not_be_undone_is_listed_with_the_reason_and_the_rest_is_undone(
    stage, world, undo, options, says
):
    tools = [world.booking("a"), world.booking("b", undo=undo, **options), asking(world)]
    done = await cancelled(stage, [calling("a", "b"), calling("c")], tools)
    assert [(one.name, one.status, one.message) for one in done.result.undone] == [
        ("b", "failed", says),
        ("a", "undone", "a cancelled"),
    ]
    assert world.undone == ["b", "a"]


async def test_a_call_that_failed_has_nothing_to_undo(stage, world):
    tools = [world.booking("a", error=ToolError("Sold out.")), asking(world)]
    done = await cancelled(stage, [calling("a"), calling("c")], tools)
    assert (done.result.undone, world.undone) == ([], [])


async def test_an_effect_in_doubt_is_listed_as_not_known(stage, world):
    tools = [world.booking("a"), world.booking("b", error=OSError("reset"))]
    done = await cancelled(stage, [calling("a", "b")], tools, at="in_doubt")
    assert [(one.name, one.status, one.message) for one in done.result.undone] == [
        ("b", "not_known", "OSError: reset"),
        ("a", "undone", "a cancelled"),
    ]
    assert [event.status for event in done.told("undone")] == ["undone", "not_known"]


@pytest.mark.parametrize("found", [Done({"booked": "x"}), NotDone()], ids=["done", "not_done"])
async def test_an_effect_in_doubt_is_looked_up_before_it_is_undone(stage, world, found):
    asked = []
    looking = asyncio.Event()

    async def probe(ctx, seat):
        asked.append(seat)
        if len(asked) == 1:
            looking.set()
            await asyncio.sleep(30)
        return found

    tools = [world.booking("a"), world.booking("b", error=OSError("reset"), probe=probe, timeout=1)]
    handle = await stage.start([calling("a", "b")], tools, compensate_on=["cancelled"])
    await stage.until_held(handle, "perdure.probe")
    await handle.cancel()
    done = await stage.end(handle)
    assert asked[:2] == ["b", "b"]
    was = isinstance(found, Done)
    assert [one.name for one in done.result.undone] == (["b", "a"] if was else ["a"])
    assert world.undone == (["b", "a"] if was else ["a"])


async def test_a_call_under_way_is_stopped_before_anything_is_undone(stage, world):
    ended = []

    @tool(effect="read", timeout=30)
    async def dream() -> str:
        """Dream."""
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(list(world.undone))
        return "late"

    handle = await stage.start(
        [calling("a"), {"calls": [{"name": "dream"}]}], [world.booking("a"), dream], compensate_on=["cancelled"]
    )
    await stage.until_held(handle, "dream")
    await handle.cancel()
    done = await stage.end(handle)
    assert ended == [[]]
    assert [one.status for one in done.result.undone] == ["undone"]


async def test_a_second_cancellation_does_not_cut_off_the_undoing(stage, world, anchor):
    def undo(ctx):
        anchor.wait(20)
        return "gone"

    trouble = {"error": {"kind": "authentication", "message": "bad key"}}
    handle = await stage.start(
        [calling("a"), trouble], [world.booking("a", undo=undo)], compensate_on=["failed", "cancelled"]
    )
    await stage.until_held(handle, "perdure.undo")
    await handle.cancel()
    await stage.until(handle, "cancel_requested")
    anchor.set()
    done = await stage.end(handle)
    assert (done.result.status, [one.status for one in done.result.undone]) == ("failed", ["undone"])


async def test_a_run_that_is_resumed_is_told_what_was_undone_and_undoes_only_what_it_did_since(stage, world):
    tools = [world.booking("a"), world.booking("b", undo=refuse), asking(world)]
    replies = [calling("a", "b"), calling("c"), calling("a"), calling("c"), "done"]
    done = await cancelled(stage, replies, tools)
    assert world.undone == ["b", "a"]
    handle = await done.handle.resume()
    await stage.until(handle, "approval_requested")
    await handle.cancel()
    done = await stage.end(handle)
    [note] = done.notes
    assert "undone" in note
    assert "a (call 1.1)" in note
    assert "may still stand: b (call 1.2)" in note
    assert world.done == ["a", "b", "a"]
    assert world.undone == ["b", "a", "a", "b"]  # b once more: it could not be undone before
