"""A run as a tree of spans: where its time and money went, who decided what, and what others may see of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Annotated, Any

import pytest

from perdure.cli import trace as cli
from perdure.cli.trace_page import page
from perdure.errors import ModelError, ToolError
from perdure.messages import Usage
from perdure.models import ModelReply
from perdure.sensitive import Sensitive
from perdure.testing import ScriptedModel
from perdure.tools import Done, ToolContext, ask_user, tool
from perdure.tracing import Axis, Span, Trace
from tests.integration.archiving import archived

PHONE = "13812345678"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e'\"&amp;]]>"


@tool(effect="read")
async def look(q: str) -> str:
    """Look."""
    return f"result of {q}"


@tool(approval="always")
async def call(number: Annotated[str, Sensitive("phone")], note: str = "") -> str:
    """Call somebody."""
    if note == "busy":
        raise ToolError(f"{number} is busy.")
    return f"called {number}"


def shape(span: Span) -> Any:
    """Return the tree of kinds and ends."""
    return [(one.kind, one.call, one.status, shape(one)) for one in span.spans]


def find(trace: Trace, kind: str) -> list[Span]:
    return [one for _, one in trace.root.walk() if one.kind == kind]


def asks(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


class Tags(HTMLParser):
    """The tags of a page, and everything in it that could load or execute something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.active: list[Any] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.active += [
            (tag, name, value)
            for name, value in attrs
            if name.startswith("on") or name == "src" or (name == "href" and not (value or "").startswith("#"))
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    return tags


async def test_the_tree_tells_of_steps_calls_attempts_and_who_decided(stage: Any, raw_model: Any) -> None:
    errors = [ModelError("server", "down", usage=Usage(input_tokens=5))]
    scripted: list[Any] = [asks("look", q="a"), asks("call", number="1", note="busy"), "done"]
    model = ScriptedModel(scripted)

    async def generate(request: Any) -> ModelReply:
        if errors:
            raise errors.pop()
        return await model.generate(request)

    raw = raw_model(lambda _: None)
    raw.generate = generate
    handle = await stage.start(raw, [look, call])
    await stage.until(handle, "approval_requested")
    waiting = await handle.trace()
    assert (waiting.status, waiting.root.end) == ("waiting_approval", None)
    assert [(one.status, one.end) for one in find(waiting, "approval")] == [("waiting", None)]
    await handle.approve(by="ann", reason="go ahead")
    await stage.end(handle)
    trace = await handle.trace()
    assert trace.status == "completed"
    assert shape(trace.root) == [
        (
            *("step", "", "ok"),
            [
                ("model", "", "ok", [("request", "", "failed", []), ("request", "", "ok", [])]),
                ("tool", "1.1", "ok", []),
            ],
        ),
        (
            *("step", "", "ok"),
            [
                ("model", "", "ok", []),
                ("tool", "2.1", "error", [("approval", "2.1", "approved", []), ("attempt", "2.1", "error", [])]),
            ],
        ),
        ("step", "", "ok", [("model", "", "ok", [])]),
    ]
    (approval,) = find(trace, "approval")
    assert (approval.by, approval.via) == ("ann", "update")
    assert "go ahead" in approval.why
    (looked, called) = find(trace, "tool")
    assert (looked.input, looked.output) == ({"q": "a"}, "result of a")
    assert "busy" in called.why
    assert trace.usage == (await handle.result()).usage
    for _, one in trace.root.walk():
        assert one.end is not None
        assert all(one.start <= part.start for part in one.spans)
        assert one.end >= one.start


async def test_what_a_question_was_answered_and_by_whom_is_told(stage: Any) -> None:
    handle = await stage.start([asks("ask_user", question="Which day?"), "done"], [ask_user])
    await stage.until(handle, "asked")
    await handle.answer("Monday", by="ann")
    await stage.end(handle)
    (question,) = find(await handle.trace(), "question")
    assert (question.status, question.by, question.why, question.output) == ("answered", "ann", "Which day?", "Monday")


async def test_a_long_run_is_one_tree_and_the_same_from_the_archive(stage: Any, forgetful: Any) -> None:
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 40})
    run = await stage.run([*(asks("look", q=str(n)) for n in range(9)), "done"], [look])
    assert run.projection.executions >= 1
    trace = await run.handle.trace()
    assert [one.name for one in find(trace, "step")] == [f"step {n}" for n in range(1, 11)]
    assert [one.output for one in find(trace, "tool")] == [f"result of {n}" for n in range(9)]
    assert [one.status for one in find(trace, "put_away")] == ["ok"] * run.projection.executions
    await archived(stage, run.handle.id, run.projection.executions + 1)
    kept = await forgetful.handle(run.handle.id).trace()
    assert kept == trace


async def test_nothing_that_was_written_becomes_part_of_the_page(stage: Any) -> None:
    @tool(effect="read")
    async def fetch(q: str) -> str:
        """Fetch."""
        return HOSTILE

    script = [{"text": HOSTILE, "calls": [{"name": "fetch", "arguments": {"q": HOSTILE}}]}, HOSTILE]
    run = await stage.run(script, [fetch], task=f"look {HOSTILE}")
    told = read(page(await run.handle.trace()))
    assert not told.tags & {"script", "img", "iframe", "link", "object", "base", "form"}
    assert told.active == []
    assert told.text.count("<script>alert(1)</script>") >= 4
    assert "\x1b" not in told.text
    assert "\u202e" not in told.text


