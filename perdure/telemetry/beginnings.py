"""With what an execution has begun, as its workflow has taken it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from perdure.messages import RunResult
from perdure.recurring import SCHEDULED_AT, rendered
from perdure.wire import RunRequest

Decode = Callable[[Any, type[Any]], Awaitable[Any]]
"""Returns the one value that payloads hold."""


async def begun_with(started: Any, decode: Decode) -> RunRequest:
    """Return the request of the execution whose first event has the attributes `started`."""
    request: RunRequest = await decode(started.input.payloads, RunRequest)
    if request.recurring is None:
        return request
    payloads, at = started.last_completion_result.payloads, None
    last: RunResult | None = await decode(payloads, RunResult) if payloads else None
    if found := started.search_attributes.indexed_fields.get(SCHEDULED_AT):
        at = datetime.fromisoformat(json.loads(found.data))
    return rendered(request, last, at)
