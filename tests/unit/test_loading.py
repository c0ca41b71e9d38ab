"""Finding agents in files and modules, and saying well why not."""

import sys
from pathlib import Path

import pytest

from perdure import AgentError, Settings
from perdure.errors import AgentNotFound
from perdure.loading import load_agents, looks_like_file, source_of, task_queue

ONE = 'from perdure import Agent\ntravel = Agent("travel", "openai:x")\n'
TWO = f'{ONE}other = again = Agent("desk", "openai:x")\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: empty, and forgotten by Python afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def names(reference: str) -> list[str]:
    return [agent.name for agent in load_agents(reference)]


def test_file_gives_its_agents_in_order_and_each_once():
    write("agents.py", TWO)
    assert names("agents.py") == ["travel", "desk"]
    assert names(str(Path("agents.py").resolve())) == ["travel", "desk"]


def test_agent_is_chosen_by_its_name_or_by_that_of_the_variable():
    write("agents.py", TWO)
    assert names("agents.py:desk") == ["desk"]
    assert names("agents.py:other") == ["desk"]


def test_module_is_found_from_the_current_folder():
    write("pkg/mine_a.py", TWO)
    write("mine_b.py", ONE)
    assert names("pkg.mine_a") == ["travel", "desk"]
    assert names("pkg.mine_a:desk") == ["desk"]
    assert names("mine_b") == ["travel"]


def test_file_is_run_once_and_can_import_its_neighbours():
    write("sub/neighbour_a.py", "count = []")
    write("sub/agents.py", f"import neighbour_a\nneighbour_a.count.append(1)\n{ONE}")
    first, second = load_agents("sub/agents.py"), load_agents("sub/agents.py")
    assert first == second
    assert sys.modules["neighbour_a"].count == [1]


def test_two_files_of_one_name_are_two():
    write("a/agents.py", ONE)
    write("b/agents.py", ONE.replace("travel", "desk"))
    assert names("a/agents.py") + names("b/agents.py") == ["travel", "desk"]


def test_agents_that_a_file_imports_from_another_are_found_too():
    write("shared_a.py", ONE)
    write("main_a.py", "from shared_a import travel")
    assert names("main_a.py") == ["travel"]


@pytest.mark.parametrize(
    ("reference", "text", "said"),
    [
        ("missing.py", None, "There is no file"),
        ("folder/", None, "There is no file"),
        ("missing_module_a", None, "There is no module 'missing_module_a'"),
        ("missing_package_a.mod:x", None, "There is no module 'missing_package_a.mod'"),
        ("agents.py", "", "agents.py declares no agent"),
        ("agents.py", "agents = [1]", "declares no agent"),
        ("agents.py:cook", TWO, "no agent 'cook'; known are travel, desk"),
        ("agents.py:Agent", TWO, "no agent 'Agent'"),
    ],
)
def test_agent_that_is_not_there_is_not_found(reference, text, said):
    if text is not None:
        write("agents.py", text)
    with pytest.raises(AgentNotFound) as caught:
        load_agents(reference)
    assert said in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def (", "line 1 of agents.py: SyntaxError: invalid syntax"),
        (
            "x = 1\nimport no_such_module_a",
            "line 2 of agents.py: ModuleNotFoundError: No module named",
        ),
        ("import helper_a", "line 3 of helper_a.py: ZeroDivisionError"),
        ("import sys\nsys.exit(3)", "line 2 of agents.py: SystemExit: 3"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("\0", "agents.py can't be imported"),
        (ONE + 'Agent("my agent", "openai:x")', "'my agent' is not"),
        ("from perdure import tool\n@tool\ndef f(a): 'F.'", "Tool 'f': parameter 'a' needs a type"),
        (ONE + 'b = Agent("travel", "openai:y")', "two agents named 'travel'"),
    ],
)
def test_file_that_cannot_be_used_is_refused_with_line_and_reason(text, said):
    write("helper_a.py", "\n\n1 / 0")
    write("agents.py", text)
    with pytest.raises(AgentError) as caught:
        load_agents("agents.py")
    assert said in str(caught.value)
    assert "agents.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_that_is_no_text_is_refused():
    Path("agents.py").write_bytes(b"x = '\xff\xfe'")
    with pytest.raises(AgentError, match=r"agents\.py can't be imported"):
        load_agents("agents.py")


def test_file_that_failed_can_be_loaded_again_when_it_is_mended():
    write("agents.py", "1 / 0")
    with pytest.raises(AgentError):
        load_agents("agents.py")
    write("agents.py", f"# mended\n{ONE}")
    assert names("agents.py") == ["travel"]


def test_module_that_fails_inside_is_not_said_to_be_missing():
    write("broken_a.py", "import no_such_module_b")
    with pytest.raises(AgentError, match="No module named 'no_such_module_b'") as caught:
        load_agents("broken_a")
    assert not isinstance(caught.value, AgentNotFound)


def test_interrupt_while_a_file_is_loaded_stays_an_interrupt():
    write("agents.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_agents("agents.py")


def test_queue_is_the_same_for_one_file_however_it_is_named_and_another_for_others(folder):
    write("agents.py", ONE)
    write("other/agents.py", ONE)
    settings = Settings()
    queues = {
        task_queue(str(path), settings) for path in ("agents.py", Path("agents.py").resolve(), "other/../agents.py")
    }
    assert len(queues) == 1
    assert queues.pop().startswith("agents-")
    assert task_queue("agents.py", settings) != task_queue("other/agents.py", settings)
    (agent,) = load_agents("agents.py")
    assert task_queue(agent.source, settings) == task_queue("agents.py", settings)


def test_setting_beats_the_files_own_queue():
    assert task_queue("agents.py", Settings(task_queue="mine")) == "mine"


def test_source_of_a_reference_is_the_file_behind_it(folder):
    write("agents.py", ONE)
    write("mine_c.py", ONE)
    load_agents("mine_c")
    assert source_of("agents.py:travel") == str(folder.resolve() / "agents.py")
    assert source_of("mine_c:travel") == str(folder.resolve() / "mine_c.py")
    assert source_of("never_loaded_a") == "never_loaded_a"


@pytest.mark.parametrize(
    ("reference", "is_file"),
    [("agents.py", True), ("agents.py:a", True), ("a/b", True), ("pkg.mod:a", True), ("travel", False)],
)
def test_reference_to_a_file_is_told_from_the_name_of_an_agent(reference, is_file):
    assert looks_like_file(reference) is is_file
