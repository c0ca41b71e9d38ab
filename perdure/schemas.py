"""JSON Schemas of functions: from signature, `Annotated`/`Field` and docstring."""

from __future__ import annotations

import inspect
import re
import typing
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from perdure.errors import ToolDefinitionError
from perdure.sensitive import Secret, Sensitive, outline

_UNROLL = (2, 1, 0)
"""How often recursive types are repeated; the next where that makes too much. Below that anything is accepted."""

_MOST_REFS = 300
"""So many types written out is too much: the model reads the whole schema with every call."""


class _Budget:
    """How many types may still be written out, and how often one below itself."""

    def __init__(self, unroll: int) -> None:
        self.unroll = unroll
        self.left = _MOST_REFS


def inline_refs(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` without `$ref` and `$defs`: some model APIs refuse them (any-llm#1094).

    A recursive definition is unrolled up to three times, less where many refer to each other; below that any value
    fits.

    Raises:
        ToolDefinitionError: If a `$ref` points outside the schema or to nothing, or too many types refer to each other.
    """
    for unroll in _UNROLL:
        budget = _Budget(unroll)
        inlined = _inline(schema, schema, (), budget)
        if budget.left >= 0:
            return cast("dict[str, Any]", inlined)
    raise ToolDefinitionError("The schema's types refer to each other too often to be written out; simplify them.")


def _inline(node: Any, root: Mapping[str, Any], above: tuple[str, ...], budget: _Budget) -> Any:
    if isinstance(node, list):
        return [_inline(item, root, above, budget) for item in cast("list[Any]", node)]
    if not isinstance(node, Mapping):
        return node
    node = cast("Mapping[str, Any]", node)
    if isinstance(ref := node.get("$ref"), str):
        budget.left -= 1
        if budget.left < 0 or (ref in above and len(above) - len(set(above)) >= budget.unroll):
            return {}
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {**_inline(_resolve(ref, root), root, (*above, ref), budget), **_inline(beside, root, above, budget)}
    kept = {key: value for key, value in node.items() if key not in ("$defs", "definitions")}
    return _each_schema(kept, lambda child: _inline(child, root, above, budget))


def _each_schema(node: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return `node` with `change` made to every schema right below it: names of properties and data are none."""
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("properties", "patternProperties") and isinstance(value, Mapping):
            out[key] = {name: change(child) for name, child in cast("Mapping[str, Any]", value).items()}
        else:
            out[key] = value if key in ("enum", "const", "default", "examples") else change(value)
    return out


def _resolve(ref: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for part in ref.removeprefix("#").strip("/").split("/") if ref != "#" else []:
        name = part.replace("~1", "/").replace("~0", "~")
        if not ref.startswith("#") or not isinstance(node, Mapping) or name not in node:
            raise ToolDefinitionError(f"The schema's $ref {ref!r} points to nothing in the schema itself.")
        node = cast("Any", node[name])
    return node


class Arguments(BaseModel):
    """Base of the models made from signatures: what the model may write, and nothing else."""

    # Patterns are Python's, as in the validator that judges what a model writes.
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=False, regex_engine="python-re")


def arguments_model(function: Callable[..., Any], skip: str | None, hidden: Collection[str] = ()) -> type[Arguments]:
    """Return a pydantic model of `function`'s parameters, `skip` and `hidden` left out.

    A description comes from `Annotated[T, "text"]`, from `Field(description=…)`, or from the `Args:` section
    of a Google-style docstring, in that order.

    Raises:
        ToolDefinitionError: If a parameter has no type, is `*args` or `**kwargs`, or pydantic has no schema.
    """
    name = getattr(function, "__name__", "tool")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        text = f"Tool {name!r}: a type in its signature can't be resolved: {sentence(error)}"
        raise ToolDefinitionError(text) from error
    described = docstring_arguments(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == skip or parameter.name in hidden:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolDefinitionError(f"Tool {name!r}: parameter {parameter.name!r} has to be a plain named one.")
        if parameter.name.startswith("_") or parameter.name == "model_config":
            raise ToolDefinitionError(f"Tool {name!r}: a parameter can't be called {parameter.name!r}; rename it.")
        if parameter.name not in hints:
            raise ToolDefinitionError(f"Tool {name!r}: parameter {parameter.name!r} needs a type.")
        fields[parameter.name] = _field(hints[parameter.name], parameter, described.get(parameter.name))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a parameter may be called `copy` or `json`; a default need not be JSON
            model = create_model(f"{name}_arguments", __base__=Arguments, **fields)
            model.model_json_schema()
    except Exception as error:
        raise ToolDefinitionError(f"Tool {name!r}: its parameters have no JSON Schema: {sentence(error)}") from error
    return model


def secret_parameters(function: Callable[..., Any]) -> dict[str, str]:
    """Return the parameters that a secret fills in, and the name of each one's secret.

    Raises:
        ToolDefinitionError: If one of them is no text.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 - whoever makes the schema says what is wrong with them
        return {}
    found: dict[str, str] = {}
    for parameter, hint in hints.items():
        secret = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Secret)), None)
        if secret and hint.__origin__ is not str:
            name = getattr(function, "__name__", "tool")
            raise ToolDefinitionError(f"Tool {name!r}: parameter {parameter!r} has to be a str: a secret is text.")
        found |= {parameter: secret.name} if secret else {}
    return found


def returned_outline(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what the type that `function` returns says of private data; see `perdure.sensitive.outline`.

    Raises:
        ToolDefinitionError: If it says something, and has no JSON Schema.
    """
    try:
        hint = typing.get_type_hints(function, include_extras=True).get("return")
    except Exception:  # noqa: BLE001 - as above
        return {}
    if hint is None or (isinstance(hint, type) and hint.__module__ == "builtins"):
        return {}
    try:
        return outline(inline_refs(TypeAdapter(hint).json_schema(mode="serialization")))
    except Exception as error:
        if Sensitive.__name__ not in repr(hint):
            return {}  # it returns what is no JSON, as it may
        name = getattr(function, "__name__", "tool")
        raise ToolDefinitionError(f"Tool {name!r}: what it returns has no JSON Schema: {sentence(error)}") from error


def sentence(error: Exception) -> str:
    """Return what `error` says, its first complaint only, as a sentence."""
    if isinstance(error, ValidationError):
        one = error.errors()[0]
        return f"option {'.'.join(map(str, one['loc']))}: {one['msg']}."
    first, _, _ = str(error).partition("\n\n")
    return f"{' '.join(first.split()).rstrip('.')}."


def _field(hint: Any, parameter: inspect.Parameter, described: str | None) -> tuple[Any, Any]:
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    if typing.get_origin(hint) is typing.Annotated:
        base, *extras = typing.get_args(hint)
        text = next((extra for extra in extras if isinstance(extra, str)), None)
        has_own = any(isinstance(extra, FieldInfo) and extra.description for extra in extras)
        rest = [extra for extra in extras if not isinstance(extra, str)]
        if text or (described and not has_own):
            rest.append(Field(description=text or described))
        return cast("Any", typing.Annotated)[(base, *rest)] if rest else base, default
    if isinstance(default, FieldInfo):
        return hint, default
    return (typing.Annotated[hint, Field(description=described)] if described else hint), default


def parameters_schema(model: type[Arguments]) -> dict[str, Any]:
    """Return the JSON Schema of `model`, `$ref`s inlined, generated titles left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        schema = inline_refs(model.model_json_schema())
    return cast("dict[str, Any]", _untitled(schema, top=True))


def type_schema(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of what is read as the type `hint`, `$ref`s inlined, generated titles left out.

    Raises:
        Exception: Whatever pydantic raises where the type has none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        schema = inline_refs(TypeAdapter(hint).json_schema())
    return cast("dict[str, Any]", _untitled(schema))


def _untitled(node: Any, *, top: bool = False) -> Any:
    if isinstance(node, list):
        return [_untitled(item) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    node = cast("dict[str, Any]", node)
    kept = {key: value for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    out = _each_schema(kept, _untitled)
    if top:
        out.pop("description", None)
        out.setdefault("properties", {})
    return out


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*$")


def docstring_summary(doc: str) -> str:
    """Return the text of a docstring up to its first section such as `Args:`."""
    lines: list[str] = []
    for line in doc.splitlines():
        if _SECTION.match(line.strip()):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def docstring_arguments(doc: str) -> dict[str, str]:
    """Return what a Google-style docstring says of each parameter."""
    found: dict[str, str] = {}
    inside, current, indent = False, "", 0
    for line in doc.splitlines():
        section = _SECTION.match(line.strip())
        if section:
            inside = section[1] in ("Args", "Arguments", "Parameters")
            current, indent = "", 0
            continue
        if not inside or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        entry = re.match(r"\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)", line)
        indent = indent or depth
        if entry and depth <= indent:
            current = entry[1]
            found[current] = entry[2].strip()
        elif current:
            found[current] = f"{found[current]} {line.strip()}".strip()
    return found
