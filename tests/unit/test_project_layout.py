"""The links of `perdure/`, its public names, and what importing it costs. See docs/adr/0001-layout-links.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

ROOT = Path(__file__).parents[2]
LINKS = {
    "activities": "../activities",
    "examples": "../examples",
    "starter.py": "../starter.py",
    "worker.py": "../worker.py",
    "workflows": "../workflows",
}


def test_exactly_these_entries_of_perdure_are_links_to_the_top():
    links = {entry.name: str(entry.readlink()) for entry in (ROOT / "perdure").iterdir() if entry.is_symlink()}
    assert links == LINKS


def test_every_link_leads_to_a_real_file_or_folder_at_the_top():
    for name in LINKS:
        assert (ROOT / name).exists()
        assert not (ROOT / name).is_symlink()
        assert (ROOT / "perdure" / name).samefile(ROOT / name)


def test_modules_of_the_top_folders_are_imported_under_perdure_alone():
    script = """
import sys, perdure.worker, perdure.starter, perdure.workflows.agent
print(*sorted({"workflows", "activities", "worker", "starter"} & set(sys.modules)))
"""
    output = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    assert output.stdout.strip() == ""


def test_public_names_are_sorted_and_each_one_is_there():
    assert perdure.__all__ == sorted(perdure.__all__)
    assert len(set(perdure.__all__)) == len(perdure.__all__)
    assert [name for name in perdure.__all__ if not hasattr(perdure, name)] == []


def test_type_checkers_see_the_same_public_names_as_the_interpreter():
    tree = ast.parse((ROOT / "perdure/__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert sorted(seen) == perdure.__all__
    assert seen == perdure._HOMES


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="'perdure' has no attribute 'Agnet'"):
        perdure.Agnet  # noqa: B018


def test_importing_perdure_loads_nothing_of_it():
    script = "import sys, perdure; print(*(name for name in sys.modules if name.startswith(('perdure', 'pydantic'))))"
    output = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    assert output.stdout.split() == ["perdure"]


def test_declaring_an_agent_loads_no_model_client_store_or_engine():
    script = """
import sys, perdure

@perdure.tool
def clock() -> str:
    "Tell the time."
    return "noon"

perdure.Agent(name="a", model="openai:m", tools=[clock]).spec
print(*sorted({"openai", "jsonschema", "sqlalchemy", "rich", "typer", "temporalio"} & set(sys.modules)))
"""
    output = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    assert output.stdout.split() == []


def test_ci_and_makefile_run_what_the_readme_says():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert "make demo" in readme
    assert "make test" in readme
    assert re.search(r"^make test\b", ci, flags=re.MULTILINE)
    assert set(re.findall(r"`?make ([a-z]+)", readme)) <= set(targets)
