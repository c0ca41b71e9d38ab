"""The demo's story: a run is started, approved, loses its worker in the middle of a booking, and ends well."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure import events as ev
from perdure.cli import demo_talk as talks
from perdure.cli import output, session
from perdure.cli.demo_stage import Stage, open_stage
from perdure.client import RunHandle
from perdure.errors import DecisionRejected, ModelError, PerdureError, RunEnded
from perdure.examples.travel import script
from perdure.examples.travel.booking_service import Kind
from perdure.messages import RunResult
from perdure.policies import ModelSettings
from perdure.state import CallStatus

BOOKS: dict[str, Kind] = {"flight_book": "flights", "hotel_book": "hotels"}
"""What each booking tool books."""

HEARTBEAT = "PT2S"
"""A worker silent for so long is taken for lost; the default would make the demo wait longer."""

UNWINDING = 5
"""Seconds that a run gets to end as cancelled when the demo ends early."""

UNATTENDED = 180
"""Seconds after which a scripted demo without a person must have ended."""


@dataclass(frozen=True)
class Options:
    """What the command was told, see `perdure demo --help`."""

    yes: bool = False
    model: str | None = None
    slow: bool = False
    home: Path | None = None
    as_json: bool = False


@dataclass
class Report:
    """How it went.

    Attributes:
        booked: By the booking service's own count.
        expected: What that has to be.
        killed: Process id of the worker that was killed; None where nothing was booked.
        ui: Address of the run in the Web UI, where known.
    """

    result: RunResult
    events: Sequence[ev.Event]
    booked: dict[str, int]
    expected: dict[str, int]
    killed: int | None
    ui: str | None

    @property
    def good(self) -> bool:
        """Whether the run is completed, and everything was booked exactly as it says."""
        return self.result.status == "completed" and self.booked == self.expected

    def data(self) -> dict[str, Any]:
        """Return it as what `--json` prints."""
        result = self.result
        return {
            "ok": self.good,
            "run": result.run_id,
            "status": result.status,
            "text": result.text,
            "reason": result.reason,
            "bookings": self.booked,
            "expected": self.expected,
            "killed_worker": self.killed,
            "ui": self.ui,
            "usage": result.usage.model_dump(mode="json"),
            "seconds": round(result.duration.total_seconds(), 3),
            "timeline": [
                {"what": what, "began": began.isoformat(), "seconds": round((ended - began).total_seconds(), 3)}
                for what, began, ended in talks.spans(self.events)
            ],
        }


def perform(options: Options) -> int:
    """Play the demo and return the exit code.

    Raises:
        PerdureError: If something that it needs does not start.
    """
    if options.model:
        _check_model(options.model)
    try:
        return asyncio.run(_perform(options))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


def _check_model(name: str) -> None:
    from perdure.activities.providers import open_model

    try:
        open_model(name, ModelSettings())
    except ModelError as error:
        raise PerdureError(f"--model {name}: {error.message}") from error


async def _perform(options: Options) -> int:
    _end_on_signals()
    talk = talks.Talk()
    asks = talk.heard and not options.yes
    settings = session.settings(home=options.home, heartbeat_timeout=HEARTBEAT)
    run_id = f"travel-{secrets.token_hex(4)}"
    try:
        async with asyncio.timeout(None if asks or options.model else UNATTENDED):
            async with open_stage(settings, run_id, options.model, slow=options.slow) as stage:
                demo = Demo(options, stage, talk, stage.client.handle(run_id), asks=asks)
                report = await demo.play()
                demo.close(report)
                if asks and stage.owned and not options.as_json:
                    output.say("\nThe Web UI is there until you press Enter.")
                    await talks.read_line()
    except TimeoutError as error:
        raise PerdureError(f"The demo did not end within {UNATTENDED} s.") from error
    return output.DONE if report.good else output.FAILED


def _end_on_signals() -> None:
    """Take SIGTERM and SIGHUP as asyncio takes Ctrl-C: everything is ended in order."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine of asyncio.run
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


