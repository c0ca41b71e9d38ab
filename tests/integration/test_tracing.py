"""What OpenTelemetry is told of runs, received by a real endpoint."""

import asyncio
import itertools
import json
import threading
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from perdure import Task
from perdure.budgets import Additions
from perdure.errors import ToolError
from perdure.events import position_key
from perdure.policies import Limits
from perdure.telemetry import ids
from perdure.telemetry.executions import histories
from perdure.tools import ToolContext, tool
from tests.otlp import Endpoint

pytest.importorskip("opentelemetry.sdk")

PHONE = "13812345678"


@pytest.fixture
def endpoint(monkeypatch):
    """An endpoint that workers are told of, as they are everywhere."""
    with Endpoint.open() as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.address)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "60000")
        yield endpoint


def tree(spans):
    """Return the names of spans with those of their parents; "" for the root."""
    names = {span.span: span.name for span in spans}
    return [(span.name, names[span.parent] if span.parent else "") for span in spans]


@tool(effect="read")
async def look(q: str) -> str:
    """Look."""
    return f"found {q}, call {PHONE}"


@pytest.mark.reported(48)
async def test_a_run_is_one_tree_of_spans_by_the_conventions(endpoint, stage):
    script = [{"calls": [{"name": "look", "arguments": {"q": "a"}}]}, "done"]
    done = await stage.run(script, [look], name="teller")
    spans = await asyncio.to_thread(endpoint.of_run, done.handle.id)
    spans = [span for span in spans if span.attributes.get("error.type") != "worker_lost"]  # on a slow machine
    run = "invoke_agent teller"
    assert tree(spans) == [
        *((run, ""), ("chat scripted", run)),
        *(("execute_tool look", run), ("chat scripted", run)),
    ]
    root, chat, call, _ = spans
    assert {span.trace for span in spans} == {f"{ids.trace_id(stage.client.temporal.namespace, done.handle.id):032x}"}
    assert root.service == "perdure"
    assert root.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert root.attributes["gen_ai.conversation.id"] == done.handle.id
    assert root.attributes["perdure.run.status"] == "completed"
    assert root.attributes["gen_ai.usage.input_tokens"] == done.result.usage.input_tokens
    assert chat.attributes["gen_ai.request.model"] == "scripted"
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert chat.kind == 3  # CLIENT
    assert call.attributes["gen_ai.tool.name"] == "look"
    assert call.attributes["gen_ai.tool.call.id"]
    assert root.began <= chat.began <= chat.ended <= call.began <= call.ended <= root.ended


async def test_no_contents_are_told_unless_asked_for_and_then_redacted(endpoint, stage):
    script = [{"calls": [{"name": "look", "arguments": {"q": PHONE}}]}, f"call {PHONE}"]
    off = await stage.run(script, [look], task=f"I am {PHONE}")
    for span in await asyncio.to_thread(endpoint.of_run, off.handle.id):
        assert not [name for name in span.attributes if "messages" in name or "arguments" in name or "result" in name]
    assert PHONE.encode() not in b"".join(endpoint.bodies)

    agent = stage.agent(script, [look], name="open")
    await stage.serve(agent, settings=stage.client.settings.model_copy(update={"capture_content": "redacted"}))
    handle = await stage.start_again(agent, f"I am {PHONE}")
    await handle.result()
    root, chat, call, last = await asyncio.to_thread(endpoint.of_run, handle.id)
    assert "138****5678" in root.attributes["gen_ai.input.messages"]
    assert json.loads(call.attributes["gen_ai.tool.call.arguments"]) == {"q": "138****5678"}
    assert "138****5678" in call.attributes["gen_ai.tool.call.result"]
    assert json.loads(chat.attributes["gen_ai.output.messages"])[0]["parts"][0]["type"] == "tool_call"
    assert "found" in last.attributes["gen_ai.input.messages"]
    assert PHONE.encode() not in b"".join(endpoint.bodies)


@pytest.mark.reported(47)
async def test_each_attempt_has_a_span_and_says_why_it_failed(endpoint, stage):
    tries = []

    @tool(effect="idempotent")
    async def shaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise OSError("no")
        return "there"

    @tool
    async def wrong() -> str:
        """Never works."""
        raise ToolError("It is closed.", error_type="closed")

    script = [
        {"calls": [{"name": "shaky"}, {"name": "wrong"}]},
        {"error": {"kind": "server"}, "times": 1, "text": "done"},
    ]
    done = await stage.run(script, [shaky, wrong])
    spans = await asyncio.to_thread(endpoint.of_run, done.handle.id)
    told = [(span.name, span.attributes["perdure.attempt"], span.attributes.get("error.type")) for span in spans[1:]]
    assert [one for one in told if one[0] == "execute_tool shaky"] == [
        ("execute_tool shaky", 1, "OSError"),
        ("execute_tool shaky", 2, "OSError"),
        ("execute_tool shaky", 3, None),
    ]
    assert ("execute_tool wrong", 1, "closed") in told
    assert [one[2] for one in told if one[0].startswith("chat")] == [None, "server", None]
    assert len({span.span for span in endpoint.spans}) == len(endpoint.spans)
    shakes = [span for span in spans if span.name == "execute_tool shaky"]
    assert all(one.ended <= other.began for one, other in itertools.pairwise(shakes))


