"""Whatever a model writes, or fails with, the run ends as the table of failures says, and says why."""

from datetime import timedelta

import pytest

from perdure.errors import AgentError, ModelError
from perdure.messages import Usage
from perdure.models import ModelReply
from perdure.policies import Limits, ModelSettings
from perdure.tools import Tool, tool

CALL = {"name": "search", "arguments": {"q": "x"}}


@tool(effect="read")
async def search(q: str, limit: int = 5) -> str:
    """Search."""
    return f"found {q}"


@tool(effect="read", name="look up")
async def look_up(q: str) -> str:
    """Look up."""
    return f"looked up {q}"


def nested(depth):
    """JSON text of a list in a list in a list."""
    return "[" * depth + "]" * depth


# -- calls that can't be executed ----------------------------------------------------------------------------

WRONG = {
    "invalid_json": ("search", '{"q": ', "invalid_json", "not valid JSON"),
    "words": ("search", "please search", "invalid_json", "not valid JSON"),
    "not_a_number": ("search", '{"q": "x", "limit": NaN}', "invalid_json", "NaN is not JSON"),
    "list": ("search", '["x"]', "invalid_arguments", "have to be a JSON object, not list"),
    "null": ("search", "null", "invalid_arguments", "have to be a JSON object"),
    "missing_field": ("search", "{}", "invalid_arguments", "'q' is a required property"),
    "no_arguments": ("search", "", "invalid_arguments", "'q' is a required property"),
    "extra_field": ("search", '{"q": "x", "colour": "red"}', "invalid_arguments", "there is no 'colour'"),
    "wrong_type": ("search", '{"q": 7}', "invalid_arguments", "7 is not of type 'string'"),
    "wrong_number": ("search", '{"q": "x", "limit": "five"}', "invalid_arguments", "is not of type 'integer'"),
    "unknown_tool": ("serch", '{"q": "x"}', "unknown_tool", "There is no tool 'serch'"),
    "no_name": ("", '{"q": "x"}', "unknown_tool", "There is no tool ''"),
    "long_name": ("x" * 3_000, "{}", "unknown_tool", "There is no tool 'xxx"),
    "odd_name": ("se\x00arch\ud800", "{}", "unknown_tool", "There is no tool"),
    "huge_integer": ("search", '{"q": "x", "limit": ' + "9" * 5_000 + "}", "invalid_json", "not valid JSON"),
    "deep": ("search", '{"q": ' + nested(101) + "}", "invalid_json", "nested deeper than 100 levels"),
    "deeper": ("search", '{"q": ' + nested(100_000) + "}", "invalid_json", "nested deeper than 100 levels"),
    "infinity": ("search", '{"q": "x", "limit": 1e999}', "invalid_json", "1e999 is not JSON"),
}


