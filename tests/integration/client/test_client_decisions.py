"""Decisions from outside: which take, which do not, and those that wait until a worker is back."""

from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from perdure import DecisionRejected
from perdure.identity import whoami
from perdure.messages import AssistantMessage
from perdure.state import CallStatus
from tests.integration.client.office import ASKS, own_state, same_as_its_history, told, unseen, until

# -- deciding -------------------------------------------------------------------------------------------------


async def test_approved_call_is_executed_and_who_approved_it_is_told(office):
    handle = await office.start(5, "Done.")
    request = await until(handle, "approval_requested")
    receipt = await handle.approve(request.call, hash=request.hash, by="Ann", reason="fine")
    assert (receipt.accepted, receipt.call, receipt.reason) == (True, "1.1", "")
    assert (await handle.result()).text == "Done."
    assert office.paid == [5]
    (decided,) = await told(handle, "approval_decided")
    assert (decided.by, decided.via, decided.reason, decided.approve) == ("Ann", "update", "fine", True)


async def test_edited_arguments_are_executed_instead_and_wrong_ones_refused(office):
    handle = await office.start(5, "Done.")
    await until(handle, "approval_requested")
    with pytest.raises(DecisionRejected, match="'much' is not of type 'number'") as caught:
        await handle.approve(arguments={"amount": "much"})
    assert caught.value.reason == "invalid_edit"
    await handle.approve(arguments={"amount": 4})
    result = await handle.result()
    assert office.paid == [4]
    assert result.calls[0].arguments == {"amount": 4}
    assert [event.via for event in await told(handle, "decision_refused")] == ["update"]


async def test_denied_call_is_never_executed(office):
    handle = await office.start(5, "Then not.")
    await until(handle, "approval_requested")
    await handle.deny(reason="too dear")
    assert (await handle.result()).calls[0].status == "denied"
    assert office.paid == []
    (decided,) = await told(handle, "approval_decided")
    assert (decided.by, decided.approve) == (whoami(), False)


async def test_decision_that_does_not_take_says_why(office):
    handle = await office.start(5, 6, "Done.")
    await until(handle, "approval_requested")

    async def refused(decision: Any) -> str:
        with pytest.raises(DecisionRejected) as caught:
            await decision
        assert str(caught.value).endswith(".")
        return caught.value.reason

    assert await refused(handle.approve("9.9")) == "unknown_call"
    assert await refused(handle.approve("1.1", hash="0" * 16)) == "stale_hash"
    assert await refused(handle.settle("1.1", "done")) == "not_in_doubt"
    await handle.approve("1.1")
    await until(handle, "approval_decided")
    assert await refused(handle.approve("1.1")) == "already_decided"
    async for event in handle.events():
        if event.type == "approval_requested" and event.call == "2.1":
            await handle.deny("2.1")
    await handle.result()
    left = [event.reason.partition(":")[0] for event in await told(handle, "decision_refused")]
    assert left == ["The run has no call '9.9'", "The outcome of call 1.1 is not in doubt"], "the others left no trace"
    assert await refused(handle.approve("1.1")) == "closed"
    assert await refused(handle.cancel()) == "closed"
    assert office.paid == [5]


async def test_call_in_doubt_is_settled_by_a_person(office):
    handle = await office.start(-1, "Done.", approval="never")
    doubt = await until(handle, "in_doubt")
    assert "the connection broke" in doubt.message
    await handle.settle(doubt.call, "done", result="paid at the desk", by="Ann")
    result = await handle.result()
    assert result.calls[0].status == "ok"
    (settled,) = await told(handle, "settled")
    assert (settled.outcome, settled.by) == ("done", "Ann")


async def test_decision_left_while_no_worker_is_there_takes_effect_when_one_is_back(office, client):
    agent = office.agent(5, "Done.")
    await office.serve(agent)
    handle = await client.start(agent, "go", task_queue=office.queue)
    await until(handle, "approval_requested")
    await own_state(client, handle)
    await office.stop()
    receipt = await handle.approve("1.1", by="Ann")
    assert (receipt.accepted, receipt.reason) == (True, "queued")
    assert "takes effect when one is back" in receipt.message
    assert [event.by for event in await told(handle, "approval_decided")] == ["Ann"]
    await office.serve(agent)
    assert (await handle.result()).text == "Done."
    assert office.paid == [5]
    assert [event.by for event in await told(handle, "approval_decided")] == ["Ann"]
    assert await same_as_its_history(client, handle)


