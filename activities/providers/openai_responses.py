"""OpenAI's Responses API, used without its memory: every request carries the whole conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, assert_never

from perdure.activities.providers.errors import from_error_body, not_understood
from perdure.activities.providers.openai_client import Endpoint
from perdure.activities.providers.streams import Assembly, Progress
from perdure.activities.providers.wire import arr, number, obj, text, texts
from perdure.errors import ModelError
from perdure.messages import (
    JSON,
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolMessage,
    UserMessage,
)
from perdure.models import ModelReply, ModelRequest, RawCall
from perdure.models.dialect import EMPTY_REPLY, Names, function, level_calls, to_text, tool_choice, usage_or_estimate
from perdure.models.shapes import Shapes, format_of
from perdure.policies import ModelSettings
from perdure.results import render_result

_PARTS = {"reasoning": "reasoning", "message": "text", "function_call": "call"}


class OpenAIResponses:
    """One model behind the Responses API. It has no `seed`: that setting is not sent.

    Args:
        model: As the server calls it.
        settings: Address, key and timeout; the rest comes with each request.

    Raises:
        ModelError: See `Endpoint`.
    """

    provider = "openai-responses"
    takes_schema = True

    def __init__(self, model: str, settings: ModelSettings) -> None:
        self.model = model
        self._endpoint = Endpoint(settings)
        self._reasons = True
        self._shapes = Shapes(custom=self._endpoint.custom)

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the reply. Raises `ModelError`."""
        return await self._shapes.asking(self._reasoning, request)

    async def _reasoning(self, request: ModelRequest) -> ModelReply:
        try:
            return await self._ask(request)
        except ModelError as error:
            # Models that don't reason refuse to be asked for encrypted reasoning; no list of names says which.
            if not (self._reasons and error.kind == "bad_request" and "encrypted content" in error.message.lower()):
                raise
            self._reasons = False
        return await self._ask(request)

    async def _ask(self, request: ModelRequest) -> ModelReply:
        body = request_body(self.model, request, reasons=self._reasons)
        return await self._endpoint.ask("/responses", body, request, Response, read_reply)

    async def prepare(self) -> None:
        """Load what requests need."""
        await self._endpoint.prepare()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()


# -- the request -------------------------------------------------------------------------------------------


def request_body(model: str, request: ModelRequest, *, reasons: bool = True) -> dict[str, JSON]:
    """Return the body of the request: equal requests give equal bodies, and a longer conversation the same start.

    Args:
        reasons: Ask for the reasoning in encrypted form, so that it can be carried back.
    """
    names = Names(tool.name for tool in request.tools)
    settings = request.settings
    body: dict[str, JSON] = {
        "model": model,
        "instructions": request.instructions or None,
        "input": [item for message in request.messages for item in _items(message, names)],
        "store": False,
        "include": ["reasoning.encrypted_content"] if reasons else None,
    }
    if request.tools:
        body["tools"] = [
            # `strict` is on unless said otherwise, and takes a narrower dialect of schemas.
            {"type": "function", **function(names.wire(tool.name), tool.description, tool.parameters), "strict": False}
            for tool in request.tools
        ]
        choice = tool_choice(request, names)
        plain = choice in (None, "auto", "required", "none")
        body["tool_choice"] = choice if plain else {"type": "function", "name": choice}
        body["parallel_tool_calls"] = settings.parallel_tool_calls
    body |= {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "reasoning": {"effort": settings.reasoning_effort} if settings.reasoning_effort else None,
        "max_output_tokens": settings.max_output_tokens,
    }
    body = {key: value for key, value in body.items() if value is not None} | settings.extra_body
    if request.output:
        shape = {"type": "json_schema", **format_of(request.output)}
        body["text"] = {**obj(body.get("text")), "format": shape}
    return body


def _items(message: Message, names: Names) -> list[dict[str, JSON]]:
    match message:
        case UserMessage(content=content):
            parts = content if isinstance(content, str) else [_part(part) for part in content]
            return [{"role": "user", "content": parts}]
        case ToolMessage(result=result):
            said: JSON = render_result(result)
            if result.images:
                said = [{"type": "input_text", "text": said}, *(_part(image) for image in result.images)]
            return [{"type": "function_call_output", "call_id": result.call_id, "output": said}]
        case AssistantMessage():
            return list(_assistant(message, names))
        case _:
            assert_never(message)


def _part(part: Part) -> dict[str, JSON]:
    match part:
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart():
            return {"type": "input_image", "image_url": part.url, "detail": part.detail}
        case FilePart(file_id=str(file_id)):
            return {"type": "input_file", "file_id": file_id}
        case FilePart():
            data = f"data:{part.media_type};base64,{part.data or ''}"
            return {"type": "input_file", "filename": part.filename, "file_data": data}
        case _:
            assert_never(part)


