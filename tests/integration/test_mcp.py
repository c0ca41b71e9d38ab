"""Tools of MCP servers: listed once in a run, called as any tool is, and as honest about what nobody knows."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from perdure import MCPServer, Secret, Task, tool
from perdure.errors import AgentError
from perdure.telemetry.executions import histories
from perdure.testing import ScriptedModel

PLAIN = Path(__file__).parents[1] / "mcp_servers" / "plain.py"
READS = {"readOnlyHint": True}


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Desk:
    """A folder that tells a plain server what to offer, and is told what it did."""

    def __init__(self, folder):
        self.folder = folder
        self.offer("echo")

    def offer(self, *names, **hinted):
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        tools += [{"name": name, "inputSchema": {"type": "object"}, "annotations": it} for name, it in hinted.items()]
        (self.folder / "tools.json").write_text(json.dumps(tools))

    def server(self, name="desk", **options):
        return MCPServer(name, command=[sys.executable, "-S", str(PLAIN), str(self.folder)], **options)

    @property
    def journal(self):
        file = self.folder / "journal"
        return [line.split(" ", 1) for line in file.read_text().splitlines()] if file.exists() else []

    def said(self, word):
        return [what for _, what in self.journal if what.startswith(word)]

    @property
    def pids(self):
        return [int(pid) for pid, what in self.journal if what.startswith("starts")]

    async def kill(self):
        """Kill the server that was started last, and wait until it and its leash are gone."""
        pid, what = [(pid, what) for pid, what in self.journal if what.startswith("starts")][-1]
        os.kill(int(pid), signal.SIGKILL)
        async with asyncio.timeout(30):
            while any(is_there(one) for one in (int(pid), int(what.split()[1]))):
                await asyncio.sleep(0.02)

    async def until(self, word, times=1):
        async with asyncio.timeout(30):
            while len(self.said(word)) < times:
                await asyncio.sleep(0.02)

    def let_go(self):
        (self.folder / "go").touch()


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    yield desk
    desk.let_go()


def calls(*names, **arguments):
    return {"calls": [{"name": name, "arguments": arguments} for name in names]}


async def test_tools_of_a_server_are_listed_once_and_called_as_others_are(stage, desk):
    desk.offer("echo", look=READS, put={"idempotentHint": True})

    @tool
    def own() -> str:
        """Do something of one's own."""
        return "own"

    agent = stage.agent([calls("echo", text="hi"), calls("own"), "done"], [own, desk.server()])
    declared = agent.hash
    await stage.serve(agent)
    done = await stage.end(await stage.start_again(agent))
    assert [(one.status, one.content) for one in done.results] == [("ok", '{"said": "hi"}'), ("ok", "own")]
    assert {one.name: one.effect for one in done.state.spec.tools} == {
        "own": "unsafe",
        "echo": "unsafe",
        "look": "read",
        "put": "idempotent",
    }
    (told,) = done.told("tools_listed")
    assert (told.tools, told.notes) == ({"desk": ["echo", "look", "put"]}, {})
    assert len(desk.said("list")) == 1
    assert agent.hash == declared


async def test_runs_of_a_worker_share_a_server_which_ends_with_it(stage, desk):
    agent = stage.agent([calls("echo"), "done"], [desk.server()])
    await stage.serve(agent)
    await asyncio.gather(*[stage.end(await stage.start_again(agent)) for _ in range(3)])
    assert len(desk.pids) == 1
    await stage.stop()
    assert desk.said("ends") == ["ends"]


@pytest.mark.reported(42)
async def test_what_a_server_offers_later_is_for_later_runs(stage, desk):
    desk.offer("echo", "gone", "hold")
    agent = stage.agent([calls("hold"), calls("gone"), calls("new"), "done"], [desk.server()])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await desk.until("holds")
    desk.offer("hold", "new")
    desk.let_go()
    done = await stage.end(handle)
    assert [one.status for one in done.results] == ["ok", "error", "error"]
    assert "Unknown tool: gone" in done.results[1].message
    assert done.results[2].error_type == "unknown_tool"
    later = await stage.end(await stage.start_again(agent))
    assert [one.name for one in later.state.spec.tools] == ["hold", "new"]


@pytest.mark.reported(42)
async def test_another_worker_takes_a_run_up_with_the_tools_that_it_has(stage, desk):
    desk.offer("echo", wait=READS)
    agent = stage.agent([calls("echo", text="1"), calls("echo", text="2"), "done"], [desk.server(approval="always")])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    await stage.serve(agent)
    desk.offer("other")
    await handle.approve("1.1", by="Ann")
    await stage.until(handle, lambda event: event.type == "approval_requested" and event.call == "2.1")
    desk.offer("echo")
    await handle.approve("2.1", by="Ann")
    done = await stage.end(handle)
    assert [one.status for one in done.results] == ["error", "ok"]
    assert len(desk.said("list")) == 1
    assert len(desk.pids) == 2