async def test_settlement_left_while_no_worker_is_there_is_taken_once_though_it_was_sent_by_two_ways(office, client):
    agent = office.agent(-1, "Done.", approval="never")
    await office.serve(agent)
    handle = await client.start(agent, "go", task_queue=office.queue)
    await until(handle, "in_doubt")
    await own_state(client, handle)
    await office.stop()
    assert (await handle.settle("1.1", "retry", by="Ann")).reason == "queued"
    await office.serve(agent)
    async for event in client.temporal.get_workflow_handle(handle.id).fetch_history_events(wait_new_event=True):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
            break  # the second way has been heard to its end
    await until(handle, "in_doubt", nth=2)
    assert (await own_state(client, handle)).calls[0].status is CallStatus.IN_DOUBT
    assert office.tried == 2, "one word of a person is one try"
    await handle.settle("1.1", "not-done")
    assert (await handle.result()).text == "Done."
    assert [event.outcome for event in await told(handle, "settled")] == ["retry", "not-done"]
    assert not await told(handle, "decision_refused")
    assert await same_as_its_history(client, handle)


async def test_decision_and_the_request_that_it_answers_may_reach_the_workflow_together(office, client):
    agent, handle = await unseen(office, ASKS)
    receipt = await handle.approve("1.1", by="Ann")
    assert receipt.reason == "queued"
    await office.serve(agent)
    assert (await handle.result()).text == "Done."
    assert office.paid == [5]
    assert [event.by for event in await told(handle, "approval_decided")] == ["Ann"]
    assert await same_as_its_history(client, handle)


@pytest.mark.parametrize(
    ("name", "decision", "status"),
    [
        ("approve", {"by": "Ann"}, "ok"),
        ("approve", {"call": "c1", "arguments": {"amount": 4}}, "ok"),
        ("deny", {"call": "1.1", "reason": "no"}, "denied"),
    ],
)
async def test_plain_signal_and_the_request_that_it_answers_may_arrive_together(office, client, name, decision, status):
    agent, handle = await unseen(office, ASKS)
    await client.temporal.get_workflow_handle(handle.id).signal(name, decision)
    await office.serve(agent)
    result = await handle.result()
    assert result.calls[0].status == status
    assert office.paid == ([decision.get("arguments", {"amount": 5})["amount"]] if status == "ok" else [])
    assert not await told(handle, "decision_refused")
    assert await same_as_its_history(client, handle)


async def test_signal_about_a_call_that_never_comes_is_refused_and_holds_nothing_up(office, client):
    answer = AssistantMessage(role="assistant", text="Nothing to pay.")
    agent, handle = await unseen(office, answer)
    await client.temporal.get_workflow_handle(handle.id).signal("approve", "1.1")
    await office.serve(agent)
    assert (await handle.result()).text == "Nothing to pay."
    (refused,) = await told(handle, "decision_refused")
    assert "The run has no call '1.1'" in refused.reason
    assert await same_as_its_history(client, handle)


async def test_early_decisions_about_one_call_are_taken_once(office, client):
    agent, handle = await unseen(office, ASKS)
    workflow = client.temporal.get_workflow_handle(handle.id)
    await workflow.signal("approve", {"call": "1.1", "by": "Ann"})
    await workflow.signal("deny", {"call": "1.1", "by": "Ben"})
    await workflow.signal("approve", {"call": "7.7", "by": "Cid"})
    await office.serve(agent)
    assert (await handle.result()).calls[0].status == "ok"
    assert [event.by for event in await told(handle, "approval_decided")] == ["Ann"]
    assert len(await told(handle, "decision_refused")) == 2
    assert await same_as_its_history(client, handle)