async def test_a_redacted_trace_has_nothing_private_in_it(stage: Any) -> None:
    script = [
        {"text": f"I call {PHONE}.", "calls": [{"name": "call", "arguments": {"number": PHONE, "note": "busy"}}]},
        {"text": f"{PHONE} is busy."},
    ]
    handle = await stage.start(script, [call], task=f"Call {PHONE}, for Li Xiaoming.")
    await stage.until(handle, "approval_requested")
    await handle.approve(by="ann", reason=f"{PHONE} is right")
    await stage.end(handle)
    whole, hidden = await handle.trace(), await handle.trace(redacted=True)
    assert PHONE in whole.model_dump_json()
    assert PHONE in page(whole)
    assert hidden.redacted
    assert PHONE not in hidden.model_dump_json()
    assert PHONE not in page(hidden)
    assert PHONE not in "".join(cli.lines(hidden, 120))
    assert "138****5678" in page(hidden)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
async def test_a_trace_fits_the_terminal_and_obeys_nobody(stage: Any, width: int) -> None:
    from rich.cells import cell_len

    script = [{"text": HOSTILE, "calls": [{"name": "look", "arguments": {"q": "航班 " * 30}}]}, HOSTILE]
    trace = await (await stage.run(script, [look], task=HOSTILE, name="agent-with-a-long-name")).handle.trace()
    lines = cli.lines(trace, width)
    assert max(map(cell_len, lines)) <= width
    assert not any("\x1b" in line or "\u202e" in line for line in lines)
    assert any(line.strip().startswith("1.1 look") for line in lines)


async def test_stretches_in_which_nothing_was_done_take_little_room(stage: Any) -> None:
    from datetime import timedelta

    run = await stage.run([asks("look", q="a"), "done"], [look])
    trace = await run.handle.trace()
    late = trace.root.spans[1]
    days = timedelta(days=3)
    moved = late.model_copy(
        update={
            "start": late.start + days,
            "end": (late.end or late.start) + days,
            "spans": [
                one.model_copy(update={"start": one.start + days, "end": (one.end or one.start) + days})
                for one in late.spans
            ],
        }
    )
    root = trace.root.model_copy(update={"spans": [trace.root.spans[0], moved], "end": moved.end})
    axis = Axis(trace.model_copy(update={"root": root, "at": moved.end}))
    first, last = trace.root.spans[0], moved
    assert axis.at(last.start) - axis.at(first.end or first.start) < 0.2
    assert [axis.at(axis.start), axis.at(axis.end)] == [0, 1]
    places = [axis.at(moment) for moment in (first.start, first.end or first.start, last.start, axis.end)]
    assert places == sorted(places)
    assert axis.shortened


async def test_the_runs_that_a_run_has_called_are_part_of_its_tree(stage: Any) -> None:
    scout = stage.agent([asks("call", number=PHONE), "Rome it is"], [call], name="scout")
    guide = [asks("scout", task="find Li Xiaoming"), "go to Rome"]
    handle = await stage.start(guide, [scout.as_tool("Finds places.")], name="guide")
    child = stage.client.handle(f"{handle.id}/1.1")
    stage.audit(child)
    await stage.until(handle, "tool_started")
    await stage.until(child, "approval_requested")
    await child.approve(by="ann")
    done = await stage.end(handle)
    trace = await handle.trace()
    (scouted,) = [one for one in find(trace, "tool") if one.name == "scout"]
    (run,) = scouted.spans
    assert (run.kind, run.run, run.name, [one.name for one in run.spans]) == (
        "run",
        child.id,
        "scout",
        ["step 1", "step 2"],
    )
    assert trace.usage == done.result.usage
    assert [one.by for one in find(trace, "approval")] == ["ann"]
    assert sum((one.usage for one in trace.root.spans if one.usage), Usage()) == trace.usage
    ids = re.findall(r' id="([^"]+)"', page(trace))
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'href="#([^"]+)"', page(trace))) <= set(ids)
    hidden = await handle.trace(redacted=True)
    assert PHONE not in page(hidden) + hidden.model_dump_json()


async def test_what_was_looked_up_or_settled_after_an_attempt_was_lost_is_told(stage: Any) -> None:
    def done(ctx: ToolContext) -> Done:
        return Done(f"done under {ctx.idempotency_key[-3:]}")

    @tool(probe=done)
    async def pay() -> str:
        """Pay."""
        raise OSError("connection reset")

    @tool
    async def post() -> str:
        """Post."""
        raise OSError("connection reset")

    handle = await stage.start([asks("pay"), asks("post"), "paid"], [pay, post])
    await stage.until(handle, "in_doubt")
    await handle.settle("2.1", "done", result="posted", by="ann", reason="seen in the outbox")
    await stage.end(handle)
    paid, posted = find(await handle.trace(), "tool")
    assert [(one.kind, one.status) for one in paid.spans] == [("attempt", "lost")]
    assert "looked up: done" in paid.spans[0].why
    assert (paid.status, paid.output) == ("ok", "done under 1.1")
    attempt, doubt = posted.spans
    assert (attempt.status, attempt.why) == ("lost", "OSError: connection reset")
    assert (doubt.kind, doubt.status, doubt.by) == ("doubt", "done", "ann")
    assert "outbox" in doubt.why