def _assistant(message: AssistantMessage, names: Names) -> Iterator[dict[str, JSON]]:
    """Yield the items of a reply: reasoning, text, calls, in the order in which they came.

    The API wants each reasoning item followed by what it led to, so one that led to nothing is left out.
    """
    if not message.text and not message.calls:
        yield {"role": "assistant", "content": EMPTY_REPLY}
        return
    own = message.reasoning if message.provider == OpenAIResponses.provider else []
    reasoning = [item for item in own if "order" not in item]
    order = next((arr(item["order"]) for item in own if "order" in item), ["reasoning"] * len(reasoning))
    parts: dict[str, list[dict[str, JSON]]] = {
        "reasoning": reasoning,
        "text": [{"role": "assistant", "content": message.text}] if message.text else [],
        "call": [
            {
                "type": "function_call",
                "call_id": call.id,
                "name": names.wire(call.name),
                "arguments": to_text(call.arguments),
            }
            for call in message.calls
        ],
    }
    waiting: list[dict[str, JSON]] = []
    for kind in [*order, "text", *["call"] * len(message.calls)]:
        if not parts[kind]:
            continue
        item = parts[kind].pop(0)
        if kind == "reasoning":
            waiting.append(item)
        else:
            yield from waiting
            waiting = []
            yield item


# -- the reply ---------------------------------------------------------------------------------------------


def read_reply(data: Mapping[str, JSON], request: ModelRequest) -> ModelReply:
    """Return the reply that a response holds.

    Raises:
        ModelError: If `data` is no response, or one that failed.
    """
    if not isinstance(data.get("output"), list):
        raise not_understood(to_text(dict(data)), "a response")
    if data.get("status") == "failed":
        raise from_error_body(data)
    output = [obj(item) for item in arr(data["output"])]
    calls = level_calls(
        [
            (item.get("call_id") or item.get("id"), item.get("name"), item.get("arguments"))
            for item in output
            if item.get("type") == "function_call"
        ],
        request,
        Names(tool.name for tool in request.tools),
    )
    parts = [obj(part) for item in output if item.get("type") == "message" for part in arr(item.get("content"))]
    refusal = "".join(text(part.get("refusal")) for part in parts)
    said = texts([part for part in parts if part.get("type") != "refusal"])
    reply = ModelReply(
        text=refusal if refusal and not calls else said,
        calls=calls,
        finish=_finish(data, calls, refusal),
        reasoning=_reasoning(output),
        model=text(data.get("model")),
    )
    return replace(reply, usage=usage_or_estimate(_usage(obj(data.get("usage"))), request, reply))


class Response(Assembly):
    """A response out of its events: the last one holds it whole."""

    def __init__(self, on_text: Callable[[str], None] | None = None) -> None:
        super().__init__(on_text)
        self._items: dict[int, JSON] = {}
        self._body: dict[str, JSON] = {}

    def add(self, event: dict[str, JSON], name: str) -> Progress:
        """Take an event in."""
        kind = text(event.get("type")) or name
        item, index = obj(event.get("item")), number(event.get("output_index"))
        if kind.endswith(".delta"):
            self.characters += len(text(event.get("delta")))
            if kind == "response.output_text.delta":
                self._say(text(event.get("delta")))
            return "content" if event.get("delta") else "other"
        if kind == "response.output_item.added":
            return "thinking" if item.get("type") == "reasoning" else "content"
        if kind == "response.output_item.done" and item:
            self._items[len(self._items) if index is None else index] = item
            return "content"
        if kind in ("response.completed", "response.incomplete", "response.failed", "response.done"):
            self._body = obj(event.get("response"))
            self.complete = True
        return "other"

    def whole(self) -> dict[str, JSON]:
        """Return the response; some servers leave the items out of it that they have sent before."""
        items = [self._items[index] for index in sorted(self._items)]
        return {**self._body, "output": self._body.get("output") or items}


def _finish(
    data: Mapping[str, JSON], calls: Sequence[RawCall], refusal: str
) -> Literal["stop", "calls", "length", "filtered", "refusal"]:
    if data.get("status") == "incomplete" or data.get("incomplete_details"):
        return "filtered" if obj(data.get("incomplete_details")).get("reason") == "content_filter" else "length"
    if calls:
        return "calls"
    return "refusal" if refusal else "stop"


def _reasoning(output: Sequence[dict[str, JSON]]) -> list[dict[str, JSON]]:
    """Return the reasoning items, untouched; where others came between them, an entry says in which order."""
    found = [item for item in output if item.get("type") == "reasoning"]
    order = [_PARTS[kind] for item in output if (kind := text(item.get("type"))) in _PARTS]
    usual = order[: len(found)] == ["reasoning"] * len(found)
    return [*found] if usual else [*found, {"order": order}]


def _usage(usage: Mapping[str, JSON]) -> dict[str, int | None]:
    return {
        "input": number(usage.get("input_tokens")),
        "cached": number(obj(usage.get("input_tokens_details")).get("cached_tokens")),
        "output": number(usage.get("output_tokens")),
        "reasoning": number(obj(usage.get("output_tokens_details")).get("reasoning_tokens")),
    }
