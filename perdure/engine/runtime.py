"""The engine's client, whose core is not Python: where it logs, and how often workers say that they live."""

from __future__ import annotations

import logging
from datetime import timedelta

from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig

HEARTBEAT = timedelta(seconds=5)
"""How often a worker says that it lives."""


def prepare() -> None:
    """Have the core log to the logger `temporalio.core`, not to stdout. A runtime that the program has set is kept."""
    try:
        Runtime.prevent_default()  # type: ignore[no-untyped-call] # raises where there is one already; it does not hinder setting one
    except RuntimeError:
        return
    logger = logging.getLogger("temporalio.core")
    names = {"append_target_to_name": False, "prepend_target_on_message": False}
    forwarded = LoggingConfig(filter=LoggingConfig.default.filter, forwarding=LogForwardingConfig(logger, **names))
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=forwarded), worker_heartbeat_interval=HEARTBEAT))
