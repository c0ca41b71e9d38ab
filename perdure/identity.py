"""Who this process is, as far as it can tell, and by which way it speaks: the engine keeps that with all it is told."""

from __future__ import annotations

import getpass
import re
import socket
from typing import Literal

Way = Literal["cli", "python", "worker"]

_FORM = re.compile(r"perdure-(cli|python|worker) (.*)", re.DOTALL)
_way: Way = "python"


def whoami() -> str:
    """Return user and host of this process: who decides, as far as it can tell."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def way() -> Way:
    """Return by which way this process speaks: the command line, a worker, or Python."""
    return _way


def use_way(way: Way) -> None:
    """Set it, for the rest of this process."""
    global _way  # noqa: PLW0603 - a process has one
    _way = way


def identity() -> str:
    """Return what the engine is told of this process, and keeps with whatever it does."""
    return f"perdure-{_way} {whoami()}"


def read(identity: str) -> tuple[str, str]:
    """Return who an identity that the engine has kept is, and by which way; that is "" for one that is not ours."""
    found = _FORM.fullmatch(identity)
    return (found[2], found[1]) if found else (identity, "")
