"""For tests of agents: an engine whose clock can be moved, scripted models, fake tools, and what checks a ledger."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.cases import Case, load_case, record, save_case
    from perdure.testing.engines import Engine, engine
    from perdure.testing.environment import Environment, Run
    from perdure.testing.fakes import Fake, FakeCall, assert_never_twice, rewired
    from perdure.testing.histories import Checked, check_histories, check_history, check_server
    from perdure.testing.model_process import ModelServerProcess
    from perdure.testing.model_server import ModelServer
    from perdure.testing.recording import Recording, load_recordings
    from perdure.testing.replaying import Replayed, replay
    from perdure.testing.script import ScriptedReply, call, load_script
    from perdure.testing.scripted_model import ScriptedModel

__all__ = [
    "Case",
    "Checked",
    "Engine",
    "Environment",
    "Fake",
    "FakeCall",
    "ModelServer",
    "ModelServerProcess",
    "Recording",
    "Replayed",
    "Run",
    "ScriptedModel",
    "ScriptedReply",
    "assert_never_twice",
    "call",
    "check_histories",
    "check_history",
    "check_server",
    "engine",
    "load_case",
    "load_recordings",
    "load_script",
    "record",
    "replay",
    "rewired",
    "save_case",
]

_HOMES = {
    "Case": "cases",
    "Replayed": "replaying",
    "load_case": "cases",
    "record": "cases",
    "replay": "replaying",
    "save_case": "cases",
    "Checked": "histories",
    "check_histories": "histories",
    "check_history": "histories",
    "check_server": "histories",
    "Engine": "engines",
    "Environment": "environment",
    "Fake": "fakes",
    "FakeCall": "fakes",
    "ModelServer": "model_server",
    "ModelServerProcess": "model_process",
    "Recording": "recording",
    "Run": "environment",
    "ScriptedModel": "scripted_model",
    "ScriptedReply": "script",
    "assert_never_twice": "fakes",
    "call": "script",
    "engine": "engines",
    "load_recordings": "recording",
    "load_script": "script",
    "rewired": "fakes",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: `python -m perdure.testing.model_server` starts a module of its own."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"perdure.testing.{_HOMES[name]}"), name)
