"""Suites out of YAML files and Python modules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perdure import loading
from perdure.agents import Agent
from perdure.complaints import complaint
from perdure.declaring import resolve
from perdure.errors import AgentError, AgentNotFound
from perdure.evals.suites import Expect, Suite
from perdure.marks import Document, Place, read

SCRIPTED = "scripted:"


def load_suite(reference: str) -> Suite:
    """Return the suite that `FILE.yaml`, `FILE.py`, `FILE.py:name` or `module:name` declares, ready to be run.

    Raises:
        AgentNotFound: If there is no such file or module, or not one suite in it.
        AgentError: If it can't be imported, or something declared can't be; the text names place and reason.
    """
    where, _, name = reference.partition(":")
    if loading.is_declaration(where):
        return _declared(Path(where).expanduser().resolve(), where)
    module = loading.load_module(where, Path.cwd())
    found = {key: value for key, value in vars(module).items() if isinstance(value, Suite)}
    if name and name not in found:
        raise AgentNotFound(f"{where} has no suite {name!r}; it has {', '.join(found) or 'none'}.")
    if not name and len(found) != 1:
        names = ", ".join(f"{where}:{key}" for key in found)
        words = f"declares {len(found)} suites; say which: {names}" if found else "declares no suite: assign a Suite(…)"
        raise AgentNotFound(f"{where} {words}.")
    suite = found[name] if name else next(iter(found.values()))
    if isinstance(suite.agent, str):
        suite = suite.model_copy(update={"agent": one_agent(suite.agent)})
    return suite


def one_agent(reference: str) -> Agent:
    """Return the one agent that is meant.

    Raises:
        AgentNotFound: If there is none.
        AgentError: If several are, or a file can't be loaded.
    """
    agents = loading.load_agents(reference)
    if len(agents) > 1:
        names = ", ".join(f"{reference}:{agent.name}" for agent in agents)
        raise AgentError(f"{reference} declares {len(agents)} agents; say which: {names}.")
    return agents[0]


def _declared(path: Path, shown: str) -> Suite:
    documents = read(path, shown)
    if len(documents) != 1:
        raise AgentNotFound(f"{shown} has to declare one suite, and has {len(documents)} documents.")
    document = documents[0]
    try:
        suite = Suite.model_validate(document.value)
    except ValidationError as error:
        raise complaint(error, document) from error
    found = _Found(path.parent, document)
    expects = [found.expect(["cases", at, "expect"], case.expect) for at, case in enumerate(suite.cases)]
    cases = [case.model_copy(update={"expect": one}) for case, one in zip(suite.cases, expects, strict=True)]
    return suite.model_copy(
        update={
            "agent": found.agent(suite.agent),
            "model": found.model(suite.model),
            "judge": found.model(suite.judge),
            "environment": found.function(["environment"], suite.environment),
            "expect": found.expect(["expect"], suite.expect),
            "cases": cases,
        }
    )


class _Found:
    """Finds what a suite's file names, beside the file first."""

    def __init__(self, folder: Path, document: Document) -> None:
        self._folder, self._document = folder, document

    def agent(self, reference: str) -> Agent:
        where, colon, name = reference.partition(":")
        near = f"{self._folder / where}{colon}{name}" if loading.is_file(where) else reference
        try:
            return one_agent(near)
        except AgentError as error:
            raise self._document.fault(["agent"], str(error)) from error

    def model(self, name: str | None) -> str | None:
        """Return a model's name; the script of a scripted one is beside the suite's file."""
        if name is None or not name.startswith(SCRIPTED):
            return name
        path, here = self._folder / name.removeprefix(SCRIPTED), Path.cwd()
        return f"{SCRIPTED}{path.relative_to(here) if path.is_relative_to(here) else path}"

    def expect(self, at: Place, expect: Expect) -> Expect:
        if not expect.functions:
            return expect
        functions: Sequence[Any] = [self.function([*at, "functions", n], one) for n, one in enumerate(expect.functions)]
        return expect.model_copy(update={"functions": functions})

    def function(self, at: Place, path: Any) -> Any:
        if path is None:
            return None
        try:
            found = resolve(path, self._folder)
        except AgentError as error:
            raise self._document.fault(at, str(error)) from error
        if not callable(found):
            raise self._document.fault(at, f"{path} is no function.")
        return found
