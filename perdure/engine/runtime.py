"""The engine's client, whose core is not Python: where it logs, how often workers say that they live, and its end."""

from __future__ import annotations

import atexit
import ctypes
import logging
import time
from datetime import timedelta

from temporalio.runtime import LogForwardingConfig, LoggingConfig, PrometheusConfig, Runtime, TelemetryConfig

HEARTBEAT = timedelta(seconds=5)
"""How often a worker says that it lives."""
REST, PATIENCE = 0.01, 1
"""Seconds without work after which the core counts as done when the program ends, and how long that is waited for."""


def prepare(metrics: str = "") -> None:
    """Have the core log to the logger `temporalio.core`, not to stdout. A runtime that the program has set is kept.

    Args:
        metrics: HOST:PORT at which the core tells its metrics; "": it keeps none.
    """
    atexit.unregister(_settle)
    atexit.register(_settle)
    try:
        Runtime.prevent_default()  # type: ignore[no-untyped-call] # raises where there is one already; it does not hinder setting one
    except RuntimeError:
        return
    logger = logging.getLogger("temporalio.core")
    names = {"append_target_to_name": False, "prepend_target_on_message": False}
    forwarded = LoggingConfig(filter=LoggingConfig.default.filter, forwarding=LogForwardingConfig(logger, **names))
    told = PrometheusConfig(metrics, durations_as_seconds=True) if metrics else None
    telemetry = TelemetryConfig(logging=forwarded, metrics=told)
    Runtime.set_default(Runtime(telemetry=telemetry, worker_heartbeat_interval=HEARTBEAT))


def _settle() -> None:
    """Let the core's threads come to rest before the interpreter goes: one that calls into it then crashes or hangs.

    Calls that were left under way have just been cancelled, and their threads are about to say so.
    """
    # Taking the runtime apart waits for its threads, and for ever for one that hangs: it is never taken apart.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(Runtime.default()))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        used = time.process_time()
        time.sleep(REST)
        if time.process_time() - used < REST / 10:
            return
