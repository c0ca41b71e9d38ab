"""`perdure chat`: a conversation at the terminal, or from a pipe, a line a message."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import session
from perdure.cli.output import DONE, FAILED, INTERRUPTED, WAITING, AsJSON, data, emit, paint, safe, say
from perdure.cli.runs import NoWait, Tenant, User, Var, WhenBusy
from perdure.cli.sessions import counted, show_session
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.agents import Task
    from perdure.cli.choice import Choice
    from perdure.client import Client
    from perdure.messages import RunResult
    from perdure.sessions import Sent, SessionHandle
    from perdure.settings import Settings

HELP = """\
Each line is a message to the agent. While a turn is under way, what you say reaches it at its next step.
  /show   the session: its turns, its variables, what waits
  /help   this
  //…     a message that begins with /
Ctrl-C leaves the turn under way alone, Ctrl-D ends the chat. The session stays: `perdure chat` goes on with it."""


def chat(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="FILE.py or .yaml[:name], module:name, or the name of a served one.")
    ],
    name: Annotated[
        str | None, typer.Option("--session", help="Which conversation. Default: a new one, whose name is told.")
    ] = None,
    *,
    user: User = "",
    tenant: Tenant = "",
    var: Var = None,
    when_busy: WhenBusy = "say",
    task_queue: Annotated[str | None, typer.Option(help="Where its workers listen, if that is not plain.")] = None,
    no_wait: NoWait = False,
    as_json: AsJSON = False,
) -> int:
    """Talk with an agent; the answers go to stdout, everything else to stderr. `/help` tells more.

    Exit code: that of the last turn, as of `perdure run`; 130 after Ctrl-C.
    """
    from perdure.cli.choice import read_task

    settings = session.settings(task_queue=task_queue)
    task = read_task("", user=user, tenant=tenant, var=var)
    talk = session.finish(_opened(settings, agent, name, task, when_busy))
    talk.no_wait, talk.as_json = no_wait, as_json
    return talk.go_on()


@dataclass
class Talk:
    """One conversation at this terminal.

    Attributes:
        open: The turn under way, if there is one.
        seen: Of that turn: the position of the last event that was shown.
        code: The exit code that the last turn leads to.
    """

    settings: Settings
    reference: str
    choice: Choice
    name: str
    task: Task
    when_busy: WhenBusy
    open: int | None
    no_wait: bool = False
    as_json: bool = False
    seen: str = ""
    code: int = DONE

    def go_on(self) -> int:
        """Talk until the person leaves; return the exit code."""
        try:
            if self.open:
                say(f"Turn {self.open} is under way.")
                self._follow(self.open)
            while self.code != WAITING and (line := read_line("> ")) is not None:
                self._take(line)
        except KeyboardInterrupt:
            self.code = INTERRUPTED
        if sys.stdin.isatty():
            again = shlex.join(["perdure", "chat", self.reference, "--session", self.name])
            say(f"\nThe session stays: `{safe(again)}` goes on with it.")
        return self.code

    def _take(self, line: str) -> None:
        """Do what a line says."""
        try:
            match line.strip():
                case "":
                    return
                case "/help":
                    say(HELP)
                case "/show":
                    session.finish(show_session(self.settings, self.name, as_json=False, transcript=False))
                case command if command.startswith("/") and not command.startswith("//"):
                    say(f"There is no command {safe(command.split()[0])}; /help lists them.")
                case text:
                    self._say(text.removeprefix("/") if text.startswith("//") else text)
        except PerdureError as error:
            if not sys.stdin.isatty():
                raise
            say(f"{paint('Error:', 'red', sys.stderr)} {safe(str(error))}")

    def _say(self, text: str) -> None:
        if self.open:
            session.finish(self._missed(self.open))
        sent = session.finish(self._sent(text))
        if sent.how != "queued":
            self._follow(sent.turn)
            return
        say(f"It is queued behind turn {sent.turn}.")
        self._follow(sent.turn)
        if not self.open:
            self._follow(session.finish(self._come(sent)))

    def _follow(self, turn: int) -> None:
        """Follow a turn to its end and print its answer; Ctrl-C at a terminal leaves it alone, and goes on here."""
        self.seen = self.seen if self.open == turn else ""
        self.open = turn
        try:
            result = session.finish(self._followed(turn))
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            say("\nThe turn goes on; what you say now reaches it at its next step. Ctrl-D ends the chat.")
            return
        if result:
            self.open = None
            self._tell(result)
        elif self.no_wait:
            self.code = WAITING

    def _tell(self, result: RunResult) -> None:
        self.code = DONE if result.status == "completed" else FAILED
        if self.as_json:
            emit(result)
        elif result.status in ("completed", "budget_exhausted"):
            from perdure import outputs

            data(outputs.answer(result))

    # -- asynchronous --------------------------------------------------------------------------------------

    def handle(self, client: Client) -> SessionHandle:
        """Return the session."""
        of: dict[str, Any] = {"user": self.task.user, "tenant": self.task.tenant, "when_busy": self.when_busy}
        return client.session(self.name, self.choice.spec, task_queue=self.choice.task_queue, **of)

    async def _sent(self, text: str) -> Sent:
        client = await session.connect(self.settings)
        sent = await self.handle(client).send(self.task.model_copy(update={"input": text}))
        if sent.how == "started":
            self.task = self.task.model_copy(update={"variables": {}})  # they are given once
        return sent

    async def _come(self, sent: Sent) -> int:
        """Wait until the turn of a queued message has come, and return its number."""
        await sent.run()
        return sent.turn

    async def _missed(self, turn: int) -> None:
        """Tell how a turn ended that was left alone, if it has."""
        client = await session.connect(self.settings)
        run = self.handle(client).handle(turn)
        projection = await run.projection(last=True)
        if projection.ended:
            self.open = None
            self._tell(await run.whole(projection.result()))

    async def _followed(self, turn: int) -> RunResult | None:
        from perdure.cli.live import Follower

        client = await session.connect(self.settings)
        run = self.handle(client).handle(turn).id
        options: dict[str, Any] = {"no_wait": self.no_wait, "file": self.choice.file, "ask": not self.as_json}
        follower = Follower(client, run, brief=True, seen=self.seen, **options)
        try:
            return await follower.follow()
        finally:
            self.seen = follower.last


async def _opened(settings: Settings, reference: str, name: str | None, task: Task, when_busy: WhenBusy) -> Talk:
    """Return the conversation, once its agent and session are found."""
    from perdure.cli.choice import choose

    client = await session.connect(settings)
    choice = await choose(reference, client)
    talk = Talk(settings, reference, choice, name or "", task, when_busy, None)
    talk.name = name or f"{choice.agent.name}-{secrets.token_hex(4)}"
    standing = await talk.handle(client).standing()
    talk.open = standing.open
    turns = f"{counted(standing.turns)} so far" if standing.turns or standing.open else "a new one"
    say(f"Session {safe(talk.name)} with {safe(choice.agent.name)}, {turns}. /help tells more, Ctrl-D ends.")
    return talk


def read_line(prompt: str) -> str | None:
    """Return a line of stdin, asked for with `prompt` at a terminal; None at its end."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            import_module("readline")  # which lets the line be edited
        try:
            return input(prompt)
        except EOFError:
            return None
    if sys.stdin.isatty():
        sys.stderr.write(prompt)
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
