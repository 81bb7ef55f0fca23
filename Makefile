# Every target is one command. `make help` lists them.
RUN ?= manifests/runs/demo-cpu.yaml
WORK ?= work
PORT ?= 5000
ARGS ?=
export VENV ?= .venv

.PHONY: help setup test lint reproduce ui locks bench
.DEFAULT_GOAL := help

help: ## what can be done here
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## install the pinned packages into .venv (LINE=production|current, PYTHON=/path/to/python)
	@sh scripts/setup.sh

reproduce: setup ## run RUN from data to verdict, then print the verdict (ARGS="--force-stage train")
	@$(VENV)/bin/stack reproduce $(RUN) --work $(WORK) $(ARGS)

ui: setup ## open the tracking server on loopback over the same store (PORT=5000)
	@$(VENV)/bin/stack track server --work $(WORK) --port $(PORT)

test: setup ## run the tests (ARGS="tests/audit -k ts")
	@$(VENV)/bin/python -m pytest $(ARGS)

lint: setup ## format check, lint, types
	@$(VENV)/bin/python -m ruff format --check stack tests scripts
	@$(VENV)/bin/python -m ruff check stack tests scripts
	@$(VENV)/bin/python -m mypy

bench: setup ## time and memory against floors and lerobot's tools, into docs/bench.md and README.md (ARGS="--only join")
	@$(VENV)/bin/python -m bench --scratch $(WORK)/bench --write docs/bench.md --readme README.md $(ARGS)

locks: ## rewrite manifests/locks from pyproject.toml (needs an index and uv)
	@sh scripts/lock.sh
