"""From what a tool returned to what is reported of it: shaped for the model, and the rest put away."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perdure import concealing
from perdure.activities.spilling import Spilling
from perdure.activities.toolbox import Toolbox
from perdure.activities.unlocked import NONE, Unlocked
from perdure.policies import Shaping
from perdure.reports import ToolReport
from perdure.results import Illustrated, Output, as_text, noted, output_of_value, short, words
from perdure.telemetry.acquaintance import meet_value
from perdure.tools import Tool
from perdure.wire import ToolInput

_SHAPING_SECONDS = 5.0
"""How long a tool's shape function may take."""


class Outputs:
    """Makes the reports of one worker's tools.

    Args:
        toolbox: Where shape functions run.
        spilling: Where large results go.
    """

    def __init__(self, toolbox: Toolbox, spilling: Spilling) -> None:
        self._toolbox = toolbox
        self._spilling = spilling

    async def report(
        self, output: Output, tool: Tool, call: ToolInput, shaping: Shaping, secrets: Unlocked
    ) -> ToolReport:
        """Return the report of what `tool` returned. Never fails: what was done is reported in any case."""
        if tool.shape is not None:
            output = await self._shaped(output, _shaping(output.value, tool, call, shaping, secrets))
        return await self._spilling.keep(output)

    async def _shaped(self, output: Output, shaping: Callable[[], Any]) -> Output:
        """Return `output` shaped by the tool's function; with a note, and as it was, where that fails."""
        try:
            shaped: Output = await self._toolbox.run(shaping, {}, _SHAPING_SECONDS)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is: the tool has done its work
            note = f"It could not be shaped, and is shown as it is: {words(error)}."
            return replace(output, report=output.report.having(noted(output.report.result, note)))
        result, before = shaped.report.result, output.report.result.note
        return replace(shaped, report=output.report.having(noted(result, before) if before else result))


def _shaping(value: Any, tool: Tool, call: ToolInput, shaping: Shaping, secrets: Unlocked) -> Callable[[], Any]:
    """Return what shapes `value` and makes text of it, where tools run: both are application code."""
    shape = tool.shape
    assert shape is not None  # noqa: S101 - the caller looked

    def made(shaped: Any) -> Output:
        output = _with_private(_output(shaped, tool, call, shaping, secrets), value, tool)
        return replace(output, returned=as_text(secrets.cleaned(value))[0].encode() if tool.compensate else None)

    if not inspect.iscoroutinefunction(shape):
        return lambda: made(shape(value))

    async def begin() -> Output:
        return made(await shape(value))

    return begin


def output_of(value: Any, tool: Tool, call: ToolInput, shaping: Shaping, secrets: Unlocked = NONE) -> Output:
    """Return what becomes of the `value` that a tool returned; runs where the tool does."""
    if isinstance(value, Illustrated):
        return _illustrated(value, output_of(value.value, tool, call, shaping, secrets))
    output = _with_private(_output(value, tool, call, shaping, secrets), value, tool)
    return replace(output, value=value) if tool.shape else output


def _illustrated(value: Illustrated, output: Output) -> Output:
    result = output.report.result.model_copy(update={"images": list(value.images)})
    return replace(output, report=output.report.having(noted(result, short(value.note)) if value.note else result))


def _output(value: Any, tool: Tool, call: ToolInput, shaping: Shaping, secrets: Unlocked) -> Output:
    options = {"undoable": tool.compensate is not None, "local": call.local}
    name, value = tool.name, secrets.cleaned(value)
    return output_of_value(value, call.call_id, name, call.result_limit, call.order, shaping, **options)


def _with_private(output: Output, value: Any, tool: Tool) -> Output:
    """Return `output` with what is private in the `value` that the tool returned, before it was shaped or cut."""
    returns = tool.spec.returns
    meet_value(value, returns)
    if not concealing.conceals(returns):
        return output
    return replace(output, report=output.report.having(concealing.noted(output.report.result, value, returns)))
