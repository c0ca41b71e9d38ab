"""Commands that check before a deploy: would the runs that there are go on, and would they go the same way."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import session
from perdure.cli.output import DONE, FAILED, AsJSON, Misuse, emit, lay_out, paint, safe, say

if TYPE_CHECKING:
    from perdure.testing.histories import Checked


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
    if not broken:
        return f"{len(own)} histories replayed, all as they were{foreign}."
    return f"{len(own)} histories replayed, {len(broken)} break, {running} of them running{foreign}."


async def _check(folder: Path | None, query: str | None, limit: int | None, *, talk: bool) -> list[Checked]:
    from perdure.engine.converter import data_converter_of
    from perdure.sealing import keyring
    from perdure.testing.histories import RUNNING, check_server
    from perdure.testing.histories import check_histories as check_folder

    found: AsyncIterator[Checked]
    if folder is None:
        found = check_server(await session.connect(), query or RUNNING, limit)
    else:
        found = check_folder(folder, data_converter_of(keyring(session.settings())))
    checked: list[Checked] = []
    async for one in found:
        checked.append(one)
        if talk and one.verdict == "breaks":
            state = "running" if one.running else "ended"
            where = f" ({one.source})" if one.source != "server" else ""
            say(f"{paint('breaks', 'red', sys.stderr)} {safe(one.run_id)}, {state}{safe(where)}: {safe(one.why)}")
    return checked
