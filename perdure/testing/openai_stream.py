"""Answers of both OpenAI APIs in pieces: the events that add up to a whole one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

Body = dict[str, Any]

_PIECES = 50
"""At most so many pieces of one text."""


def _pieces(text: str | None, shortest: int = 8) -> list[str]:
    size = max(shortest, -(-len(text or "") // _PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)] if text else []


def event(data: Body, name: str = "") -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "surrogatepass")


# -- Chat Completions --------------------------------------------------------------------------------------


def chat_events(answer: Body, request: Body) -> Iterator[bytes]:
    """Yield the chunks of a chat completion."""
    head = {"id": answer["id"], "object": "chat.completion.chunk", "created": 0, "model": answer["model"]}
    for choice in answer["choices"]:
        for delta in _deltas(choice["message"]):
            yield event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        yield event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    options: Body = request.get("stream_options") or {}
    if "usage" in answer and options.get("include_usage"):
        yield event({**head, "choices": [], "usage": answer["usage"]})
    yield b"data: [DONE]\n\n"


def _deltas(message: Body) -> Iterator[Body]:
    yield {"role": "assistant", "content": ""}
    for key in ("reasoning_content", "content", "refusal"):
        yield from ({key: piece} for piece in _pieces(message.get(key)))
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        for piece in _pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


# -- Responses ---------------------------------------------------------------------------------------------


def responses_events(answer: Body, request: Body) -> Iterator[bytes]:
    """Yield the events of a response."""
    del request
    number = count()
    begun: Body = {**answer, "status": "in_progress", "output": []}
    events: list[tuple[str, Body]] = [("created", {"response": begun}), ("in_progress", {"response": begun})]
    for index, item in enumerate(answer["output"]):
        events += [("output_item.added", {"output_index": index, "item": _announced(item)})]
        events += [(kind, {"output_index": index, "item_id": item["id"], **more}) for kind, more in _parts(item)]
        events += [("output_item.done", {"output_index": index, "item": item})]
    events.append((answer["status"], {"response": answer}))
    for kind, data in events:
        yield event({"type": f"response.{kind}", "sequence_number": next(number), **data}, f"response.{kind}")


def _announced(item: Body) -> Body:
    empty: Body = {"content": [], "arguments": "", "status": "in_progress"}
    return {key: empty.get(key, value) for key, value in item.items() if key != "encrypted_content"}


def _parts(item: Body) -> Sequence[tuple[str, Body]]:
    if item["type"] == "function_call":
        return [("function_call_arguments.delta", {"delta": piece}) for piece in _pieces(item["arguments"])]
    parts: list[Body] = item.get("content") or []
    return [
        ("refusal.delta" if "refusal" in part else "output_text.delta", {"content_index": 0, "delta": piece})
        for part in parts
        for piece in _pieces(part.get("refusal") or part.get("text"))
    ]
