"""Scripts: what a model is to say, as data.

A script is a JSON array of replies:

    [
      {"text": "Let me look.", "calls": [{"name": "flight_search", "arguments": {"to": "SHA"}}]},
      {"calls": [{"name": "flight_book", "arguments": {"id": "${flight_search.flights.0.id}"}}], "delay": 1.5},
      {"text": "Booked ${flight_book.reference}."}
    ]

Which reply is given depends only on how many replies the conversation already holds, so that it is the same
after a crash. After the last one, the last is given again; end a script with an `error` to have it complain.
A reply with `about` is for conversations alone whose first message has that text in it, such as those of one step of a
plan; the others are for those that no `about` fits (not by the model server).

`${TOOL.path.0.field}` is replaced from the latest `ok` result of that tool, read as JSON; `${TOOL}` is the
whole of it. A string that is nothing but one such mark takes the value's type, so numbers stay numbers.
`${task.field}` is replaced from the last JSON object on a line of its own in what the user has said, such as the event
that a member of a team is told (not by the model server).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.errors import ModelError, ModelErrorKind
from perdure.messages import JSON, AssistantMessage, Message, ToolMessage, Usage, UserMessage


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedCall(_Strict):
    """A call. `arguments` given as text are sent as they are, so that they can be broken.

    `id` is made up unless given; null or "" sends none, and the adapter has to make one up.
    """

    name: str
    arguments: JSON = Field(default_factory=dict)
    id: str | None = None


class ScriptedError(_Strict):
    """A failure of the model.

    Attributes:
        retry_after: Seconds to wait before another try.
        retry_after_as: How the model server says so: `Retry-After` in seconds or as a date (in whole seconds),
            or `retry-after-ms`.
        streamed: In the middle of a streamed reply, after a status of success (model server only).
    """

    kind: ModelErrorKind
    message: str = "the script says so"
    retry_after: float | None = Field(default=None, ge=0)
    retry_after_as: Literal["seconds", "date", "ms"] = "seconds"
    streamed: bool = False


class ScriptedHttp(_Strict):
    """A raw answer of the model server: text is sent as it is, anything else as JSON."""

    status: int = 200
    headers: dict[str, str] = Field(default_factory=dict)
    body: JSON = ""


class ScriptedReply(_Strict):
    """One reply, or trouble instead of it.

    Attributes:
        text: What it says; with `finish="refusal"`, the refusal.
        calls: What it calls.
        reasoning: Sent as `reasoning_content`, or as a reasoning item.
        finish: Default: `calls` if there are any, else `stop`.
        usage: Default: estimated; null makes the model server leave it out.
        delay: Seconds before the reply.
        error: A failure instead of the reply.
        http: A raw HTTP answer instead of it (model server only).
        hang: No answer at all; or nothing more from the middle of its `body` on; or keep-alives alone (`ping`).
        drop: The connection breaks before the answer, or in the middle of its `body`.
        drip: Seconds between two pieces of the answer's body (model server only).
        malformed: The answer breaks off in the middle of its JSON, or with an event that is none.
        empty: The answer has no choices, or no output.
        about: What the first message of a conversation says whose reply it is; "" for those that none is about.
        times: How often the trouble comes before the reply itself; None: always. It is counted in memory.
    """

    text: str = ""
    calls: list[ScriptedCall] = Field(default_factory=list["ScriptedCall"])
    reasoning: str = ""
    finish: Literal["stop", "calls", "length", "filtered", "refusal"] | None = None
    usage: Usage | None = None
    delay: float = Field(default=0, ge=0)
    error: ScriptedError | None = None
    http: ScriptedHttp | None = None
    hang: Literal[False, True, "body", "ping"] = False
    drop: Literal[False, True, "body"] = False
    drip: float = Field(default=0, ge=0)
    malformed: bool = False
    empty: bool = False
    times: int | None = Field(default=None, ge=1)
    about: str = ""

    @property
    def troubled(self) -> bool:
        """Whether something else comes instead of the reply, or it comes badly."""
        return any(getattr(self, name) for name in _TROUBLES)

    @property
    def ending(self) -> Literal["stop", "calls", "length", "filtered", "refusal"]:
        """How it ends."""
        return self.finish or ("calls" if self.calls else "stop")

    def untroubled(self) -> ScriptedReply:
        """Return the reply itself."""
        return self.model_copy(update={name: type(self).model_fields[name].default for name in _TROUBLES})


_TROUBLES = ("error", "http", "hang", "drop", "drip", "malformed", "empty")


def call(name: str, /, **arguments: JSON) -> ScriptedReply:
    """Return a reply that calls one tool: `call("refund", order="A7", cents=500)`."""
    return ScriptedReply(calls=[ScriptedCall(name=name, arguments=arguments)])


# -- reading -----------------------------------------------------------------------------------------------


def load_script(path: str | Path) -> list[ScriptedReply]:
    """Return the script in a JSON file.

    Raises:
        ModelError: `bad_request` if there is no such file, or it is no script; the text says where.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError("bad_request", f"The script {str(path)!r} can't be read: {reason}.") from None
    except ValueError as error:
        raise ModelError("bad_request", f"The script {str(path)!r} is not JSON: {error}.") from None
    return parse_script(data, f"The script {str(path)!r}")