async def test_tools_work_within_their_span_also_in_threads(endpoint, stage):
    from opentelemetry import trace

    seen: dict[str, tuple[str, str]] = {}

    def note(ctx: ToolContext, name: str) -> None:
        current = trace.get_current_span().get_span_context()
        seen[name] = (ctx.traceparent, f"00-{current.trace_id:032x}-{current.span_id:016x}-01")

    @tool(effect="read")
    def threaded(ctx: ToolContext) -> str:
        """Work in a thread."""
        note(ctx, "threaded")
        return threading.current_thread().name

    @tool(effect="read")
    async def looped(ctx: ToolContext) -> str:
        """Work on a loop."""
        note(ctx, "looped")
        return "ok"

    done = await stage.run([{"calls": [{"name": "threaded"}, {"name": "looped"}]}, "done"], [threaded, looped])
    spans = {span.name: span for span in await asyncio.to_thread(endpoint.of_run, done.handle.id)}
    for name, (given, current) in seen.items():
        span = spans[f"execute_tool {name}"]
        assert given == current == f"00-{span.trace}-{span.span}-01"
    assert len(seen) == 2


async def test_nothing_is_told_and_tools_are_given_no_parent_where_it_is_off(stage):
    seen = []

    @tool(effect="read")
    async def looped(ctx: ToolContext) -> str:
        """Work."""
        seen.append(ctx.traceparent)
        return "ok"

    await stage.run([{"calls": [{"name": "looped"}]}, "done"], [looped])
    assert seen == [""]


async def test_an_approval_that_was_waited_for_is_a_span(endpoint, stage):
    @tool(approval="always")
    async def send() -> str:
        """Send."""
        return "sent"

    agent = stage.agent([{"calls": [{"name": "send"}]}, "done"], [send])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    await handle.approve("1.1", by="ada lovelace")
    await handle.result()
    spans = await asyncio.to_thread(endpoint.of_run, handle.id)
    (wait,) = [span for span in spans if span.name == "approval send"]
    assert wait.attributes["perdure.approval.decision"] == "approved"
    assert "lovelace" not in str(wait.attributes)
    (call,) = [span for span in spans if span.name == "execute_tool send"]
    assert wait.ended <= call.began + timedelta(milliseconds=5)


async def test_an_endpoint_that_does_not_answer_delays_nothing(stage, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    done = await stage.run([{"calls": [{"name": "look", "arguments": {"q": "a"}}]}, "done"], [look])
    assert done.result.status == "completed"
    assert done.result.duration < timedelta(seconds=20)


async def test_a_provider_of_the_application_gets_the_spans(stage, monkeypatch):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    done = await stage.run(["done"])
    root = f"{ids.trace_id(stage.client.temporal.namespace, done.handle.id):032x}"
    async with asyncio.timeout(30):
        while len(kept.get_finished_spans()) < 2:
            await asyncio.sleep(0.02)  # it can only be asked
    spans = kept.get_finished_spans()
    assert [span.name for span in spans] == ["chat scripted", "invoke_agent subject"]
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {root}
    assert provider.get_tracer("mine").start_span("mine").get_span_context().span_id  # its own ids are its own


async def test_a_run_that_is_a_call_of_another_is_in_the_same_tree(endpoint, stage):
    scout = stage.agent([{"calls": [{"name": "look", "arguments": {"q": "a"}}]}, "Rome"], [look], name="scout")
    asking = {"calls": [{"name": "scout", "arguments": {"task": "find a place"}}]}
    done = await stage.run([asking, "go"], [scout.as_tool("Finds places.")], name="guide")
    own = await asyncio.to_thread(endpoint.of_run, done.handle.id)
    its = await asyncio.to_thread(endpoint.of_run, f"{done.handle.id}/1.1")
    (call,) = [span for span in own if span.name == "execute_tool scout"]
    (root,) = [span for span in its if span.name == "invoke_agent scout"]
    assert len({span.trace for span in [*own, *its]}) == 1
    assert root.parent == call.span
    assert call.attributes["perdure.call.run.id"] == f"{done.handle.id}/1.1"
    assert [span.name for span in its if span.parent == root.span] == [
        "chat scripted",
        "execute_tool look",
        "chat scripted",
    ]


@pytest.mark.reported(47)
async def test_a_run_that_continues_as_new_is_one_tree_and_none_of_its_spans_comes_twice(endpoint, stage):
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 40})
    script = [*({"calls": [{"name": "look", "arguments": {"q": f"{n}"}}]} for n in range(8)), "done"]
    done = await stage.run(script, [look])
    assert done.projection.executions > 0
    spans = await asyncio.to_thread(endpoint.all_of_run, done.handle.id, 1 + 8 + 9)
    (root,) = [span for span in spans if not span.parent]
    assert {span.parent for span in spans} == {"", root.span}
    assert len({span.span for span in spans}) == len(spans) == 1 + 8 + 9
    assert sorted(span.attributes["perdure.step"] for span in spans if span.name.startswith("chat")) == [*range(1, 10)]
    assert root.began <= min(span.began for span in spans)


