"""Who did what, what runs wait for, and what people were not told: on the command line."""

from __future__ import annotations

import time

from perdure.client import Client
from perdure.wire import NOTIFY
from tests.acceptance.conftest import PATIENCE


def test_audit_tells_who_started_and_decided_by_which_way_and_why(served):
    served("run", "agents.py:clerk", "go", "--id", "audited", "--no-wait", code=3)
    served("approve", "audited", "--by", "ann", "--reason", "she asked \x1b[31mfor it")
    served("watch", "audited")
    entries = served.json("audit", "audited")
    assert [(one["action"], one["via"], one["call"], one["tool"]) for one in entries] == [
        ("started", "cli", "", ""),
        ("approved", "cli", "2.1", "send"),
    ]
    assert entries[1]["by"] == "ann"
    shown = served("audit", "audited").stdout
    head, _, approved = shown.splitlines()
    assert head.split() == ["WHEN", "WHO", "DID", "RUN", "WHAT", "BY", "WAY", "OF", "WHY"]
    assert [part in approved for part in ("ann", "approved", "2.1 send", "cli", "she asked")] == [True] * 5
    assert "\x1b" not in shown
    assert served.json("audit", "audited", "--by", "ANN", "--action", "approved", "--since", "1h") == entries[1:]
    assert served("audit", "audited", "--action", "denied").stderr == "Nothing of that is noted.\n"


def test_audit_is_verified_and_misuse_of_it_is_told(served):
    state = served.json("audit", "--verify")
    assert (state["broken"], len(state["last"]) if state["entries"] else 64) == (0, 64)
    assert served("audit", "x", "--verify", code=2).stderr.startswith("Error: --verify looks through")
    assert "--action is one of started, " in served("audit", "--action", "ate", code=2).stderr
    assert "is no age" in served("audit", "--since", "yesterday", code=2).stderr
    assert served.json("audit", "no-such-run") == []


def test_runs_are_listed_by_what_they_wait_for(served):
    served("run", "agents.py:clerk", "go", "--id", "for-approval", "--no-wait", code=3)
    served("run", "agents.py:curious", "go", "--id", "for-answer", "--no-wait", code=3)
    wanted = {"approval": "for-approval", "answer": "for-answer"}
    found: dict[str, set[str]] = {}
    end = time.monotonic() + PATIENCE
    while not all(wanted[kind] in found.get(kind, ()) for kind in wanted):  # the index hears of it a moment later
        assert time.monotonic() < end, found
        found = {kind: {one["id"] for one in served.json("ls", "--waiting-for", kind)} for kind in wanted}
    assert not found["approval"] & found["answer"]
    assert "for-answer" in served("ls", "--waiting-for", "answer").stdout
    assert "--waiting-for" in served("ls", "--waiting-for", "godot", code=2).stderr


async def test_doctor_says_which_notices_are_not_delivered_and_why(served, engine):
    address = "http://127.0.0.1:9/hook?token=private"
    served("run", "agents.py:talker", "go", "--id", "untold", PERDURE_NOTIFY_URL=address)  # the worker has no address
    client = await Client.connect(engine)
    words, end = "", time.monotonic() + PATIENCE
    while "not delivered yet" not in words:
        assert time.monotonic() < end, words
        words = served("doctor", code=None).stdout
    assert "This worker has neither PERDURE_NOTIFY_URL nor PERDURE_NOTIFY_COMMAND nor PERDURE_NOTIFY_BY." in words
    assert "private" not in words
    async for each in client.temporal.list_workflows(f"WorkflowType = '{NOTIFY}' AND ExecutionStatus = 'Running'"):
        await client.temporal.get_workflow_handle(each.id).terminate("the test is over")
    await client.temporal.count_workflows("ExecutionStatus = 'Running'")
    while "not delivered yet" in words:
        assert time.monotonic() < end, words
        words = served("doctor", code=None, PERDURE_NOTIFY_URL=address, PERDURE_NOTIFY_ON="waiting,ended").stdout
    assert "runs that are started here tell of: waiting, ended" in words
    assert "PERDURE_NOTIFY_SECRET can't be used" in served("doctor", code=None, PERDURE_NOTIFY_SECRET="x").stdout
