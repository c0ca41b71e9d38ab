"""The secrets of a run within a tool's attempt: given to the tool, and taken out of all that it says."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from perdure.errors import ToolError
from perdure.messages import Data
from perdure.results import as_text, words
from perdure.sensitive import spellings
from perdure.tools import Tool

T = TypeVar("T")
DataT = TypeVar("DataT", bound=Data)


class Unlocked(Mapping[str, str]):
    """The secrets of a run within an attempt of one of its calls: `ctx.secrets`. Never shows a value by itself.

    Attributes:
        problem: Why they can't be read, "" where they can.
    """

    def __init__(self, values: Mapping[str, str] | None = None, problem: str = "") -> None:
        self._values = dict(values or {})
        self.problem = problem
        self._spellings = [
            (one, f"[secret {name}]") for name, value in self._values.items() for one in spellings(value)
        ]
        self._spellings.sort(key=lambda one: -len(one[0]))

    def __getitem__(self, name: str) -> str:
        """Return the secret of that name. Raises `KeyError` that says what to do."""
        if name not in self._values:
            raise KeyError(f"{name}: this run was not given such a secret; see perdure run --secret")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._values)

    def __repr__(self) -> str:
        """Return the names alone."""
        return f"<secrets: {', '.join(self._values)}>"

    def lacks(self, names: Mapping[str, str]) -> str:
        """Return why a tool that needs secrets of those names (by parameter) can't be called, or ""."""
        if self.problem:
            return self.problem
        missing = [name for name in names.values() if name not in self._values]
        return f"It needs the secret {missing[0]!r}, which this run has not (any more)." if missing else ""

    def scrubbed(self, text: str) -> str:
        """Return `text` without any of their values, however they are written in it."""
        for spelling, shown in self._spellings:
            text = text.replace(spelling, shown)
        return text

    def cleaned(self, value: Any) -> Any:
        """Return what a tool returned without them, as JSON: before any of it is shaped or cut off."""
        if not self._values:
            return value
        text, strange = as_text(value)
        return self.scrubbed(text) if strange or isinstance(value, str) or not text else scrub(json.loads(text), self)

    def json(self, value: T) -> T:
        """Return a JSON value without them."""
        return scrub(value, self) if self._values else value

    def model(self, data: DataT) -> DataT:
        """Return data without them, wherever in it they are."""
        return type(data).model_validate(scrub(data.model_dump(), self)) if self._values else data

    def filled(self, tool: Tool) -> Callable[..., Any]:
        """Return a tool's function with those that it asks for by its parameters."""
        assert tool.function is not None  # noqa: S101 - the caller looked
        values = {parameter: self._values[name] for parameter, name in tool.secrets.items()}
        return functools.partial(tool.function, **values) if values else tool.function

    def error(self, error: BaseException) -> BaseException:
        """Return an error without them in its words, of the same type as far as that can be."""
        if not self._values:
            return error
        if isinstance(error, ToolError):
            suggestion = self.scrubbed(error.suggestion) if error.suggestion else None
            message, kind = self.scrubbed(str(error.message)), self.scrubbed(str(error.error_type))
            return ToolError(message, suggestion=suggestion, error_type=kind)
        said = self.scrubbed(words(error)).removeprefix(f"{type(error).__name__}: ")
        return _in_other_words(error, said)


def _in_other_words(error: BaseException, said: str) -> BaseException:
    """Return an error of the same type, as far as that can be, that says `said` and holds nothing else."""

    def made(_: object) -> None:
        """Take nothing."""

    def shown(_: object) -> str:
        return said

    kind, name = type(error), type(error).__name__
    fields: dict[str, Any] = {"__init__": made, "__str__": shown, "__repr__": shown}
    try:
        return cast("BaseException", type(name, (kind,), fields)())
    except Exception:  # noqa: BLE001 - a type that nothing can be derived from
        return cast("BaseException", type(name, (Exception,), fields)())


def scrub(value: Any, unlocked: Unlocked) -> Any:
    """Return a JSON value with the secrets in its texts hidden, names of fields included."""
    if isinstance(value, str):
        return unlocked.scrubbed(value)
    if isinstance(value, dict):
        return {scrub(key, unlocked): scrub(child, unlocked) for key, child in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [scrub(item, unlocked) for item in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


NONE = Unlocked()
