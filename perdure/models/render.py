"""Tool results as the model reads them. Pure: the same result always gives the same text."""

from __future__ import annotations

import json

from perdure.messages import ToolResult


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
            lines.append(f"[Cut: {shown} of {result.size} bytes are shown.]")
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