def parse_script(data: JSON, what: str = "The script") -> list[ScriptedReply]:
    """Return the script that `data` is; raises `ModelError` as `load_script` does."""
    items = cast("Sequence[JSON]", data) if isinstance(data, list) else ()
    if not items:
        raise ModelError("bad_request", f"{what} has to be an array of at least one reply.")
    return [parse_reply(item, f"{what}: reply {n}") for n, item in enumerate(items, 1)]


def parse_reply(data: JSON, what: str = "A scripted reply") -> ScriptedReply:
    """Return the reply that `data` is: a reply, its fields, or its text alone."""
    if isinstance(data, ScriptedReply):
        return data
    try:
        return ScriptedReply.model_validate({"text": data} if isinstance(data, str) else data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ModelError("bad_request", f"{what}: {where or 'it'}: {first['msg']}.") from None


# -- playing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What of a conversation decides about the next reply.

    Attributes:
        replies: How many replies the model has given.
        results: Tool and text of each `ok` result, oldest first.
    """

    replies: int
    results: Sequence[tuple[str, str]]


def seen_in(messages: Sequence[Message], hidden: int = 0) -> Seen:
    """Return what `messages` hold; `hidden` replies are not among them any more."""
    replies = hidden + sum(isinstance(m, AssistantMessage) and m.source == "model" for m in messages)
    results = [m.result for m in messages if isinstance(m, ToolMessage | UserMessage) and m.result]
    said = (m.content for m in messages if isinstance(m, UserMessage) and isinstance(m.content, str))
    tasks = [("task", line) for text in said for line in text.splitlines() if line[:1] + line[-1:] == "{}"]
    return Seen(replies, tasks + [(result.name, result.content) for result in results if result.status == "ok"])


def places_for(abouts: Sequence[str], messages: Sequence[Message]) -> list[int]:
    """Return which replies of a script are for a conversation, by what each of them is about."""
    first = messages[0] if messages else None
    said = first.content if isinstance(first, UserMessage) and isinstance(first.content, str) else ""
    own = [place for place, about in enumerate(abouts) if about and about in said]
    return own or [place for place, about in enumerate(abouts) if not about] or list(range(len(abouts)))


_MARK = re.compile(r"\$\{([^{}]+)\}")


def fill(reply: ScriptedReply, seen: Seen) -> ScriptedReply:
    """Return `reply` with its marks replaced.

    Raises:
        ModelError: `bad_request` if a mark leads to nothing; the text says which.
    """
    calls = [call.model_copy(update={"arguments": _filled(call.arguments, seen)}) for call in reply.calls]
    said = _MARK.sub(lambda mark: _plain(_value(mark[1], seen)), reply.text)
    return reply.model_copy(update={"text": said, "calls": calls})


def _filled(value: JSON, seen: Seen) -> JSON:
    if isinstance(value, Mapping):
        return {key: _filled(child, seen) for key, child in cast("Mapping[str, JSON]", value).items()}
    if isinstance(value, list):
        return [_filled(child, seen) for child in cast("Sequence[JSON]", value)]
    if not isinstance(value, str):
        return value
    whole = _MARK.fullmatch(value)
    return _value(whole[1], seen) if whole else _MARK.sub(lambda m: _plain(_value(m[1], seen)), value)


def _plain(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(path: str, seen: Seen) -> JSON:
    latest = dict(seen.results)
    tool = max((name for name in latest if f"{path}.".startswith(f"{name}.")), key=len, default=None)
    if tool is None:
        raise ModelError("bad_request", f"The script asks for ${{{path}}}, but no such tool has given a result.")
    value = _json(latest[tool])
    for step in path[len(tool) + 1 :].split(".") if path != tool else ():
        try:
            array = isinstance(value, list)
            value = cast("Sequence[JSON]", value)[int(step)] if array else cast("Mapping[str, JSON]", value)[step]
        except (KeyError, IndexError, ValueError, TypeError):
            problem = f"The script asks for ${{{path}}}, but the latest result of {tool!r} has no {step!r} there."
            raise ModelError("bad_request", problem) from None
    return value


def _json(text: str) -> JSON:
    """Return `text` as JSON, whatever notes follow it; text that isn't JSON is itself."""
    text = text.strip()
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return text
    return value if text[end:].startswith("\n") or end == len(text) else text


class Troubles:
    """Counts how often the trouble of each reply has come."""

    def __init__(self) -> None:
        self._given: dict[int, int] = {}

    def next(self, replies: Sequence[ScriptedReply], index: int) -> ScriptedReply:
        """Return reply `index` (the last one, past the end), without its trouble if that has come often enough."""
        index = min(index, len(replies) - 1)
        return self.give(index, replies[index])

    def give(self, index: int, reply: ScriptedReply) -> ScriptedReply:
        """Return `reply`, without its trouble if that has come often enough."""
        if not reply.troubled or reply.times is None:
            return reply
        given = self._given.get(index, 0)
        self._given[index] = given + 1
        return reply if given < reply.times else reply.untroubled()
