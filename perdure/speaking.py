"""What people say to a run, from Python."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from temporalio.client import (
    Client as TemporalClient,
)
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.control import Wanted
from perdure.decisions import Answer, Decision, Pause, Receipt, Saying, Settlement
from perdure.errors import ConnectionFailed, DecisionRejected, PerdureError, RunNotFound
from perdure.identity import whoami
from perdure.messages import JSON, Content
from perdure.results import RESULT_LIMIT, output_of_value
from perdure.wire import ANSWER, DECIDE, PAUSE, SAY, SETTLE, RunRequest

if TYPE_CHECKING:
    from perdure.client import Client

T = TypeVar("T")

LARGEST = 16_000_000
"""Bytes that can be said to a run at once: it has to read them within two seconds, on a busy machine too."""

_PAUSE = 0.05
"""Seconds until what was missed is said again."""

_PATIENCE = timedelta(seconds=5)
"""How long a decision waits for a worker's answer before it is left as a signal."""


def size_of(temporal: TemporalClient, value: RunRequest | Wanted) -> int:
    """Return how many bytes `value` is when it is recorded."""
    return len(temporal.data_converter.payload_converter.to_payload(value).data)


class Speaking:
    """The part of a run's handle with which people decide, and take hold of it."""

    id: str
    _client: Client

    def _workflow(self, result_type: type[Any] | None = None) -> WorkflowHandle[Any, Any]:
        return self._client.temporal.get_workflow_handle(self.id, result_type=result_type)

    def _rpc(self, error: RPCError) -> PerdureError:
        if error.status == RPCStatusCode.NOT_FOUND:
            if has_ended(error):
                return DecisionRejected(f"Run {self.id} has ended.", "closed")
            return RunNotFound(f"There is no run {self.id!r} on {where(self._client.temporal)}.")
        return unreachable(self._client.temporal, error)

    async def _refused(self, error: RPCError) -> PerdureError:
        """Return the error that says why nothing can be said to the run: one that the engine forgot has ended."""
        from perdure.archive import find

        refused = self._rpc(error)
        if isinstance(refused, RunNotFound):
            with suppress(ConnectionFailed):
                if await find(self._client, self.id):
                    return DecisionRejected(f"Run {self.id} has ended, and is in the archive alone.", "closed")
        return refused

    async def approve(
        self,
        call: str = "",
        *,
        arguments: dict[str, JSON] | None = None,
        hash: str | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> Receipt:
        """Approve a call, and return when the run has taken the decision.

        Where no worker answers within 5 s the decision is left with the run, which takes it as soon as one is
        back; the receipt's `reason` is `queued` then.

        Args:
            call: Position (`2.1`) or id; "" where only one waits.
            arguments: Edited arguments; validated and judged again.
            hash: Of the arguments that were shown; the decision is refused if they are others.
            by: Who decides. Default: user and host.

        Raises:
            DecisionRejected: If it did not take: decided already, unknown call, stale hash, invalid edit.
            RunNotFound: If there is no such run.
        """
        decision = Decision(
            call=call, approve=True, hash=hash, arguments=arguments, by=by or whoami(), reason=reason, id=new_id()
        )
        return await self._update(DECIDE, decision)

    async def deny(self, call: str = "", *, by: str | None = None, reason: str = "") -> Receipt:
        """Deny a call; the model is told. Arguments and errors as for `approve`."""
        return await self._update(
            DECIDE, Decision(call=call, approve=False, by=by or whoami(), reason=reason, id=new_id())
        )

    async def settle(
        self,
        call: str,
        outcome: Literal["done", "not-done", "retry"],
        *,
        result: JSON = None,
        by: str | None = None,
        reason: str = "",
    ) -> Receipt:
        """Say what became of a call in doubt. Errors as for `approve`.

        A large `result` is put into the store; `ConnectionFailed` if that can't be used.
        """
        given = {"result": result} if result is None else await self._put_away("result", result)
        settlement = Settlement(call=call, outcome=outcome, by=by or whoami(), reason=reason, id=new_id(), **given)
        return await self._update(SETTLE, settlement)

    async def _put_away(self, name: str, value: JSON) -> dict[str, Any]:
        """Return what is sent of a `value`: of a large one the beginning, and where the store has the whole of it."""
        output = output_of_value(value, "", "", RESULT_LIMIT, None)
        if output.whole is None:
            return {name: value}
        from perdure.activities.stores import run_owner

        async with self._client.store() as store:
            ref = await store.put(output.whole, run_owner(self._client.temporal.namespace, self.id))
        return {name: output.report.result.content, "ref": ref, "size": len(output.whole)}

    async def say(
        self, content: Content, *, now: bool = False, next: bool = False, by: str | None = None, id: str = ""
    ) -> Receipt:
        """Tell the agent something: it reaches the model before its next turn, also while calls wait for people.

        Args:
            content: Text, or a list of text, images and files.
            now: Break off the model call under way for it. Tools under way are let finish all the same.
            next: Keep it for the next turn of the session that the run is a turn of, in place of telling this one.
            by: Who says it. Default: user and host.
            id: Said twice with the same, it is taken once. Default: made up.

        Raises:
            DecisionRejected: If it did not take: the run has ended, or takes its last turn.
            RunNotFound: If there is no such run.
            PerdureError: If it is too large to be recorded.
        """
        saying = Saying(content=content, now=now, next=next, by=by or whoami(), id=id or new_id())
        return await self._update(SAY, saying)

    async def answer(self, text: str, call: str = "", *, by: str | None = None) -> Receipt:
        """Answer a question that the model has put with `ask_user`: the answer is that call's result.

        Args:
            text: The answer. A long one is put into the store.
            call: Position (`2.1`) or id; "" where only one question is open.
            by: Who answers. Default: user and host.

        Raises:
            DecisionRejected: If it did not take: it is empty, no such question, or it is answered already.
            RunNotFound: If there is no such run.
        """
        if not text.strip():
            raise DecisionRejected(
                "The answer is empty: write one, or withdraw the question with `perdure say`.", "empty"
            )
        given = await self._put_away("text", text)
        return await self._update(ANSWER, Answer(call=call, by=by or whoami(), id=new_id(), **given))

    async def pause(self, *, reason: str = "", by: str | None = None) -> Receipt:
        """Let what runs finish and start nothing new, until `resume`. What people decide is still taken meanwhile.

        Raises:
            DecisionRejected: If it is paused already, or has ended.
            RunNotFound: If there is no such run.
        """
        return await self._update(PAUSE, Pause(reason=reason, by=by or whoami(), id=new_id()))

    async def _update(self, name: str, wanted: Wanted) -> Receipt:
        if (size := size_of(self._client.temporal, wanted)) > LARGEST:
            raise PerdureError(f"What is said to the run has {size:,} bytes; at most {LARGEST:,} can be said at once.")

        await self._readable()

        async def ask() -> Receipt:
            receipt: Receipt = await self._workflow().execute_update(  # pyright: ignore[reportUnknownMemberType]
                name, wanted, id=wanted.id or None, result_type=Receipt, rpc_timeout=_PATIENCE
            )
            return receipt

        try:
            receipt = await self._reaching(ask)
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            return await self._leave(name, wanted)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            reason = cause.type or "rejected" if isinstance(cause, ApplicationError) else "rejected"
            raise DecisionRejected(getattr(cause, "message", str(cause)), reason) from error
        except RPCError as error:
            if await self._was_missed(error):
                return await self._leave(name, wanted)
            raise await self._refused(error) from error
        if not receipt.accepted:
            raise DecisionRejected(receipt.message, receipt.reason)
        return receipt

    async def _readable(self) -> None:
        """Return if what was noted at the run's start can be read here: else what is said would not be encrypted by it.

        Raises:
            KeyMissing: If its key is not here.
        """
        try:
            described = await self._workflow().describe()
        except RPCError as error:
            raise await self._refused(error) from error
        await described.memo()

    async def _reaching(self, send: Callable[[], Awaitable[T]]) -> T:
        """Return what `send` returns, again and again for a while where it was missed.

        What comes twice because of that, the run takes once.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + _PATIENCE.total_seconds()
        while True:
            try:
                return await send()
            except RPCError as error:
                if clock() > deadline or not await self._was_missed(error):
                    raise
            await asyncio.sleep(_PAUSE)

    async def _was_missed(self, error: RPCError) -> bool:
        """Return whether what was said met the end of one of the run's executions, of which another goes on."""
        if has_ended(error):
            described = await self._workflow().describe()
            return described.status is WorkflowExecutionStatus.RUNNING
        return error.status == RPCStatusCode.FAILED_PRECONDITION and "workflow task failure" in error.message

    async def _leave(self, name: str, wanted: Wanted) -> Receipt:
        """Leave it with the run as a signal, which is kept until a worker is there to take it."""
        try:
            await self._reaching(lambda: self._workflow().signal(name, wanted))
        except RPCError as error:
            raise await self._refused(error) from error
        text = "No worker answered: it is left with the run, and takes effect when one is back."
        return Receipt(accepted=True, call=getattr(wanted, "call", ""), reason="queued", message=text)


def has_ended(error: RPCError) -> bool:
    """Return whether the server says that there was such a workflow, and that it is closed."""
    return error.status == RPCStatusCode.NOT_FOUND and "already completed" in error.message


def new_id() -> str:
    """Return the id of a decision: it may be sent by two ways."""
    return secrets.token_hex(8)


def where(client: TemporalClient) -> str:
    """Return which server and namespace a client talks to, for a sentence."""
    return f"{client.service_client.config.target_host} (namespace {client.namespace})"


def unreachable(client: TemporalClient, error: RPCError) -> PerdureError:
    """Return the error that says what a server answered."""
    return ConnectionFailed(f"The server at {where(client)} answered {error.status.name}: {error.message.rstrip('.')}.")
