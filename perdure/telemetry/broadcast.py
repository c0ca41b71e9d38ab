"""The worker's side of the side channel: a bounded buffer and one thread, so that nothing waits for it.

Text and progress are diagnostics: they are redacted before they leave the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from perdure.events import TextDelta, ToolProgress
from perdure.results import clean, words
from perdure.sealing import Keyring
from perdure.telemetry import redaction, signals
from perdure.telemetry.live import LONGEST, Aside, Outlet, name_of, written
from perdure.telemetry.streaming import Stream

_log = logging.getLogger("perdure.live")

MOST = 10_000
"""Pieces of text that wait to be written; what comes then is dropped."""
_TOGETHER, _LONGEST_PAUSE = 0.01, 0.1
"""Seconds: pieces that come within are written together; where many replies are written at once, more of them are."""
_PER_CALL = 0.1
"""Seconds between two words of one call; of those that come within, the last one is told."""
_KEPT = 2_000
"""Replies, and calls, of which is known what was told of them; the oldest is forgotten first."""
_COMPLAIN = 60.0
"""Seconds between two warnings that something was dropped."""
_LONGEST_WORDS = 500


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that a model is writing: which run's, and which attempt's; see `TextDelta`."""

    namespace: str
    run_id: str
    step: int
    model: str
    attempt: int
    request: int


@dataclass(frozen=True, slots=True)
class Working:
    """A call that is being executed; see `ToolProgress`."""

    namespace: str
    run_id: str
    step: int
    call: str
    name: str
    attempt: int
    local: bool = False


@dataclass(slots=True)
class _Shown:
    stream: Stream
    offset: int = 0


@dataclass(slots=True)
class _Words:
    text: str
    fraction: float | None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Broadcast:
    """Takes what is to be told, from any thread; never waits, and never raises.

    Args:
        outlet: Opens where it goes, once something is to be told.
        keys: Encrypt it, if there are any.

    Attributes:
        dropped: Pieces that were lost: since the buffer was full, or they could not be written.
    """

    def __init__(self, outlet: Callable[[], Outlet], keys: Keyring | None = None, *, most: int = MOST) -> None:
        self.dropped = 0
        self._open = outlet
        self._keys = keys or Keyring()
        self._most = most
        self._pieces: deque[tuple[Reply, str | None]] = deque()
        self._words: dict[Working, _Words] = {}
        self._told: OrderedDict[Working, float] = OrderedDict()
        self._replies: OrderedDict[Reply, _Shown] = OrderedDict()
        self._wanted = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._complained = -_COMPLAIN

    # -- from any thread -------------------------------------------------------------------------------------

    def text(self, reply: Reply, text: str) -> None:
        """Tell a piece of a reply."""
        self._put(reply, text)

    def end(self, reply: Reply) -> None:
        """Tell what was held back of a reply that is whole now."""
        self._put(reply, None)

    def progress(self, working: Working, text: str, fraction: float | None) -> None:
        """Tell how far a call is; of words that come quickly, the last."""
        self._words[working] = _Words(text, fraction)
        self._wake()

    def _put(self, reply: Reply, text: str | None) -> None:
        if len(self._pieces) >= self._most:
            self._drop(1)
            return
        self._pieces.append((reply, text))
        self._wake()

    def _wake(self) -> None:
        if self._wanted.is_set():
            return
        self._wanted.set()
        if self._thread is None:
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="perdure-live", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write what waits, for a second at most, and stop."""
        with self._lock:
            self._closed = True
        self._wanted.set()
        if self._thread:
            self._thread.join(1)

    # -- in the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        outlet = self._open()
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if not self._closed:
                time.sleep(min(_TOGETHER * (1 + len(self._replies) / 4), _LONGEST_PAUSE))
            try:
                self._flush(outlet)
            except Exception:  # noqa: BLE001 - whatever it is, the next piece may do
                _log.exception("what a model writes could not be told to those who watch")
            if self._closed:
                outlet.close()
                return
            if self._words:
                self._wanted.set()  # of a call that has just been told of

    def _flush(self, outlet: Outlet) -> None:
        asides: dict[str, list[Aside]] = {}
        for namespace, aside in [*self._texts(), *self._progress()]:
            asides.setdefault(name_of(namespace, aside.run_id), []).append(aside)
        for name, those in asides.items():
            begins = any(isinstance(one, TextDelta) and not one.offset for one in those)
            try:
                outlet.write(name, [written(one, self._keys) for one in those], begins=begins)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it delays and fails nothing
                self._drop(len(those))
                self._complain(error)

    def _drop(self, number: int) -> None:
        self.dropped += number
        signals.current().dropped("text", number)

    def _complain(self, error: Exception) -> None:
        if time.monotonic() - self._complained >= _COMPLAIN:
            self._complained = time.monotonic()
            _log.warning("those who watch miss text, %d pieces so far: %s", self.dropped, words(error))

    def _texts(self) -> Iterator[tuple[str, Aside]]:
        pieces: dict[Reply, list[str]] = {}
        ended: set[Reply] = set()
        while self._pieces:
            reply, text = self._pieces.popleft()
            if text is None:
                ended.add(reply)
            pieces.setdefault(reply, []).append(text or "")
        for reply, texts in pieces.items():
            yield from self._pieces_of(reply, "".join(texts), last=reply in ended)

    def _pieces_of(self, reply: Reply, text: str, *, last: bool) -> Iterator[tuple[str, Aside]]:
        shown = self._replies.pop(reply, None) or _Shown(Stream(redaction.current()))
        said = (shown.stream.feed(text) if text else "") + (shown.stream.close() if last else "")
        for at in range(0, len(said), LONGEST):
            piece = said[at : at + LONGEST]
            yield reply.namespace, _delta(reply, piece, shown.offset)
            shown.offset += len(piece)
        if not last:
            self._replies[reply] = shown
            if len(self._replies) > _KEPT:
                self._replies.popitem(last=False)

    def _progress(self) -> Iterator[tuple[str, Aside]]:
        now = time.monotonic()
        for working in list(self._words):
            if now - self._told.get(working, -_PER_CALL) < _PER_CALL and not self._closed:
                continue
            said = self._words.pop(working)
            self._told[working] = now
            self._told.move_to_end(working)
            if len(self._told) > _KEPT:
                self._told.popitem(last=False)
            yield working.namespace, _progress(working, said)


def _delta(reply: Reply, text: str, offset: int) -> TextDelta:
    return TextDelta(
        type="text_delta",
        run_id=reply.run_id,
        position="",
        time=datetime.now(UTC),
        step=reply.step,
        model=reply.model,
        attempt=reply.attempt,
        request=reply.request,
        offset=offset,
        text=text,
    )


def _progress(working: Working, said: _Words) -> ToolProgress:
    text = redaction.current().text(clean(said.text))
    return ToolProgress(
        type="tool_progress",
        run_id=working.run_id,
        position="",
        time=said.at,
        step=working.step,
        call=working.call,
        name=working.name,
        attempt=working.attempt,
        text=text if len(text) <= _LONGEST_WORDS else f"{text[: _LONGEST_WORDS - 1]}…",
        fraction=said.fraction,
        local=working.local,
    )
