"""Actions that wait for the answer: staged when the model asks, approved together, executed in order at the end."""

from datetime import timedelta

import pytest

from perdure.errors import DecisionRejected, ToolError
from perdure.policies import Approval, Limits
from perdure.tools import ToolContext, tool


def calling(*names):
    return {"calls": [{"name": "send", "arguments": {"to": name}} for name in names]}


class Post:
    """What was sent, and under which keys."""

    def __init__(self):
        self.sent = []
        self.keys = []

    def tool(self, trouble=None, **options):
        @tool(defer=True, **options)
        def send(to: str, ctx: ToolContext) -> str:
            """Send a letter."""
            self.sent.append(to)
            self.keys.append(ctx.idempotency_key)
            if trouble and to == "ben":
                raise trouble
            return f"sent to {to}"

        return send


@pytest.fixture
def post():
    return Post()


async def presented(stage, replies, tools, **options):
    handle = await stage.start(replies, tools, **options)
    return handle, await stage.until(handle, "approval_requested")


async def test_staged_actions_wait_for_the_answer_and_are_approved_and_executed_together(stage, post):
    handle, request = await presented(stage, [calling("ann"), calling("ben"), "I will send two."], [post.tool()])
    assert request.call == "staged"
    assert request.arguments == {
        "actions": [
            {"call": "1.1", "name": "send", "arguments": {"to": "ann"}},
            {"call": "2.1", "name": "send", "arguments": {"to": "ben"}},
        ]
    }
    assert post.sent == []
    await handle.approve(by="ann", hash=request.hash)
    done = await stage.end(handle)
    assert (done.result.status, done.result.text, done.result.reason) == ("completed", "I will send two.", None)
    assert post.sent == ["ann", "ben"]
    assert post.keys == [f"{handle.id}:{done.state.execution}:{position}" for position in ("1.1", "2.1")]
    assert [(call.status, call.message, call.execution_order) for call in done.result.calls] == [
        ("ok", "sent to ann", 1),
        ("ok", "sent to ben", 2),
    ]
    assert [result.status for result in done.results] == ["staged", "staged"]
    assert "after your final answer" in done.results[0].message
    finished = [(event.call, event.status) for event in done.told("tool_finished")]
    assert finished == [("1.1", "staged"), ("2.1", "staged"), ("1.1", "ok"), ("2.1", "ok")]


async def test_a_denial_ends_the_run_with_the_reason_and_nothing_executed(stage, post):
    handle, _ = await presented(stage, [calling("ann", "ben"), "Soon."], [post.tool()])
    await handle.deny("staged", by="ann", reason="not today")
    done = await stage.end(handle)
    assert (done.result.status, done.result.text) == ("completed", "Soon.")
    assert done.result.reason == "The staged actions were denied by ann: not today. Nothing of them was executed."
    assert [call.status for call in done.result.calls] == ["denied", "denied"]
    assert post.sent == []


async def test_after_one_that_fails_the_rest_is_skipped_and_the_run_says_so(stage, post):
    handle, _ = await presented(
        stage, [calling("ann", "ben", "cy"), "Soon."], [post.tool(ToolError("No such person."))]
    )
    await handle.approve()
    done = await stage.end(handle)
    assert done.result.status == "completed"
    assert done.result.reason == "1 of 3 staged actions were executed: call 1.2 was not."
    assert [call.status for call in done.result.calls] == ["ok", "error", "skipped"]
    assert done.result.calls[2].message == "Not executed: call 1.2 before it ended as error."
    assert post.sent == ["ann", "ben"]
    assert [event.status for event in done.told("tool_finished")][3:] == ["ok", "error", "skipped"]


async def test_one_in_doubt_holds_the_others_back_until_it_is_settled(stage, post):
    handle, _ = await presented(stage, [calling("ben", "cy"), "Soon."], [post.tool(OSError("reset"))])
    await handle.approve()
    await stage.until(handle, "in_doubt")
    assert post.sent == ["ben"]
    await handle.settle("1.1", "done")
    done = await stage.end(handle)
    assert [call.status for call in done.result.calls] == ["ok", "ok"]
    assert post.sent == ["ben", "cy"]


async def test_staged_actions_can_not_be_edited_nor_approved_one_by_one(stage, post):
    handle, _ = await presented(stage, [calling("ann"), "Soon."], [post.tool(approval="always")])
    with pytest.raises(DecisionRejected, match="arguments can't be changed"):
        await handle.approve("staged", arguments={"actions": []})
    with pytest.raises(DecisionRejected, match="as call staged"):
        await handle.approve("1.1")
    await handle.deny()


async def test_what_nobody_approves_in_time_is_not_executed(stage, post):
    rules = Approval(expires=timedelta(seconds=0.5))
    done = await stage.run([calling("ann"), "Soon."], [post.tool()], approval=rules)
    assert done.result.status == "completed"
    assert "denied by nobody" in done.result.reason
    assert post.sent == []


async def test_a_run_without_an_answer_executes_nothing_and_presents_it_when_it_is_resumed_to_its_answer(stage, post):
    handle = await stage.start([calling("ann"), "So far.", "Now."], [post.tool()], limits=Limits(steps=2))
    done = await stage.end(handle)
    assert done.result.status == "budget_exhausted"
    assert [call.status for call in done.result.calls] == ["staged"]
    await handle.resume(add_steps=3)
    await stage.until(handle, "approval_requested")
    await handle.approve()
    done = await stage.end(handle)
    assert (done.result.status, post.sent) == ("completed", ["ann"])


async def test_a_run_that_is_cancelled_while_it_asks_goes_on_asking_when_it_is_resumed(stage, post):
    handle, _ = await presented(stage, [calling("ann"), "Soon."], [post.tool()])
    await handle.cancel()
    done = await stage.end(handle)
    assert [call.status for call in done.result.calls] == ["staged"]
    await handle.resume()
    await stage.until(handle, "approval_requested")
    await handle.approve()
    assert [call.status for call in (await stage.end(handle)).result.calls] == ["ok"]
    assert post.sent == ["ann"]


async def test_what_was_executed_is_undone_if_the_run_is_cancelled_before_the_rest(stage, post):
    undone = []

    def take_back(ctx, result, to):
        undone.append((result, to))

    tools = [post.tool(OSError("reset"), compensate=take_back)]
    handle, _ = await presented(stage, [calling("ann", "ben", "cy"), "Soon."], tools, compensate_on=["cancelled"])
    await handle.approve()
    await stage.until(handle, "in_doubt")
    await handle.cancel()
    done = await stage.end(handle)
    assert undone == [("sent to ann", "ann")]
    assert [(one.position, one.status) for one in done.result.undone] == [("1.2", "not_known"), ("1.1", "undone")]
    assert post.sent == ["ann", "ben"]
