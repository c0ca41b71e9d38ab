"""What people did to a run, from its events; and how entries follow from each other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from perdure import events as ev
from perdure import identity
from perdure.audit import AuditEntry, deeds, link
from perdure.budgets import Additions
from perdure.state import Fork

NOW = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
CLI, HAND = "perdure-cli ann@desk", "temporal-cli:bob@desk"


def told(kind: type[Any], type_: str, **fields: Any) -> Any:
    """Return an event."""
    base = {"run_id": "r1", "position": fields.pop("position", "7.0"), "time": NOW, "agent": "travel", "session": "s"}
    return kind.model_validate({"type": type_, **base, **fields})


def deed(event: Any, sender: str = CLI) -> AuditEntry:
    """Return the one entry that an event gives."""
    (entry,) = deeds([event], {event.position: sender}, "default", "acme")
    return entry


def decided(**fields: Any) -> Any:
    return told(ev.ApprovalDecided, "approval_decided", **{"call": "2.1", "name": "book", "by": "Ann", **fields})


def test_an_approval_says_who_by_which_way_and_about_what():
    entry = deed(decided(approve=True, via="update", reason="cheap"))
    assert (entry.action, entry.by, entry.via, entry.client) == ("approved", "Ann", "cli", "")
    assert (entry.run_id, entry.call, entry.tool, entry.reason) == ("r1", "2.1", "book", "cheap")
    assert (entry.agent, entry.session, entry.tenant, entry.at) == ("travel", "s", "acme", NOW)


def test_what_comes_from_another_client_keeps_what_the_engine_knows_of_it():
    entry = deed(decided(approve=False, via="signal"), HAND)
    assert (entry.action, entry.via, entry.client) == ("denied", "signal", HAND)


def test_other_arguments_make_an_approval_an_edit_and_no_decision_expires():
    assert deed(decided(approve=True, edited=True, via="update")).action == "edited"
    entry = deed(decided(approve=False, via="expiry", by="nobody"), "")
    assert (entry.action, entry.by, entry.via) == ("expired", "", "expiry")


def test_a_start_is_of_whoever_the_engine_has_kept_as_its_sender():
    started = told(ev.RunStarted, "run_started", model="script:x", spec_hash="h")
    assert (deed(started).action, deed(started).by, deed(started).via) == ("started", "ann@desk", "cli")
    worker = deed(started, "perdure-worker bot@host")
    assert (worker.by, worker.via) == ("bot@host", "worker")
    fork = told(ev.RunStarted, "run_started", model="x", spec_hash="h", forked_from=Fork(run_id="r0", step=2))
    assert (deed(fork).action, deed(fork).subject) == ("forked", "r0 at step 2")
    again = told(ev.RunStarted, "run_started", model="x", spec_hash="h", resumed=True)
    assert deed(again).action == "resumed"


def test_more_of_the_budget_is_told_with_how_much():
    more = told(ev.Resumed, "resumed", add=Additions(steps=5), by="Ann", via="update")
    assert (deed(more).action, deed(more).details) == ("topped_up", {"steps": 5})
    assert deed(told(ev.Resumed, "resumed", by="Ann", via="update")).action == "resumed"


def test_a_request_to_cancel_that_names_nobody_is_of_its_sender():
    entry = deed(told(ev.CancelRequested, "cancel_requested", reason="enough"))
    assert (entry.action, entry.by, entry.via, entry.reason) == ("cancelled", "ann@desk", "cli", "enough")
    assert deed(told(ev.CancelRequested, "cancel_requested"), HAND).client == HAND


def test_words_of_people_are_not_in_the_audit():
    said = told(ev.Said, "said", content="My number is 1.", by="Ann", via="update")
    answered = told(ev.Answered, "answered", call="1.1", name="ask_user", text="Secret.", by="Ann", via="signal")
    for event in (said, answered):
        assert "number" not in deed(event).model_dump_json()
        assert "Secret" not in deed(event).model_dump_json()
    assert [deed(said).action, deed(answered).action] == ["said", "answered"]


def test_pausing_settling_and_what_did_not_take_are_told():
    settled = told(ev.Settled, "settled", call="1.1", name="pay", outcome="done", by="Ann")
    assert (deed(settled).action, deed(settled).details) == ("settled", {"outcome": "done"})
    assert deed(told(ev.Paused, "paused", by="Ann", via="update", reason="lunch")).action == "paused"
    refused = told(ev.DecisionRefused, "decision_refused", name="approve", by="Ann", via="signal", reason="too late")
    assert (deed(refused).action, deed(refused).subject) == ("refused", "approve")


def test_what_nobody_did_is_no_deed():
    events = [
        told(ev.Paused, "paused", reason="The limit of 2 steps is reached."),
        told(ev.Undoing, "undoing", call="1.1", name="pay"),
    ]
    assert deeds(events, {}, "default") == []


def test_each_hash_depends_on_all_before_it_and_on_every_field():
    entry = deed(decided(approve=True, via="update"))
    assert link("", entry) != link("x", entry)
    assert link("", entry) == link("", AuditEntry.model_validate_json(entry.model_dump_json()))
    for field, value in (("by", "Bob"), ("action", "denied"), ("reason", "x"), ("details", {"a": 1})):
        assert link("", entry.model_copy(update={field: value})) != link("", entry)


def test_an_identity_tells_who_and_by_which_way():
    assert identity.read("perdure-cli ann@desk") == ("ann@desk", "cli")
    assert identity.read("4711@vm") == ("4711@vm", "")
    assert identity.read(identity.identity()) == (identity.whoami(), "python")
