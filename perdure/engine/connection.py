"""Which Temporal server to use, and the connection to it."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfigProfile, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from perdure.engine import runtime
from perdure.engine.converter import data_converter_of
from perdure.engine.home import read_record, record_path
from perdure.errors import ConnectionFailed
from perdure.identity import identity
from perdure.sealing import keyring
from perdure.settings import Settings

DEFAULT_ADDRESS = "127.0.0.1:7233"
PATIENCE = 5
"""Seconds that a server gets to answer."""
LONGEST_ABSENCE = 30
"""Seconds for which a server may be away while somebody waits for a run."""


@dataclass(frozen=True)
class Target:
    """The server that commands of this process use.

    Attributes:
        address: Host and port.
        origin: Where that address comes from, for a person.
        ui_url: Address of the Web UI; None where only the server's operator knows it.
        embedded: Whether it is the dev server of this project's home.
        options: All of Temporal's environment configuration, credentials included.
    """

    address: str
    namespace: str
    origin: str
    ui_url: str | None = None
    embedded: bool = False
    options: ClientConnectConfig = field(default_factory=ClientConnectConfig, repr=False, compare=False)

    @property
    def configured(self) -> bool:
        """Whether Temporal's own configuration names it: then no other server is to be started."""
        return "target_host" in self.options


def target(settings: Settings) -> Target:
    """Return which server to use, without connecting to it.

    In this order: Temporal's own environment configuration if it has an address, the dev server of this
    home, and the address where `temporal server start-dev` listens.

    Raises:
        ConnectionFailed: If Temporal's environment configuration can't be read.
    """
    try:
        profile = ClientConfigProfile.load()
        options = profile.to_client_connect_config()
    except Exception as error:  # the SDK's ConfigError is not public
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConnectionFailed(f"Temporal's environment configuration can't be used: {reason}.") from error
    namespace = profile.namespace or "default"
    if profile.address:
        return Target(profile.address, namespace, _configured_by(), options=options)
    if record := read_record(settings.folder):
        origin = f"the dev server of {record_path(settings.folder)}"
        return Target(record.address, record.namespace, origin, record.ui_url, embedded=True)
    return Target(DEFAULT_ADDRESS, namespace, "the default address; no dev server is running here", options=options)


def _configured_by() -> str:
    if os.environ.get("TEMPORAL_ADDRESS"):
        return "from TEMPORAL_ADDRESS"
    return f"from Temporal's profile {os.environ.get('TEMPORAL_PROFILE') or 'default'!r}"


async def connect(settings: Settings) -> Client:
    """Return a client of the server that `target` names.

    A dev server that is just being restarted is waited for.

    Raises:
        ConnectionFailed: If nothing usable answers within 5 s; the text says where, and what to do.
    """
    runtime.prepare()
    where = target(settings)
    options: ClientConnectConfig = {**where.options, "target_host": where.address, "namespace": where.namespace}
    converter = data_converter_of(keyring(settings))
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        try:
            client = await asyncio.wait_for(
                Client.connect(**options, data_converter=converter, identity=identity()), PATIENCE
            )
            await _check_namespace(client, where)
        except (RuntimeError, RPCError, TimeoutError, ValueError) as error:
            if not where.embedded or asyncio.get_running_loop().time() > deadline:
                raise ConnectionFailed(_explain(where, error)) from error
            await asyncio.sleep(0.1)
        else:
            return client


async def _check_namespace(client: Client, where: Target) -> None:
    """Raise if the namespace is missing; whoever may not ask goes on."""
    try:
        request = DescribeNamespaceRequest(namespace=client.namespace)
        await client.workflow_service.describe_namespace(request, timeout=timedelta(seconds=PATIENCE))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            text = f"Namespace {where.namespace!r} does not exist on the Temporal server at {where.address}; create it"
            raise ConnectionFailed(f"{text} with `temporal operator namespace create {where.namespace}`.") from error
        if error.status not in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
            raise


def _explain(where: Target, error: Exception) -> str:
    """Return one sentence: what does not answer, where that comes from, why, what to do."""
    what = f"No Temporal server answers at {where.address} ({where.origin}): {_reason(error)}"
    if where.configured:
        return f"{what}; correct that address or credentials, or unset them and start a server with `perdure dev`."
    return f"{what}; start one with `perdure dev`."


def _reason(error: Exception) -> str:
    """Return the readable part of the SDK's errors, which are Rust's debug output."""
    if isinstance(error, TimeoutError):
        return f"no reply within {PATIENCE} s"
    text = str(error)
    told = re.search(r'message: "((?:[^"\\]|\\.)+)"', text) or re.search(r"message: ([^\",{}]+?) }", text)
    told = told or re.search(r'error: "((?:[^"\\]|\\.)+)"', text) or re.search(r'ConnectError\("([^"]+)"', text)
    return (told[1] if told else text.partition("\n")[0][:200]).rstrip(".").lower()


_CHANGED = "branch tokens"
"""Words of the server where a history got another branch while it was being read: it has to be read anew."""


class Absence:
    """The absence of a server that is being restarted: whoever only waits, waits for it as well."""

    def __init__(self) -> None:
        self._since = self._last = float("-inf")

    async def passed(self, error: RPCError) -> bool:
        """Return True after a moment; False if `error` is no absence, or it has lasted for 30 s."""
        now = asyncio.get_running_loop().time()
        if now - self._last > 15:  # noqa: PLR2004 - calls themselves try for 10 s, so the server was back meanwhile
            self._since = now
        self._last = now
        gone = error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.UNKNOWN) or _CHANGED in error.message
        if not gone or now - self._since > LONGEST_ABSENCE:
            return False
        await asyncio.sleep(0.5)
        return True
