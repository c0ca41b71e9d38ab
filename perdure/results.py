"""What tools return, as the model sees it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure.messages import ToolResult
from perdure.policies import READ_RESULT
from perdure.reports import ToolReport

RESULT_LIMIT = 65_536
"""Bytes of a result that reach the model, where its tool does not say otherwise."""
KEEPING = timedelta(minutes=5)
"""How long a store may be away while something that a tool needs is put there or read, before it does without."""


def clean(text: str) -> str:
    """Return `text` with lone surrogates replaced, so that it can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


_LONGEST_MESSAGE = 2_000


def short(text: object) -> str:
    """Return `text` clean and at most 2,000 characters long."""
    said = clean(str(text))
    return said if len(said) <= _LONGEST_MESSAGE else f"{said[:_LONGEST_MESSAGE]}…"


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
class Output:
    """What a tool returned: how it is reported, and the whole of it where that has only the beginning."""

    report: ToolReport
    whole: bytes | None = None


def output_of_value(value: Any, call_id: str, name: str, limit: int, order: int | None) -> Output:
    """Return what becomes of the `value` that a tool returned; more than `limit` bytes are left to be put away."""
    text, note = as_text(value)
    content, size = preview(text, limit)
    result = ToolResult(
        call_id=call_id, name=name, status="ok", content=content, size=size, note=note, execution_order=order
    )
    return Output(ToolReport(result=result), None if size is None else text.encode())


def report_of_value(value: Any, call_id: str, name: str, limit: int, order: int | None) -> ToolReport:
    """Return the report of a `value` of which the rest beyond `limit` bytes is kept nowhere."""
    return output_of_value(value, call_id, name, limit, order).report


def noted(result: ToolResult, note: str) -> ToolResult:
    """Return `result` with one more note to the model."""
    return result.model_copy(update={"note": f"{result.note} {note}" if result.note else note})


def render_result(result: ToolResult) -> str:
    """Return `result` as text for the model.

    An `ok` result is its content; where that is a preview, a line says how much of it is shown. Everything
    else is a compact JSON object of `status`, `error_type`, `message`, `suggestion` and `note`, in that
    order, empty ones left out.
    """
    if result.status == "ok":
        lines = [result.content]
        if result.size is not None:
            shown = len(result.content.encode("utf-8", "surrogatepass"))
            more = f'; {READ_RESULT.name}("{result.ref}", offset={shown}) gives more' if result.ref else ""
            lines.append(f"[Cut: {shown} of {result.size} bytes are shown{more}.]")
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