@pytest.mark.parametrize(("name", "arguments", "error_type", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.reported(25, 28)
async def test_a_call_that_does_not_fit_gets_a_result_that_says_what_was_wrong(
    stage, raw_model, raw_call, name, arguments, error_type, message
):
    reply = ModelReply(calls=[raw_call(name, arguments)], finish="calls")
    done = await stage.run(raw_model(reply, "done"), [search])
    assert done.result.status == "completed"
    [result] = done.results
    assert (result.status, result.error_type) == ("error", error_type)
    assert message in result.message
    assert result.message.endswith("Nothing was executed.")
    assert result.execution_order is None
    assert not done.told("tool_started")
    [event] = done.told("tool_finished")
    assert event.status == "error"
    assert message in event.message


@pytest.mark.reported(28)
async def test_the_bad_text_of_a_call_is_never_sent_back_as_its_arguments(stage, raw_model, raw_call):
    done = await stage.run(
        raw_model(ModelReply(calls=[raw_call("search", "{{oops")], finish="calls"), "done"), [search]
    )
    [call] = done.state.messages[1].calls
    assert call.arguments == {}


ARGUMENTS = {
    "big_integer": ('{"q": "x", "limit": ' + "9" * 4_000 + "}", lambda value: value["limit"] == 10**4_000 - 1),
    "half_an_emoji": (r'{"q": "\ud83d"}', lambda value: value["q"] == "?"),
    "null_character": (r'{"q": "\u0000"}', lambda value: value["q"] == "\0"),
    "one_megabyte": ('{"q": "' + "x" * 1_000_000 + '"}', lambda value: len(value["q"]) == 1_000_000),
}


@pytest.mark.parametrize(("arguments", "holds"), ARGUMENTS.values(), ids=ARGUMENTS)
async def test_odd_arguments_that_fit_reach_the_tool(stage, raw_model, raw_call, arguments, holds):
    seen = []

    async def keep(**arguments):
        seen.append(arguments)
        return "ok"

    kept = Tool.from_schema(
        keep, {"properties": {"q": {"type": "string"}, "limit": {"type": "integer"}}}, name="keep", description="Keep."
    )
    done = await stage.run(raw_model(ModelReply(calls=[raw_call("keep", arguments)], finish="calls"), "done"), [kept])
    assert done.result.status == "completed"
    assert [result.status for result in done.results] == ["ok"]
    assert len(seen) == 1
    assert holds(seen[0])


@pytest.mark.parametrize("depth", [90, 200, 300, 700, 950])
async def test_deeply_nested_arguments_are_executed_or_refused_but_never_wedge(stage, raw_model, raw_call, depth):
    @tool(effect="read")
    async def take(value: list[object]) -> str:
        """Take anything."""
        return "taken"

    reply = ModelReply(calls=[raw_call("take", '{"value": ' + nested(depth) + "}")], finish="calls")
    done = await stage.run(raw_model(reply, "done"), [take])
    assert done.result.status == "completed"
    [result] = done.results
    assert result.status == ("ok" if depth < 100 else "error")


@pytest.mark.reported(29)
async def test_a_name_with_spaces_is_the_tool_it_means(stage):
    written = ["look up", "look_up", "Look Up", "functions.look_up"]
    done = await stage.run(
        [{"calls": [{"name": name, "arguments": {"q": name}} for name in written]}, "done"], [look_up]
    )
    assert [result.content for result in done.results] == [f"looked up {name}" for name in written]
    assert {result.name for result in done.results} == {"look up"}


@pytest.mark.reported(18)
async def test_two_calls_with_one_id_have_a_result_each(stage):
    calls = [{**CALL, "arguments": {"q": q}, "id": "same"} for q in ("a", "b")]
    done = await stage.run([{"calls": calls}, {"calls": calls}, "done"], [search])
    assert [result.content for result in done.results] == ["found a", "found b"] * 2
    assert len({result.call_id for result in done.results}) == 4


async def test_good_calls_beside_bad_ones_are_executed(stage):
    calls = [{"name": "serch", "arguments": {}}, CALL, {"name": "search", "arguments": "{"}]
    done = await stage.run([{"calls": calls}, "done"], [search])
    assert [result.status for result in done.results] == ["error", "ok", "error"]
    assert done.result.status == "completed"


@pytest.mark.reported(39)
async def test_of_500_calls_in_a_turn_32_are_executed_and_the_rest_skipped(stage):
    calls = [{"name": "search", "arguments": {"q": str(number)}} for number in range(500)]
    done = await stage.run([{"calls": calls}, "done"], [search])
    assert [result.status for result in done.results] == ["ok"] * 32 + ["skipped"] * 468
    assert "at most 32 calls" in done.results[-1].message
    assert done.result.status == "completed"
    assert len(done.result.calls) == 500


# -- replies that are neither an answer nor calls ------------------------------------------------------------

UNUSABLE = {
    "empty": ({"text": ""}, "was empty"),
    "blank": ({"text": " \n "}, "was empty"),
    "cut_off": ({"text": "I was about to", "finish": "length"}, "cut off by the length limit"),
    "refusal": ({"text": "I can't help with that.", "finish": "refusal"}, "withheld or declined"),
    "filtered": ({"text": "", "finish": "filtered"}, "withheld or declined"),
}


@pytest.mark.parametrize(("reply", "note"), UNUSABLE.values(), ids=UNUSABLE)
async def test_the_model_is_told_of_an_unusable_reply_and_may_answer_again(stage, reply, note):
    done = await stage.run([reply, "done"], [search])
    assert done.result.status == "completed"
    assert done.result.text == "done"
    assert [note in text for text in done.notes] == [True]


@pytest.mark.parametrize("finish", ["length", "filtered"])
async def test_calls_of_a_reply_that_was_cut_off_are_not_executed(stage, finish):
    done = await stage.run([{"calls": [CALL, CALL], "finish": finish}, "done"], [search])
    assert [(result.status, result.error_type) for result in done.results] == [("error", "cut_off")] * 2
    assert not done.told("tool_started")
    assert done.result.status == "completed"


HOPELESS = {
    "empty": {"text": ""},
    "refusal": {"text": "no", "finish": "refusal"},
    "cut_off": {"calls": [CALL], "finish": "length"},
    "unknown_tool": {"calls": [{"name": "no"}]},
}


@pytest.mark.parametrize("reply", HOPELESS.values(), ids=HOPELESS)
@pytest.mark.reported(31)
async def test_three_unusable_replies_in_a_row_end_the_run_with_its_partial_work(stage, reply):
    done = await stage.run([{"text": "Looking.", "calls": [CALL]}, reply, reply, reply, "never said"], [search])
    assert (done.result.status, done.result.failure) == ("failed", "malformed_output")
    assert "3 unusable replies" in done.result.reason
    assert done.result.calls[0].status == "ok"
    assert done.result.text in ("Looking.", "no")
    assert done.result.steps == 4
    assert done.told("run_finished")[0].failure == "malformed_output"


async def test_a_usable_reply_in_between_starts_the_count_anew(stage):
    bad = {"text": ""}
    done = await stage.run([bad, bad, {"calls": [CALL]}, bad, bad, "done"], [search])
    assert done.result.status == "completed"


@pytest.mark.parametrize("letter", ["x", "字", "\\", "😀"], ids=["ascii", "chinese", "escaped", "emoji"])
@pytest.mark.reported(4)
async def test_a_reply_of_three_megabytes_counts_as_cut_off(stage, raw_model, letter):
    size = len(letter.encode())
    reply = ModelReply(text=letter * (3_000_000 // size), usage=Usage(input_tokens=7))
    done = await stage.run(raw_model(reply, "done"), [search])
    assert done.result.status == "completed"
    assert "cut off" in done.notes[0]
    assert done.result.usage.input_tokens == 7


@pytest.mark.parametrize("letter", ["x", "字"], ids=["ascii", "chinese"])
async def test_an_answer_of_over_a_megabyte_is_returned(stage, raw_model, letter):
    size = 1_300_000 // len(letter.encode())
    done = await stage.run(raw_model(letter * size), [search])
    assert (done.result.status, done.result.text) == ("completed", letter * size)


async def test_a_lone_surrogate_in_a_reply_does_not_matter(stage, raw_model, raw_call):
    odd = ModelReply(
        text="half an emoji: \ud83d",
        calls=[raw_call("search", '{"q": "x"}', id="id\udfff")],
        finish="calls",
        reasoning=[{"reasoning_content": "hm \ud83d"}],
        model="m\ud800",
    )
    done = await stage.run(raw_model(odd, "done"), [search])
    assert done.result.status == "completed"
    assert done.results[0].status == "ok"


# -- failures of the model -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["authentication", "quota", "bad_request", "content_filtered", "context_too_long"])
async def test_an_error_that_will_not_pass_ends_the_run_at_once_in_the_providers_words(stage, kind):
    done = await stage.run([{"calls": [CALL]}, {"error": {"kind": kind, "message": "Your credit is gone."}}], [search])
    assert (done.result.status, done.result.failure, done.result.reason) == ("failed", kind, "Your credit is gone.")
    assert done.result.calls[0].status == "ok"
    assert len(stage.model.requests) == 2
    [event] = done.told("model_failed")
    assert (event.error_type, event.message) == (kind, "Your credit is gone.")


@pytest.mark.parametrize("kind", ["connection", "overloaded"])
async def test_an_error_that_may_pass_is_tried_three_times(stage, kind):
    failure = {"error": {"kind": kind, "message": "Try later.", "retry_after": 0.01}}
    done = await stage.run([{**failure, "text": "never said"}], [search])
    assert (done.result.status, done.result.failure, done.result.reason) == ("failed", kind, "Try later.")
    assert len(stage.model.requests) == 3


async def test_an_error_that_passes_in_time_is_no_failure(stage):
    failure = {"error": {"kind": "server", "retry_after": 0.01}, "times": 2, "text": "done"}
    done = await stage.run([failure], [search])
    assert (done.result.status, done.result.text) == ("completed", "done")
    assert done.told("model_finished")[0].attempt == 3


@pytest.mark.reported(41)
async def test_a_rate_limit_uses_up_no_try(stage):
    limit = {"error": {"kind": "rate_limited", "retry_after": 0.01}, "times": 2, "text": "done"}
    done = await stage.run([limit], [search], settings=ModelSettings(attempts=1))
    assert (done.result.status, done.result.text) == ("completed", "done")


class Broken(Exception):
    def __str__(self):
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    "error",
    [KeyError("choices"), Broken(), ModelError("bad_request", "x" * 3_000_000), ValueError("字" * 2_000_000)],
    ids=["unforeseen", "broken_str", "long_words", "long_unforeseen"],
)
async def test_an_adapter_that_raises_anything_ends_the_run_by_name(stage, raw_model, error):
    def fail(_):
        raise error

    done = await stage.run(raw_model(fail), [search])
    assert done.result.status == "failed"
    assert done.result.failure == ("bad_request" if isinstance(error, ModelError) else "internal_error")
    assert 0 < len(done.result.reason) < 10_000


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
async def test_an_adapter_that_wants_to_end_the_process_ends_its_run_only(stage, raw_model, error):
    def fail(_):
        raise error

    done = await stage.run(raw_model(fail), [search])
    assert (done.result.status, done.result.failure) == ("failed", "internal_error")
    assert type(error).__name__ in done.result.reason


async def test_a_worker_refuses_an_agent_whose_model_nobody_provides(stage, stage_settings):
    agent = stage.agent(["done"])
    stranger = type(agent)("subject", [agent.spec.model, "nobody:x"])
    with pytest.raises(AgentError, match="'subject': model 'nobody:x': provider 'nobody' is not known here; known"):
        await stage.serve(stranger)
    with pytest.raises(AgentError, match=r"--model-rate.*provider 'nobody' is not known here; known providers are"):
        await stage.serve(agent, settings=stage_settings.model_copy(update={"model_rate": {"nobody": 5}}))


async def test_a_model_that_hangs_is_given_up_at_its_timeout(stage):
    settings = ModelSettings(timeout=timedelta(seconds=0.2), attempts=1)
    done = await stage.run([{"hang": True}], [search], settings=settings)
    assert (done.result.status, done.result.failure) == ("failed", "timeout")


# -- limits ---------------------------------------------------------------------------------------------------


@pytest.mark.reported(31)
async def test_the_last_turn_is_without_tools_and_its_answer_is_partial(stage):
    done = await stage.run([{"calls": [CALL]}, "so far: x"], [search], limits=Limits(steps=2))
    assert (done.result.status, done.result.text) == ("budget_exhausted", "so far: x")
    assert [request.answer_only for request in stage.model.requests] == [False, True]
    assert "no tool can be called any more" in done.notes[0]
    assert [event.answer_only for event in done.told("model_started")] == [False, True]
    assert done.told("run_finished")[0].status == "budget_exhausted"


@pytest.mark.reported(27)
async def test_a_model_that_calls_tools_on_its_last_turn_gets_none_executed(stage):
    last = {"text": "one more", "calls": [CALL]}
    done = await stage.run([{"calls": [CALL]}, last], [search], limits=Limits(steps=2))
    assert (done.result.status, done.result.text) == ("budget_exhausted", "one more")
    assert [result.status for result in done.results] == ["ok", "skipped"]
    assert len(done.told("tool_started")) == 1


async def test_a_run_with_all_its_steps_used_can_be_resumed_with_more(stage):
    script = [{"calls": [CALL]}, "so far", {"calls": [CALL]}, "all"]
    handle = await stage.start(script, [search], limits=Limits(steps=2))
    assert (await stage.end(handle)).result.status == "budget_exhausted"
    done = await stage.end(await handle.resume(add_steps=3))
    assert (done.result.status, done.result.text) == ("completed", "all")
    assert [result.status for result in done.results] == ["ok", "ok"]


@pytest.mark.reported(32)
async def test_a_repeated_call_is_told_at_the_third_and_refused_at_the_fifth(stage):
    done = await stage.run([{"calls": [CALL]}] * 6 + ["done"], [search])
    assert [result.status for result in done.results] == ["ok"] * 4 + ["skipped"] * 2
    told = [note for note in done.notes if "times in a row" in note]
    assert "3 times in a row" in told[0]
    assert "gave the same result" in done.results[-1].message
    assert done.result.status == "completed"


async def test_a_repeated_call_whose_result_changes_is_never_refused(stage):
    count = iter(range(100))

    @tool(effect="read")
    async def poll() -> int:
        """Poll."""
        return next(count)

    done = await stage.run([{"calls": [{"name": "poll"}]}] * 8 + ["done"], [poll])
    assert [result.status for result in done.results] == ["ok"] * 8
    assert done.notes == []
