"""What other packages add to Perdure: entry points, found by name and loaded when they are used.

A package says in its `pyproject.toml`, for example:

    [project.entry-points."perdure.tools"]
    dice = "dice_for_perdure:roll"

Nothing of it is imported before something names it, but by `perdure doctor`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, cast, get_args

from perdure.context import ContextStrategy
from perdure.errors import ExtensionError
from perdure.hooks import Hook
from perdure.memory import MemoryIndex
from perdure.notices import Notifier
from perdure.policies import ContextPolicy
from perdure.strategies import Strategy
from perdure.tools import Tool

Kind = Literal["models", "stores", "context", "memory", "notices", "tools", "strategies", "hooks"]
"""What can be added; the group of its entry points is `perdure.KIND`."""
KINDS: tuple[Kind, ...] = get_args(Kind)


_OURS: dict[Kind, dict[str, str]] = {"strategies": {"plan": "perdure.strategies.plan:Plan"}}
"""What has a name without a package: it can't be taken over."""


@dataclass(frozen=True)
class Extension:
    """Something that an installed package adds.

    Attributes:
        value: Where it is, `module:name`.
        package: The name of the package that brings it, and its version.
    """

    kind: Kind
    name: str
    value: str
    package: str

    def __str__(self) -> str:
        return f"{self.name!r} of {self.package} (perdure.{self.kind}, {self.value})"


def installed(kind: Kind) -> list[Extension]:
    """Return the extensions of a kind that packages bring, by name; none of them is loaded."""
    found = [point for point in _points(kind) if point.name not in _OURS.get(kind, {})]
    return [_told(kind, point) for point in sorted(found, key=lambda point: point.name)]


def names(kind: Kind) -> set[str]:
    """Return under which names there is something of a kind."""
    return {point.name for point in _points(kind)}


def load(kind: Kind, name: str) -> Any:
    """Return the extension of that name, once it is known to be what it says.

    `tools` is a list of tools; `context`, `memory`, `notices` and `hooks` are objects; `models`, `stores` and
    `strategies` are what makes such an object, given a name and settings, the settings, and options.

    Raises:
        ExtensionError: If there is none, or several, or it can't be loaded, or is something else; one sentence.
    """
    points = [point for point in _points(kind) if point.name == name]
    if not points:
        raise ExtensionError(f"No installed package has {name!r} for perdure.{kind}{_known(kind, name)}")
    if len(points) > 1:
        packages = " and ".join(_told(kind, point).package for point in points)
        raise ExtensionError(f"{packages} both bring {name!r} for perdure.{kind}; uninstall one of them.")
    return _loaded(kind, points[0])


def _known(kind: Kind, name: str) -> str:
    known = sorted(names(kind))
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}." if known else "."


@cache
def _points(kind: Kind) -> tuple[EntryPoint, ...]:
    """Return the entry points of a kind, as they were when they were first asked for; one that is found twice, once."""
    group, own = f"perdure.{kind}", _OURS.get(kind, {})
    ours = [EntryPoint(name, value, group) for name, value in own.items()]
    brought = {(point.name, point.value): point for point in entry_points(group=group) if point.name not in own}
    return (*ours, *brought.values())


def _told(kind: Kind, point: EntryPoint) -> Extension:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "Perdure itself"
    return Extension(kind, point.name, point.value, package)


@cache
def _loaded(kind: Kind, point: EntryPoint) -> Any:
    what = _told(kind, point)
    try:
        found: Any = point.load()
    except Exception as error:
        text = f"Extension {what} can't be loaded: {type(error).__name__}: {_line(error)}. Fix or uninstall it."
        raise ExtensionError(text) from error
    try:
        return _FITTING[kind](found)
    except (TypeError, ValueError) as error:
        raise ExtensionError(f"Extension {what} is not what it says: {_line(error)}.") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")[:300]


# -- what each kind has to be ---------------------------------------------------------------------------------


def _tools(found: Any) -> list[Tool]:
    many = list(cast("Iterable[Any]", found)) if isinstance(found, list | tuple) else [found]
    for one in many:
        if not isinstance(one, Tool):
            raise TypeError(f"it has to be a tool, or a list of tools, not {one!r}")
    return many


def _made(found: Any) -> Any:
    """Return an object, where its class, or a function that makes it, is what was named."""
    return found() if inspect.isclass(found) or inspect.isfunction(found) else found


def _context(found: Any) -> ContextStrategy:
    made: Any = _made(found)
    if not isinstance(made, ContextStrategy) or not isinstance(getattr(made, "policy", None), ContextPolicy):
        raise TypeError("it has to have name, policy (a ContextPolicy), view and compact; see ContextStrategy")
    return made


def _memory(found: Any) -> MemoryIndex:
    made: Any = _made(found)
    if not isinstance(made, MemoryIndex):
        raise TypeError("it has to have a method search; see MemoryIndex")
    return made


def _notices(found: Any) -> Notifier:
    made: Any = _made(found)
    if not isinstance(made, Notifier) or not inspect.iscoroutinefunction(made.deliver):
        raise TypeError("it has to have an async method deliver; see Notifier")
    return made


def _hooks(found: Any) -> Hook:
    made: Any = _made(found)
    if not isinstance(made, Hook):
        raise TypeError("it has to be derived from Hook")
    return made


def _strategies(found: Any) -> Callable[..., Strategy]:
    lacks = [name for name in ("name", "spec", "tools", "move") if not hasattr(found, name)]
    if not inspect.isclass(found) or lacks:
        raise TypeError("it has to be a class with name, spec, tools and move; see Strategy")
    return cast("Callable[..., Strategy]", found)


def _callable(arguments: int, words: str) -> Callable[[Any], Any]:
    def check(found: Any) -> Any:
        if not callable(found):
            raise TypeError(words)
        try:
            inspect.signature(found).bind(*range(arguments))
        except TypeError:
            raise TypeError(words) from None
        return found

    return check


_FITTING: dict[Kind, Callable[[Any], Any]] = {
    "models": _callable(2, "it has to be a function of a model's name and its ModelSettings that returns a Model"),
    "stores": _callable(1, "it has to be a function of the Settings that returns a Store"),
    "context": _context,
    "memory": _memory,
    "notices": _notices,
    "tools": _tools,
    "strategies": _strategies,
    "hooks": _hooks,
}
