"""What tools return, as the model sees it. Pure."""

from __future__ import annotations

import json
from typing import Any

from perdure.messages import RunResult, ToolResult
from perdure.state import ToolReport

_LARGEST_RESULT = 1_000_000
"""Characters: a workflow's return value over 2 MB can't be recorded and would wedge the run."""


def clean(text: str) -> str:
    """Return `text` with lone surrogates replaced, so that it can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


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
        return repr(item)

    try:
        plain = to_jsonable_python(value, fallback=fallback, bytes_mode="base64", inf_nan_mode="null")
        text = json.dumps(plain, ensure_ascii=False)
    except Exception:  # noqa: BLE001 - whatever a tool returned, it has returned
        text, strange = repr(value), [type(value).__name__]
    note = f"The tool returned something that is not JSON ({strange[0]}); it is shown as text." if strange else None
    return clean(text), note


def preview(text: str, limit: int) -> tuple[str, int | None]:
    """Return the first `limit` bytes of `text`, whole characters only, and its size where that is more."""
    data = text.encode()
    if len(data) <= limit:
        return text, None
    return data[:limit].decode("utf-8", "ignore"), len(data)


def report_of_value(value: Any, call_id: str, name: str, limit: int, order: int | None) -> ToolReport:
    """Return the report of a tool that returned `value`."""
    text, note = as_text(value)
    content, size = preview(text, limit)
    result = ToolResult(
        call_id=call_id, name=name, status="ok", content=content, size=size, note=note, execution_order=order
    )
    return ToolReport(result=result)


def bounded(result: RunResult) -> RunResult:
    """Return `result`, the arguments of its calls left out where it would be too large to record."""
    if len(result.model_dump_json()) <= _LARGEST_RESULT:
        return result
    calls = [call.model_copy(update={"arguments": {"…": "left out: see the history"}}) for call in result.calls]
    smaller = result.model_copy(update={"calls": calls})
    if len(smaller.model_dump_json()) <= _LARGEST_RESULT:
        return smaller
    text = preview(result.text, _LARGEST_RESULT // 2)[0]
    return smaller.model_copy(update={"calls": calls[-100:], "text": text})
