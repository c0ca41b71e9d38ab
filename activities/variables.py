"""`ctx.vars`: an agent's variables as an instance of its own model class, which checks what is assigned at once."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from perdure.errors import VariableError
from perdure.messages import JSON, canonical_json
from perdure.variables import check_size, complaint


class Variables:
    """The variables of one attempt of a call, and what it has changed of them.

    Args:
        model: The class that the agent declares.
        values: As JSON; what is missing has its default, what the class does not know is left out.

    Attributes:
        instance: What the tool is handed.

    Raises:
        VariableError: If the values do not fit the class, which may have changed since the run was started.
    """

    def __init__(self, model: type[BaseModel], values: Mapping[str, JSON]) -> None:
        self._model = _working(model)
        self.instance = _read(self._model, {name: values[name] for name in model.model_fields if name in values})
        self._before = _written(self.instance)

    def changes(self) -> dict[str, JSON]:
        """Return the fields that have another value than at first, changed by assignment or in place, as JSON.

        Raises:
            VariableError: If what was changed in place can't be kept: a wrong type inside, or too large.
        """
        after = _written(self.instance)
        changed = {k: v for k, v in after.items() if canonical_json(v) != canonical_json(self._before.get(k))}
        if changed:
            _read(self._model, after)
            check_size(after)
        return changed


@functools.cache
def _working(model: type[BaseModel]) -> type[BaseModel]:
    """Return a subclass of `model` that checks each assignment; one that fails leaves the value as it was."""

    class Working(model):  # type: ignore[misc, valid-type]
        model_config = ConfigDict(validate_assignment=True, validate_by_name=True)

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in model.model_fields and not name.startswith("_"):
                known = ", ".join(model.model_fields)
                raise VariableError(f"There is no variable {name!r}; the variables are {known}.")
            before, given = dict(self.__dict__), set(self.__pydantic_fields_set__)
            try:
                super().__setattr__(name, value)
                check_size(_written(self))
            except (VariableError, ValidationError) as error:
                object.__setattr__(self, "__dict__", before)
                object.__setattr__(self, "__pydantic_fields_set__", given)
                if isinstance(error, VariableError):
                    raise
                raise VariableError(complaint(name, error)) from None

    Working.__name__, Working.__qualname__, Working.__module__ = model.__name__, model.__qualname__, model.__module__
    return Working


def _read(model: type[BaseModel], values: Mapping[str, JSON]) -> BaseModel:
    try:
        return model.model_validate_json(json.dumps(values), by_name=True)
    except ValidationError as error:
        raise VariableError(complaint("", error)) from None


def _written(instance: BaseModel) -> dict[str, JSON]:
    """Return the values as JSON."""
    fields = set(type(instance).model_fields)
    try:
        text = instance.model_dump_json(include=fields, by_alias=False, warnings=False)
    except (PydanticSerializationError, UnicodeError) as error:
        raise VariableError(f"A variable can't be written as JSON: {error}.") from None
    values: dict[str, JSON] = json.loads(text)
    return values
