"""A model in process that says what it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

from perdure.errors import ModelError
from perdure.messages import JSON
from perdure.models import ModelReply, ModelRequest
from perdure.models.dialect import Names, level_calls, usage_or_estimate
from perdure.testing.script import ScriptedReply, Troubles, fill, parse_reply, places_for, seen_in

Reply = ScriptedReply | Mapping[str, JSON] | str
ReplyFor = Callable[[ModelRequest], Reply]


class ScriptedModel:
    """A model that follows a script; see `perdure.testing.script` for its form.

    Args:
        replies: One or more. A callable is given the request and returns the reply.

    Attributes:
        requests: Every request, in order.
        closed: Whether it has been closed.

    Raises:
        ModelError: `bad_request` if a reply is none.
    """

    provider = "scripted"

    def __init__(self, replies: Sequence[Reply | ReplyFor]) -> None:
        if not replies:
            raise ModelError("bad_request", "A scripted model needs at least one reply.")
        self._replies = [reply if callable(reply) else parse_reply(reply) for reply in replies]
        self._troubles = Troubles()
        self.requests: list[ModelRequest] = []
        self.closed = False

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the reply that is due. Raises `ModelError`."""
        self.requests.append(request)
        seen = seen_in(request.messages, request.hidden)
        places = places_for([getattr(reply, "about", "") for reply in self._replies], request.messages)
        index = places[min(seen.replies, len(places) - 1)]
        due = self._replies[index]
        reply = self._troubles.give(index, parse_reply(due(request)) if callable(due) else due)
        await asyncio.sleep(reply.delay)
        if reply.troubled:
            await _suffer(reply)
        answer = _reply(ScriptedReply() if reply.empty else fill(reply, seen), request)
        if request.on_text and answer.text:
            request.on_text(answer.text)
        return answer

    def shown(self, turn: int = -1) -> str:
        """Return what the model was shown: instructions, conversation, and the names of its tools, as text.

        Args:
            turn: Of which request: 1 is the first one, -1 the last one.
        """
        if not 0 < abs(turn) <= len(self.requests):
            raise AssertionError(f"The model was asked {len(self.requests)} times; there is no request {turn}.")
        request = self.requests[turn - 1 if turn > 0 else turn]
        said = [json.dumps(one.model_dump(mode="json"), ensure_ascii=False) for one in request.messages]
        return "\n".join([request.instructions, *said, f"tools: {', '.join(tool.name for tool in request.tools)}"])

    def assert_shown(self, *texts: str, turn: int = -1) -> None:
        """Fail unless the model was shown all of these texts; `turn` as for `shown`."""
        seen = self.shown(turn)
        if missing := [text for text in texts if not _within(text, seen)]:
            raise AssertionError(f"The model was not shown {missing[0]!r}, but:\n{seen}")

    def assert_never_shown(self, *texts: str) -> None:
        """Fail if the model was shown one of these texts, with any request."""
        for turn in range(1, len(self.requests) + 1):
            seen = self.shown(turn)
            if found := next((text for text in texts if _within(text, seen)), None):
                raise AssertionError(f"The model was shown {found!r} with request {turn}:\n{seen}")

    def assert_finished(self) -> None:
        """Fail unless the model was asked for each of its replies at least once."""
        if len(self.requests) < len(self._replies):
            text = f"The script has {len(self._replies)} replies; the model was asked {len(self.requests)} times."
            raise AssertionError(text)

    async def aclose(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    @contextmanager
    def named(self) -> Generator[str]:
        """Give it a name that an `Agent` can have as its model, in this process and while the context lasts."""
        from perdure.activities import providers

        prefix = f"test-{uuid4().hex[:8]}"
        providers.register(prefix, lambda _name, _settings: self)
        try:
            yield f"{prefix}:scripted"
        finally:
            providers.unregister(prefix)


def _within(text: str, seen: str) -> bool:
    return text in seen or json.dumps(text, ensure_ascii=False)[1:-1] in seen


async def _suffer(reply: ScriptedReply) -> None:
    if reply.error:
        wait = None if reply.error.retry_after is None else timedelta(seconds=reply.error.retry_after)
        raise ModelError(reply.error.kind, reply.error.message, retry_after=wait)
    if reply.http:
        raise ModelError("bad_request", "A raw HTTP answer in a script needs the model server; use error here.")
    if reply.hang:
        await asyncio.Event().wait()
    if reply.drop:
        raise ModelError("connection", "The connection was dropped, as the script says.")
    if reply.malformed:
        raise ModelError("server", "The answer is malformed, as the script says.")


def _reply(reply: ScriptedReply, request: ModelRequest) -> ModelReply:
    written = [(call.id, call.name, call.arguments) for call in reply.calls]
    answer = ModelReply(
        text=reply.text,
        calls=level_calls(written, request, Names(tool.name for tool in request.tools)),
        finish=reply.ending,
        reasoning=[{"reasoning_content": reply.reasoning}] if reply.reasoning else [],
        model="scripted",
    )
    return replace(answer, usage=reply.usage or usage_or_estimate({}, request, answer))