async def test_an_effect_whose_server_dies_meanwhile_is_in_doubt(stage, desk):
    desk.offer("hold")
    agent = stage.agent([calls("hold"), calls("hold"), "done"], [desk.server()])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await desk.until("holds")
    await desk.kill()
    await stage.until_status(handle, "waiting_decision")
    desk.let_go()
    await handle.settle("1.1", "not-done", by="Ann")
    done = await stage.end(handle)
    assert [(one.status, one.error_type) for one in done.results] == [("error", "not_done"), ("ok", None)]
    assert len(desk.pids) == 2  # it was started anew for the second call


async def test_a_read_whose_server_dies_meanwhile_is_asked_once_more(stage, desk):
    desk.offer(hold=READS)
    agent = stage.agent([calls("hold"), "done"], [desk.server()])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await desk.until("holds")
    desk.let_go()
    await desk.kill()
    done = await stage.end(handle)
    assert [(one.status, one.content) for one in done.results] == [("ok", "held")]
    assert len(desk.said("call hold")) in (1, 2)


async def test_a_server_that_died_between_two_calls_is_started_anew(stage, desk):
    desk.offer("echo", "hold")
    agent = stage.agent([calls("echo"), calls("echo"), "done"], [desk.server(approval={"echo": "always"})])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    await desk.kill()
    for call in ("1.1", "2.1"):
        await stage.until(handle, lambda event, call=call: event.type == "approval_requested" and event.call == call)
        await handle.approve(call, by="Ann")
    done = await stage.end(handle)
    assert [one.status for one in done.results] == ["ok", "ok"]
    assert len(desk.pids) == 2


async def test_what_a_server_says_of_its_failures_is_told(stage, desk):
    desk.offer("fail", "break", shaky=READS)
    agent = stage.agent([calls("fail"), calls("break"), "done"], [desk.server(in_doubt="tell_model")])
    await stage.serve(agent)
    done = await stage.end(await stage.start_again(agent))
    assert [(one.status, one.error_type) for one in done.results] == [("error", "tool_error"), ("in_doubt", "in_doubt")]
    assert done.results[0].message == "no such seat"
    assert "something broke" in done.results[1].message


async def test_a_server_that_wants_a_model_of_its_own_is_refused(stage, desk):
    desk.offer("ask")
    done = await stage.run([calls("ask"), "done"], [desk.server()])
    assert "Sampling not supported" in done.results[0].content


async def test_images_are_shown_and_resources_named(stage, desk):
    desk.offer(see=READS)
    done = await stage.run([calls("see"), "done"], [desk.server()])
    (result,) = done.results
    assert result.content.splitlines() == [
        "a pixel",
        "[Image 1 of this result: an image, image/png]",
        "[Resource file:///a.txt (a, text/plain)]",
        "[Resource file:///b.txt]",
        "all of b",
    ]
    (image,) = result.images
    assert image.url.startswith("data:image/png;base64,iVBOR")
    assert "a recording (audio/wav" in result.note


async def test_a_model_that_can_not_see_is_spared_images(stage, desk):
    desk.offer(see=READS)
    done = await stage.run([calls("see"), "done"], [desk.server(images=False)])
    assert done.results[0].images == []
    assert "an image (image/png" in done.results[0].note


async def test_calls_beyond_a_servers_concurrency_wait_outside_of_their_deadlines(stage, desk):
    desk.offer(hold=READS)
    agent = stage.agent([calls("hold", "hold", "hold"), "done"], [desk.server(concurrency=1)])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "tool_started", nth=3)
    await desk.until("holds")
    assert len(desk.said("holds")) == 1
    desk.let_go()
    done = await stage.end(handle)
    assert [one.status for one in done.results] == ["ok"] * 3
    assert [what.strip() for _, what in desk.journal if "hold" in what or "lets" in what] == [
        "call hold",
        "holds",
        "lets go",
    ] * 3


async def test_calls_have_the_key_of_their_attempts(stage, desk):
    desk.offer("key")
    done = await stage.run([calls("key"), "done"], [desk.server()])
    assert done.results[0].content.startswith(f"{done.handle.id}:")
    assert done.results[0].content.endswith(":1.1")


async def test_secrets_reach_the_server_and_nothing_else(stage, desk, monkeypatch):
    monkeypatch.setenv("DESK_TOKEN", "t0p-s3cret-of-the-worker")
    monkeypatch.setenv("UNRELATED", "stays-here")
    desk.offer("environment")
    env = {"TOKEN": "Bearer ${DESK_TOKEN}", "PASS": Secret("pass")}
    agent = stage.agent([calls("environment"), "done"], [desk.server(env=env)])
    await stage.serve(agent)
    task = Task(input="go", secrets={"pass": SecretStr("0pen-sesame-of-the-run")})
    done = await stage.end(await stage.start_again(agent, task))
    said = json.loads(done.results[0].content)
    assert said["TOKEN"] == "Bearer [secret DESK_TOKEN]"
    assert said["PASS"] == "[secret pass]"
    assert "UNRELATED" not in said
    written = [str(event) async for event in histories(stage.client.temporal, done.handle.id)]
    assert not any("t0p-s3cret" in text or "0pen-sesame" in text for text in written)
    assert "t0p-s3cret" not in agent.spec.model_dump_json()


