"""What can't make a tool, each in a sentence. Pure."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

from perdure.errors import ToolDefinitionError
from perdure.policies import Shaping, ToolSpec
from perdure.schemas import inline_refs


def is_function(value: Any) -> bool:
    """Return whether that is something to call, and no tool, which may be called as well."""
    return callable(value) and not isinstance(getattr(value, "spec", None), ToolSpec)


def shaping_of(options: dict[str, Any]) -> Shaping:
    """Take what `Shaping` is made of out of `options`. Raises `ValueError`."""
    given = {name: options.pop(name) for name in Shaping.model_fields if name in options}
    fields: Any = given.get("fields")
    if isinstance(fields, str):
        raise ValueError(f"fields has to be a list of names, such as [{fields!r}]")  # noqa: TRY004 - sentence() takes it
    return Shaping.model_validate({**given, **({"fields": list(fields)} if fields is not None else {})})


def check_shape(shape: Any, spec: ToolSpec) -> None:
    """Raise unless `shape` can make of what the tool returned what the model is shown."""
    if not is_function(shape):
        raise ToolDefinitionError(f"Tool {spec.name!r}: shape has to be a function, not {shape!r}.")
    if spec.remote:
        raise ToolDefinitionError(f"Tool {spec.name!r}: it is on another worker, where shape can't be; use fields.")
    try:
        inspect.signature(shape).bind(None)
    except TypeError as error:
        text = f"Tool {spec.name!r}: shape is called with what the tool returned, which does not fit: {error}."
        raise ToolDefinitionError(text) from error
    except ValueError:
        return  # a built-in that does not tell


def check_fallback(spec: ToolSpec, other: ToolSpec) -> None:
    """Raise unless `other` may be asked in place of `spec`, with what that one was called with."""
    both = (spec, other)
    if any(one.effect != "read" for one in both):
        why = "only a 'read' may be asked elsewhere: an effect could be done twice"
    elif any(one.remote or one.agent for one in both):
        why = "both have to run in this worker"
    elif other.approval not in (None, "never"):
        why = f"{other.name!r} asks for approval, which nobody would be asked for"
    elif missing := set(other.parameters.get("required", ())) - set(spec.parameters.get("required", ())):
        why = f"{other.name!r} needs {', '.join(sorted(missing))} as well"
    elif strange := set(spec.parameters.get("properties", {})) - set(other.parameters.get("properties", {})):
        why = f"{other.name!r} does not know {', '.join(sorted(strange))}"
    else:
        return
    raise ToolDefinitionError(f"Tool {spec.name!r}: fallback {other.name!r} can't stand in: {why}.")


def check_compensation(compensate: Any, spec: ToolSpec) -> None:
    """Raise unless `compensate` can undo what the tool did."""
    if not is_function(compensate):
        raise ToolDefinitionError(f"Tool {spec.name!r}: compensate has to be a function, not {compensate!r}.")
    if spec.effect == "read":
        raise ToolDefinitionError(f"Tool {spec.name!r}: a 'read' has no effect that compensate could undo.")
    try:
        inspect.signature(compensate).bind(None, None, **dict.fromkeys(spec.parameters.get("properties", {})))
    except (TypeError, ValueError) as error:
        called = ", ".join(["ctx", "result", *spec.parameters.get("properties", {})])
        raise ToolDefinitionError(
            f"Tool {spec.name!r}: its compensation is called with ({called}), which does not fit: {error}."
        ) from error


def exception_types(tool: str, given: Any) -> tuple[type[BaseException], ...]:
    """Return the exception types that `not_done` names. Raises `ToolDefinitionError`."""
    types = tuple(cast("Iterable[Any]", given)) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in types):
        raise ToolDefinitionError(f"Tool {tool!r}: not_done has to be a list of exception types, not {given!r}.")
    return types


def check(spec: ToolSpec, options: Mapping[str, Any]) -> None:
    """Raise unless its options go together, and the engine and the model take its names."""
    unknown = set(options) - set(ToolSpec.model_fields)
    if unknown:
        raise ToolDefinitionError(f"Tool {spec.name!r}: unknown option {', '.join(sorted(unknown))}.")
    if not _nameable(spec.name):
        raise ToolDefinitionError(f"Tool {spec.name[:50]!r}: its name has to be 1 to 200 characters that can be shown.")
    if spec.remote and not (_nameable(spec.remote.activity) and _nameable(spec.remote.task_queue)):
        raise ToolDefinitionError(f"Tool {spec.name!r}: activity and task_queue have to be 1 to 200 characters each.")
    if spec.name.startswith("perdure."):
        raise ToolDefinitionError(f"Tool {spec.name!r}: names that begin with 'perdure.' are the runtime's own.")
    if spec.local and spec.effect != "read":
        raise ToolDefinitionError(f"Tool {spec.name!r}: local=True repeats after a crash, so only a 'read' may say it.")
    if not spec.name or not spec.description:
        missing = "description" if spec.name else "name"
        raise ToolDefinitionError(f"Tool {spec.name!r} needs a {missing}: the model has only that to go by.")
    if spec.timeout <= timedelta():
        raise ToolDefinitionError(f"Tool {spec.name!r}: timeout has to be more than 0.")
    if spec.defer and spec.effect == "read":
        raise ToolDefinitionError(f"Tool {spec.name!r}: a 'read' can't be deferred: the model needs what it returns.")
    if spec.remote and spec.local:
        raise ToolDefinitionError(f"Tool {spec.name!r}: a tool on another worker can't be local.")


def _nameable(name: str) -> bool:
    """Return whether the engine takes `name` as an activity type or a task queue; another would wedge a run."""
    odd = any(unicodedata.category(character) in ("Cc", "Cs") for character in name)
    return 0 < len(name.strip()) <= len(name) <= 200 and not odd and not name.startswith("/_sys/")  # noqa: PLR2004


def checked_schema(parameters: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a JSON Schema of arguments, its `$ref`s inlined. Raises `ToolDefinitionError` where it is none."""
    from jsonschema import Draft202012Validator, SchemaError

    if not isinstance(parameters, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] # users read it from files
        raise ToolDefinitionError(f"Tool {name!r}: its JSON Schema has to be an object, not {parameters!r}.")
    schema = inline_refs(parameters)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ToolDefinitionError(f"Tool {name!r}: its JSON Schema is not valid: {error.message}.") from error
    if schema.get("type", "object") != "object":
        raise ToolDefinitionError(f"Tool {name!r}: its JSON Schema has to describe an object, not {schema['type']!r}.")
    return {"type": "object", "properties": {}, **schema}
