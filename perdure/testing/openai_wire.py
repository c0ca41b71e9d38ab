"""OpenAI's two APIs from the server's side: what a request holds, whether it would be refused, what is answered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from perdure.messages import JSON, Usage
from perdure.models.dialect import DESCRIPTION_LIMIT
from perdure.testing.openai_stream import Body, chat_events, responses_events
from perdure.testing.script import ScriptedCall, ScriptedReply, Seen

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Api:
    """One API: how to look into a request, what is wrong with it (None: nothing), how to answer, in pieces too."""

    seen: Callable[[Body], Seen]
    refuse: Callable[[Body], str | None]
    answer: Callable[[Body, ScriptedReply, Seen], Body]
    events: Callable[[Body, Body], Iterator[bytes]]


# -- both --------------------------------------------------------------------------------------------------


def _seen(replies: int, calls: Mapping[str, str], results: Sequence[tuple[str, str]]) -> Seen:
    named = [(calls.get(call_id, ""), text) for call_id, text in results]
    return Seen(replies, [(name, text) for name, text in named if not _failed(text)])


def _failed(text: str) -> bool:
    """Whether a tool's result is one of those that are not `ok`."""
    try:
        data = json.loads(text)
    except ValueError:
        return False
    statuses = ("error", "denied", "in_doubt", "cancelled", "skipped", "staged")
    return isinstance(data, dict) and cast("Body", data).get("status") in statuses


def _refuse_tools(functions: Sequence[Body], body: Body) -> str | None:
    names = [function.get("name", "") for function in functions]
    if bad := next((name for name in names if not _NAME.fullmatch(str(name))), None):
        return f"Invalid tool name {bad!r}."
    if len(set(names)) < len(names):
        return "Tool names have to be unique."
    for function in functions:
        parameters = function.get("parameters", {})
        if parameters.get("type") != "object" or {"anyOf", "oneOf", "allOf", "enum", "not"} & set(parameters):
            return f"Invalid schema for function {function['name']!r}: it has to be of type 'object', plainly."
        if len(function.get("description", "")) > DESCRIPTION_LIMIT:
            return f"The description of {function['name']!r} is too long."
    if not functions and ("tool_choice" in body or "tools" in body):
        return "tool_choice and tools need at least one tool."
    return None


def _refuse_format(form: Body) -> str | None:
    """Return what OpenAI would say against the `{name, schema, strict}` of an answer."""
    name, schema = form.get("name"), form.get("schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"Invalid 'response_format.json_schema.name': {name!r}."
    if not isinstance(schema, dict) or cast("Body", schema).get("type") != "object":
        return f"Invalid schema for response_format {name!r}: schema must be a JSON Schema of 'type: \"object\"'."
    loose = _not_strict(cast("Body", schema)) if form.get("strict") else None
    return f"Invalid schema for response_format {name!r}: {loose}" if loose else None


def _not_strict(node: JSON) -> str | None:
    """Return the first thing in a schema that strict mode does not take."""
    if isinstance(node, list):
        return next(filter(None, map(_not_strict, cast("list[JSON]", node))), None)
    if not isinstance(node, dict):
        return None
    fields = cast("Body", node)
    if foreign := {"allOf", "oneOf", "not", "prefixItems", "minLength", "maxLength", "default"} & set(fields):
        return f"{min(foreign)!r} is not permitted."
    properties: Body = fields.get("properties") or {}
    if fields.get("type") == "object" and fields.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    if properties and set(fields.get("required") or ()) != set(properties):
        return "'required' is required to be supplied and to be an array including every key in properties."
    below = [*properties.values(), fields.get("items"), fields.get("anyOf")]
    return next(filter(None, map(_not_strict, below)), None)


def _refuse_call(name: JSON, arguments: JSON) -> str | None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"Invalid function name {name!r}."
    try:
        fine = isinstance(json.loads(arguments), dict)
    except (ValueError, TypeError):
        fine = False
    return None if fine else "A call's arguments have to be the text of a JSON object."


def _arguments(call: ScriptedCall) -> JSON:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)


def _id(call: ScriptedCall, seen: Seen, position: int) -> str | None:
    return call.id if "id" in call.model_fields_set else f"call_{seen.replies + 1}_{position}"


