"""docker-compose.yml and Dockerfile say only what there is. No Docker engine is needed."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.envconfig import ClientConfigProfile

from perdure import Agent, Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LASTING = [name for name, service in SERVICES.items() if service.get("restart") == "unless-stopped"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("perdure:")]


def resolved(value: str) -> str:
    """Return `value` as Compose would without any variable set, `$$` as `$`."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value).replace("$$", "$")


def commands() -> set[str]:
    from typer.main import get_command

    return set(get_command(import_module("perdure.starter").app).commands)  # type: ignore[attr-defined]


def test_compose_file_is_valid_by_the_compose_specification():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    result = subprocess.run([*command, "docker-compose.yml"], cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_image_is_pinned_to_a_full_version(name: str):
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+[\w.-]*", SERVICES[name]["image"])


def test_image_of_ours_has_the_projects_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {SERVICES[name]["image"] for name in OURS} == {f"perdure:{version}"}


def test_dockerfile_pins_its_base_and_runs_without_root():
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.1\d\.\d+-slim-\w+", base) for base in bases)
    assert re.search(r"^USER perdure$", DOCKERFILE, flags=re.MULTILINE)


@pytest.mark.parametrize("name", LASTING)
def test_lasting_service_has_a_health_check(name: str):
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", SERVICES)
def test_dependency_waits_for_health_or_success(name: str):
    for target, how in SERVICES[name].get("depends_on", {}).items():
        expected = "service_healthy" if target in LASTING else "service_completed_successfully"
        assert how == {"condition": expected}


def test_worker_has_nothing_that_keeps_it_from_scaling():
    assert not {"container_name", "ports", "hostname"} & set(SERVICES["worker"])


def test_named_volumes_and_configs_are_those_that_are_used():
    mounts = [volume for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert {m.split(":")[0] for m in mounts if re.match(r"\w+:", m)} == set(COMPOSE["volumes"])
    assert {c["source"] for s in SERVICES.values() for c in s.get("configs", [])} == set(COMPOSE["configs"])


def test_data_of_postgres_lies_in_a_named_volume():
    assert SERVICES["postgres"]["volumes"] == ["postgres:/var/lib/postgresql/data"]


@pytest.mark.parametrize("name", OURS)
def test_every_variable_of_ours_is_a_setting(name: str):
    known = {f"PERDURE_{field.upper()}" for field in Settings.model_fields}
    used = {key for key in SERVICES[name].get("environment", {}) if key.startswith("PERDURE_")}
    assert used <= known
    assert set(re.findall(r"PERDURE_\w+(?==)", DOCKERFILE)) <= known


def test_temporal_understands_the_workers_address_and_namespace():
    variables = {key: resolved(value) for key, value in SERVICES["worker"]["environment"].items()}
    profile = ClientConfigProfile.load(override_env_vars=variables, disable_file=True)
    assert (profile.address, profile.namespace) == ("temporal:7233", "default")


def test_model_key_is_read_from_the_variable_that_the_worker_is_given():
    assert Agent(name="a", model="openai:m").settings.api_key_env in SERVICES["worker"]["environment"]


def test_addresses_name_services_and_the_ports_that_they_serve():
    served = {"postgres": "5432", "temporal": "7233"}  # what their images listen on
    text = resolved(yaml.safe_dump([service.get("environment", {}) for service in SERVICES.values()]))
    for service, port in re.findall(r"\b(postgres|temporal):(\d+)\b", text):
        assert port == served[service]
    assert SERVICES["temporal"]["healthcheck"]["test"][-1] == served["temporal"]
    for name in ("temporal", "temporal-ui"):
        published = resolved(SERVICES[name]["ports"][0]).split(":")
        assert published[0] == "127.0.0.1"
        assert published[2] == served.get(name, SERVICES[name]["environment"].get("TEMPORAL_UI_PORT"))


def test_workers_need_nothing_that_is_only_there_on_request():
    on_request = {name for name, service in SERVICES.items() if service.get("profiles")}
    assert on_request == {"collector"}
    assert not on_request & {target for service in SERVICES.values() for target in service.get("depends_on", {})}
    assert resolved(SERVICES["worker"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]) == ""
    assert SERVICES["collector"]["ports"][0].startswith("127.0.0.1:")


def test_worker_store_is_the_database_that_postgres_makes():
    made, store = SERVICES["postgres"]["environment"], resolved(SERVICES["worker"]["environment"]["PERDURE_STORE"])
    user, password, database = (resolved(made[f"POSTGRES_{key}"]) for key in ("USER", "PASSWORD", "DB"))
    assert store == f"postgresql+asyncpg://{user}:{password}@postgres:5432/{database}"


def test_commands_are_perdures_own():
    cmd = re.findall(r'CMD \["(?:perdure", ")?(\w+)"', DOCKERFILE)
    assert len(cmd) == 2
    assert {SERVICES["worker"]["command"][0], SERVICES["worker"]["healthcheck"]["test"][2], *cmd} <= commands()


def test_example_service_understands_what_it_is_started_with():
    service = SERVICES["booking"]
    command = [sys.executable, *service["entrypoint"][1:], "--help"]
    known = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert all(option in known for option in service["command"] if option.startswith("--"))
    port = service["command"][service["command"].index("--port") + 1]
    assert SERVICES["worker"]["environment"]["TRAVEL_BOOKING_URL"] == f"http://booking:{port}"
    assert f":{port}/counts" in service["healthcheck"]["test"][-1]


def test_variables_of_the_example_are_read_by_it():
    agent = (ROOT / "examples/travel/agent.py").read_text()
    variables = [key for key in SERVICES["worker"]["environment"] if key.startswith("TRAVEL_")]
    assert all(f'environ.get("{variable}"' in agent for variable in variables)
    assert '"GET", ["counts"]' in (ROOT / "examples/travel/booking_service.py").read_text()


def test_default_agent_file_is_there():
    folder, inside, mode = resolved(SERVICES["worker"]["volumes"][0]).split(":")
    command = resolved(SERVICES["worker"]["command"][1])
    assert (inside, mode) == ("/agents", "ro")
    assert (ROOT / folder / Path(command).relative_to(inside)).is_file()


@pytest.mark.parametrize("name", ["temporal-schema", "temporal-namespace"])
def test_script_of_a_setup_step_is_a_shell_script_that_stops_at_errors(name: str):
    script = resolved(COMPOSE["configs"][name]["content"])
    assert script.startswith("set -eu\n")
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    target = SERVICES[name]["configs"][0]["target"]
    assert SERVICES[name]["entrypoint"] == ["sh", target]


def test_variables_of_a_setup_script_are_given_to_it():
    environment = SERVICES["temporal-namespace"]["environment"]
    script = resolved(COMPOSE["configs"]["temporal-namespace"]["content"])
    assert set(re.findall(r"\$([A-Z_]+)", script)) <= set(environment)


def test_server_reads_the_dynamic_configuration_that_is_mounted():
    service = SERVICES["temporal"]
    assert service["environment"]["DYNAMIC_CONFIG_FILE_PATH"] == service["configs"][0]["target"]
    values = yaml.safe_load(COMPOSE["configs"]["temporal-dynamic"]["content"])
    assert all(set(entry) == {"value"} for entries in values.values() for entry in entries)


def test_wheel_of_the_image_is_built_from_what_the_context_lets_in():
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    links = {entry.name for entry in (ROOT / "perdure").iterdir() if entry.is_symlink()}
    assert links | {"perdure", "pyproject.toml", "README.md", "LICENSE"} == let_in
