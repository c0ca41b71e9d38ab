"""What travels: small, stable, and read by older and newer code alike."""

from datetime import timedelta

import pytest

from perdure.budgets import Additions
from perdure.engine.converter import data_converter
from perdure.messages import AssistantMessage, ToolCall, UserMessage, content_hash
from perdure.policies import AgentSpec, Limits, ToolSpec
from perdure.resuming import carried_on
from perdure.state import begin
from perdure.wire import JudgeInput, ModelInput, Page, ProbeInput, RunRequest, ToolInput, edit_id, opening_state

SPEC = AgentSpec(
    name="a", model="m:m", tools=[ToolSpec(name="look", description="Look.", parameters={"type": "object"})]
)
CALL = ToolInput(agent="a", call_id="c", position="1.1", key="k", arguments={"n": None}, timeout=timedelta(seconds=3))
PAGE = Page(
    messages=[
        UserMessage(role="user", content="go"),
        AssistantMessage(role="assistant", calls=[ToolCall(id="c", name="look")], reasoning=[{"a": [1]}]),
    ]
)


@pytest.mark.parametrize(
    "value",
    [
        RunRequest(spec=SPEC, input="上海"),
        RunRequest(spec=SPEC, carried=begin("r", SPEC, "go", None, "e")),
        ModelInput(agent="a", spec="s", step=1, length=1, head="h", new=["x"]),
        PAGE,
        CALL,
        ProbeInput(tool="look", call=CALL),
        JudgeInput(agent="a", spec=SPEC, tool="look", arguments={"n": [1, {"m": "x"}]}),
    ],
)
async def test_payload_comes_back_as_what_it_was_without_its_defaults(value):
    payloads = await data_converter.encode([value])
    (back,) = await data_converter.decode(payloads, [type(value)])
    assert back == value
    assert b"null" not in payloads[0].data or b'"n":null' in payloads[0].data


async def test_payload_of_a_newer_version_is_read_as_far_as_it_is_known():
    (payload,) = await data_converter.encode([{**CALL.model_dump(mode="json"), "news": {"a": 1}}])
    assert await data_converter.decode([payload], [ToolInput]) == [CALL]


def test_run_begins_with_its_input_and_the_agents_limits_unless_the_task_has_its_own():
    state = opening_state(RunRequest(spec=SPEC, input="go"), "run", "0123456789ab")
    assert (state.run_id, state.execution, state.limits) == ("run", "0123456789ab", SPEC.limits)
    assert state.messages == [UserMessage(role="user", content="go")]
    own = opening_state(RunRequest(spec=SPEC, input="go", limits=Limits(steps=3)), "run", "e")
    assert own.limits.steps == 3


def test_resumed_run_goes_on_with_keys_of_its_own_and_leaves_the_carried_state_alone():
    closed = begin("run", SPEC, "go", None, "old")
    carried = carried_on(closed, Additions(steps=2))
    state = opening_state(RunRequest(spec=SPEC, carried=carried), "run", "new-execution")
    assert (state.execution, carried.execution) == ("ew-execution", "old")
    state.messages.clear()
    assert carried.messages


def test_ids_of_edits_tell_calls_and_people_apart():
    ids = {edit_id(position, by) for position in ("1.1", "1.11") for by in ("signal 1", "signal 2", "update u")}
    assert len(ids) == 6


def test_hash_of_a_message_does_not_depend_on_whether_defaults_were_written():
    message = PAGE.messages[1]
    short = AssistantMessage.model_validate_json(message.model_dump_json(exclude_defaults=True))
    assert content_hash(message) == content_hash(short)
