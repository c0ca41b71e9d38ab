"""Finding agents in files and modules."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from perdure.agents import Agent
from perdure.errors import AgentError, AgentNotFound
from perdure.settings import Settings


def looks_like_file(reference: str) -> bool:
    """Return whether `reference` names a file or module (`agents.py`, `agents.yaml:travel`, `pkg.mod:travel`)."""
    return ".py" in reference or "/" in reference or ":" in reference or is_declaration(reference)


def is_declaration(where: str) -> bool:
    """Return whether a file is one of YAML, by its name."""
    return where.endswith((".yaml", ".yml"))


def is_file(where: str) -> bool:
    """Return whether that is the path of a file, and not a module's name."""
    return where.endswith(".py") or "/" in where or is_declaration(where)


def is_named(reference: str) -> bool:
    """Return whether a reference names one agent of its file or module."""
    return bool(reference.partition(":")[2])


def load_agents(reference: str) -> list[Agent]:
    """Return the agents that `FILE.py`, `FILE.yaml`, `FILE.py:name`, `module` or `module:name` declares, in order.

    Raises:
        AgentNotFound: If there is no such file or module, or no such agent in it.
        AgentError: If it can't be imported, or something declared can't be; the text names file, line and reason.
    """
    where, _, name = reference.partition(":")
    if is_declaration(where):
        return _declared(where, name)
    module = _import_file(Path(where)) if is_file(where) else _import_module(where)
    found: dict[str, Agent] = {}
    for agent in vars(module).values():
        if isinstance(agent, Agent) and found.setdefault(agent.name, agent) is not agent:
            raise AgentError(f"{where} declares two agents named {agent.name!r}; rename one.")
    if not found:
        raise AgentNotFound(f"{where} declares no agent: assign one to a module-level name, as in `a = Agent(…)`.")
    if not name:
        return list(found.values())
    chosen = found.get(name) or getattr(module, name, None)
    if not isinstance(chosen, Agent):
        raise AgentNotFound(f"{where} has no agent {name!r}; known are {', '.join(found)}.")
    return [chosen]


def _declared(where: str, name: str) -> list[Agent]:
    from perdure.declaring import declared_agents

    agents = declared_agents(Path(where), where)
    chosen = [agent for agent in agents if name in ("", agent.name)]
    if not chosen:
        raise AgentNotFound(f"{where} has no agent {name!r}; known are {', '.join(agent.name for agent in agents)}.")
    return chosen


def load_module(where: str, folder: Path) -> ModuleType:
    """Return the module `where`, or the file of that path; both are looked for in `folder` first.

    Raises:
        AgentNotFound: If there is none.
        AgentError: If it can't be imported; the text names file, line and reason.
    """
    if is_file(where):
        return _import_file(folder / where)
    if (neighbour := folder / f"{where}.py").is_file():
        return _import_file(neighbour)  # two folders may each have one of that name
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return _import_module(where)


def _import_file(path: Path) -> ModuleType:
    if "\0" in str(path):
        raise AgentNotFound(f"There is no file {str(path)!r}.")
    path = path.expanduser().resolve()
    if not path.is_file():
        raise AgentNotFound(f"There is no file {path}.")
    name = f"perdure_file_{path.stem}_{_digest(str(path))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AgentNotFound(f"{path} is not a Python file.")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # its neighbours, as for a script
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _import_error(str(path), error) from error
    return module


def _import_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise AgentNotFound(f"There is no module {name!r} to import from here.") from error
        raise _import_error(name, error) from error
    except BaseException as error:
        raise _import_error(name, error) from error


def _import_error(where: str, error: BaseException) -> Exception:
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, AgentError):
        return type(error)(f"{where}: {error}")
    if isinstance(error, SyntaxError):
        at = f"line {error.lineno} of {Path(error.filename or where).name}"
        return AgentError(f"{where} can't be imported, {at}: {type(error).__name__}: {error.msg}")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    line = f", line {frames[-1].lineno} of {Path(frames[-1].filename).name}" if frames else ""
    return AgentError(f"{where} can't be imported{line}: {type(error).__name__}: {error}")


def task_queue(source: str, settings: Settings) -> str:
    """Return the queue of the agents of one file: the setting, else one made of the file's name and path.

    Runs of two files never reach each other's workers.
    """
    if settings.task_queue:
        return settings.task_queue
    path = Path(source)
    return f"{path.stem}-{_digest(str(path.resolve()) if path.exists() else source)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def source_of(reference: str) -> str:
    """Return the file or module that `reference` names, as `task_queue` wants it."""
    where = reference.partition(":")[0]
    if is_file(where):
        return str(Path(where).expanduser().resolve())
    module = sys.modules.get(where)
    return str(Path(module.__file__).resolve()) if module and module.__file__ else where