async def test_a_run_that_can_not_learn_of_its_tools_ends_by_name_and_can_be_resumed(stage, desk, monkeypatch):
    agent = stage.agent([calls("echo"), "done"], [desk.server(env={"TOKEN": "${DESK_TOKEN}"})])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    done = await stage.end(handle)
    assert (done.result.status, done.result.failure) == ("failed", "mcp_unavailable")
    assert "DESK_TOKEN, which is not set" in done.result.reason
    assert "resume" in done.result.reason
    assert done.told("tools_listed")[0].problem
    monkeypatch.setenv("DESK_TOKEN", "here-it-is")
    done = await stage.end(await handle.resume())
    assert (done.result.status, len(done.results)) == ("completed", 1)


async def test_a_server_that_can_not_be_started_says_why_in_its_own_words(stage, desk):
    broken = MCPServer("broken", command=[sys.executable, "-c", "raise SystemExit('no licence')"], list_attempts=2)
    done = await stage.run(["done"], [broken])
    assert (done.result.status, done.result.failure) == ("failed", "mcp_unavailable")
    assert "MCP server 'broken' can't be used: It said: no licence" in done.result.reason


async def test_a_server_that_crashes_at_its_start_is_taken_for_broken_after_three_times(stage, desk):
    starts = desk.folder / "starts"
    code = f"open({str(starts)!r}, 'a').write('.'); import nosuchmodule"
    done = await stage.run(["done"], [MCPServer("broken", command=[sys.executable, "-c", code])])
    assert done.result.failure == "mcp_unavailable"
    assert starts.read_text() == "..."
    assert done.result.reason == (
        "MCP server 'broken' can't be used: It said: ModuleNotFoundError: No module named 'nosuchmodule'."
        " The worker's log has the rest. Nothing was done yet; resume the run once it works."
    )


async def test_a_run_is_cancelled_while_it_waits_for_its_tools(stage, desk):
    slow = MCPServer("slow", command=[sys.executable, "-c", "import sys; sys.stdin.read()"])
    handle = await stage.start(["done"], [slow])
    await stage.until_held(handle, "perdure.list_tools")
    await handle.cancel()
    done = await stage.end(handle)
    assert done.result.status == "cancelled"


async def test_progress_reaches_those_who_watch(stage, desk):
    desk.offer("hold")
    handle = await stage.start([calls("hold"), "done"], [desk.server()])

    async def look():
        async for event in handle.events(live=True):
            if event.type == "tool_progress":
                desk.let_go()
                return event
        pytest.fail("nothing was told")

    told = await asyncio.wait_for(look(), 30)
    assert (told.text, told.fraction, told.name) == ("a quarter", 0.25, "hold")
    await stage.end(handle)


async def test_the_tools_go_along_when_a_run_continues_as_new_and_when_it_is_forked(stage, desk):
    settings = stage.client.settings
    stage.client.settings = settings.model_copy(update={"max_history_events": 30})
    agent = stage.agent([*[calls("echo", text=str(n)) for n in range(6)], "done"], [desk.server()])
    await stage.serve(agent)
    done = await stage.end(await stage.start_again(agent))
    assert (done.result.status, len(done.results)) == ("completed", 6)
    assert done.projection.executions > 0
    assert len(desk.said("list")) == 1


async def test_each_agent_that_a_run_is_handed_to_has_the_tools_of_its_own_servers(stage, desk, tmp_path_factory):
    other = Desk(tmp_path_factory.mktemp("other"))
    other.offer("put")
    transfer = {"calls": [{"name": "transfer_to_second", "arguments": {}}]}
    back = {"calls": [{"name": "transfer_to_first", "arguments": {}}]}
    model = ScriptedModel([calls("echo"), transfer, calls("put"), back, calls("echo"), "done"])
    second = stage.agent(model, [other.server()], name="second", handoffs=["first"])
    first = stage.agent(model, [desk.server()], name="first", handoffs=[second])
    await stage.serve(first)
    done = await stage.end(await stage.start_again(first))
    assert [(one.name, one.status) for one in done.results if "transfer" not in one.name] == [
        ("echo", "ok"),
        ("put", "ok"),
        ("echo", "ok"),
    ]
    assert (len(desk.said("list")), len(other.said("list"))) == (1, 1)


async def test_a_server_is_declared_by_what_can_be_known_of_it(stage, desk):
    with pytest.raises(AgentError, match="either a command or a url"):
        MCPServer("desk")
