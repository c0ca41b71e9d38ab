"""A tool that is not available: another one is asked, or the model is told honestly."""

import asyncio

import pytest

from perdure.errors import ToolDefinitionError, ToolError
from perdure.tools import tool


def calling(times=1, **options):
    return {"calls": [{"name": "look", "arguments": {"city": "Rome"}} for _ in range(times)], **options}


def sources(first, second=None, **options):
    """Return a tool with a second source, and what each was asked."""
    asked: dict[str, list[str]] = {"look": [], "look_elsewhere": []}

    @tool(effect="read")
    async def look_elsewhere(city: str) -> str:
        """Look."""
        asked["look_elsewhere"].append(city)
        if second:
            raise second
        return "rainy"

    @tool(effect="read", fallback=look_elsewhere, timeout=0.5, **options)
    async def look(city: str) -> str:
        """Look."""
        asked["look"].append(city)
        if isinstance(first, str):
            await asyncio.sleep(30)
        elif first:
            raise first
        return "sunny"

    return look, asked


@pytest.mark.parametrize("trouble", [ConnectionError("refused"), "hang"], ids=["raises", "hangs"])
async def test_a_second_source_answers_where_the_first_is_not_available_and_the_model_is_told_so(stage, trouble):
    look, asked = sources(trouble)
    done = await stage.run([calling(), "done"], [look])
    [result] = done.results
    assert (result.status, result.content, result.name) == ("ok", "rainy", "look")
    assert result.note.startswith("Answered by look_elsewhere, as look is not available: ")
    assert asked == {"look": ["Rome"] * 2, "look_elsewhere": ["Rome"]}


@pytest.mark.parametrize("trouble", [None, ToolError("No such city.")], ids=["answers", "refuses"])
async def test_a_source_that_answers_is_the_only_one_that_is_asked(stage, trouble):
    look, asked = sources(trouble)
    done = await stage.run([calling(), "done"], [look])
    assert asked["look_elsewhere"] == []
    assert [result.note for result in done.results] == [None]


async def test_where_no_source_is_available_the_model_is_told_what_to_try(stage):
    look, _ = sources(ConnectionError("refused"), OSError("no route"))
    done = await stage.run([calling(), "done"], [look])
    [result] = done.results
    assert (result.status, result.error_type) == ("error", "unavailable")
    assert "refused" in result.message
    assert "no route" in result.message
    assert "later" in result.suggestion


async def test_a_tool_that_keeps_failing_is_left_alone_by_all_runs_of_the_worker(stage):
    asked = []

    @tool(effect="read")
    def look(city: str) -> str:
        """Look."""
        asked.append(city)
        raise ConnectionError("refused")

    handle = await stage.start([calling(3), calling(2), "done"], [look])
    await stage.end(handle)
    before = len(asked)
    done = await stage.end(await stage.start_again(stage.agents[0]))
    assert len(asked) == before
    assert {(result.status, result.error_type) for result in done.results} == {("error", "unavailable")}
    message = done.results[0].message
    assert "It has not worked since" in message
    assert "refused" in message
    assert "later" in done.results[0].suggestion


def read(**options):
    def look(city: str, day: str = "today") -> str:
        """Look."""
        return f"{city} {day}"

    return tool(effect="read", **options)(look)


@tool(effect="read")
def needy(city: str, day: str) -> str:
    """Look."""
    return f"{city} {day}"


@tool(effect="read")
def narrow(city: str) -> str:
    """Look."""
    return city


@tool
def act(city: str, day: str = "today") -> str:
    """Act."""
    return f"{city} {day}"


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ("narrow", "fallback has to be another tool, not 'narrow'"),
        (act, "only a 'read' may be asked elsewhere: an effect could be done twice"),
        (needy, "'needy' needs day as well"),
        (narrow, "'narrow' does not know day"),
        (read(approval="always"), "asks for approval"),
    ],
    ids=["no_tool", "effect", "needs_more", "knows_less", "asks"],
)
def test_a_tool_that_can_not_stand_in_is_refused_when_it_is_declared(other, says):
    with pytest.raises(ToolDefinitionError) as refused:
        read(fallback=other)
    assert says in str(refused.value)
