"""For tests: models that follow a script, in process or over HTTP, and recorded conversations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.model_process import ModelServerProcess
    from perdure.testing.model_server import ModelServer
    from perdure.testing.recording import Recording, load_recordings
    from perdure.testing.script import ScriptedReply, load_script
    from perdure.testing.scripted_model import ScriptedModel

__all__ = [
    "ModelServer",
    "ModelServerProcess",
    "Recording",
    "ScriptedModel",
    "ScriptedReply",
    "load_recordings",
    "load_script",
]

_HOMES = {
    "ModelServer": "model_server",
    "ModelServerProcess": "model_process",
    "Recording": "recording",
    "ScriptedModel": "scripted_model",
    "ScriptedReply": "script",
    "load_recordings": "recording",
    "load_script": "script",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: `python -m perdure.testing.model_server` starts a module of its own."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"perdure.testing.{_HOMES[name]}"), name)