@dataclass
class Demo:
    """One performance."""

    options: Options
    stage: Stage
    talk: talks.Talk
    handle: RunHandle
    asks: bool
    requests: asyncio.Queue[ev.ApprovalRequested] = field(default_factory=asyncio.Queue["ev.ApprovalRequested"])
    denied: set[str] = field(default_factory=set[str])
    killed: int | None = None

    async def play(self) -> Report:
        """Start the run, see it through, and return how it went.

        Raises:
            PerdureError: If it can't be seen through; the run is cancelled then.
        """
        self._introduce()
        await self.stage.client.start(self.stage.agent, script.task(self.stage.today), id=self.handle.id)
        story = asyncio.create_task(self._follow())
        others = [asyncio.create_task(self._decide()), asyncio.create_task(self.stage.watch_worker())]
        try:
            await asyncio.wait([story, *others], return_when=asyncio.FIRST_COMPLETED)
            for failed in others:
                if failed.done():
                    failed.result()
            return await story
        except BaseException:
            await self._give_up()
            raise
        finally:
            for task in (story, *others):
                task.cancel()

    def _introduce(self) -> None:
        stage, line = self.stage, self.talk.line
        ui = f", Web UI at {stage.ui}" if stage.ui else ""
        line("demo", "An agent books a journey. Its worker is killed in the middle, and nothing is lost or done twice.")
        line("engine", f"Temporal at {stage.client.temporal.service_client.config.target_host}{ui}")
        books = session.short_path(stage.ledger)
        line("bookings", f"a service at {stage.bookings.address}, with its own books in {books}")
        line(
            "model",
            f"follows a script, over HTTP at {stage.script.base_url}" if stage.script else stage.agent.spec.model,
        )
        line("worker", f"process {stage.worker.pid} starts")
        line("run", f"{self.handle.id}: “{script.task(stage.today)}”")

    async def _give_up(self) -> None:
        """Leave no open run behind."""
        self.talk.line("demo", "It ends early: the run is cancelled, and every process is ended.", "yellow")
        with contextlib.suppress(PerdureError):
            await self.handle.cancel("the demo was ended")
            try:
                await asyncio.wait_for(self.handle.result(), UNWINDING)
            except TimeoutError:  # it waits for a worker that can't come any more
                await self.stage.client.temporal.get_workflow_handle(self.handle.id).terminate("the demo was ended")

    async def _follow(self) -> Report:
        seen: list[ev.Event] = []
        async for event in self.handle.events():
            seen.append(event)
            self.talk.event(event)
            match event:
                case ev.ApprovalRequested():
                    self.requests.put_nowait(event)
                case ev.ApprovalDecided(approve=False):
                    self._tell_denied(event.name)
                case ev.InDoubt():
                    raise PerdureError(f"Nobody knows whether {event.name} was done: {event.message}")
                case _:
                    pass
        try:
            result = await self.handle.result()
        except RunEnded as error:
            result = error.result
        booked: dict[str, int] = {kind: self.stage.booked(kind) for kind in BOOKS.values()}
        page = session.web_page(self.stage.client.settings, self.handle.id)
        return Report(result, seen, booked, self._expected(result), self.killed, page)

    def _expected(self, result: RunResult) -> dict[str, int]:
        """Return what has to be booked: one of each by the script, else what the run says that it did."""
        if self.options.model is None:
            return {kind: int(name not in self.denied) for name, kind in BOOKS.items()}
        done = [call.name for call in result.calls if call.status == "ok"]
        return {kind: done.count(name) for name, kind in BOOKS.items()}

    # -- deciding, and killing -----------------------------------------------------------------------------

    async def _decide(self) -> None:
        """Decide one request after the other; the first booking loses its worker."""
        while True:
            request = await self.requests.get()
            kind = BOOKS.get(request.name)
            before = self.stage.booked(kind) if kind else 0
            try:
                await self._answer(request)
            except DecisionRejected as error:  # decided elsewhere meanwhile, from the Web UI perhaps
                self.talk.line("approval", str(error), "yellow")
            if kind and not self.killed and await self._under_way(request.call, kind, before):
                self._replace_worker(request.name)

    async def _answer(self, request: ev.ApprovalRequested) -> None:
        asked = f"{request.name} needs approval: {talks.shown(request.arguments)}"
        if not self.asks:
            why = "--yes" if self.options.yes else "nobody is at a terminal"
            self.talk.line("approval", f"{asked}. The demo approves by itself ({why}).", "yellow")
            await self.handle.approve(request.call, hash=request.hash, by="perdure demo")
            return
        self.talk.line("approval", asked, "yellow")
        if await self.talk.ask("Approve it?"):
            await self.handle.approve(request.call, hash=request.hash)
        else:
            self._tell_denied(request.name)
            await self.handle.deny(request.call)

    def _tell_denied(self, name: str) -> None:
        """Have the scripted model know; a real one reads it."""
        self.denied.add(name)
        self.stage.tell_script(self.denied, slow=self.options.slow)

    async def _under_way(self, call: str, kind: Kind, before: int) -> bool:
        """Wait until a booking has happened and its reply has not come; False if the call ended otherwise."""
        while True:
            state = (await self.handle.projection()).state
            found = state.find(call) if state else None
            if found is None or found.status is CallStatus.CLOSED:
                return False
            if self.stage.booked(kind) > before:
                return True
            await asyncio.sleep(0.05)

    def _replace_worker(self, name: str) -> None:
        self.killed = self.stage.worker.pid
        self.stage.worker.kill()
        self.stage.start_worker()
        told = f"{name} has booked, and its reply is not there yet: worker {self.killed} is killed (SIGKILL)"
        self.talk.line("kill", told, "red")
        self.talk.line("worker", f"process {self.stage.worker.pid} starts in its place")

    # -- the end -------------------------------------------------------------------------------------------

    def close(self, report: Report) -> None:
        """Say how it went."""
        if self.options.as_json:
            output.emit(report.data())
            return
        result = report.result
        ended = "" if result.status == "completed" else f"\n{result.status}: {result.reason}"
        output.data(f"\n{result.text}{ended}\n")
        output.lay_out(f"Timeline\n{talks.timeline(report.events)}\n")
        output.lay_out(f"Tokens    {talks.tokens(result)}")
        if report.ui:
            gone = " (ended; `perdure dev` shows the run again)" if self.stage.owned and not self.asks else ""
            output.lay_out(f"Web UI    {report.ui}{gone}")
        counted = f"Bookings  {talks.bookings(report.booked)}, by the service's own count: {self._verdict(report)}"
        output.lay_out(output.paint(counted, "green" if report.good else "red"))

    def _verdict(self, report: Report) -> str:
        if report.booked != report.expected:
            return f"WRONG, it has to be {talks.bookings(report.expected)}."
        if not report.killed:
            return "as it has to be. No worker was killed, since no booking was under way."
        return f"nothing lost, nothing done twice, though worker {report.killed} was killed in the middle."
