"""The redactor before every log: whatever of Perdure or of the engine's client is logged passes through it.

It comes before handlers and formatters, when a record is made, so that whatever an application has set up for its logs
goes on working, and gets nothing that is personal.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import Any

_OURS = ("perdure", "temporalio")
_LONGEST = 20_000
"""Characters that are logged of one text: to look through more would hold up whatever else the process does."""
_LONGEST_WORD = 200
FAILURE = "failure"
"""Attribute of a record that was made for an exception: its type and words, in one line."""


def protect() -> None:
    """Redact what Perdure and the engine's client log from now on. Safe to repeat; other loggers are left alone."""
    current = logging.getLogRecordFactory()
    if not isinstance(current, _Factory):
        logging.setLogRecordFactory(_Factory(current))


class _Factory:
    """Makes log records as the factory before it does, and redacts those of our loggers."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, name: str | None, *args: Any, **kwargs: Any) -> logging.LogRecord:
        """Return a record; `logging.makeLogRecord` gives no name."""
        record: logging.LogRecord = self._before(name, *args, **kwargs)
        return redacted(record) if (name or "").partition(".")[0] in _OURS else record


def redacted(record: logging.LogRecord) -> logging.LogRecord:
    """Return `record` with its message, exception and traceback redacted; the exception itself is left out."""
    from perdure.telemetry import redaction  # it takes a while to load, and most commands log nothing

    redactor = redaction.current()
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - the words do not fit what they tell of: that is told without it
        text = str(record.msg)
    record.msg, record.args = redactor.text(bounded(text)), None
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        setattr(record, FAILURE, redactor.text(bounded(_words(error))))
        record.exc_text = redactor.text(bounded("".join(traceback.format_exception(error)).rstrip("\n")))
        record.exc_info = None
    if record.stack_info:
        record.stack_info = redactor.text(bounded(record.stack_info))
    return record


def bounded(text: str) -> str:
    """Return a text, or the beginning and the end of one that is too long, without words that were cut in two."""
    if len(text) <= _LONGEST:
        return text
    first, last, word = text[: _LONGEST // 2], text[-_LONGEST // 2 :], _LONGEST_WORD
    return f"{first[:-word]}{first[-word:].rpartition(' ')[0]} … {last[:word].partition(' ')[2]}{last[word:]}"


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - a broken __str__ of application code
        return type(error).__name__


class Redacted(logging.Formatter):
    """A formatter whose output is redacted, whoever has logged: for a handler of our own.

    Args:
        inner: Formats.
    """

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Return what `inner` makes of the record, redacted."""
        from perdure.telemetry import redaction

        return redaction.current().text(self._inner.format(record))


def catch_all() -> None:
    """Log what would be printed as it is: warnings, and exceptions that nobody has caught, in threads as well."""
    log = logging.getLogger("perdure.process")
    logging.captureWarnings(capture=True)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = args.thread.name if args.thread else "?"
            log.error("an exception that nobody has caught ended thread %s", name, exc_info=args.exc_value)

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        if args.exc_value is not None:
            log.error("an exception was ignored in %s", type(args.object).__name__, exc_info=args.exc_value)

    def uncaught(_: type[BaseException], error: BaseException, __: Any) -> None:
        log.critical("an exception that nobody has caught ended the process", exc_info=error)

    threading.excepthook, sys.unraisablehook, sys.excepthook = in_thread, unraisable, uncaught
