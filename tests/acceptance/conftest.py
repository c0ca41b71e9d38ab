"""What the tests of the command line share: the real commands as processes, and agents for them to run."""

import atexit
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perdure.settings import Settings
from tests.acceptance.forks import Commands
from tests.conftest import environment

PATIENCE = 60
"""Seconds after which something that a test waits for is taken for lost."""

AGENTS = '''
import os
import time
from pathlib import Path

from perdure import Agent, Limits, ModelSettings, ToolError, ask_user, tool

HERE = Path(__file__).parent


@tool(effect="read")
def look(name: str) -> str:
    """Look up an address."""
    return f"{name}@example.com"


@tool(approval="always")
def send(to: str) -> str:
    """Send a letter."""
    with (HERE / "sent.txt").open("a") as file:
        file.write(f"{to}\\n")
    return f"sent to {to}"


@tool
def pay(cents: int) -> str:
    """Pay."""
    raise OSError("connection reset")


@tool(effect="read", timeout=60)
def dawdle(seconds: float) -> str:
    """Take a while."""
    (HERE / "dawdling").touch()
    time.sleep(seconds)
    return "well rested"


def unrent(ctx, result, room):
    if room == 13:
        raise ToolError("Nobody takes it back.")
    return f"{result} no more"


@tool(compensate=unrent)
def rent(room: int) -> str:
    """Rent a room."""
    return f"room {room}"


@tool(defer=True)
def wire(to: str) -> str:
    """Send a telegram."""
    return f"wired {to}"


@tool(effect="read")
def export() -> str:
    """Export everything."""
    return "\\n".join(f"row {number}" for number in range(20_000))


def agent(name: str, **options):
    return Agent(name, f"scripted:{HERE / name}.json", tools=[look, send, pay, dawdle, ask_user], **options)


clerk = agent("clerk")
wirer = Agent("wirer", f"scripted:{HERE / 'wirer.json'}", tools=[wire])
renter = Agent("renter", f"scripted:{HERE / 'renter.json'}", tools=[rent, send], compensate_on=["cancelled"])
exporter = Agent("exporter", f"scripted:{HERE / 'exporter.json'}", tools=[export])
payer = agent("payer")
pair = agent("pair")
dawdler = agent("dawdler")
hostile = agent("hostile")
only = Agent(f"only-{HERE.name}", f"scripted:{HERE / 'hostile.json'}")
tireless = agent("tireless", limits=Limits(steps=2))
marathon = agent("marathon", limits=Limits(steps=20))
thrifty = agent("thrifty", limits=Limits(steps=2, on_exhausted="ask"))
curious = agent("curious")
sociable = agent("sociable")
talker = agent("talker")
chief = Agent("chief", f"scripted:{HERE / 'chief.json'}", tools=[clerk.as_tool("Sends letters.")])
stubborn = Agent("stubborn", "openai:none", settings=ModelSettings(base_url="http://127.0.0.1:9/v1", attempts=1000))
'''

HOSTILE = "plain \x1b]0;owned\x07\x1b[31mred\x1b[0m \u202eevil [bold]markup[/bold]"
SCRIPTS: dict[str, Any] = {
    "clerk": [
        {"text": "Let me look.", "calls": [{"name": "look", "arguments": {"name": "ada"}}]},
        {"calls": [{"name": "send", "arguments": {"to": "${look}"}}]},
        {"text": "Done: ${send}"},
        {"text": "Done."},
    ],
    "chief": [{"calls": [{"name": "clerk", "arguments": {"task": "write to Ada"}}]}, {"text": "All is sent."}],
    "payer": [{"calls": [{"name": "pay", "arguments": {"cents": 500}}]}, {"text": "Paid: ${pay}"}],
    "dawdler": [{"calls": [{"name": "dawdle", "arguments": {"seconds": 1}}]}, {"text": "I am ${dawdle}."}],
    "pair": [
        {"calls": [{"name": "send", "arguments": {"to": "ann"}}, {"name": "send", "arguments": {"to": "ben"}}]},
        {"text": "Done."},
    ],
    "thrifty": [{"calls": [{"name": "look", "arguments": {"name": "ada"}}]}, {"text": "That is all: ${look}"}],
    "curious": [
        {"calls": [{"name": "ask_user", "arguments": {"question": "Which day?"}}]},
        {"text": "On ${ask_user}."},
    ],
    "sociable": [
        {"calls": [{"name": "send", "arguments": {"to": "ann"}}]},
        {"text": "I still wait."},
        {"text": "Done: ${send}"},
    ],
    "talker": [
        {"calls": [{"name": "look", "arguments": {"name": "ada"}}]},
        {"text": "She is ${look}."},
        {"text": "As I said."},
    ],
    "hostile": [{"text": HOSTILE}],
    "exporter": [{"calls": [{"name": "export"}]}, {"text": "Exported."}],
    "wirer": [
        {"calls": [{"name": "wire", "arguments": {"to": "ann"}}, {"name": "wire", "arguments": {"to": "ben"}}]},
        {"text": "I will tell both."},
    ],
    "renter": [
        {"calls": [{"name": "rent", "arguments": {"room": 1}}, {"name": "rent", "arguments": {"room": 13}}]},
        {"calls": [{"name": "send", "arguments": {"to": "ann"}}]},
    ],
    "marathon": [
        *({"calls": [{"name": "look", "arguments": {"name": f"runner {n}"}}]} for n in range(8)),
        {"calls": [{"name": "send", "arguments": {"to": "ann"}}]},
        {"text": "Home."},
    ],
    "tireless": [{"text": "More.", "calls": [{"name": "look", "arguments": {"name": "ada"}}]}],
}


