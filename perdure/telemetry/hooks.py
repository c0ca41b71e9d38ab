"""Detectors of one's own: functions and `Detector`s that the setting `redactors` names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import PerdureError
from perdure.settings import Settings

if TYPE_CHECKING:
    from perdure.telemetry.redaction import Hook

_FORM = "PERDURE_REDACTORS names them as MODULE:NAME, separated by commas"


def use_settings(settings: Settings) -> None:
    """Have the redactor of this process look with the detectors that `settings` name, too; what it knows it keeps.

    Raises:
        PerdureError: If one can't be loaded, or is none.
    """
    if not settings.redactors:
        return
    from perdure.telemetry import redaction
    from perdure.telemetry.redaction import Redactor

    hooks = [hook for reference in settings.redactors for hook in load(reference)]
    before = redaction.current()
    if list(before.own) != hooks:
        redaction.use(Redactor(hooks, before.known))


def load(reference: str) -> list[Hook]:
    """Return the detectors that `MODULE:NAME` is: a `Detector`, a function from text to text, or several of them.

    Raises:
        PerdureError: If it can't be loaded, or is something else.
    """
    from perdure.telemetry.redaction import Detector

    module, colon, name = reference.partition(":")
    if not colon or not module or not name:
        raise PerdureError(f"{reference!r} is no detector: {_FORM}.")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise PerdureError(f"Detector {reference!r} can't be loaded: {type(error).__name__}: {error}.") from error
    hooks: list[Any] = [found]
    if isinstance(found, Iterable) and not isinstance(found, str):
        hooks = list(cast("Iterable[Any]", found))
    if strange := [hook for hook in hooks if not (isinstance(hook, Detector) or callable(hook))]:
        raise PerdureError(f"{reference!r} is no detector, but {type(strange[0]).__name__}: {_FORM}.")
    return hooks
