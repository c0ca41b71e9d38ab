# Works in a fresh clone with Python 3.11 or newer and pip; everything lands in $(VENV).

ifeq ($(origin PYTHON), undefined)
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
endif
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
TESTS ?= tests
JOBS ?= 3
CRASH_JOBS ?= 3

.PHONY: help demo test check fmt chaos bench overhead history load docs ci clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help: ## Show this
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@echo
	@echo '  ARGS="…" goes to the command behind a target; PYTHON=python3.12 VENV=DIR choose the environment,'
	@echo '  TESTS=tests/unit some of the tests, and JOBS=0 runs them one after another, in this very process.'

demo: $(VENV)/.engine ## A trip booked with approval while its worker is killed (YES=1: approve by itself)
	@$(BIN)/perdure demo $(if $(YES),--yes) $(ARGS)

# A file's tests stay together: they share what it starts. Most wait more than they compute; those that break workers off
# while many runs are at a point of their own come when the others are done.
test: $(VENV)/.test ## Run the tests: unit, integration, acceptance, each crash once
	@$(BIN)/python -m pytest $(TESTS) -n $(JOBS) --dist loadfile --no-loadscope-reorder $(if $(filter tests,$(TESTS)),--ignore tests/chaos) $(ARGS)
	@$(if $(filter tests,$(TESTS)),$(BIN)/python -m pytest tests/chaos -n $(CRASH_JOBS) --dist loadfile --no-loadscope-reorder $(ARGS))

check: $(VENV)/.dev ## Lint, formatting, types and the unit tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q tests/unit $(ARGS)

fmt: $(VENV)/.dev ## Format, and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

chaos: $(VENV)/.dev ## Kill workers and the server: at each point once, then at random (KILLS=200)
	PERDURE_CHAOS_KILLS=$(or $(KILLS),200) $(BIN)/python -m pytest -m chaos tests/chaos $(ARGS)
	$(BIN)/python -m bench.crash --kills $(or $(KILLS),200)

bench: $(VENV)/.dev ## Measure what Perdure costs beside Temporal by hand, in a few minutes (ARGS=--full: half an hour)
	@$(BIN)/python -m bench $(ARGS)

overhead: $(VENV)/.dev ## What it costs to be told everything of a run, beside nothing (ARGS=--each: one by one)
	@$(BIN)/python -m bench.overhead $(ARGS)

history: $(VENV)/.dev ## What a step leaves in history, from 10 steps to 3,000, in a quarter of an hour or more
	@$(BIN)/python -m bench.history $(ARGS)

load: $(VENV)/.dev ## Many runs at once: order, shares, rates, memory (ARGS=urgent: one part)
	@$(BIN)/python -m bench.load $(ARGS)

docs: $(VENV)/.dev ## Write the pages that are made from the code: commands, the schema of agents, what is reported elsewhere
	@mkdir -p docs/reference
	$(BIN)/typer perdure.starter utils docs --name perdure --output docs/reference/cli.md
	$(BIN)/python starter.py schema agent > docs/reference/agent.schema.json
	$(BIN)/python -m tests.reported

ci: ## All of what has to hold, as on the server
	bash .ci/run

clean: ## Remove what builds and checks leave behind
	rm -rf build dist *.egg-info .coverage* htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Stamps: an environment is made once, and again when pyproject.toml changes.

$(VENV)/bin/python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'Perdure needs Python 3.11 or newer; say where it is: make PYTHON=/path/to/python3.12' >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.engine: pyproject.toml | $(VENV)/bin/python
	@echo 'Installing Perdure into $(VENV) …' >&2
	@$(PIP) install -e '.[engine]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	@echo 'Installing Perdure and its tests into $(VENV) …' >&2
	@$(PIP) install -e '.[engine,postgres,s3,test]'
	@touch $@ $(VENV)/.engine

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo 'Installing Perdure, its tests and their tools into $(VENV) …' >&2
	@$(PIP) install -e '.[engine,postgres,s3,dev]'
	@touch $@ $(VENV)/.test $(VENV)/.engine