async def test_a_run_that_was_resumed_after_its_end_is_one_tree(endpoint, stage):
    script = [{"calls": [{"name": "look", "arguments": {"q": "a"}}]}, "done"]
    handle = (await stage.run(script, [look], limits=Limits(steps=1))).handle
    first = await asyncio.to_thread(endpoint.of_run, handle.id)
    await (await handle.resume(Additions(steps=3))).result()
    spans = await asyncio.to_thread(endpoint.all_of_run, handle.id, len(first) + 2)
    roots = [span for span in spans if span.name.startswith("invoke_agent")]
    assert [span.parent for span in roots] == ["", roots[0].span]
    assert len({span.trace for span in spans}) == 1
    assert len({span.span for span in spans}) == len(spans)
    assert roots[0].ended <= roots[1].began


async def test_what_a_model_is_asked_for_memory_after_a_run_is_told_below_it(endpoint, stage, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    task = Task(input="I like a window seat.", user="ann")
    handle = await stage.start(["Fine.", "No JSON.", "Again none."], task=task, memory=True)
    await handle.result()
    spans = await asyncio.to_thread(endpoint.all_of_run, handle.id, 4)
    (root,) = [span for span in spans if span.name.startswith("invoke_agent")]
    asked = [span for span in spans if span.attributes.get("perdure.purpose") == "memory"]
    assert [(span.name, span.parent, span.trace) for span in asked] == [("chat scripted", root.span, root.trace)] * 2
    assert len(spans) == 1 + len(stage.model.requests) == 4


async def test_a_run_that_is_not_sampled_is_not_told_and_its_requests_say_so(endpoint, stage, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    seen = []

    @tool(effect="read")
    async def looped(ctx: ToolContext) -> str:
        """Work."""
        seen.append(ctx.traceparent)
        return "ok"

    await stage.run([{"calls": [{"name": "looped"}]}, "done"], [looped])
    await stage.stop()
    assert endpoint.spans == []
    assert seen[0].endswith("-00")


async def test_a_run_that_waits_is_told_of_up_to_there_and_the_rest_at_its_end_each_once(endpoint, stage, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")

    @tool(approval="always")
    async def send() -> str:
        """Send."""
        return "sent"

    script = [{"calls": [{"name": "look", "arguments": {"q": "a"}}]}, {"calls": [{"name": "send"}]}, "done"]
    agent = stage.agent(script, [look, send])
    settings = stage.client.settings.model_copy(update={"copy_every": timedelta(seconds=0.2)})
    await stage.serve(agent, settings=settings)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    waiting = await asyncio.to_thread(endpoint.all_of_run, handle.id, 3)
    assert [span.name for span in waiting] == ["chat scripted", "execute_tool look", "chat scripted"]
    assert "approval_requested" in await copied(stage, handle, 1, "approval_requested")

    await stage.serve(agent, settings=settings)  # another worker, which has told nothing
    await handle.approve("2.1")
    await handle.result()
    spans = await asyncio.to_thread(endpoint.of_run, handle.id)
    assert len({span.span for span in spans}) == len(spans) == 1 + 3 + 2 + 1
    root = next(span for span in spans if span.name.startswith("invoke_agent"))
    assert {span.parent for span in spans} == {"", root.span}
    told = await copied(stage, handle, 1, "run_finished")
    assert told == [event.type for event in (await handle.projection()).events]


async def copied(stage, handle, number, kind):
    """Return the types of the events of a run that are in the store, once there are so many of one."""
    async with asyncio.timeout(30), stage.client.store() as store:
        while True:
            rows = await store.events(stage.client.temporal.namespace, run_id=handle.id)
            found = [row.type for row in sorted(rows, key=lambda row: position_key(row.position))]
            if found.count(kind) >= number:
                return found
            await asyncio.sleep(0.02)  # the store can only be asked


async def test_a_run_that_was_reset_has_each_of_its_attempts_told_once(endpoint, stage):
    script = [{"calls": [{"name": "look", "arguments": {"q": "a"}}]}, "done"]
    done = await stage.run(script, [look])
    first = await asyncio.to_thread(endpoint.of_run, done.handle.id)
    events = [event async for event in histories(stage.client.temporal, done.handle.id)]
    ended = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    task = [event.event_id for event in events if event.event_type == ended][1]
    await stage.client.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=stage.client.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=done.handle.id),
            reason="try again",
            workflow_task_finish_event_id=task,
            request_id=uuid4().hex,
        )
    )
    again = await stage.end(done.handle)
    assert again.result.status == "completed"
    spans = await asyncio.to_thread(endpoint.all_of_run, done.handle.id, len(first) + 3)
    attempts = [span.span for span in spans if not span.name.startswith("invoke_agent")]
    assert len(set(attempts)) == len(attempts), [span.name for span in spans]
