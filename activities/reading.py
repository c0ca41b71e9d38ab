"""`read_result`: how a model reads on where a result was cut."""

from __future__ import annotations

import asyncio

from perdure.activities.spilling import Spilling
from perdure.errors import ConnectionFailed
from perdure.messages import JSON, ToolResult
from perdure.paging import Page, find, page
from perdure.policies import READ_RESULT
from perdure.reports import ToolReport
from perdure.wire import ToolInput


async def read_result(call: ToolInput, spilling: Spilling, usual: int) -> ToolReport:
    """Return the part of a result that `call` asks for. That the model was shown its handle was judged before.

    Args:
        usual: Bytes of a page where the call does not say how long it is to be.
    """
    handle, offset = str(call.arguments["handle"]), int(call.arguments.get("offset") or 0)
    try:
        data = await spilling.read(handle)
    except LookupError:
        return _failed(call, "gone", "What was kept of it is not there any more.", "Call the tool itself again.")
    except ConnectionFailed as error:
        return _failed(call, "unavailable", f"It can't be read at present: {error}", "Go on without it for now.")
    if offset >= len(data):
        return _failed(call, "offset", f"It has {len(data)} bytes only.", "Begin at a smaller offset.")
    found = await asyncio.to_thread(_read, data, offset, call.arguments, usual)
    more = f' {READ_RESULT.name}("{handle}", {_rest(found.then, call)}) gives more.' if found.then is not None else ""
    result = ToolResult(
        call_id=call.call_id,
        name=READ_RESULT.name,
        status="ok",
        content=found.text,
        note=f"{found.where}{more}",
        execution_order=call.order,
    )
    return ToolReport(result=result)


def _read(data: bytes, offset: int, arguments: dict[str, JSON], usual: int) -> Page:
    if words := arguments.get("find"):
        return find(data, str(words), offset)
    return page(data, offset, int(arguments.get("limit") or usual))


def _rest(then: int, call: ToolInput) -> str:
    return f'find="{call.arguments["find"]}", offset={then}' if call.arguments.get("find") else f"offset={then}"


def _failed(call: ToolInput, error_type: str, message: str, suggestion: str) -> ToolReport:
    result = ToolResult(
        call_id=call.call_id,
        name=READ_RESULT.name,
        status="error",
        error_type=error_type,
        message=message,
        suggestion=suggestion,
        execution_order=call.order,
    )
    return ToolReport(result=result)
