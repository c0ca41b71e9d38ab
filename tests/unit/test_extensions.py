"""What other packages add: found by name, checked when it is loaded, and never in the place of what is ours."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure import Agent, ModelSettings, Settings, extensions
from perdure.activities import providers
from perdure.activities.notices import Notices
from perdure.activities.stores import store_of
from perdure.errors import ExtensionError, ModelError
from perdure.loading import load_agents
from perdure.strategies import Ask, StrategySpec

MODULE = '''
from perdure import ContextPolicy, Hook, tool


@tool
def dig() -> str:
    """Dig."""
    return "a hole"


class Recent:
    name, policy = "recent", ContextPolicy(window=1000)

    def view(self, entries):
        return []

    async def compact(self, situation):
        return None


class Vectors:
    async def search(self, query, facts, limit):
        return facts


class Pager:
    async def deliver(self, id, told):
        raise OSError("no signal")


class Deaf:
    def deliver(self, id, told):
        pass


class Rounds:
    name = "rounds"

    def __init__(self, most=3):
        self.most = most

    def spec(self):
        from perdure.strategies import StrategySpec

        return StrategySpec(name="rounds", options={"most": self.most})

    def tools(self, agent):
        return agent.own_tools

    def move(self, seen):
        from perdure.strategies import Ask

        return Ask()


class Guard(Hook):
    def before_tool(self, at, call):
        return None


class Model:
    provider = "mine"

    async def generate(self, request):
        return ModelReply(text="never asked")

    async def aclose(self):
        pass


def model(name, settings):
    return Model() if name == "good" else object()


def store(settings):
    return object()


NUMBER = 7
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install packages whose entry points are in `added_parts`, until the test is over."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "added_parts.py").write_text(MODULE)

    def forget() -> None:
        sys.modules.pop("added_parts", None)
        extensions._points.cache_clear()
        extensions._loaded.cache_clear()

    def add(package: str, **points: str) -> None:
        folder = tmp_path / f"{package}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        lines = [f"[perdure.{kind}]\n{point}\n" for kind, point in points.items()]
        (folder / "entry_points.txt").write_text("".join(lines))
        forget()

    yield add
    forget()


def refused(kind: extensions.Kind, name: str) -> str:
    with pytest.raises(ExtensionError) as caught:
        extensions.load(kind, name)
    return str(caught.value)


def test_agents_in_yaml_use_extensions_of_every_kind_by_name(install, tmp_path):
    install(
        "parts",
        tools="garden = added_parts:dig",
        context="recent = added_parts:Recent",
        memory="vectors = added_parts:Vectors",
        strategies="rounds = added_parts:Rounds",
        hooks="guard = added_parts:Guard",
    )
    text = "name: {}\nmodel: openai:x\ntools: [garden]\ncontext: recent\nmemory: {{index: vectors}}\nhooks: [guard]\n{}"
    (tmp_path / "a.yaml").write_text(text.format("a", "strategy: {use: rounds, options: {most: 5}}\n"))
    (tmp_path / "b.yaml").write_text(text.format("b", "strategy: rounds\n"))
    [one], [other] = load_agents("a.yaml"), load_agents("b.yaml")
    assert [tool.name for tool in one.toolset] == ["dig"]
    assert one.spec.context.strategy == "recent"
    assert one.spec.memory is not None
    assert one.spec.memory.index == "Vectors"
    assert one.spec.hooks == {"Guard": ["before_tool"]}
    assert one.spec.strategy == StrategySpec(name="rounds", options={"most": 5})
    assert other.spec.strategy == StrategySpec(name="rounds", options={"most": 3})
    assert Ask() == one.strategy.move(None)  # type: ignore[union-attr, arg-type]


def test_python_loads_them_by_name_too(install):
    install("parts", tools="garden = added_parts:dig")
    assert Agent("a", "openai:x", tools=extensions.load("tools", "garden")).tools[0].name == "dig"
    assert extensions.installed("tools") == [extensions.Extension("tools", "garden", "added_parts:dig", "parts 1")]


def test_nothing_is_imported_before_it_is_named(install):
    install("parts", tools="garden = added_parts:dig")
    assert extensions.names("tools") == {"garden"}
    assert "added_parts" not in sys.modules


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("tools", "NUMBER", "it has to be a tool, or a list of tools, not 7."),
        ("context", "Vectors", "it has to have name, policy (a ContextPolicy), view and compact"),
        ("memory", "NUMBER", "it has to have a method search"),
        ("notices", "Deaf", "it has to have an async method deliver"),
        ("strategies", "Recent", "it has to be a class with name, spec, tools and move"),
        ("models", "store", "it has to be a function of a model's name and its ModelSettings that returns a Model."),
        ("stores", "NUMBER", "it has to be a function of the Settings that returns a Store."),
        ("hooks", "Vectors", "it has to be derived from Hook."),
        (
            "tools",
            "nothing",
            "can't be loaded: AttributeError: module 'added_parts' has no attribute 'nothing'. Fix or",
        ),
    ],
)
def test_what_does_not_fit_its_protocol_is_refused_by_the_name_of_its_package(install, kind, value, told):
    install("parts", **{kind: f"odd = added_parts:{value}"})
    said = refused(kind, "odd")
    assert said.startswith(f"Extension 'odd' of parts 1 (perdure.{kind}, added_parts:{value}) ")
    assert told in said


def test_an_unknown_name_is_told_with_those_there_are(install):
    install("parts", tools="garden = added_parts:dig")
    told = "No installed package has 'gardn' for perdure.tools; did you mean 'garden'?"
    assert refused("tools", "gardn") == told
    assert refused("tools", "xyz") == "No installed package has 'xyz' for perdure.tools; there are garden."


def test_one_name_of_two_packages_is_refused(install):
    install("parts", tools="garden = added_parts:dig")
    install("pieces", tools="garden = added_parts:NUMBER")
    assert "both bring 'garden' for perdure.tools; uninstall one of them." in refused("tools", "garden")


def test_models_of_extensions_are_opened_by_their_provider(install):
    install("parts", models="mine = added_parts:model")
    assert "mine" in providers.known()
    assert providers.strange(["mine:good"]) is None
    assert providers.open_model("mine:good", ModelSettings()).provider == "mine"
    with pytest.raises(ModelError, match="gave object, without provider"):
        providers.open_model("mine:bad", ModelSettings())


def test_what_is_ours_can_not_be_taken_over(install):
    install("parts", models="scripted = added_parts:model", strategies="plan = added_parts:Rounds")
    install("pieces", stores="sqlite = added_parts:store")
    Path("x.json").write_text('[{"text": "hello"}]')
    assert type(providers.open_model("scripted:x.json", ModelSettings())).__name__ == "ScriptedFile"
    assert type(store_of(Settings(store="sqlite:///x.db"))).__name__ == "SQLStore"
    assert extensions.load("strategies", "plan").__name__ == "Plan"


def test_a_store_that_is_none_is_refused(install):
    install("parts", stores="mine = added_parts:store")
    with pytest.raises(ExtensionError, match="The extension that makes 'mine' stores gave object, without aclose"):
        store_of(Settings(store="mine://somewhere"))


async def test_a_notifier_that_fails_is_told_and_tried_again(install):
    install("parts", notices="pager = added_parts:Pager")
    notices = Notices(None, Settings(notify_by=["pager"]))  # type: ignore[arg-type]
    assert await notices._delivered("1", b"{}") == ["Notifier 'pager' failed: OSError: no signal."]
    with pytest.raises(ExtensionError, match="No installed package has 'phone'"):
        Notices(None, Settings(notify_by=["phone"]))  # type: ignore[arg-type]
