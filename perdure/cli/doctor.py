"""`perdure doctor`: looks at everything that a run needs, and says what to do about what is missing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perdure.cli import session
from perdure.cli.output import DONE, FAILED, AsJSON, emit, lay_out, one_line, paint, safe
from perdure.errors import ConnectionFailed, ModelError, PerdureError

if TYPE_CHECKING:
    from perdure.activities.stores import CatalogueEntry
    from perdure.client import Client
    from perdure.extensions import (
        Extension,
    )
    from perdure.mcp import (
        MCPServer,
    )
    from perdure.policies import AgentSpec
    from perdure.settings import Settings

PATIENCE = 5
"""Seconds that each thing gets to answer."""
_FEW = 10


@dataclass(frozen=True)
class Finding:
    """What one look gave. `note`: worth knowing, nothing is broken. `advice`: what to do, a whole sentence."""

    what: str
    state: Literal["ok", "note", "broken"]
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Served:
    """An agent, and where it is or should be served. Its MCP servers are known only from its file."""

    spec: AgentSpec
    task_queue: str
    file: str
    servers: Sequence[MCPServer] = ()


def doctor(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="An agent file to look at. Default: all served.")
    ] = None,
    as_json: AsJSON = False,
) -> int:
    """Check server, namespace, search attributes, store, workers, model endpoints and keys."""
    findings = session.finish(_examine(session.settings(), file))
    broken = any(finding.state == "broken" for finding in findings)
    if as_json:
        emit({"ok": not broken, "findings": [asdict(finding) for finding in findings]})
    else:
        lay_out("\n".join(line for finding in findings for line in _lines(finding)))
    return FAILED if broken else DONE


def _lines(finding: Finding) -> list[str]:
    marks = {"ok": paint("✓", "green"), "note": paint("!", "yellow"), "broken": paint("✗", "red")}
    lines = [f"{marks[finding.state]} {paint(safe(finding.what), 'bold')}: {one_line(finding.text, 1000)}"]
    return [*lines, f"  → {one_line(finding.advice, 1000)}"] if finding.advice else lines


async def _examine(settings: Settings, file: str | None) -> list[Finding]:
    findings, client = await _server(settings)
    if client:
        findings.append(await _attributes(client))
        findings += await _notices(settings, client)
    entries, store = await _store(settings, client)
    findings.append(store)
    try:
        agents = _from_file(file, settings) if file else [_announced(entry) for entry in entries]
    except PerdureError as error:
        agents = []
        findings.append(Finding(f"file {file}", "broken", str(error)))
    if client and not agents and not file and store.state == "ok":
        advice = "Start one with `perdure worker FILE`."
        findings.append(Finding("workers", "note", "no worker has announced an agent yet", advice))
    if client:
        findings += await asyncio.gather(*(_workers(client, queue, agents) for queue in _queues(agents)))
    findings.append(_telemetry(settings))
    findings += _extensions()
    models = {
        (model, one.spec.settings.model_dump_json()): one.spec.model_copy(update={"model": model})
        for one in agents
        for model in one.spec.models
    }
    from perdure.activities.providers import declare

    declare(settings.providers)
    looks = [*(_model(spec) for spec in models.values()), *(_mcp(server) for one in agents for server in one.servers)]
    return [*findings, *await asyncio.gather(*looks), *_mcp_unseen(agents, file)]


async def _mcp(server: MCPServer) -> Finding:
    from perdure.cli import servers

    return Finding(f"MCP server {server.name}", *await servers.look(server))


def _mcp_unseen(agents: Sequence[Served], file: str | None) -> list[Finding]:
    """Return which MCP servers were not looked at: how they are reached is in the agent files alone."""
    names = sorted({server.name for one in agents for server in one.spec.mcp})
    if file or not names:
        return []
    with_them = next(one for one in agents if one.spec.mcp)
    advice = f"Look at them with `perdure doctor {session.short_path(with_them.file)}`."
    return [Finding("MCP servers", "note", f"{', '.join(names)} were not looked at", advice)]


def _queues(agents: Sequence[Served]) -> list[str]:
    return list(dict.fromkeys(one.task_queue for one in agents))


def _from_file(file: str, settings: Settings) -> list[Served]:
    from perdure.loading import load_agents, task_queue

    agents = load_agents(file)
    every = {one.name: one for agent in agents for one in (agent, *agent.below)}
    servers = {server: None for agent in every.values() for server in agent.servers}
    found = [Served(agent.spec, task_queue(agent.source, settings), agent.source) for agent in agents]
    return [replace(one, servers=tuple(servers)) if one is found[0] else one for one in found]


def _announced(entry: CatalogueEntry) -> Served:
    return Served(entry.spec, entry.task_queue, entry.source)


# -- the engine and the store ------------------------------------------------------------------------------------------


async def _server(settings: Settings) -> tuple[list[Finding], Client | None]:
    """Return what there is to say of server and namespace, and a client if both are there."""
    from perdure.engine.connection import target

    try:
        where = target(settings)
        client = await session.connect(settings)
    except ConnectionFailed as error:
        return [Finding("server", "broken", str(error))], None
    page = f", Web UI at {where.ui_url}" if where.ui_url else ""
    found = Finding("server", "ok", f"{where.address} answers ({where.origin}){page}")
    return [found, Finding("namespace", "ok", f"{where.namespace} exists")], client


async def _attributes(client: Client) -> Finding:
    from perdure.engine import search_attributes

    names = ", ".join(key.name for key in (*search_attributes.KEYS, *search_attributes.MORE))
    try:
        lacking = await search_attributes.ensure(client.temporal)
    except ConnectionFailed as error:
        return Finding("search attributes", "broken", str(error))
    if lacking:
        return Finding("search attributes", "note", lacking, "All else works without them.")
    return Finding("search attributes", "ok", f"{names} are registered")


async def _notices(settings: Settings, client: Client) -> list[Finding]:
    """Return what there is to say of notices: nothing where there are none, and none are to be."""
    from temporalio.service import RPCError

    from perdure.activities.notices import secret_of
    from perdure.wire import NOTIFY

    try:
        secret_of(settings)
        of_them = f"WorkflowType = '{NOTIFY}' AND ExecutionStatus ="
        waiting = [each async for each in client.temporal.list_workflows(f"{of_them} 'Running'", limit=_FEW)]
        given_up = (await client.temporal.count_workflows(f"{of_them} 'Failed'")).count
        trouble = [why for each in waiting if (why := await _last_failure(client, each.id))]
    except RPCError as error:
        return [Finding("notices", "note", f"they can't be looked at: {error.message}")]
    except PerdureError as error:
        return [Finding("notices", "broken", str(error))]
    if given_up:
        text = f"{given_up} could not be delivered within a day"
        return [Finding("notices", "note", f"{text}. {trouble[0]}" if trouble else text)]
    if trouble:
        return [Finding("notices", "note", f"{len(trouble)} or more are not delivered yet. {trouble[0]}")]
    if not settings.notify:
        return []
    return [Finding("notices", "ok", f"runs that are started here tell of: {', '.join(settings.notify)}")]


async def _last_failure(client: Client, workflow: str) -> str:
    """Return why a notice was not delivered when it was last tried, "" where that has not failed."""
    described = await client.temporal.get_workflow_handle(workflow).describe()
    pending = [one for one in described.raw_description.pending_activities if one.HasField("last_failure")]
    if not pending:
        return ""
    failure = await client.temporal.data_converter.decode_failure(pending[0].last_failure)
    return getattr(failure, "message", "") or str(failure)


async def _store(settings: Settings, client: Client | None) -> tuple[list[CatalogueEntry], Finding]:
    from sqlalchemy import make_url

    from perdure.activities.stores import opened, store_url

    address = store_url(settings)
    try:
        async with opened(settings) as store:
            entries = await store.agents(client.temporal.namespace if client else None)
    except ConnectionFailed as error:
        return [], Finding("store", "broken", str(error), "Runs go on without it; set PERDURE_STORE or start it.")
    shown = make_url(address).render_as_string(hide_password=True)
    if _missing(address):
        return [], Finding("store", "ok", f"{shown} is not there yet: the first worker makes it")
    names = ", ".join(dict.fromkeys(entry.agent for entry in entries)) or "none"
    return entries, Finding("store", "ok", f"{shown} answers; agents listed: {names}")


def _missing(address: str) -> bool:
    scheme, _, file = address.partition(":///")
    return scheme.startswith("sqlite") and bool(file) and not Path(file).exists()


async def _workers(client: Client, queue: str, agents: Sequence[Served]) -> Finding:
    from temporalio.service import RPCError

    from perdure.cli.choice import last_seen

    here = [one for one in agents if one.task_queue == queue]
    what = f"workers of {', '.join(one.spec.name for one in here)}"
    try:
        seen = await last_seen(client, queue)
    except RPCError as error:
        return Finding(what, "broken", f"queue {queue} can't be looked at: {error.message}")
    if seen and seen.fresh:
        return await _models_taken(
            client, here, Finding(what, "ok", f"there on queue {queue}, seen {seen.ago:.0f} s ago")
        )
    text = f"none listens on queue {queue}{f', last seen {seen.ago:.0f} s ago' if seen else ''}"
    advice = f"Start one with `perdure worker {session.short_path(here[0].file)}`; runs wait until then."
    return Finding(what, "note", text, advice)


async def _models_taken(client: Client, served: Sequence[Served], found: Finding) -> Finding:
    """Return `found`, unless those workers take no calls of a model that is in the file now."""
    from perdure.cli.standing import is_served
    from perdure.wire import model_queue

    for one in served:
        queue = model_queue(one.task_queue, one.spec.model)
        if not await is_served(client, queue):
            text = f"{found.text}, but none takes calls of {one.spec.model} (queue {queue})"
            return Finding(found.what, "note", text, "Start them anew: they may serve the file as it was before.")
    return found


def _telemetry(settings: Settings) -> Finding:
    """Say whether OpenTelemetry is told of runs, as a worker with this environment would have it."""
    from perdure.telemetry import otel

    asked = otel.wanted(settings)
    told = {"spans": asked.traces, "metrics": asked.metrics}
    where = ", ".join(f"{what} go to {otel.shown(address)}" for what, address in told.items() if address)
    if settings.metrics_port is not None:
        pulled = f"metrics are served at {settings.metrics_host}:{settings.metrics_port}"
        where = f"{where}, {pulled}" if where else pulled
    if not where:
        return Finding("telemetry", "ok", "off; OTEL_EXPORTER_OTLP_ENDPOINT turns it on")
    if not otel.installed():
        return Finding("telemetry", "broken", f"asked for. {otel.LACKING}")
    content = {"off": "no contents", "redacted": "contents, redacted", "whole": "contents, whole"}
    return Finding("telemetry", "ok", f"{where}; {content[settings.capture_content]}")


def _extensions() -> list[Finding]:
    """Load what installed packages add, and say what it is; nothing where there is none."""
    from perdure import extensions

    return [_extension(one) for kind in extensions.KINDS for one in extensions.installed(kind)]


def _extension(one: Extension) -> Finding:
    from perdure import extensions

    what = f"extension {one.name}"
    try:
        extensions.load(one.kind, one.name)
    except PerdureError as error:
        return Finding(what, "broken", str(error), f"Fix {one.package}, or uninstall it.")
    return Finding(what, "ok", f"perdure.{one.kind}, {one.value} of {one.package}")


# -- models ------------------------------------------------------------------------------------------------------------


async def _model(spec: AgentSpec) -> Finding:
    from perdure.activities.providers import address_of, settings_of

    what, spec = f"model {spec.model}", spec.model_copy(update={"settings": settings_of(spec.model, spec.settings)})
    try:
        look = _openai if address_of(spec.model, spec.settings).startswith("http") else _open_only
        return Finding(what, *await look(spec, spec.model.partition(":")[2]))
    except ModelError as error:
        return Finding(what, "broken", error.message, _advice(error, spec))


def _advice(error: ModelError, spec: AgentSpec) -> str:
    match error.kind:
        case "authentication":
            return f"Set {spec.settings.api_key_env} to a valid key where the worker runs."
        case "connection" | "timeout":
            return "Start that server, or correct OPENAI_BASE_URL or the agent's base_url."
        case "quota":
            return "Top up the account."
        case "bad_request":
            return "Correct the model's name or settings in the agent file."
        case _:
            return ""


State = tuple[Literal["ok", "note", "broken"], str, str]


async def _open_only(spec: AgentSpec, name: str) -> State:
    from perdure.activities.providers import open_model

    await open_model(spec.model, spec.settings).aclose()
    return "ok", f"{name} can be used", ""


async def _openai(spec: AgentSpec, name: str) -> State:
    """Ask the endpoint for its list of models: costs nothing, and needs the key."""
    import httpx2
    import openai

    from perdure.activities.providers.errors import from_exception
    from perdure.activities.providers.openai_client import Endpoint

    endpoint = Endpoint(spec.settings)  # says what is wrong with address or key
    key = os.environ.get(spec.settings.api_key_env, "").strip()
    base = spec.settings.base_url or os.environ.get("OPENAI_BASE_URL") or None
    client = openai.AsyncOpenAI(base_url=base, api_key=key or "none", max_retries=0, timeout=PATIENCE)
    try:
        listed = {model.id async for model in client.models.list()}
    except openai.NotFoundError:
        return "note", f"{endpoint.address} answers, but lists no models; {name} may be there", ""
    except (openai.OpenAIError, httpx2.HTTPError, httpx2.InvalidURL, ValueError, TypeError) as error:
        raise from_exception(error, address=endpoint.address, key=key) from None
    finally:
        await client.close()
    if name in listed or not listed:
        return "ok", f"{endpoint.address} answers, and takes the key" if key else f"{endpoint.address} answers", ""
    few = ", ".join(sorted(listed)[:_FEW])
    return (
        "note",
        f"{endpoint.address} answers, but does not list {name}",
        f"It lists {few}{'…' if len(listed) > _FEW else ''}.",
    )
