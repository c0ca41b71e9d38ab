"""Commands that check before a deploy: would the runs that there are go on, and would they go the same way."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import session
from perdure.cli.output import DONE, FAILED, AsJSON, Misuse, emit, lay_out, paint, safe, say
from perdure.cli.runs import RunId
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.agents import Agent
    from perdure.testing.cases import Case
    from perdure.testing.histories import Checked
    from perdure.testing.replaying import Replayed


def check_histories(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A folder of histories, as `temporal workflow show -o json`.")
    ] = None,
    *,
    from_server: Annotated[bool, typer.Option("--from-server", help="Those of runs on the server.")] = False,
    query: Annotated[
        str | None, typer.Option(help="Which runs of the server, in Temporal's words. Default: those that are running.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="So many runs of the server at most. Default: all.")] = None,
    as_json: AsJSON = False,
) -> int:
    """Replay histories with the code that is installed here: which runs would break if it were deployed, and why.

    Nothing is changed, on the server or elsewhere. Exit code: 0 all would go on, 1 some would break, 2 misuse.
    """
    if from_server == (folder is not None):
        raise Misuse("Say where the histories are: a folder, or --from-server.")
    if not from_server and (query or limit):
        raise Misuse("--query and --limit choose runs of the server: say --from-server as well.")
    checked = session.finish(_check(folder, query, limit, talk=not as_json))
    broken = [one for one in checked if one.verdict == "breaks"]
    if as_json:
        emit({"checked": [asdict(one) for one in checked], "broken": len(broken)})
    else:
        lay_out(_summary(checked))
    return FAILED if broken else DONE


def _summary(checked: list[Checked]) -> str:
    own = [one for one in checked if one.verdict != "foreign"]
    broken = [one for one in own if one.verdict == "breaks"]
    running = sum(one.running for one in broken)
    foreign = f"; {len(checked) - len(own)} of other workflows left out" if len(own) < len(checked) else ""
    replayed = f"{len(own)} {'history' if len(own) == 1 else 'histories'} replayed"
    if not broken:
        return f"{replayed}, all as they were{foreign}."
    return f"{replayed}, {len(broken)} would break, {running} of them running{foreign}."


def record(
    run_id: RunId,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the case is written.")],
    as_json: AsJSON = False,
) -> None:
    """Write RUN into a file as a case, to be replayed: what the model said, what tools gave, what people decided.

    It may be open, or in the archive. Private values are replaced by others of their form, each by the same everywhere;
    look at the file before you share it: what no detector knows is in it.
    """
    case = session.finish(_record(run_id, out))
    if as_json:
        emit({"case": str(out), "run": case.run_id, "agent": case.agent, "status": case.status})
        return
    say(f"Wrote {safe(str(out))}: run {safe(case.run_id)} of {safe(case.agent)}, {case.status}.")


async def _record(run_id: str, out: Path) -> Case:
    from perdure.testing import cases

    client = await session.connect()
    case = await cases.record(client, run_id)
    with contextlib.suppress(PerdureError):  # without the store, it is not known where the agent is declared
        found = [one.source for one in await session.catalogue(client) if one.agent == case.agent]
        case = case.model_copy(update={"source": session.short_path(found[0])}) if found else case
    cases.save_case(case, out)
    return case


def replay(
    file: Annotated[Path, typer.Argument(metavar="CASE", help="A file that `perdure record` wrote.")],
    *,
    agent: Annotated[
        str | None, typer.Option(metavar="AGENT", help="FILE.py or .yaml[:name], module:name. Default: as recorded.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="PROVIDER:NAME that is asked anew, or `agent` for the agent's own. Default: none is."),
    ] = None,
    as_json: AsJSON = False,
) -> int:
    """Play a case with today's code, prompt or model, and show where its path changes. No tool is run.

    By default the model says what it said then. With --model one is asked anew: calls and arguments are compared then,
    and not its words. Exit code: 0 the same path, 1 another one, 2 misuse.
    """
    from perdure.testing import Environment, load_case
    from perdure.testing import replay as play

    case = load_case(file)
    chosen, settings = _agent_of(case, agent), session.settings()
    with Environment(providers=settings.providers) as environment:
        replayed = play(case, chosen, model=model, environment=environment)
    if as_json:
        emit({"same": replayed.same, "parting": replayed.parting, "answer": replayed.answer, "status": replayed.status})
    else:
        lay_out("\n".join(_shown(replayed)))
    return DONE if replayed.same else FAILED


def _agent_of(case: Case, reference: str | None) -> Agent:
    from perdure.loading import is_named, load_agents

    where = reference or case.source
    if not where or (reference is None and not Path(where).is_file()):
        raise Misuse(f"It is not known which file declares agent {case.agent!r} here: say it with --agent FILE.")
    agents = load_agents(where)
    if reference and is_named(reference):
        return agents[0]
    found = [one for top in agents for one in (top, *top.below) if one.name == case.agent]
    if not found:
        raise Misuse(f"{where} has no agent {case.agent!r}: name another one as in --agent {where}:NAME.")
    return found[0]


def _shown(replayed: Replayed) -> Iterator[str]:
    from perdure.cli.differing import told_apart

    case = replayed.case
    if replayed.parting is None:
        yield f"{safe(case.run_id)} goes the same way: {len(case.entries)} messages, {replayed.status}."
        return
    yield paint(f"{safe(case.run_id)} goes another way at step {replayed.parting.step}", "bold", sys.stdout)
    for one in replayed.parting.differences:
        yield from told_apart(one, sys.stdout, ("then", "now"))


async def _check(folder: Path | None, query: str | None, limit: int | None, *, talk: bool) -> list[Checked]:
    from perdure.activities.stores import opened, run_owner
    from perdure.engine.converter import data_converter_of
    from perdure.engine.external_storage import Driver, kept_by
    from perdure.sealing import keyring
    from perdure.testing.histories import RUNNING, check_server
    from perdure.testing.histories import check_histories as check_folder

    found: AsyncIterator[Checked]
    if folder is None:
        found = check_server(await session.connect(), query or RUNNING, limit)
    else:
        settings = session.settings()
        driver = Driver(lambda: opened(settings), run_owner)
        found = check_folder(folder, kept_by(driver, data_converter_of(keyring(settings))))
    checked: list[Checked] = []
    async for one in found:
        checked.append(one)
        if talk and one.verdict == "breaks":
            state = "running" if one.running else "ended"
            where = f" ({one.source})" if one.source != "server" else ""
            say(f"{paint('breaks', 'red', sys.stderr)} {safe(one.run_id)}, {state}{safe(where)}: {safe(one.why)}")
    return checked
