"""What is built and installed: `perdure` alone, whole, beside packages of the user's that have its inner names."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)  # an environment is installed, from the network perhaps

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "perdure", "workflows", "activities", "examples")
FILES = ("worker.py", "starter.py")
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("PERDURE_", "TEMPORAL_", "PYTHON"))}

AGENT = '''
import sys

import activities
import workflows
from perdure import Agent, tool


@tool(effect="read")
def greet(name: str) -> str:
    """Greet somebody."""
    return f"{workflows.GREETING}, {name}{activities.MARK}"


@tool(approval="never")
def note(text: str) -> str:
    """Write a note."""
    return f"noted: {text}"


greeter = Agent("greeter", model="scripted:script.json", tools=[greet, note])
'''
SCRIPT = [
    {"calls": [{"name": "greet", "arguments": {"name": "Ada"}}]},
    {"calls": [{"name": "note", "arguments": {"text": "${greet}"}}]},
    {"text": "Done: ${note}"},
]


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(command, cwd=cwd, env=CLEAN, check=False, capture_output=True, text=True, timeout=300)
    assert not check or result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result


def pip(environment: Path, *words: str) -> None:
    run(sys.executable, "-m", "pip", "--python", environment / "python", *words, cwd=environment)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, links kept, without what earlier builds and runs left."""
    copy = tmp_path_factory.mktemp("tree") / "perdure"
    copy.mkdir()
    for name in (*SOURCES, *FILES):
        if (ROOT / name).is_dir():
            left_out = shutil.ignore_patterns("__pycache__", ".perdure", "*.db*", "*.pyc")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=left_out)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("--sdist", tree, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("--wheel", tree, tmp_path_factory.mktemp("wheel"))


def build(kind: str, source: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    run(sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", target, source, cwd=target)
    shutil.rmtree(source / "build", ignore_errors=True)
    return next(target.iterdir())


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        assert [info for info in archive.infolist() if info.external_attr >> 28 == 0o12] == []  # no links
        return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}


def test_wheel_holds_perdure_and_nothing_else_at_its_top(wheel: Path):
    assert {name.split("/")[0] for name in contents(wheel)} == {"perdure", f"perdure-{PROJECT['version']}.dist-info"}


def test_wheel_holds_every_file_of_the_tree_as_a_real_file(wheel: Path, tree: Path):
    here = {
        str(Path(folder, name).relative_to(tree)): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(tree / "perdure", followlinks=True)
        for name in names
    }
    assert {name: text for name, text in contents(wheel).items() if name.startswith("perdure/")} == here
    assert {"perdure/workflows/agent.py", "perdure/worker.py", "perdure/starter.py", "perdure/py.typed"} <= set(here)


def test_wheel_built_from_the_sdist_is_the_same(wheel: Path, sdist: Path, tmp_path: Path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    source = next((tmp_path / "unpacked").iterdir())
    assert contents(build("--wheel", source, tmp_path / "wheel")) == contents(wheel)


def test_sdist_holds_real_files_and_the_licence(sdist: Path):
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
        assert not any(member.issym() or member.islnk() for member in archive.getmembers())
    assert {"LICENSE", "README.md", "pyproject.toml", "perdure/workflows/agent.py"} <= names


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment: the wheel with its own dependencies, and a user's two packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    pip(folder / "bin", "install", "-q", "--no-compile", f"{wheel}[engine]")
    packages = next(folder.glob("lib/python*/site-packages"))
    for name, text in {"workflows": "GREETING = 'Hello'\n", "activities": "MARK = '!'\n"}.items():
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text(text)
    return folder / "bin"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's project."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    return tmp_path


def test_users_packages_and_perdures_parts_are_imported_side_by_side(installed: Path, home: Path):
    script = """
import activities, perdure.activities, perdure.workflows.agent, perdure.worker, workflows
print(workflows.GREETING, activities.MARK, hasattr(perdure.workflows, "GREETING"), perdure.__version__)
"""
    assert run(installed / "python", "-c", script, cwd=home).stdout.split() == [
        "Hello",
        "!",
        "False",
        PROJECT["version"],
    ]


def test_every_module_of_the_wheel_can_be_imported_with_its_dependencies_alone(installed: Path, home: Path):
    """But for those that an extra brings what they need for."""
    script = """
import importlib, pkgutil, perdure
def broken(name):
    raise SystemExit(f"{name} can't be imported")
for module in pkgutil.walk_packages(perdure.__path__, "perdure.", onerror=broken):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] not in ("mcp", "opentelemetry", "prometheus_client", "pytest"):
                raise
            print(module.name)
"""
    told = run(installed / "python", "-c", script, cwd=home).stdout
    assert told.split() == [
        "perdure.examples.mcp_library_server",
        "perdure.telemetry.instruments",
        "perdure.testing.plugin",
    ]


def test_dependencies_agree_with_each_other(installed: Path):
    pip(installed, "check")


@contextmanager
def serving(*command: str | Path, cwd: Path) -> Generator[None]:
    """Run a command that stays, from its line that it is ready to the block's end."""
    process = subprocess.Popen([*command, "--json"], cwd=cwd, env=CLEAN, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def test_worker_installed_from_the_wheel_completes_a_run_beside_the_users_packages(installed: Path, home: Path):
    perdure = installed / "perdure"
    with serving(perdure, "dev", cwd=home), serving(perdure, "worker", "agent.py", cwd=home):
        result = run(perdure, "run", "greeter", "Greet Ada.", "--json", cwd=home)
    outcome = json.loads(result.stdout)
    assert (outcome["status"], outcome["text"]) == ("completed", "Done: noted: Hello, Ada!")
