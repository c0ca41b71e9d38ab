"""An agent file that is edited, and a worker that is started anew, while a run waits for approval."""

from dataclasses import replace

import pytest

from perdure.policies import Approval, Limits
from perdure.tools import tool


def calling(seat, name="book", **more):
    return {"calls": [{"name": name, "arguments": {"seat": seat, **more}}]}


@pytest.fixture
def booked():
    """What was booked, in order."""
    return []


@pytest.fixture
def book(booked):
    @tool(approval="always")
    def book(seat: str) -> str:
        """Book a seat."""
        booked.append(seat)
        return f"booked {seat}"

    return book


@pytest.fixture
async def waiting(stage, book):
    """A run that waits for approval of call 1.1, with no worker any more."""
    script = [calling("1A"), calling("2B"), "done"]
    handle = await stage.start(script, [book], instructions="Be polite.", limits=Limits(steps=5))
    await stage.until(handle, "approval_requested")
    await stage.state(handle)
    await stage.stop()
    return handle


async def test_a_policy_that_was_dropped_still_holds_for_the_run(stage, waiting, booked):
    @tool(approval="never")
    def book(seat: str) -> str:
        """Book a seat."""
        booked.append(seat)
        return f"booked {seat}"

    edited = replace(stage.agents[0], tools=[book], approval=Approval(default="never", on_denial="stop"))
    await stage.serve(edited)
    await waiting.approve("1.1")
    event = await stage.until(waiting, "approval_requested", nth=2)  # still asked, by the old rules
    assert event.call == "2.1"
    await waiting.deny("2.1")
    done = await stage.end(waiting)
    assert (done.result.status, done.result.text) == ("completed", "done")  # and still not stopped by a denial
    assert booked == ["1A"]


async def test_prompt_and_limits_stay_those_with_which_the_run_started(stage, waiting):
    edited = replace(stage.agents[0], instructions="Be rude.", limits=Limits(steps=2))
    await stage.serve(edited)
    await waiting.approve("1.1")
    await stage.until(waiting, "approval_requested", nth=2)
    await waiting.approve("2.1")
    done = await stage.end(waiting)
    assert done.result.status == "completed"
    assert {request.instructions for request in stage.model.requests} == {"Be polite."}
    assert done.result.steps == 3


async def test_arguments_are_validated_by_the_schema_with_which_the_run_started(stage, waiting, booked):
    @tool(approval="always")
    def book(seat: str, cabin: str = "any") -> str:
        """Book a seat, in a cabin."""
        booked.append((seat, cabin))
        return f"booked {seat}"

    await stage.serve(replace(stage.agents[0], tools=[book]))
    await waiting.approve("1.1")
    await stage.until(waiting, "approval_requested", nth=2)
    assert [list(tool.parameters["properties"]) for tool in stage.model.requests[-1].tools] == [["seat"]]
    await waiting.approve("2.1")
    await stage.end(waiting)
    assert booked == [("1A", "any"), ("2B", "any")]


async def test_a_tool_whose_parameters_no_longer_fit_is_an_error_result_and_nothing_is_done(stage, waiting, booked):
    @tool(approval="always")
    def book(row: int, letter: str) -> str:
        """Book a seat."""
        booked.append((row, letter))
        return "booked"

    await stage.serve(replace(stage.agents[0], tools=[book]))
    await waiting.approve("1.1")
    await stage.until(waiting, "approval_requested", nth=2)
    await waiting.deny("2.1")
    done = await stage.end(waiting)
    first = done.results[0]
    assert (first.status, first.error_type) == ("error", "invalid_arguments")
    assert "row: Field required" in first.message
    assert first.message.endswith("Nothing was executed.")
    assert booked == []


async def test_a_tool_that_was_removed_is_an_error_result_that_says_so(stage, waiting, booked):
    await stage.serve(replace(stage.agents[0], tools=[]))
    await waiting.approve("1.1")
    await stage.until(waiting, "approval_requested", nth=2)
    await waiting.approve("2.1")
    done = await stage.end(waiting)
    assert [(result.status, result.error_type) for result in done.results] == [("error", "removed")] * 2
    assert done.results[0].message == "Tool 'book' of agent 'subject' is not there any more. Nothing was executed."
    assert done.result.status == "completed"
    assert booked == []


async def test_an_agent_that_was_removed_leaves_a_run_that_ends(stage, waiting, booked):
    await stage.serve(replace(stage.agents[0], name="another", tools=[]))
    await waiting.approve("1.1")
    await stage.until(waiting, "approval_requested", nth=2)
    await waiting.approve("2.1")
    done = await stage.end(waiting)
    assert [result.error_type for result in done.results] == ["removed"] * 2
    assert done.result.text == "done"
    assert booked == []


async def test_a_tool_that_became_safe_is_still_treated_as_unsafe(stage, booked):
    @tool
    def book(seat: str) -> str:
        """Book a seat."""
        booked.append(seat)
        raise OSError("reset")

    agent = stage.agent([calling("1A"), "done"], [book], approval="always")
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    await stage.serve(replace(agent, tools=[replace(book, spec=book.spec.model_copy(update={"effect": "read"}))]))
    await handle.approve()
    await stage.until(handle, "in_doubt")
    assert booked == ["1A"]
    await handle.settle("1.1", "done")
    await stage.end(handle)


async def test_a_predicate_that_was_removed_asks_a_person(stage, booked):
    @tool(approval=lambda seat: False)
    def book(seat: str) -> str:
        """Book a seat."""
        booked.append(seat)
        return f"booked {seat}"

    @tool(approval="always")
    def pay(seat: str) -> str:
        """Pay."""
        return "paid"

    agent = stage.agent([calling("1A", "pay"), calling("2B"), "done"], [book, pay])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    await stage.serve(
        replace(agent, tools=[replace(book, spec=book.spec.model_copy(update={"approval": None}), ask=None), pay])
    )
    await handle.approve()
    event = await stage.until(handle, "approval_requested", nth=2)
    assert "is not there any more, so a person is asked" in event.why
    await handle.approve()
    await stage.end(handle)
    assert booked == ["2B"]


async def test_a_run_that_starts_after_the_edit_has_the_new_rules(stage, waiting, booked):
    @tool(approval="never")
    def book(seat: str) -> str:
        """Book a seat."""
        booked.append(seat)
        return f"booked {seat}"

    edited = replace(stage.agents[0], tools=[book])
    await stage.serve(edited)
    done = await stage.end(await stage.start_again(edited))
    assert done.result.status == "completed"
    assert booked == ["1A", "2B"]
    await waiting.cancel()
    assert (await stage.end(waiting)).result.status == "cancelled"
