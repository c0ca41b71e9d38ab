"""What a webhook or a command is told of a run, and how that is signed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from perdure import Settings
from perdure.activities.notices import content_of, secret_of
from perdure.decisions import Pause
from perdure.errors import PerdureError
from perdure.messages import RunResult, ToolCall, Usage
from perdure.notices import Notice, ending, headers, key_of, nearing, wishes
from perdure.policies import AgentSpec, Limits, ToolSpec
from perdure.state import CallState, CallStatus, RunState

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PHONE = {"type": "object", "properties": {"to": {"type": "string", "x-sensitive": "phone"}, "n": {"type": "integer"}}}


def state(*calls: CallState, **more: Any) -> RunState:
    """Return a run with those calls."""
    tool = ToolSpec(name="call", description="Call.", parameters=PHONE)
    spec = AgentSpec(name="travel", model="script:x", tools=[tool])
    given = {"run_id": "trip 7", "spec": spec, "limits": Limits(), **more}
    return RunState.model_validate({**given, "calls": [each.model_dump() for each in calls]})


def call(position: str, status: CallStatus, **arguments: Any) -> CallState:
    made = ToolCall(id=f"c{position}", name="call", arguments={}, ask="always")
    return CallState(call=made, position=position, key="k", status=status, arguments=arguments, hash="h")


def told(**more: Any) -> dict[str, Any]:
    """Return what a notice is sent as."""
    given = {"id": "trip 7/notices/1", "run_id": "trip 7", "agent": "travel", "at": NOW, **more}
    sent: dict[str, Any] = json.loads(content_of(Notice.model_validate(given)))
    return sent


def test_a_run_that_waits_tells_how_it_is_answered_with_personal_values_hidden():
    (wish,) = wishes(state(call("2.1", CallStatus.ASKING, to="13812345678", n=2))).values()
    sent = told(occasion="waiting", wish=wish, session="13987654321")
    assert (sent["type"], sent["timestamp"]) == ("run.waiting", "2026-05-01T12:00:00+00:00")
    data = sent["data"]
    assert data["text"] == "Run trip 7 (travel) waits for approval of call 2.1 (call)."
    assert data["commands"] == ["perdure approve 'trip 7' 2.1", "perdure deny 'trip 7' 2.1"]
    assert data["arguments"] == {"to": "138****5678", "n": 2}
    assert (data["wants"], data["call"], data["tool"], data["id"]) == ("approval", "2.1", "call", "trip 7/notices/1")
    assert data["session"] == "139****4321"


def test_each_wish_has_a_key_of_its_own_that_stays_while_it_is_open():
    calls = [call("1.1", CallStatus.ASKING), call("1.2", CallStatus.QUESTION), call("1.3", CallStatus.IN_DOUBT)]
    keys = list(wishes(state(*calls)))
    assert len(set(keys)) == 3
    assert list(wishes(state(*calls, steps=4))) == keys
    assert list(wishes(state(*calls[:2]))) == keys[:2]


def test_whoever_has_paused_a_run_is_not_told_so_but_a_limit_is():
    assert wishes(state(paused=Pause(by="ann"))) == {}
    (wish,) = wishes(state(short="The limit of 2 steps is reached.")).values()
    sent = told(occasion="waiting", wish=wish)
    assert sent["data"]["text"] == "Run trip 7 (travel) has reached a limit and asks for more."
    assert sent["data"]["why"] == "The limit of 2 steps is reached."


def test_limits_that_are_nearly_used_up_are_told_with_their_shares():
    near = nearing(state(limits=Limits(steps=10), steps=8))
    sent = told(occasion="budget", nearing=list(near.values()))
    assert sent["type"] == "run.budget"
    assert sent["data"]["limits"] == [{"limit": "steps", "share": 0.8, "most": "10 steps"}]
    assert sent["data"]["text"] == "Run trip 7 (travel) has used 80% of 10 steps."
    assert nearing(state(limits=Limits(steps=10), steps=7)) == {}


def test_an_end_is_told_with_what_it_has_used_and_without_the_answer():
    result = RunResult(
        run_id="trip 7",
        status="failed",
        text="Call 13812345678.",
        reason="No reply from 13812345678.",
        steps=3,
        usage=Usage(input_tokens=10, output_tokens=5),
        cost_usd=Decimal("0.5"),
        duration=timedelta(seconds=2),
    )
    data = told(occasion="ended", ending=ending(result))["data"]
    assert data["text"] == "Run trip 7 (travel) has ended, failed: No reply from 138****5678."
    assert (data["status"], data["tokens"], data["cost_usd"], data["seconds"]) == ("failed", 15, "0.5", 2.0)
    assert "13812345678" not in json.dumps(data)
    assert "Call " not in json.dumps(data)


def test_signatures_are_those_of_standard_webhooks():
    signed = headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', key_of(SECRET))
    assert signed["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signed["webhook-id"] == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert signed["webhook-timestamp"] == "1614265330"
    assert "webhook-signature" not in headers("m", 1, b"{}", None)


@pytest.mark.parametrize("secret", ["", "whsec_", "hunter2 is my secret", "whsec_c2hvcnQ="])
def test_a_secret_that_is_none_is_one_sentence_that_does_not_show_it(secret: str):
    with pytest.raises(PerdureError, match=r"^PERDURE_NOTIFY_SECRET can't be used: a webhook's secret is") as raised:
        secret_of(Settings.model_validate({"notify_secret": secret}))
    assert "hunter2" not in str(raised.value)


def test_nobody_is_told_by_default_and_of_everything_where_a_way_is_set():
    assert Settings().notify == []
    assert Settings(notify_url="https://example.com/hook").notify == ["waiting", "budget", "ended"]
    assert Settings(notify_command="true").notify == ["waiting", "budget", "ended"]
    assert Settings.model_validate({"notify_on": "waiting, ended"}).notify == ["waiting", "ended"]
    assert Settings.model_validate({"notify_url": "https://x.example", "notify_on": ""}).notify == []
    with pytest.raises(ValidationError):
        Settings.model_validate({"notify_on": "lunch"})
    with pytest.raises(ValidationError):
        Settings(notify_url="example.com")
