"""Replies that come in pieces: server-sent events, and what they add up to."""

from __future__ import annotations

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal

from perdure.activities.providers.errors import from_error_body, not_understood
from perdure.activities.providers.wire import decode, obj
from perdure.errors import ModelError
from perdure.messages import JSON
from perdure.results import clean

Progress = Literal["other", "thinking", "content", "done"]
"""What a piece brought: nothing of the reply, the start of silent reasoning, some of the reply, or its end."""


class Events:
    """Server-sent events out of bytes, by the WHATWG's rules; a last one that lacks its empty line counts too."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._rest = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes, *, last: bool = False) -> Iterator[tuple[str, str]]:
        """Yield name and data of each event that is whole now. Comments are none."""
        text = self._rest + self._decoder.decode(chunk, last)
        *lines, self._rest = re.split(r"\r\n|\n|\r(?!\Z)", text)
        for line in [*lines, self._rest, ""] if last else lines:
            if line:
                self._take(line)
                continue
            if self._data:
                yield self._name, "\n".join(self._data)
            self._name, self._data = "", []

    def _take(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value


class Assembly(ABC):
    """What the events of one reply add up to: the body that the server would have sent whole.

    Attributes:
        asking: What a request says to be answered in pieces.
        complete: True once nothing of the reply is missing, but perhaps its usage.
        characters: Of text, reasoning and arguments, so far.
    """

    asking: ClassVar[dict[str, JSON]] = {"stream": True}

    def __init__(self, on_text: Callable[[str], None] | None = None) -> None:
        self.complete: bool = False
        self.characters: int = 0
        self._on_text = on_text

    @abstractmethod
    def add(self, event: dict[str, JSON], name: str) -> Progress:
        """Take one event in; `name` is the stream's own word for it, often empty."""

    @abstractmethod
    def whole(self) -> dict[str, JSON]:
        """Return the body of the whole reply."""

    def _say(self, text: str) -> None:
        if text and self._on_text:
            self._on_text(clean(text))


class Incoming:
    """One answer as it comes in: a JSON body, or events that add up to one.

    Args:
        assembly: Of the events; None where the whole reply was asked for.
        key: The API key, which never shows in an error.
    """

    def __init__(self, assembly: Assembly | None, key: str = "") -> None:
        self._assembly = assembly
        self._key = key
        self._events = Events()
        self._raw = bytearray()
        self._begun = self._done = self._ended = False
        self.streams = False  # until the headers say that these are events

    @property
    def expects_events(self) -> bool:
        """Whether the reply was asked for in pieces."""
        return self._assembly is not None

    @property
    def complete(self) -> bool:
        """Whether nothing is missing, whatever becomes of the connection."""
        return self._done or bool(self._assembly and self._assembly.complete)

    @property
    def part(self) -> int | None:
        """Characters of a reply that broke off; None where none of it came."""
        if self._begun and self._assembly:
            return self._assembly.characters
        return len(self._raw) if self._raw and not (self._ended or self.streams) else None

    def feed(self, chunk: bytes, *, last: bool = False) -> Progress:
        """Take some bytes in; `last` at the end.

        Raises:
            ModelError: If an event is an error, or none at all.
        """
        self._ended = last
        if not self._begun:
            self._raw += chunk
        progress: Progress = "other" if self.streams else "content"
        if self._assembly:
            for event in self._events.feed(chunk, last=last):
                brought = self._take(self._assembly, *event)
                progress = progress if brought == "other" else brought
        return "done" if self._done else progress

    def _take(self, assembly: Assembly, name: str, data: str) -> Progress:
        if data.strip() == "[DONE]":
            self._begun = self._done = True
            return "done"
        try:
            event = obj(json.loads(data))
        except (ValueError, RecursionError):
            raise not_understood(data, "an event of JSON", key=self._key) from None
        if name == "error" or event.get("type") == "error" or event.get("object") == "error":
            raise from_error_body({"error": event.get("error") or event}, key=self._key)
        if event.get("error"):
            raise from_error_body(event, key=self._key)
        progress = assembly.add(event, name)
        self._begun = True
        return progress

    def whole(self) -> dict[str, JSON]:
        """Return the body of the reply.

        Raises:
            ModelError: If it broke off, is an error, or no JSON object.
        """
        if not self._assembly or not self._begun:
            return self._plain(self._raw.decode("utf-8", "replace"))
        if not self.complete:
            raise ModelError("connection", "The reply broke off: its stream ended before it was complete.")
        # Once more as text: halves of a character that came in two pieces join, those alone are replaced.
        return obj(decode(json.dumps(self._assembly.whole())))

    def _plain(self, answer: str) -> dict[str, JSON]:
        try:
            data = decode(answer)
        except ValueError:
            raise not_understood(answer, "JSON", key=self._key) from None
        if not isinstance(data, Mapping):
            raise not_understood(answer, "a JSON object", key=self._key)
        found = obj(data)
        if isinstance(found.get("error"), dict | str) and found["error"]:
            raise from_error_body(found, key=self._key)
        return found
