"""`perdure new`: a folder with an agent, its tools, a script to follow and a test, that runs as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.output import Misuse, safe, say

_HEAD = '''"""{name}: looks after orders. A refund is made once somebody has agreed."""
'''

_TOOLS = '''
from pathlib import Path

{imports}

ORDERS = {{"A7": "delivered, 500 cents", "B2": "on its way, 1200 cents"}}


@tool(effect="read")
def look_up(order: str) -> str:
    """Look an order up.

    Args:
        order: Its number, such as A7.
    """
    return ORDERS.get(order, "unknown")


@tool(approval="always")  # "unsafe" is the default: done at most once, whatever crashes
def refund(order: str, cents: int) -> str:
    """Refund an order."""  # here, in a file
    with Path("refunds.txt").open("a", encoding="utf-8") as refunds:
        refunds.write(f"{{order}} {{cents}}\\n")
    return f"refunded {{cents}} cents"
'''

_PYTHON = """

agent = Agent(
    "{name}",
    model=os.environ.get("{variable}", "scripted:script.json"),
    instructions="You look after orders. Look an order up before you refund it. Be brief.",
    tools=[look_up, refund],
    limits=Limits(steps=10),
)
"""

_YAML = """\
# {name}: looks after orders. Its tools are in tools.py; `perdure schema agent` prints all that can stand here.

name: {name}
model: ${{{variable}:-scripted:script.json}}
instructions: You look after orders. Look an order up before you refund it. Be brief.
tools:
  - tools:look_up
  - tools:refund
limits:
  steps: 10
"""

_SCRIPT = """\
[
  {"calls": [{"name": "look_up", "arguments": {"order": "A7"}}]},
  {"calls": [{"name": "refund", "arguments": {"order": "A7", "cents": 500}}]},
  {"text": "Order A7: ${refund}."}
]
"""

_TEST = '''"""The agent with a model that follows a script: no key, no network."""

from pathlib import Path

from perdure.loading import load_agents
from perdure.testing import ScriptedModel, call

[agent] = load_agents(str(Path(__file__).with_name("{file}")))


def test_a_refund_is_made_once_somebody_has_agreed(perdure_env):
    model = ScriptedModel([call("look_up", order="A7"), call("refund", order="A7", cents=500), "A7: ${{refund}}."])
    with perdure_env.start(agent, "Refund order A7", model=model, tools={{"refund": "refunded"}}) as run:
        assert run.until_asked().arguments == {{"order": "A7", "cents": 500}}
        run.approve()
        assert run.result().text == "A7: refunded."
    model.assert_shown("delivered, 500 cents")
'''

_ENV = """\
# For a model of OpenAI, fill these in, and then: set -a; . ./.env; set +a
# (Perdure itself reads only lines PERDURE_... of this file.)
# {variable}=openai:gpt-5-mini
# OPENAI_API_KEY=
"""

_README = """\
# {name}

```console
pip install '{packages}' pytest
pytest                                   # no key, no network
perdure dev {file:28} # engine, Web UI and a worker; leave it running
perdure run {file} "Refund order A7"{pad} # in a second terminal: follows, and asks you
```

Its model follows `script.json`. `.env` says how it gets a real one.
"""

_IGNORED = ".env\n.perdure/\nrefunds.txt\n__pycache__/\n"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent's name, and the folder's.")],
    yaml: Annotated[
        bool, typer.Option("--yaml/--python", help="Declare it in agent.yaml, or in agent.py. Default: --python.")
    ] = False,
) -> None:
    """Make a folder with an agent that runs as it is, without a key: tools, a script for its model, and a test."""
    folder = Path(name)
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise Misuse(f"An agent's name is made of letters, digits, '-' and '_'; {name!r} is not.")
    if folder.exists():
        raise Misuse(f"There is a {name!r} here already; choose another name, or move it away.")
    try:
        folder.mkdir()
        for file, text in files(name, yaml=yaml).items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Misuse(f"{error.filename} can't be written: {error.strerror}.") from error
    say(f"Made {safe(name)}/ with {', '.join(files(name, yaml=yaml))}. Go on there: cd {safe(name)}, and see README.md")


def files(name: str, *, yaml: bool) -> Mapping[str, str]:
    """Return what is in the folder of a new agent, by file."""
    variable = f"{name.upper().replace('-', '_')}_MODEL"
    file, packages = ("agent.yaml", "perdure[engine,yaml]") if yaml else ("agent.py", "perdure[engine]")
    words = {"name": name, "variable": variable, "file": file, "packages": packages, "pad": "" if yaml else "  "}
    head = _HEAD.format(**words)
    if yaml:
        code = {file: _YAML.format(**words), "tools.py": head + _TOOLS.format(imports="from perdure import tool")}
    else:
        tools = _TOOLS.format(imports="from perdure import Agent, Limits, tool").replace(
            "\nfrom", "\nimport os\nfrom", 1
        )
        code = {file: head + tools + _PYTHON.format(**words)}
    return {
        **code,
        "script.json": _SCRIPT,
        "test_agent.py": _TEST.format(**words),
        ".env": _ENV.format(**words),
        ".gitignore": _IGNORED,
        "README.md": _README.format(**words),
    }