def _usage(body: Body, reply: ScriptedReply) -> Usage | None:
    if reply.usage or "usage" in reply.model_fields_set:
        return reply.usage
    return Usage(input_tokens=len(json.dumps(body)) // 4 + 1, output_tokens=len(reply.model_dump_json()) // 4 + 1)


# -- Chat Completions --------------------------------------------------------------------------------------


def _chat_seen(body: Body) -> Seen:
    messages: list[Body] = body["messages"]
    calls = {c["id"]: c["function"]["name"] for m in messages for c in m.get("tool_calls") or ()}
    results = [(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"]
    return _seen(sum(m["role"] == "assistant" for m in messages), calls, results)


def _chat_refuse(body: Body) -> str | None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages has to be an array of at least one message."
    open_calls: set[str] = set()
    for message in cast("list[Body]", messages):
        if open_calls and message["role"] != "tool":
            break
        if message["role"] == "tool" and message["tool_call_id"] not in open_calls:
            return f"No call before has the id {message['tool_call_id']!r}."
        open_calls.discard(message.get("tool_call_id", ""))
        calls: list[Body] = message.get("tool_calls") or []
        if message["role"] == "assistant" and not calls and not message["content"]:
            return "An assistant message needs content or tool_calls."
        for call in calls:
            if problem := _refuse_call(call["function"]["name"], call["function"]["arguments"]):
                return problem
        open_calls |= {call["id"] for call in calls}
    if open_calls:
        return f"These calls have no result: {', '.join(sorted(open_calls))}."
    form: Body = body.get("response_format") or {}
    if form.get("type") == "json_schema" and (problem := _refuse_format(form.get("json_schema") or {})):
        return problem
    return _refuse_tools([tool["function"] for tool in body.get("tools", ())], body)


def _chat_answer(body: Body, reply: ScriptedReply, seen: Seen) -> Body:
    message: Body = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.ending == "refusal":
        message |= {"content": None, "refusal": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": _id(c, seen, n), "type": "function", "function": {"name": c.name, "arguments": _arguments(c)}}
            for n, c in enumerate(reply.calls, 1)
        ]
    reasons = {"calls": "tool_calls", "filtered": "content_filter", "refusal": "stop"}
    choice = {"index": 0, "message": message, "finish_reason": reasons.get(reply.ending, reply.ending)}
    choices = [] if reply.empty else [choice]
    answer: Body = {"id": f"chatcmpl-{seen.replies + 1}", "object": "chat.completion", "created": 0}
    answer |= {"model": body.get("model", "scripted"), "choices": choices}
    if usage := _usage(body, reply):
        answer["usage"] = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }
    return answer


# -- Responses ---------------------------------------------------------------------------------------------


def _kind(item: Body) -> str:
    return str(item.get("type", "message"))


def _is_reply(item: Body) -> bool:
    return _kind(item) in ("reasoning", "function_call") or item.get("role") == "assistant"


def _responses_seen(body: Body) -> Seen:
    items: list[Body] = body["input"]
    starts = sum(_is_reply(item) and not _is_reply(before) for before, item in pairwise([{}, *items]))
    calls = {item["call_id"]: item["name"] for item in items if _kind(item) == "function_call"}
    results = [(item["call_id"], item["output"]) for item in items if _kind(item) == "function_call_output"]
    return _seen(starts, calls, results)


def _responses_refuse(body: Body) -> str | None:
    items: list[Body] = body["input"] if isinstance(body.get("input"), list) else []
    if not items:
        return "input has to be an array of at least one item."
    if body.get("store") is not False:
        return "This server keeps nothing: store has to be false."
    if orphan := next((a for a, b in pairwise([*items, {}]) if _kind(a) == "reasoning" and not _is_reply(b)), None):
        return f"Item {orphan.get('id')!r} of type 'reasoning' was provided without its required following item."
    of_text: Body = body.get("text") or {}
    form: Body = of_text.get("format") or {}
    wrong = _refuse_format(form) if form.get("type") == "json_schema" else None
    return wrong or _refuse_pairs(items) or _refuse_tools(body.get("tools", []), body)


def _refuse_pairs(items: Sequence[Body]) -> str | None:
    open_calls: set[str] = set()
    for item in items:
        kind = _kind(item)
        if kind == "function_call":
            if problem := _refuse_call(item["name"], item["arguments"]):
                return problem
            open_calls.add(item["call_id"])
        elif kind == "function_call_output" and item["call_id"] not in open_calls:
            return f"No call before has the id {item['call_id']!r}."
        elif kind == "function_call_output":
            open_calls.discard(item["call_id"])
        elif open_calls and item.get("role") == "user":
            break
    return f"No tool output found for function call {', '.join(sorted(open_calls))}." if open_calls else None


def _responses_answer(body: Body, reply: ScriptedReply, seen: Seen) -> Body:
    number, output = seen.replies + 1, list[Body]()
    if reply.empty:
        reply = reply.model_copy(update={"text": "", "calls": [], "reasoning": ""})
    if reply.reasoning:
        output.append({"id": f"rs_{number}", "type": "reasoning", "encrypted_content": reply.reasoning, "summary": []})
    if reply.text:
        refused = reply.ending == "refusal"
        part = {"type": "refusal", "refusal": reply.text} if refused else {"type": "output_text", "text": reply.text}
        output.append({"id": f"msg_{number}", "type": "message", "role": "assistant", "content": [part]})
    for position, call in enumerate(reply.calls, 1):
        item: Body = {"id": f"fc_{number}_{position}", "type": "function_call", "call_id": _id(call, seen, position)}
        output.append(item | {"name": call.name, "arguments": _arguments(call), "status": "completed"})
    cut = {"length": "max_output_tokens", "filtered": "content_filter"}.get(reply.ending)
    answer: Body = {"id": f"resp_{number}", "object": "response", "model": body.get("model", "scripted")}
    answer |= {"status": "incomplete" if cut else "completed", "error": None, "output": output}
    answer["incomplete_details"] = {"reason": cut} if cut else None
    if usage := _usage(body, reply):
        answer["usage"] = {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
    return answer


CHAT = Api(_chat_seen, _chat_refuse, _chat_answer, chat_events)
RESPONSES = Api(_responses_seen, _responses_refuse, _responses_answer, responses_events)
