"""YAML read so that whoever finds fault with it can say where. Nothing in it is ever executed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perdure.errors import AgentError, AgentNotFound

Place = Sequence[str | int]
"""Keys and places in lists, from the top of a document down."""

_LARGEST = 100_000
"""Values of a document, with what its anchors repeat."""

_UNREADABLE = "a value can't be read as its tag says"
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Document:
    """One document of a YAML file: its value as plain data, and where each part of it is."""

    value: Any
    file: str
    node: Any

    def fault(self, at: Place, words: str, *, key: str = "") -> AgentError:
        """Return an error about the value at that path, or a key of it; where it has no place, what is above has."""
        node = self.node
        for part in at:
            node = _below(node, part) or node
        if key:
            node = next((name for name, _ in _pairs(node) if name.value == key), node)
        return fault(self.file, node.start_mark, words)


def fault(file: str, mark: Any, words: str) -> AgentError:
    """Return an error that names file, line and column, both from 1."""
    return AgentError(f"{file}:{mark.line + 1}:{mark.column + 1}: {words}")


def read(path: Path, shown: str) -> list[Document]:
    """Return the documents of a file, empty ones left out; `shown` is how errors call it.

    Raises:
        AgentNotFound: If there is no such file.
        AgentError: If it is not YAML that stands for JSON; the text says where and why.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise AgentNotFound(f"There is no file {path}, or it can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise AgentError(f"{shown}: byte {error.start + 1} is no UTF-8; save the file as UTF-8.") from error
    try:
        import yaml
    except ImportError as error:
        raise AgentError(f"{shown}: YAML needs PyYAML: pip install 'perdure[yaml]'.") from error
    try:
        return [document for document in _documents(text, shown) if document.value is not None]
    except RecursionError as error:
        raise AgentError(f"{shown}: this is nested too deeply; write it flatter.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = f"this is not YAML: {error.problem or error.context}; {_advice(str(error.problem))}."
        raise (fault(shown, mark, words) if mark else AgentError(f"{shown}: {words}")) from error
    except yaml.YAMLError as error:
        raise AgentError(f"{shown}: this is not YAML: {' '.join(str(error).split())}.") from error


def _advice(problem: str) -> str:
    if "constructor for the tag" in problem or problem.startswith(_UNREADABLE):
        return "only plain values can be declared, so leave the tag out"
    if "\\t" in problem:
        return "indent with spaces"
    return "look at the indentation, and put a text that holds ': ' or ' #' in quotes"


def _documents(text: str, file: str) -> Iterator[Document]:
    loader = _loader()(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            _check(node, file, {}, set())
            yield Document(loader.construct_document(node), file, node)
    finally:
        loader.dispose()


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader, without the type that JSON lacks: what looks like a date stays text."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own form
            first: [(tag, form) for tag, form in found if not tag.endswith(":timestamp")]
            for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)  # pyright: ignore[reportUnknownMemberType]
            except (ValueError, LookupError, AttributeError) as error:  # which PyYAML lets through
                words = f"{_UNREADABLE} ({node.tag.rpartition(':')[2]})"
                raise yaml.constructor.ConstructorError(None, None, words, node.start_mark) from error

    return Loader


def _check(node: Any, file: str, sizes: dict[int, int], above: set[int]) -> int:
    """Return how many values a node stands for, once it is known that it can be written out."""
    if id(node) in sizes:
        return sizes[id(node)]
    if id(node) in above:
        raise fault(file, node.start_mark, "this anchor holds itself; write it out.")
    above.add(id(node))
    known: set[str] = set()
    for name, _ in _pairs(node):
        if name.tag not in (_TEXT, _MERGE):
            raise fault(file, name.start_mark, f"a key has to be text; put {_shown(name)} in quotes.")
        if name.value in known:
            raise fault(file, name.start_mark, f"key {name.value!r} is here twice; leave one of them.")
        known.add(name.value)
    sizes[id(node)] = size = 1 + sum(_check(child, file, sizes, above) for child in _children(node))
    above.discard(id(node))
    if size > _LARGEST:
        raise fault(file, node.start_mark, f"this is more than {_LARGEST:,} values; write fewer, or fewer anchors.")
    return size


def _shown(node: Any) -> str:
    return repr(node.value) if isinstance(node.value, str) else "it"


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    return node.value if node.id == "mapping" else []


def _children(node: Any) -> list[Any]:
    if node.id == "mapping":
        return [value for _, value in node.value]
    return node.value if node.id == "sequence" else []


def _below(node: Any, part: str | int) -> Any:
    """Return the node of a key or place right below `node`; None where there is none."""
    if node.id == "sequence" and isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    return next((value for name, value in reversed(_pairs(node)) if name.value == part), None)
