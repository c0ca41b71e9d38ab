"""What reaches a terminal or a pipe: stdout is data, stderr is talk; foreign text is made harmless first."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, NoReturn, TextIO

import typer

from perdure.errors import (
    AgentError,
    ForkError,
    PerdureError,
    RecordingError,
    ScheduleError,
    ScheduleNotFound,
    SessionNameError,
    VariableError,
)

DONE, FAILED, MISUSE, WAITING, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141
"""Exit codes."""

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, errors included.")]

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36, "bold": 1, "dim": 2}

# What a terminal obeys instead of showing it: control characters but newline and tab, and marks that turn the
# direction of writing, behind which a text can hide.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNESCAPED_BY_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Misuse(PerdureError):
    """The command line says something that can't be; the text says what, and what can."""

    kind = "usage"


class _Unread(Exception):
    """Whoever read our output has closed the pipe."""


def safe(text: str) -> str:
    r"""Return `text` with what a terminal would obey made visible, as `\x1b`."""
    return _HARMFUL.sub(lambda found: _visible(found[0]), text)


def _visible(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"  # noqa: PLR2004 - what two hex digits can say


def one_line(text: str, limit: int = 200) -> str:
    """Return `text` safe, on one line, cut at `limit` characters."""
    line = safe(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def as_json(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as JSON that a terminal shows and does not obey. Pydantic models and times are known."""
    from pydantic_core import to_jsonable_python

    text = json.dumps(to_jsonable_python(value), ensure_ascii=False, indent=indent)
    return _UNESCAPED_BY_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def emit(value: Any) -> None:
    """Print `value` as one line of JSON on stdout."""
    _write(sys.stdout, as_json(value))


def data(text: str) -> None:
    """Print `text` on stdout: whole into a pipe, made harmless on a terminal."""
    _write(sys.stdout, safe(text) if sys.stdout.isatty() else text)


def lay_out(text: str) -> None:
    """Print on stdout a text that we have composed and painted ourselves."""
    _write(sys.stdout, text)


def say(text: str) -> None:
    """Print on stderr a text that we have composed ourselves, of parts that are safe."""
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text + "\n")
        stream.flush()
    except BrokenPipeError as error:
        raise _Unread from error  # under a name of its own: Typer has an opinion on the other


def coloured(stream: TextIO) -> bool:
    """Return whether colours may go to `stream`."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return `text` in that colour, where `stream` (default: stdout) shows colours."""
    if not colour or not coloured(stream or sys.stdout):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def columns(rows: Sequence[Sequence[str]], paints: Mapping[int, Callable[[str], str]] | None = None) -> str:
    """Return `rows` with their columns aligned; `paints` has functions that colour a cell, by column."""
    from rich.cells import cell_len

    paints = paints or {}
    widths = [max(cell_len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [
            paints.get(at, str)(cell) + " " * (width - cell_len(cell))
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def span(duration: timedelta) -> str:
    """Return a duration for a person: `0.3 s`, `2 min 05 s`, `1 h 02 min`, `3 d 04 h`."""
    seconds = max(duration.total_seconds(), 0)
    if seconds < 99.95:  # noqa: PLR2004 - three digits at most
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def moment(time: datetime) -> str:
    """Return a time for a person, in the zone of this machine."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON on stdout. That of `perdure eval` goes into a file, or to `-`."""
    options = list(arguments)
    options = options[: options.index("--")] if "--" in options else options
    if next((word for word in options if not word.startswith("-")), "") != "eval":
        return "--json" in options
    return "--json=-" in options or ("--json", "-") in pairwise(options)


def guarded(command: Callable[[], int | None], arguments: Sequence[str]) -> int:
    """Return the exit code of `command`; whatever it raises becomes one sentence on stderr, or an envelope."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an answer is no reason to fail
    try:
        try:
            return command() or DONE
        except Exception as error:
            if isinstance(error, _Unread) or (os.environ.get("PERDURE_DEBUG") and not _expected(error)):
                raise
            return _fail(error, envelope=wants_json(arguments))
    except _Unread:
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED


def leave(code: int) -> NoReturn:
    """End this process with `code`, all output written.

    Not by the interpreter's own way out: a call of the engine's client that is still under way (Ctrl-C while
    following) makes that hang, or crash.
    """
    atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # what others leave for the end
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a closed pipe, or none at all
            stream.flush()
    os._exit(code)


def _expected(error: Exception) -> bool:
    return isinstance(error, PerdureError | typer.TyperException | typer.Abort)


def _fail(error: Exception, *, envelope: bool) -> int:
    from perdure.telemetry import redaction

    kind, message, code = _told(error)
    message = redaction.current().text(message)
    if envelope:
        emit({"error": {"kind": kind, "message": message}})
    else:
        say(f"{paint('Error:', 'red', sys.stderr)} {safe(message)}")
    return code


def _told(error: Exception) -> tuple[str, str, int]:
    """Return kind, sentence and exit code."""
    match error:
        case ScheduleNotFound():
            return error.kind, str(error), FAILED
        case Misuse() | ScheduleError() | AgentError() | ForkError() | SessionNameError() | VariableError():
            return error.kind, str(error), MISUSE
        case RecordingError():
            return error.kind, str(error), MISUSE
        case PerdureError():
            return error.kind, str(error), FAILED
        case typer.Abort():
            return "interrupted", "Interrupted.", INTERRUPTED
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            path = context.command_path if context else "perdure"
            said = error.format_message().rstrip(".").replace(": Value error, ", ": ")  # pydantic's words, not ours
            return "usage", f"{said}. See `{path} --help`.", error.exit_code
        case _:
            text = f"{type(error).__name__}: {error}".rstrip(".: ")
            return "internal", f"A defect of Perdure: {text}. PERDURE_DEBUG=1 shows where.", FAILED
