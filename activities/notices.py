"""Delivering notices: to a webhook, to a command, or to both."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import time
from datetime import UTC
from urllib.parse import urlsplit

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure import extensions
from perdure.activities.ends import soon, until_ended
from perdure.activities.heartbeats import heartbeats
from perdure.activities.hooking import Hooks
from perdure.errors import PerdureError
from perdure.notices import Notice, Notifier, body, ending, headers, key_of
from perdure.results import words
from perdure.settings import Settings
from perdure.telemetry import redaction
from perdure.telemetry.executions import Recorded
from perdure.telemetry.projection import projected
from perdure.wire import END_NOTICE, NOTIFY, AfterRun, NotifyInput, RunRequest, notice_id

_log = logging.getLogger("perdure.notices")

_PATIENCE = 20.0
"""Seconds that a receiver, or a command, gets."""
_GONE = 410
_TOLD = ApplicationErrorCategory.BENIGN
"""The library's own log does not tell again what was logged here."""
_HIDDEN = ("PERDURE_NOTIFY_SECRET", "PERDURE_ENCRYPTION_KEY", "PERDURE_NOTIFY_URL")
"""What a command does not need to know."""


class Notices:
    """Delivers what is to be told of runs, wherever the settings of this worker say.

    Args:
        client: To read how runs have ended.
        hooks: Told of runs that wait.

    Raises:
        PerdureError: If the secret is none.
        ExtensionError: If what the settings name is not there, or can't be loaded.
    """

    def __init__(self, client: Client, settings: Settings, hooks: Hooks | None = None) -> None:
        self._hooks = hooks
        self._client = client
        self._url, self._command = settings.notify_url, settings.notify_command
        self._key = secret_of(settings)
        self._others: dict[str, Notifier] = {name: extensions.load("notices", name) for name in settings.notify_by}

    @activity.defn(name=NOTIFY)
    async def notify(self, request: NotifyInput) -> None:
        """Deliver a notice.

        Raises:
            ApplicationError: If it was not taken, to be tried again.
        """
        notice = request.notice
        content = content_of(notice)
        async with heartbeats():
            hooked = await self._hooked(notice, content)
            alone = hooked and not self._addressed
            problems = [] if alone else [one for one in await self._delivered(notice.id, content) if one]
        if problems:
            text = redaction.current().text(" ".join(problems))
            _log.warning("notice %s was not delivered: %s", notice.id, text)
            final = problems == [_REFUSED]
            raise ApplicationError(text, type="not_delivered", non_retryable=final, category=_TOLD)

    @property
    def _addressed(self) -> bool:
        return bool(self._url or self._command or self._others)

    async def _hooked(self, notice: Notice, content: bytes) -> bool:
        """Tell the agent's hooks that a run waits, once where others are told as well; return whether it has any."""
        if notice.occasion != "waiting" or not self._hooks or not self._hooks.at("on_waiting", notice.agent):
            return False
        if activity.info().attempt == 1 or not self._addressed:
            await self._hooks.waiting(notice.run_id, notice.agent, notice.step, json.loads(content)["data"])
        return True

    async def _delivered(self, id: str, content: bytes) -> list[str]:
        """Return what did not work."""
        if not self._addressed:
            return ["This worker has neither PERDURE_NOTIFY_URL nor PERDURE_NOTIFY_COMMAND nor PERDURE_NOTIFY_BY."]
        sent = [_posted(self._url, id, content, self._key)] if self._url else []
        ran = [_executed(self._command, content)] if self._command else []
        others = [_handed(name, other, id, content) for name, other in self._others.items()]
        return list(await asyncio.gather(*sent, *ran, *others))

    @activity.defn(name=END_NOTICE)
    async def end_notice(self, request: AfterRun) -> Notice | None:
        """Return what there is to tell of a run's end; None where there is nothing, or the engine has forgotten it.

        Raises:
            ApplicationError: If it goes on: somebody has said something before it ended.
        """
        async with heartbeats():
            recorded = await soon(until_ended(self._client, request.run_id, request.execution), request.run_id)
            return await of_end(self._client, request.run_id, recorded) if recorded else None


