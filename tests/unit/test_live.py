"""The side channel: a bounded buffer in the worker, files that are followed, and which of it is of now."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import events as ev
from perdure.drafts import Draft
from perdure.sealing import Key, Keyring
from perdure.telemetry import live_files
from perdure.telemetry.broadcast import Broadcast, Reply, Working
from perdure.telemetry.live import Aside, name_of, read, written
from perdure.telemetry.live_files import Files, remove, sweep, tail
from perdure.telemetry.watching import Attention

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMMON: dict[str, Any] = {"run_id": "r", "time": NOW}
KEYS = Keyring([Key("k1", b"k" * 32)])


class Kept:
    """An outlet that keeps what it is given, or fails."""

    def __init__(self, keys: Keyring | None = None) -> None:
        self.keys = keys or Keyring()
        self.told: list[Aside] = []
        self.failing: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def write(self, name: str, lines: Sequence[bytes], *, begins: bool) -> None:
        del name, begins
        self.gate.wait(10)
        if self.failing:
            raise self.failing
        self.told += [found for line in lines if (found := read(line, self.keys))]

    def close(self) -> None:
        """Nothing is open."""

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.told)


def reply(attempt: int = 1, request: int = 1, run: str = "r") -> Reply:
    return Reply(namespace="n", run_id=run, step=1, model="m:m", attempt=attempt, request=request)


def working(call: str = "1.1") -> Working:
    return Working(namespace="n", run_id="r", step=1, call=call, name="look", attempt=1)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


# -- the worker's side -----------------------------------------------------------------------------------------


def test_pieces_of_a_reply_are_told_in_order_with_where_each_begins():
    kept = Kept()
    broadcast = Broadcast(lambda: kept)
    for word in ("The ", "sun ", "shines."):
        broadcast.text(reply(), word)
    broadcast.end(reply())
    broadcast.close()
    assert kept.text == "The sun shines."
    ends = 0
    for delta in kept.told:
        assert isinstance(delta, ev.TextDelta)
        assert (delta.offset, delta.attempt, delta.position) == (ends, 1, "")
        ends += len(delta.text)


def test_number_that_comes_in_two_pieces_is_redacted():
    kept = Kept()
    broadcast = Broadcast(lambda: kept)
    for piece in ("Call 138001", "38000 now"):
        broadcast.text(reply(), piece)
        time.sleep(0)
    broadcast.end(reply())
    broadcast.close()
    assert kept.text == "Call 138****8000 now"


def test_progress_is_redacted_and_of_words_that_come_quickly_the_last_is_told():
    kept = Kept()
    broadcast = Broadcast(lambda: kept)
    for count in range(1, 101):
        broadcast.progress(working(), f"{count} hotels for 13800138000\ud800", count / 100)
    broadcast.close()
    last = kept.told[-1]
    assert isinstance(last, ev.ToolProgress)
    assert (last.text, last.fraction, last.call) == ("100 hotels for 138****8000?", 1.0, "1.1")
    assert len(kept.told) < 10


def test_nothing_waits_for_a_sink_that_hangs_and_what_was_dropped_is_counted():
    kept = Kept()
    kept.gate.clear()
    broadcast = Broadcast(lambda: kept, most=100)
    broadcast.text(reply(), "first ")
    for _ in range(300):
        broadcast.text(reply(), "word ")
    assert broadcast.dropped >= 100
    kept.gate.set()
    broadcast.close()
    assert kept.text.startswith("first ")


def test_sink_that_fails_loses_what_it_was_given_and_is_tried_again(caplog):
    kept = Kept()
    kept.failing = OSError("No space left on device")
    broadcast = Broadcast(lambda: kept)
    broadcast.text(reply(), "lost ")
    until(lambda: broadcast.dropped == 1)
    kept.failing = None
    broadcast.text(reply(), "told ")
    broadcast.close()
    assert [(one.text, one.offset) for one in kept.told if isinstance(one, ev.TextDelta)] == [("told ", 5)]
    assert "No space left on device" in caplog.text


def test_nothing_is_opened_before_anything_is_told():
    opened: list[int] = []

    def outlet() -> Kept:
        opened.append(1)
        return Kept()

    threads = threading.active_count()
    broadcast = Broadcast(outlet)
    assert threading.active_count() == threads
    broadcast.close()
    assert not opened


# -- lines and files -------------------------------------------------------------------------------------------


def delta(text: str = "Hi.", **fields: Any) -> ev.TextDelta:
    given: dict[str, Any] = {"step": 1, **COMMON, **fields}
    return ev.TextDelta(type="text_delta", position="", text=text, **given)


def test_lines_are_sealed_where_there_is_a_key_and_skipped_where_it_is_missing():
    line = written(delta("secret plans"), KEYS)
    assert b"secret" not in line
    assert b"\n" not in line
    assert read(line, KEYS) == delta("secret plans")
    assert read(line, Keyring()) is None
    assert read(written(delta(), Keyring()), KEYS) == delta()


async def lines(folder: Path, name: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(20):
        async for line in tail(folder, name):
            found.append(line)
            if len(found) == count:
                break
    return found


async def test_file_is_followed_from_its_start_and_as_it_grows(tmp_path):
    files = Files(tmp_path / "live")
    following = asyncio.create_task(lines(tmp_path / "live", "run", 3))
    files.write("run", [b"one", b"two"], begins=True)
    await asyncio.sleep(0)
    files.write("run", [b"three"], begins=False)
    assert await following == [b"one", b"two", b"three"]
    assert (tmp_path / "live" / "run.jsonl").stat().st_mode & 0o077 == 0
    assert (tmp_path / "live").stat().st_mode & 0o077 == 0


async def test_half_a_line_that_a_killed_worker_left_costs_no_other_line(tmp_path):
    (tmp_path / "run.jsonl").write_bytes(written(delta("one"), Keyring()) + b'\n{"type":"text_de')
    Files(tmp_path).write("run", [written(delta("two"), Keyring())], begins=False)
    found = [read(line, Keyring()) for line in await lines(tmp_path, "run", 3)]
    assert found == [delta("one"), None, delta("two")]


async def test_long_file_begins_anew_with_a_new_reply_and_is_read_from_its_start(tmp_path, monkeypatch):
    monkeypatch.setattr(live_files, "SMALL", 100)
    files = Files(tmp_path)
    files.write("run", [b"x" * 200], begins=True)
    async with aclosing(tail(tmp_path, "run")) as following:
        assert await anext(following) == b"x" * 200
        files.write("run", [b"more"], begins=False)
        assert await anext(following) == b"more"
        files.write("run", [b"new"], begins=True)
        assert await anext(following) == b"new"
    assert (tmp_path / "run.jsonl").read_bytes() == b"new\n"


def test_what_is_of_runs_that_ended_is_deleted(tmp_path):
    files = Files(tmp_path)
    for name in ("old", "new", "ended"):
        files.write(name, [b"x"], begins=True)
    os.utime(tmp_path / "old.jsonl", (0, 0))
    assert sweep(tmp_path) == 1
    remove(tmp_path, "ended")
    remove(tmp_path, "never")
    assert [path.name for path in tmp_path.iterdir()] == ["new.jsonl"]


def test_names_of_files_tell_nothing_of_runs():
    assert name_of("n", "alice-1") != name_of("m", "alice-1")
    assert "alice" not in name_of("n", "alice-1")


# -- which of it is of now -------------------------------------------------------------------------------------


def asked(step: int = 1, **fields: Any) -> ev.ModelStarted:
    return ev.ModelStarted(type="model_started", position="5.0", model="m", step=step, **{**COMMON, **fields})


def replied(step: int = 1) -> ev.ModelFinished:
    return ev.ModelFinished(type="model_finished", position="7.0", model="m", step=step, **COMMON)


def told(attention: Attention, *what: ev.Event) -> list[str]:
    """Return the texts that are let through."""
    found: list[str] = []
    for one in what:
        through = attention.came(one) if isinstance(one, ev.TextDelta | ev.ToolProgress) else attention.happened(one)
        found += [each.text for each in through]
    return found


def test_text_of_a_reply_that_has_ended_is_dropped_and_of_one_not_begun_yet_waits():
    attention = Attention()
    assert told(attention, delta("early")) == []
    assert told(attention, asked()) == ["early"]
    assert told(attention, delta("next", step=2), delta("!", offset=5), replied()) == ["!"]
    assert told(attention, delta("late", offset=6)) == []
    assert told(attention, asked(2)) == ["next"]


def test_attempt_that_was_lost_is_replaced_and_what_comes_of_it_late_is_dropped():
    attention = Attention()
    first = told(attention, asked(), delta("Half "), delta("a ", offset=5))
    second = told(attention, delta("Whole ", attempt=2), delta("late", offset=7), delta("again", offset=6, attempt=2))
    assert (first, second) == (["Half ", "a "], ["Whole ", "again"])


def test_piece_that_was_seen_is_not_told_twice_and_one_of_another_request_replaces_all():
    attention = Attention()
    assert told(attention, asked(), delta("One "), delta("One "), delta("Two ", request=2)) == ["One ", "Two "]


def test_text_of_a_call_that_was_made_before_is_not_taken_for_this_one():
    attention = Attention()
    assert told(attention, asked(time=NOW + timedelta(minutes=1)), delta("old")) == []


def test_progress_is_told_of_calls_under_way_alone_and_by_the_tools_name():
    attention = Attention()
    word = ev.ToolProgress(type="tool_progress", position="", call="1.1", name="", text="half", **COMMON)
    started = ev.ToolStarted(type="tool_started", position="8.0", call="1.1", name="look", effect="read", **COMMON)
    ended = ev.ToolFinished(type="tool_finished", position="9.0", call="1.1", name="look", status="ok", **COMMON)
    assert told(attention, word, started, word, ended, word) == ["half", "half"]
    other = Attention()
    (through,) = [*other.happened(started), *other.came(word)]
    assert isinstance(through, ev.ToolProgress)
    assert through.name == "look"


def test_progress_of_a_local_tool_is_told_once_it_was_called_for():
    attention = Attention()
    word = ev.ToolProgress(
        type="tool_progress", position="", call="1.1", name="look", text="half", local=True, **COMMON
    )
    called = replied().model_copy(update={"calls": ["1.1 look"]})
    ended = ev.ToolFinished(type="tool_finished", position="9.0", call="1.1", name="look", status="ok", **COMMON)
    assert told(attention, asked(), word, called, word, ended, word) == ["half", "half"]


def test_draft_begins_anew_with_another_attempt_and_shows_where_a_piece_is_missing():
    draft = Draft()
    assert [draft.take(one) for one in (asked(), delta("Half "), delta("b", offset=9))] == [False, False, False]
    assert draft.text == "Half …b"
    assert draft.take(delta("Whole", attempt=2))
    assert draft.text == "Whole"
    assert draft.take(replied())
    assert draft.text == ""


@pytest.mark.parametrize("aside", [delta("\x00" * 600), delta("😀" * 600)])
def test_every_piece_fits_into_a_notification(aside):
    assert len(written(aside, KEYS)) < 7_900
    assert len(written(aside, Keyring())) < 7_900
