"""Teams: members tell each other what has happened, and each is told in a run of its own."""

import io

import pytest
from pydantic import BaseModel

from perdure import Limits, tool
from perdure.cli import teams
from perdure.errors import RunEnded
from perdure.strategies.team import Member, Team

ROOMY = Limits(steps=60)


class Place(BaseModel):
    """A place to go to."""

    city: str


class Deal(BaseModel):
    """Something that can be had."""

    city: str
    price: int


def publishing(topic, *bodies):
    return {"calls": [{"name": f"publish_{topic}", "arguments": body} for body in bodies]}


FINDING = [publishing("place", {"city": "Rome"}, {"city": "Oslo"}), "Two places."]
PRICING = [publishing("deal", {"city": "${task.city}", "price": 7}), "Priced ${task.city}."]


def office(
    stage, *, finder=FINDING, pricer=PRICING, tools=(), seller=("Sold ${task.city}.",), selling=None, answer="seller"
):
    """Return an agent with a team of three; nothing sums up."""
    members = [
        Member(stage.agent(list(finder), name="finder"), ["request"], ["place"]),
        Member(stage.agent(list(pricer), name="pricer"), ["place"], ["deal"]),
        Member(stage.agent(list(seller), tools, name="seller"), ["deal"], **(selling or {})),
    ]
    team = Team({"place": Place, "deal": Deal}, members, answer=answer)
    return stage.agent(["All is done: ${seller}"], name="office", strategy=team, limits=ROOMY)


async def test_events_go_from_member_to_member_and_the_last_word_is_the_answer(stage):
    agent = office(stage)
    await stage.serve(agent)
    done = await stage.end(await stage.start_again(agent))
    assert (done.result.status, done.result.text) == ("completed", "Sold Oslo.")
    assert [event.calls for event in done.told("moved")] == [
        ["1.1 finder"],
        ["2.1 pricer"],
        ["3.1 pricer", "3.2 seller"],
        ["4.1 seller"],
        [],
    ]
    assert [result.content for result in done.results] == [
        *("Two places.", "Priced Rome.", "Priced Oslo."),
        *("Sold Rome.", "Sold Oslo."),
    ]
    assert done.state.progress == {"events": 5, "told": 5, "waiting": {}, "dead_letters": [], "since": 0}
    finder = stage.client.handle(f"{done.handle.id}/1.1")
    stage.audit(finder)
    published = (await finder.result()).published
    assert [(one.topic, one.body) for one in published] == [("place", {"city": "Rome"}), ("place", {"city": "Oslo"})]


async def test_an_event_that_does_not_fit_is_told_to_the_member_who_corrects_it(stage):
    finder = [publishing("place", {"town": "Rome"}), publishing("place", {"city": "Rome"}), "One place."]
    agent = office(stage, finder=finder, answer="")
    await stage.serve(agent)
    done = await stage.end(await stage.start_again(agent))
    assert done.result.text == "All is done: Sold Rome."
    below = await stage.client.handle(f"{done.handle.id}/1.1").projection()
    assert [record.status for record in below.records] == ["error", "ok"]


async def test_a_member_that_fails_leaves_a_dead_letter_and_the_others_go_on(stage):
    pricer = [publishing("deal", {"city": "${task.city}", "price": 7}), {"error": {"kind": "authentication"}}]
    agent = office(stage, pricer=pricer)
    await stage.serve(agent)
    done = await stage.end(await stage.start_again(agent))
    assert done.result.text == "Sold Oslo.", "what it had published before it failed stands"
    letters = done.state.progress["dead_letters"]
    assert len(letters) == 2
    assert letters[0].startswith("place 2 of finder to pricer: Run ")
    assert "dead letter: place 2 of finder to pricer" in done.told("moved")[2].text
    shown = list(teams.lines(done.state, io.StringIO()))
    assert shown[1:3] == ["Team", "  5 events"]
    assert shown[3].startswith("  dead letter  place 2 of finder to pricer: Run ")


async def test_what_a_member_does_waits_for_a_person_who_may_change_what_it_is_told(stage):
    sold = []

    @tool(approval="always")
    def sell(city: str) -> str:
        """Sell."""
        sold.append(city)
        return f"sold {city}"

    selling = [{"calls": [{"name": "sell", "arguments": {"city": "${task.city}"}}]}, "${sell}"]
    one = [publishing("place", {"city": "Rome"}), "One."]
    agent = office(stage, finder=one, tools=[sell], seller=selling, selling={"approval": "always"})
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    await stage.serve(agent)  # whoever takes over knows by the history alone
    await handle.approve("3.1", arguments={"event": 3, "task": 'Sell this:\n{"city":"Bonn"}'})
    await stage.until(handle, lambda event: event.type == "tool_started" and event.call == "3.1")
    seller = stage.client.handle(f"{handle.id}/3.1")
    await stage.until(seller, "approval_requested")
    await seller.approve("1.1")
    done = await stage.end(handle)
    assert (done.result.text, sold) == ("sold Bonn", ["Bonn"])


async def test_what_the_user_says_meanwhile_is_told_as_well_and_members_have_their_notes(stage):
    heard = []

    class Listening:
        provider = "listening"

        async def generate(self, request):
            from perdure.models import ModelReply

            heard.append(request.messages[0].content)
            return ModelReply(text=f"heard {len(heard)}")

        async def aclose(self):
            pass

    member = Member(stage.agent(Listening(), name="ear"), ["request"])
    agent = stage.agent(["x"], name="office", strategy=Team({}, [member], answer="ear"), limits=ROOMY)
    await stage.serve(agent)
    async with stage.client.session("team-talk", agent, task_queue=stage.queue) as session:
        assert (await session.ask("one")).text == "heard 1"
        assert (await session.ask("two")).text == "heard 2"
    assert heard[1].startswith('Event 2 on request, from the user:\n{"text":"two"}')
    assert heard[1].endswith("What you did about earlier events:\n- request 1: heard 1")


async def test_in_each_turn_of_a_session_a_team_answers_what_is_asked_then(stage):
    def found(request):
        if "nowhere" in str(request.messages[0].content) or request.messages[-1].role == "tool":
            return "That is all."
        return publishing("place", {"city": "Rome"})

    finder = stage.agent([found], name="finder")
    seller = stage.agent(["Sold."], name="seller")
    members = [Member(finder, ["request"], ["place"]), Member(seller, ["place"])]
    agent = stage.agent(["-"], name="office", strategy=Team({"place": Place}, members, answer="seller"))
    await stage.serve(agent)
    async with stage.client.session(f"s-{stage.queue}", agent, task_queue=stage.queue) as session:
        assert [len((await session.ask("Rome")).calls) for _ in range(2)] == [2, 2]  # the same event, told once more
        with pytest.raises(RunEnded) as ended:
            await session.ask("to nowhere")
    assert ended.value.result.failure == "no_answer"
