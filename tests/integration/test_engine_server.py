import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from perdure.engine import server as engine
from perdure.engine.connection import connect, target
from perdure.engine.home import lock_path, read_record, record_path
from perdure.engine.search_attributes import STATUS
from perdure.engine.server import DevServer
from perdure.errors import ConnectionFailed
from perdure.settings import Settings

OWNER = """
import asyncio, sys
from pathlib import Path
from perdure.engine.server import DevServer
from perdure.settings import Settings

async def main():
    server = await DevServer.start(Settings(home=Path(sys.argv[1])))
    print(server.record.pid, flush=True)
    if sys.argv[2] == "stay":
        await server.wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    return Settings(home=tmp_path / ".perdure")


@contextmanager
def owner(settings, then="stay"):
    """Another process that starts a dev server and forgets about it."""
    command = [sys.executable, "-c", OWNER, str(settings.folder), then]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def started(process):
    """Return the process id of the server that `process` started, once it answers."""
    return int(process.stdout.readline())


def wait_till_gone(settings):
    """Return when no process of the dev server is left: each holds the lock."""
    with lock_path(settings.folder).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_restarted(server, old_pid):
    async with asyncio.timeout(60):
        while server.record.pid == old_pid:
            await asyncio.sleep(0.01)


async def test_a_started_server_is_found_without_being_told_and_gone_afterwards(settings):
    async with await DevServer.start(settings) as server:
        where = target(settings)
        assert (where.address, where.ui_url) == (server.address, server.ui_url)
        client = await connect(settings)
        assert (await client.count_workflows(f"{STATUS.name} = 'running'")).count == 0
    assert not alive(server.record.pid)
    assert not record_path(settings.folder).exists()
    assert not target(settings).embedded


async def test_runs_survive_its_restart(settings):
    status = TypedSearchAttributes([SearchAttributePair(STATUS, "waiting_approval")])
    async with await DevServer.start(settings):
        client = await connect(settings)
        await client.start_workflow("AgentWorkflow", id="r1", task_queue="q", search_attributes=status)
    async with await DevServer.start(settings):
        client = await connect(settings)
        description = await client.get_workflow_handle("r1").describe()
        assert description.status is WorkflowExecutionStatus.RUNNING
        assert description.typed_search_attributes[STATUS] == "waiting_approval"


async def test_a_server_that_dies_comes_back_on_the_same_ports_and_clients_go_on(settings):
    async with await DevServer.start(settings) as server:
        client = await connect(settings)
        await client.start_workflow("AgentWorkflow", id="r1", task_queue="q")
        before = server.record
        os.kill(before.pid, signal.SIGKILL)
        await until_restarted(server, before.pid)
        assert (server.address, server.ui_url) == (before.address, before.ui_url)
        assert read_record(settings.folder) == server.record
        await client.get_workflow_handle("r1").describe()


async def test_a_connection_made_while_it_restarts_waits_for_it(settings):
    async with await DevServer.start(settings) as server:
        os.kill(server.record.pid, signal.SIGKILL)
        assert server._process
        await server._process.gone
        await connect(settings)


async def test_a_killed_leash_leaves_no_second_server_on_the_file(settings):
    async with await DevServer.start(settings) as server:
        before = server.record
        assert server._process
        os.kill(server._process.leash.pid, signal.SIGKILL)
        await until_restarted(server, before.pid)
        assert server.address == before.address  # the port was free: the first one is dead


async def test_a_server_that_keeps_dying_is_given_up_with_its_last_words(settings, monkeypatch):
    async with await DevServer.start(settings) as server:
        monkeypatch.setattr(engine, "find_binary", lambda: shutil.which("false"))
        monkeypatch.setattr(engine, "DEATHS", 3)
        os.kill(server.record.pid, signal.SIGKILL)
        with pytest.raises(ConnectionFailed, match=r"^The dev server died 3 times in a row: .*server\.log"):
            await server.wait()
        assert not target(settings).embedded


async def test_a_server_that_does_not_start_is_one_sentence(settings, monkeypatch):
    monkeypatch.setattr(engine, "find_binary", lambda: shutil.which("false"))
    with pytest.raises(ConnectionFailed, match=r"^The dev server did not start: [^\n]*server\.log"):
        await DevServer.start(settings)
    wait_till_gone(settings)


async def test_a_port_that_another_process_was_quicker_to_take_is_given_up_for_another(settings, monkeypatch, tmp_path):
    rival = tmp_path / "temporal"
    rival.write_text(
        f"""#!/bin/sh
        [ -e {tmp_path}/late ] && exec {engine.find_binary()} "$@"
        touch {tmp_path}/late
        echo 'Error: listen tcp 127.0.0.1:7233: bind: address already in use' >&2
        exit 1"""
    )
    rival.chmod(0o755)
    monkeypatch.setattr(engine, "find_binary", lambda: str(rival))
    async with await DevServer.start(settings):
        await connect(settings)


async def test_without_the_binary_the_extra_is_named(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConnectionFailed, match=r"pip install 'perdure\[engine\]'"):
        await DevServer.start(settings)
    wait_till_gone(settings)


async def test_a_home_that_can_not_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConnectionFailed, match=r"^The engine's folder .*file/home can't be used: Not a directory\.$"):
        await DevServer.start(Settings(home=tmp_path / "file" / "home"))


async def test_of_two_starts_at_once_one_owns_and_both_use_the_same_server(settings):
    first, second = await asyncio.gather(DevServer.start(settings), DevServer.start(settings))
    async with first, second:
        assert first.record == second.record
        assert {first.owned, second.owned} == {True, False}


async def test_whoever_reuses_a_server_does_not_end_it_and_learns_of_its_end(settings):
    with owner(settings) as process:
        pid = await asyncio.to_thread(started, process)
        async with await DevServer.start(settings) as server:
            assert (server.record.pid, server.owned) == (pid, False)
        await Client.connect(server.address)
        process.terminate()
        with pytest.raises(ConnectionFailed, match="was ended"):
            await server.wait()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_the_process_that_started_it(settings, number):
    with owner(settings) as process:
        pid = started(process)
        assert alive(pid)
        process.send_signal(number)
        assert process.wait(30) == -number
        wait_till_gone(settings)
        assert not alive(pid)
        assert not record_path(settings.folder).exists()


def test_it_ends_with_a_script_that_forgets_to_close_it(settings):
    with owner(settings, then="leave") as process:
        pid = started(process)
        wait_till_gone(settings)
        assert not alive(pid)


async def test_ctrl_c_in_the_terminal_does_not_reach_it(settings):
    async with await DevServer.start(settings) as server:
        assert os.getpgid(server.record.pid) != os.getpgrp()
        assert os.getsid(server.record.pid) != os.getsid(0)


async def test_after_its_owner_was_killed_a_start_waits_for_the_database_file(settings):
    with owner(settings) as process:
        pid = await asyncio.to_thread(started, process)
        process.kill()
        process.wait()
        async with await DevServer.start(settings) as server:
            assert server.owned
            assert not alive(pid)


async def test_a_namespace_that_does_not_exist_is_one_sentence(settings, monkeypatch):
    async with await DevServer.start(settings) as server:
        monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
        monkeypatch.setenv("TEMPORAL_NAMESPACE", "nowhere")
        with pytest.raises(ConnectionFailed, match="`temporal operator namespace create nowhere`"):
            await connect(settings)


async def test_temporals_variables_do_not_disturb_the_server_itself(settings, monkeypatch):
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", "/nowhere/temporal.toml")
    monkeypatch.setenv("TEMPORAL_PROFILE", "nowhere")
    async with await DevServer.start(settings) as server:
        assert alive(server.record.pid)
