"""A trace as it may be given to others: everything that somebody has said, written or returned passes the redactor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from perdure.messages import JSON
from perdure.policies import AgentSpec
from perdure.sensitive import Sensitive, at_leaves
from perdure.telemetry import redaction
from perdure.telemetry.wording import text_of
from perdure.tracing import Span, Trace


def redacted(trace: Trace, specs: Mapping[str, AgentSpec]) -> Trace:
    """Return `trace` with what is personal or gives access hidden.

    Args:
        specs: Of the run and of those under it, by id. They say which fields of arguments and results are private.
    """
    redactor = redaction.current()
    spec = specs.get(trace.run_id)
    _learn_all(redactor, trace.root, spec, specs)

    def words(text: str) -> str:
        return _words(redactor, text)

    said = {name: words(getattr(trace, name)) for name in _SAID}
    marks = [mark.model_copy(update={"text": words(mark.text), "by": words(mark.by)}) for mark in trace.marks]
    told = {"task": words(text_of(trace.task)), "root": _hidden(redactor, trace.root, spec, specs), "marks": marks}
    return trace.model_copy(update={**said, **told, "redacted": True})


def _hidden(redactor: redaction.Redactor, span: Span, spec: AgentSpec | None, specs: Mapping[str, AgentSpec]) -> Span:
    spec = specs.get(span.run, spec) if span.kind == "run" else spec
    tool = spec.known_tool(span.name) if spec and span.kind == "tool" else None
    told = {name: _words(redactor, getattr(span, name)) for name in ("name", "why", "by", "output", "run")}
    arguments = None if span.input is None else redactor.json(span.input, tool.parameters if tool else None)
    spans = [_hidden(redactor, one, spec, specs) for one in span.spans]
    return span.model_copy(update={**told, "input": arguments, "spans": spans})


def _learn_all(
    redactor: redaction.Redactor, span: Span, spec: AgentSpec | None, specs: Mapping[str, AgentSpec]
) -> None:
    spec = specs.get(span.run, spec) if span.kind == "run" else spec
    if tool := spec.known_tool(span.name) if spec and span.kind == "tool" else None:
        _learn(redactor, span.input, tool.parameters)
        _learn(redactor, _json(span.output), tool.returns)
    for one in span.spans:
        _learn_all(redactor, one, spec, specs)


_SAID = ("run_id", "text", "reason", "session", "user", "tenant", "missing")


def _learn(redactor: redaction.Redactor, value: JSON, schema: Mapping[str, Any]) -> None:
    """Take note of what is private in an argument or a result: it may have been said elsewhere, too."""

    def take(leaf: JSON, said: Sensitive | None) -> JSON:
        if said and leaf is not None:
            redactor.known.learn(leaf, said.kind)
        return leaf

    at_leaves(value, schema, take)
    for name, leaf in _named(value):
        if kind := redaction.kind_of(name):
            redactor.known.learn(leaf, kind)


def _named(value: JSON) -> Iterator[tuple[str, JSON]]:
    """Yield the texts in a JSON value that have a name of their own."""
    if isinstance(value, dict):
        for name, child in cast("dict[str, JSON]", value).items():
            if isinstance(child, str):
                yield name, child
            yield from _named(child)
    elif isinstance(value, list):
        for child in cast("list[JSON]", value):
            yield from _named(child)


def _words(redactor: redaction.Redactor, text: str) -> str:
    """Return a text redacted; one that is JSON by the names of its fields, too."""
    value = _json(text)
    shown: JSON = redactor.json(value)
    return redactor.text(text if shown == value else json.dumps(shown, ensure_ascii=False))


def _json(text: str) -> JSON:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
