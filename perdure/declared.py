"""What declared data is made of: kinds of values, and mappings whose keys are known. Pure but for the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

# -- kinds of values -----------------------------------------------------------------------------------------

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_NAME = r"^[A-Za-z_][\w.-]*$"
_PATH = r"^[^:\s]+:[A-Za-z_][\w.]*$"


def _from_environment(text: str) -> str:
    def value(found: re.Match[str]) -> str:
        name, default = found.groups()
        given = os.environ.get(name) or default
        if given is None:
            words = "names {name}, which is not set in the environment; set it, or give a default: ${{name}:-…}"
            raise PydanticCustomError("environment", words, {"name": name})
        return given

    return _VARIABLE.sub(value, text)


def _import_path(text: str) -> str:
    if not re.match(_PATH, text):
        words = "has to be an import path: module:name, or file.py:name"
        raise PydanticCustomError("import_path", words)
    return text


def _extension(text: str) -> str:
    if not re.match(_NAME, text) and not re.match(_PATH, text):
        words = "has to be module:name, file.py:name, or the name of an installed extension"
        raise PydanticCustomError("import_path", words)
    return text


def _model_name(text: str) -> str:
    provider, _, name = text.partition(":")
    if not provider or not name:
        raise PydanticCustomError("model_name", "has to be PROVIDER:NAME, such as openai:gpt-5-mini")
    return text


def _rule(text: str) -> str:
    if text not in ("never", "always") and not re.match(r"^predicate:.+$", text):
        raise PydanticCustomError("rule", "has to be never, always, or predicate:TOOL of a tool that has a function")
    return text


def _rule_or_path(text: str) -> str:
    if text in ("never", "always") or re.match(_PATH, text):
        return text
    raise PydanticCustomError("rule", "has to be never, always, or module:name of a function")


ImportPath = Annotated[str, AfterValidator(_import_path), WithJsonSchema({"type": "string", "pattern": _PATH})]
"""`module:name`, where `module` is looked for beside the file first, or `file.py:name`."""
Named = Annotated[str, AfterValidator(_extension), WithJsonSchema({"type": "string", "pattern": f"{_PATH}|{_NAME}"})]
"""An import path, or the name of an extension that an installed package brings."""
FromEnvironment = Annotated[str, AfterValidator(_from_environment)]
"""Text in which `${NAME}` and `${NAME:-default}` stand for variables of the environment."""
ModelName = Annotated[str, AfterValidator(_from_environment), AfterValidator(_model_name)]
Rule = Annotated[str, AfterValidator(_rule)]
RuleOrPath = Annotated[str, AfterValidator(_rule_or_path)]


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "=switch"
        case str():
            return "=text"
        case list():
            return "=list"
        case BaseModel() | Mapping():
            return "=mapping"
        case _:
            return "=other"


def one_of(words: str) -> Discriminator:
    """Return what tells kinds of values apart; `words` say what they may be."""
    return Discriminator(_kind, custom_error_type="kind", custom_error_message=f"has to be {words}")


# -- what has keys -------------------------------------------------------------------------------------------


class Declared(BaseModel):
    """A mapping whose keys are all known. Durations are seconds, ISO 8601, or such as `30s`, `10m`, `24h`, `2d`.

    Attributes:
        described_by: Whose docstrings say what the keys mean.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    described_by: ClassVar[tuple[Any, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _look_at_keys(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        mapping = cast("Mapping[str, Any]", given)
        for key in mapping:
            if key not in cls.model_fields:
                raise PydanticCustomError("unknown_key", "unknown key", {"key": key, "known": list(cls.model_fields)})
        return {key: _duration(value) if key in cls._durations() else value for key, value in mapping.items()}

    @classmethod
    def _durations(cls) -> set[str]:
        found = {name: str(field.annotation) for name, field in cls.model_fields.items()}
        return {name for name, annotation in found.items() if "timedelta" in annotation}

    def given(self) -> dict[str, Any]:
        """Return what was declared, and nothing else."""
        return self.model_dump(exclude_unset=True)


def _duration(value: Any) -> Any:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return timedelta(seconds=float(found[1]) * _UNITS[found[2]]) if found else value
