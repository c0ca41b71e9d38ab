"""What tools return, as the model sees it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure.messages import JSON, ImagePart, ToolResult
from perdure.parsing import parse_json
from perdure.policies import READ_RESULT, Shaping
from perdure.reports import ToolReport
from perdure.shaping import trim

RESULT_LIMIT = 65_536
"""Bytes of a result that reach the model, where its tool does not say otherwise."""
KEEPING = timedelta(minutes=5)
"""How long a store may be away while something that a tool needs is put there or read, before it does without."""

REACHING = timedelta(minutes=5)
"""How long an MCP server may take to be there, and a call of it wait for others, before anything is sent to it."""


def clean(text: str) -> str:
    """Return `text` with lone surrogates replaced, so that it can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


_LONGEST_MESSAGE = 2_000


def short(text: object) -> str:
    """Return `text` clean and at most 2,000 characters long."""
    said = clean(str(text)[: _LONGEST_MESSAGE + 1])
    return said if len(said) <= _LONGEST_MESSAGE else f"{said[:_LONGEST_MESSAGE]}…"


def sentence(text: str) -> str:
    """Return `text` with a full stop, unless it ends as sentences do: another one can follow it."""
    said = text.rstrip()
    return said if not said or said.endswith((".", "!", "?", "…")) else f"{said}."