async def of_end(client: Client, run_id: str, recorded: Recorded) -> Notice | None:
    """Return what there is to tell of an execution's end; None where the run goes on, or nobody is to be told."""
    started = recorded.events[0].workflow_execution_started_event_attributes
    (request,) = await client.data_converter.decode(list(started.input.payloads), [RunRequest])
    if "ended" not in request.notify or recorded.left_behind:
        return None
    told = await projected(run_id, recorded.events, client.data_converter)
    if told.ended is None:
        return None
    result, state = told.ended, told.state
    return Notice(
        id=notice_id(run_id, f"{recorded.execution[-12:]}-ended"),
        occasion="ended",
        run_id=run_id,
        agent=request.spec.name,
        session=state.session.name if state and state.session else "",
        tenant=state.tenant if state else "",
        step=result.steps,
        at=recorded.events[-1].event_time.ToDatetime(UTC),
        ending=ending(result),
    )


def secret_of(settings: Settings) -> bytes | None:
    """Return the key by which webhooks are signed, None where they are not.

    Raises:
        PerdureError: If the secret is none.
    """
    if settings.notify_secret is None:
        return None
    try:
        return key_of(settings.notify_secret.get_secret_value())
    except ValueError as error:
        raise PerdureError(f"PERDURE_NOTIFY_SECRET can't be used: {error}.") from None


def content_of(notice: Notice) -> bytes:
    """Return what is sent, the same at every attempt, but for what this process has learnt to hide since."""
    hide = redaction.current()
    return json.dumps(body(notice, hide.text, hide.json), ensure_ascii=False).encode("utf-8", "replace")


_REFUSED = "The webhook answered 410: it wants no more of this."


async def _posted(url: str, id: str, content: bytes, key: bytes | None) -> str:
    """Send it, and return why it was not taken; "" where it was. The address, which may be a secret, is not told."""
    import httpx2

    told = headers(id, int(time.time()), content, key)
    try:
        async with httpx2.AsyncClient(timeout=_PATIENCE) as client:
            answer = await client.post(url, content=content, headers=told)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        return f"The webhook at {urlsplit(url).hostname} can't be reached: {type(error).__name__}."
    if answer.status_code == _GONE:
        return _REFUSED
    return "" if answer.is_success else f"The webhook at {urlsplit(url).hostname} answered {answer.status_code}."


async def _handed(name: str, notifier: Notifier, id: str, content: bytes) -> str:
    """Have an extension deliver it, and return why it did not; "" where it did."""
    try:
        await asyncio.wait_for(notifier.deliver(id, json.loads(content)), _PATIENCE)
    except TimeoutError:
        return f"Notifier {name!r} has not ended within {_PATIENCE:.0f} s."
    except Exception as error:  # noqa: BLE001 - other people's code may raise anything
        return f"Notifier {name!r} failed: {words(error)}."
    return ""


async def _executed(command: str, content: bytes) -> str:
    """Run a command with the notice on its stdin, and return why it failed; "" where it did not."""
    environment = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        words = shlex.split(command)
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=nothing, stderr=pipe, env=environment)
    except (OSError, ValueError) as error:
        return f"The command of PERDURE_NOTIFY_COMMAND can't be run: {getattr(error, 'strerror', None) or error}."
    try:
        _, complaint = await asyncio.wait_for(process.communicate(content), _PATIENCE)
    except TimeoutError:
        return f"The command of PERDURE_NOTIFY_COMMAND has not ended within {_PATIENCE:.0f} s."
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = complaint.decode("utf-8", "replace").strip().splitlines()
    why = f": {said[-1][:200]}" if said else ""
    return f"The command of PERDURE_NOTIFY_COMMAND ended with {process.returncode}{why}." if process.returncode else ""
