"""Commands about what agents remember. They need the store alone, and no engine."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from perdure.cli import session
from perdure.cli.output import AsJSON, Misuse, columns, emit, lay_out, moment, one_line, paint, safe, say

if TYPE_CHECKING:
    from perdure.memory import Fact
    from perdure.notebook import Notebook

T = TypeVar("T")

_WIDEST = 100
"""Characters of a fact's text in a list."""


class _ListFirst(TyperGroup):
    """A group that lists where no other command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the options of a bare group for those of its list."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ListFirst, help="List, search, enter, correct and delete what agents remember.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The fact's id, as `perdure memory` shows it.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="One sentence, at most 500 characters.")]
User = Annotated[str | None, typer.Option(help="Only what is about this user.")]
Tenant = Annotated[str | None, typer.Option(help="Only what was learnt on this tenant's behalf.")]
AgentName = Annotated[str | None, typer.Option(help="Only what this agent remembers.")]
All = Annotated[bool, typer.Option("--all", help="Also what was replaced or deleted.")]
Limit = Annotated[int, typer.Option(min=1, help="At most so many.")]
By = Annotated[str | None, typer.Option(help="Who says so. Default: user and host.")]


@app.command("list")
def list_facts(
    *,
    user: User = None,
    tenant: Tenant = None,
    agent: AgentName = None,
    all: All = False,
    limit: Limit = 100,
    as_json: AsJSON = False,
) -> None:
    """List what is remembered, the newest first. `perdure memory` alone does so too."""
    found = _finish(_notebook().facts(agent=agent, user=user, tenant=tenant, all=all, limit=limit))
    _print(found, "Nothing is remembered.", as_json=as_json, whole=all)


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A few words; one of them is enough.")],
    *,
    user: User = None,
    tenant: Tenant = None,
    agent: AgentName = None,
    all: All = False,
    limit: Limit = 20,
    as_json: AsJSON = False,
) -> None:
    """Search what is remembered; what fits best comes first."""
    if not query.strip():
        raise Misuse("There is no word to search for; `perdure memory` lists everything.")
    found = _finish(_notebook().facts(agent=agent, user=user, tenant=tenant, query=query, all=all, limit=limit))
    _print(found, "Nothing of that is remembered.", as_json=as_json, whole=all)


@app.command()
def add(
    text: Text,
    *,
    agent: Annotated[str, typer.Option(help="Whose memory it goes into.")],
    user: Annotated[str, typer.Option(help="The user whom it is about.")] = "",
    tenant: Annotated[str, typer.Option(help="The user's tenant; without --user, whom it is about.")] = "",
    by: By = None,
    as_json: AsJSON = False,
) -> None:
    """Have an agent remember something: about a user, a tenant or, without either, its own work."""
    fact = _finish(_notebook().add(text, agent=agent, user=user, tenant=tenant, by=by))
    _told(fact, "is remembered", as_json=as_json)


@app.command()
def correct(fact_id: Id, text: Text, *, by: By = None, as_json: AsJSON = False) -> None:
    """Put another text in the place of a fact; what it was before is kept as history."""
    fact = _finish(_notebook().correct(fact_id, text, by=by))
    _told(fact, f"replaces {safe(fact_id)}", as_json=as_json)


@app.command()
def delete(fact_id: Id, *, as_json: AsJSON = False) -> None:
    """Delete a fact, with the texts of all that it has replaced; the transcripts of runs stay as they are."""
    left = _finish(_notebook().forget(fact_id))
    if as_json:
        emit({"id": fact_id, "deleted": True, "replaced_by": left})
        return
    stays = f" {safe(left)}, by which it was replaced, stays." if left else ""
    say(f"{safe(fact_id)} is deleted, with all that it had replaced.{stays}")


def _notebook() -> Notebook:
    from perdure.engine.connection import target
    from perdure.notebook import Notebook

    settings = session.settings()
    return Notebook(settings, target(settings).namespace)


def _finish(work: Coroutine[Any, Any, T]) -> T:
    return session.finish(work)


def _told(fact: Fact, what: str, *, as_json: bool) -> None:
    if as_json:
        emit(fact)
    else:
        say(f"{fact.id} {what}.")


def _print(facts: Sequence[Fact], none: str, *, as_json: bool, whole: bool) -> None:
    if as_json:
        emit(list(facts))
        return
    if not facts:
        say(none)
        return
    head = ["ID", "AGENT", "ABOUT", "SINCE", "FROM", *(["STATE"] if whole else []), "FACT"]
    rows = [head, *(_row(fact, whole=whole) for fact in facts)]
    lay_out(columns(rows, {0: lambda cell: paint(cell, "bold")}))


def _row(fact: Fact, *, whole: bool) -> list[str]:
    about = fact.scope if fact.scope == "agent" else f"{fact.scope} {one_line(fact.subject, 40)}"
    of = f" of {one_line(fact.tenant, 40)}" if fact.tenant and fact.scope != "tenant" else ""
    state = [_state(fact)] if whole else []
    text = one_line(fact.text, 1_000 if whole else _WIDEST)
    agent, source = one_line(fact.agent, 40), one_line(fact.source.removeprefix("person:"), 40)
    return [safe(fact.id), agent, f"{about}{of}", moment(fact.at), source, *state, text]


def _state(fact: Fact) -> str:
    if fact.forgotten_at:
        return f"deleted {moment(fact.forgotten_at)}"
    return f"replaced by {safe(fact.superseded_by)}" if fact.superseded_by else "holds"
