"""The command that lets the Web UI show what is encrypted."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from typing import Annotated

import typer

from perdure.cli import session
from perdure.cli.output import DONE, AsJSON, Misuse, emit, safe, say

_SHORTEST = 16
"""Characters of a token."""


def codec_server(
    host: Annotated[str, typer.Option(help="Where to listen. Beyond this machine, put TLS before it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8234,
    origin: Annotated[
        list[str] | None, typer.Option(help="Address of a Web UI that may ask. Default: that of the dev server here.")
    ] = None,
    as_json: AsJSON = False,
) -> int:
    """Decrypt payloads for the Web UI and Temporal's command line, for those with a token, until Ctrl-C.

    The keys are those of PERDURE_ENCRYPTION_KEY and PERDURE_ENCRYPTION_KEY_FILE; the token is PERDURE_CODEC_TOKEN, or
    made up.
    """
    from perdure.engine.codec import Encryption
    from perdure.engine.codec_server import CodecServer
    from perdure.engine.connection import target
    from perdure.sealing import keyring

    settings = session.settings()
    keys = keyring(settings)
    if not keys:
        raise Misuse("There is no key to decrypt with: set PERDURE_ENCRYPTION_KEY or PERDURE_ENCRYPTION_KEY_FILE.")
    token = os.environ.get("PERDURE_CODEC_TOKEN") or secrets.token_urlsafe(24)
    if len(token) < _SHORTEST or "/" in token:
        raise Misuse(f"PERDURE_CODEC_TOKEN has to have at least {_SHORTEST} characters, and no '/'.")
    ui_url = target(settings).ui_url
    origins = origin or [*([ui_url] if ui_url else []), "http://localhost:8233", "http://127.0.0.1:8233"]
    try:
        server = CodecServer((host, port), Encryption(keys), token, origins)
    except OSError as error:
        raise Misuse(f"{host}:{port} can't be listened on: {error.strerror}; choose another --port.") from error
    _tell(server.endpoint, origins, as_json=as_json)
    stop = threading.Event()

    def on_signal(*_: object) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stop.wait()
        server.shutdown()
    return DONE


def _tell(endpoint: str, origins: list[str], *, as_json: bool) -> None:
    if as_json:
        emit({"event": "ready", "endpoint": endpoint, "origins": origins})
        return
    base, _, token = endpoint.rpartition("/")
    say(f"Web UI ({safe(', '.join(origins))}): the glasses at the top right, Remote Codec Endpoint, {safe(endpoint)}")
    say(f"temporal: --codec-endpoint {safe(base)} --codec-auth 'Bearer {safe(token)}'")
    say("Whoever has this token can read everything. Ctrl-C ends it")