@cache
def commands() -> Commands:
    """Return what runs commands, once for all tests of a process."""
    started = Commands()
    atexit.register(started.close)
    return started


class Cli:
    """The command line, in one folder with one engine."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.env = environment(home)

    def __call__(
        self, *words: str, code: int | None = 0, stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it has to exit with `code`, and never to show a traceback."""
        done = commands().run(words, self.folder, {**self.env, **env}, stdin, PATIENCE)
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: str, code: int = 0, **env: str) -> Any:
        """Run a command with --json and return what it prints."""
        return json.loads(self(*words, "--json", code=code, **env).stdout)

    @contextmanager
    def process(self, *words: str, **env: str) -> Generator[subprocess.Popen[str]]:
        """Start a command, and end it with the block."""
        command = [sys.executable, "-m", "perdure.starter", *words]
        with subprocess.Popen(command, **self._options(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    @contextmanager
    def worker(self, *words: str) -> Generator[subprocess.Popen[str]]:
        """Serve a file while the block runs."""
        with self.process("worker", *words, "--json") as process:
            assert process.stdout
            assert json.loads(process.stdout.readline())["event"] == "ready"
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)

    @contextmanager
    def terminal(self, *words: str) -> Generator["Terminal"]:
        """Start a command on a terminal of its own."""
        command = [sys.executable, "-m", "perdure.starter", *words]
        env = {**self.env, "TERM": "xterm", "COLUMNS": "120"}
        del env["NO_COLOR"]
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve(sys.executable, command, env)
        terminal = Terminal(pid, fd)
        try:
            yield terminal
        finally:
            terminal.close()

    def _options(self, env: dict[str, str]) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {**self.env, **env}, "text": True}


class Terminal:
    """A command's terminal: what it has shown so far, and its keyboard."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid, self._fd, self.shown = pid, fd, ""
        self.code: int | None = None

    def until(self, text: str) -> str:
        """Wait till `text` is shown, and return everything up to now."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.shown and self._read(deadline):
            pass
        assert text in self.shown, self.shown
        return self.shown

    def until_asked(self, prompt: str = "> ") -> str:
        """Wait till `prompt` is the last that is shown, and return everything up to now."""
        deadline = time.monotonic() + PATIENCE
        while not self.shown.endswith(prompt) and self._read(deadline):
            pass
        return self.shown

    def to_the_end(self) -> str:
        """Wait till the command has ended, and return everything that it showed."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.shown

    def type(self, text: str) -> None:
        """Type `text`; a line ends with a newline, and Ctrl-C is `\\x03`."""
        os.write(self._fd, text.encode())

    def close(self) -> None:
        """End the command."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def _read(self, deadline: float) -> bool:
        if not select.select([self._fd], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise AssertionError(f"nothing more came after:\n{self.shown}")
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux says so where the other side has closed it
            return False
        self.shown += data.decode("utf-8", "replace")
        return bool(data)


def write_agents(folder: Path) -> Path:
    """Write the agents and their scripts into `folder`, and return the agents' file."""
    for name, script in SCRIPTS.items():
        (folder / f"{name}.json").write_text(json.dumps(script))
    file = folder / "agents.py"
    file.write_text(AGENTS)
    return file


@pytest.fixture(scope="module")
def cli(engine: Settings, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """The command line in a folder with `agents.py`; no worker serves it."""
    folder = tmp_path_factory.mktemp("cli")
    write_agents(folder)
    return Cli(folder, engine.folder)


@pytest.fixture(scope="module")
def served(cli: Cli) -> Iterator[Cli]:
    """The same, and a worker serves it."""
    with cli.worker("agents.py"):
        yield cli


@pytest.fixture(scope="module")
def elsewhere(engine: Settings, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Cli]:
    """Make further folders with `agents.py`, served by nobody."""

    def make() -> Cli:
        folder = tmp_path_factory.mktemp("elsewhere")
        write_agents(folder)
        return Cli(folder, engine.folder)

    return make