def words(error: BaseException) -> str:
    """Return an error in its own words; one that can't even say what it is has its type's name."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return short("; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5]))
    try:
        return short(f"{type(error).__name__}: {error}")
    except BaseException:  # noqa: BLE001 - a broken __str__ of application code
        return type(error).__name__


def as_text(value: Any) -> tuple[str, str | None]:
    """Return `value` as text for the model, and a note where it was not JSON.

    A string stays as it is, None is empty, everything that pydantic can write becomes JSON, and the rest its repr.
    """
    if isinstance(value, str):
        return clean(value), None
    if value is None:
        return "", None
    from pydantic_core import to_jsonable_python

    strange: list[str] = []

    def fallback(item: Any) -> str:
        strange.append(type(item).__name__)
        return _repr(item)

    try:
        try:
            value = to_jsonable_python(value, fallback=fallback, bytes_mode="base64", inf_nan_mode="null")
        except UnicodeError:  # half an emoji somewhere inside
            strange.clear()
        text = json.dumps(value, ensure_ascii=False, default=fallback)
    except Exception:  # noqa: BLE001 - whatever a tool returned, it has returned
        text, strange = _repr(value), [type(value).__name__]
    note = f"The tool returned something that is not JSON ({strange[0]}); it is shown as text." if strange else None
    return clean(text), note


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except BaseException:  # noqa: BLE001 - a broken __repr__ of application code, or one nested too deeply
        return f"<{type(value).__name__}>"


def preview(text: str, limit: int) -> tuple[str, int | None]:
    """Return the first `limit` bytes of `text`, whole characters only, and its size where that is more."""
    data = text.encode()
    if len(data) <= limit:
        return text, None
    return data[:limit].decode("utf-8", "ignore"), len(data)


@dataclass(frozen=True, slots=True)
class Illustrated:
    """What a tool returned that shows images as well, or of which something has to be said besides."""

    value: Any
    images: tuple[ImagePart, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """What a tool returned: how it is reported, and what of it is to be put away.

    Attributes:
        whole: All that the model may read, where `report` has only a part of it.
        returned: What the tool returned before it was shaped, where its compensation needs that.
        value: The same as it came, where it is yet to be shaped by a function.
    """

    report: ToolReport
    whole: bytes | None = None
    returned: bytes | None = None
    value: Any = None


NO_SHAPING = Shaping()
LOCAL_LIMIT = 32_768
"""Bytes as JSON of a local tool's result that reach the model at once: a hundred such results may be recorded together,
in one message, of which the engine takes 4 MiB."""


def _short_as_json(content: str) -> str:
    """Return the beginning of `content` that has at most `LOCAL_LIMIT` bytes as JSON."""
    while (size := len(_dumped(content).encode())) > LOCAL_LIMIT:
        content, _ = preview(content, min(LOCAL_LIMIT, len(content.encode()) * LOCAL_LIMIT // size - 1))
    return content


def output_of_value(
    value: Any,
    call_id: str,
    name: str,
    limit: int,
    order: int | None,
    shaping: Shaping = NO_SHAPING,
    *,
    undoable: bool = False,
    local: bool = False,
) -> Output:
    """Return what becomes of the `value` that a tool returned; what the model is not shown is left to be put away.

    Args:
        limit: Bytes that it is shown at most.
        undoable: A compensation may need what was returned.
        local: It is recorded together with those of all other local calls under way: see `LOCAL_LIMIT`.
    """
    text, note = as_text(value)
    shown, whole, trimmed = _shaped(text, shaping)
    if shaping.fields and shown is None:
        note = f"{note} {_NO_FIELDS}" if note else _NO_FIELDS
    shown = text if shown is None else shown
    content, _ = preview(shown[: shaping.max_chars], limit)
    content = _short_as_json(content) if local else content
    cut = trimmed is not None or len(content) < len(shown)
    result = ToolResult(
        call_id=call_id,
        name=name,
        status="ok",
        content=content,
        size=len(whole.encode()) if cut else None,
        trimmed=trimmed,
        note=note,
        execution_order=order,
    )
    returned = text.encode() if undoable and whole != text else None
    return Output(ToolReport(result=result), whole.encode() if cut else None, returned)


_NO_FIELDS = "Its fields could not be picked, as it is not a JSON object or list: it is shown as it is."


def _shaped(text: str, shaping: Shaping) -> tuple[str | None, str, str | None]:
    """Return what is shown of a result's text, all that may be read of it, and what the former lacks.

    What is shown is None where the text is nothing of which a part could be taken.
    """
    if not shaping.fields and shaping.limit is None:
        return text, text, None
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict | list):
        return None, text, None
    shown, whole, trimmed = trim(value, shaping)
    all_of_it = text if whole == value else _dumped(whole)
    return all_of_it if trimmed is None else _dumped(shown), all_of_it, trimmed


def _dumped(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False)


def report_of_value(
    value: Any, call_id: str, name: str, limit: int, order: int | None, shaping: Shaping = NO_SHAPING
) -> ToolReport:
    """Return the report of a `value` of which the model is shown a part, and the rest is kept nowhere."""
    return output_of_value(value, call_id, name, limit, order, shaping).report


def noted(result: ToolResult, note: str) -> ToolResult:
    """Return `result` with one more note to the model."""
    return result.model_copy(update={"note": f"{result.note} {note}" if result.note else note})


def render_result(result: ToolResult) -> str:
    """Return `result` as text for the model.

    An `ok` result is its content; where that is only a part, a line says how to read the rest. Everything
    else is a compact JSON object of `status`, `error_type`, `message`, `suggestion` and `note`, in that
    order, empty ones left out.
    """
    if result.status == "ok":
        lines = [result.content]
        if result.size is not None:
            lines.append(_rest(result, result.size))
        if result.note:
            lines.append(f"[Note: {result.note}]")
        return "\n".join(lines)
    fields = {
        "status": result.status,
        "error_type": result.error_type,
        "message": result.message,
        "suggestion": result.suggestion,
        "note": result.note,
    }
    return json.dumps({key: value for key, value in fields.items() if value}, ensure_ascii=False, separators=(",", ":"))


def _rest(result: ToolResult, size: int) -> str:
    own = len(result.content.encode("utf-8", "surrogatepass"))
    shown = own if result.shown is None else result.shown
    if result.trimmed is not None:
        more = f'; {READ_RESULT.name}("{result.ref}") gives all' if result.ref else ""
        return f"[Trimmed: {result.trimmed}; {shown} of {size} bytes are shown{more}.]"
    more = f'; {READ_RESULT.name}("{result.ref}", offset={shown}) gives more' if result.ref else ""
    return f"[Cut: {shown} of {size} bytes are shown{more}.]"
