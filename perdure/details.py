"""Where a run stands, as Markdown for its page in the Web UI. Pure; nothing of what people have written."""

from __future__ import annotations

from collections.abc import Iterator

from perdure import asking
from perdure.budgets import gone
from perdure.messages import OpenStatus
from perdure.state import Phase, RunState

_WISHES: dict[asking.Wish, str] = {
    "approval": "approval of",
    "answer": "an answer to",
    "settlement": "a person to say what became of",
    "more": "more of its budget, or to be resumed without",
    "resumption": "being resumed",
}


def details(state: RunState, phase: Phase, status: OpenStatus) -> str:
    """Return what an open run is at, what it waits for and how that is answered, and what it has used."""
    word = status.replace("_", " ")
    lines = [f"**{phase}** · step {state.steps} of {state.limits.steps} · {word}"]
    if wanted := [_wish(request) for request in asking.requests(state)]:
        lines += ["", "Waits for", "", *wanted]
    lines += ["", f"Used: {', '.join(_used(state))}"]
    return "\n".join(lines)


def _wish(request: asking.Request) -> str:
    about = f" call {request.call} ({_code(request.tool)})" if request.call else ""
    return f"- {_WISHES[request.wants]}{about}: {' or '.join(_code(command) for command in request.commands)}"


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"


def _used(state: RunState) -> Iterator[str]:
    used, limits = gone(state), state.limits
    yield f"{used.steps} of {limits.steps} steps"
    yield f"{used.input_tokens:,}{_of(limits.input_tokens)} input tokens"
    yield f"{used.output_tokens:,}{_of(limits.output_tokens)} output tokens"
    if used.usd or limits.usd is not None:
        yield f"{used.usd:.4f}{'' if limits.usd is None else f' of {limits.usd}'} USD"


def _of(limit: int | None) -> str:
    return "" if limit is None else f" of {limit:,}"
