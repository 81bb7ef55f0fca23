# Every target is one command. `make help` lists them.
RUN ?= manifests/runs/demo-cpu.yaml
WORK ?= work
PORT ?= 5000
ARGS ?=
JOBS ?= 2
SITE ?= manifests/bundles/demo.yaml
BUNDLE ?= $(WORK)/bundle
MACHINE ?= $(shell uname -m)
FOR ?= container-$(MACHINE)
WHEELS ?= $(WORK)/wheels/$(FOR)
export VENV ?= .venv
-include revision.mk # written by bundle-install.sh where a bundle was unpacked

.PHONY: help setup test lint reproduce ui locks bench wheelhouse sbom image bundle bundle-verify provision services verify stop teardown test-hosts
.DEFAULT_GOAL := help

help: ## what can be done here
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## install the pinned packages into .venv (LINE=production|current, PYTHON=/path/to/python)
	@sh scripts/setup.sh

ifdef INVENTORY
reproduce:
	@cd ansible && ansible-playbook -i $(abspath $(INVENTORY)) playbooks/reproduce.yml -e train_job_manifest=runs/$(notdir $(RUN)) -e train_job_manifests=$(abspath $(dir $(RUN))/..) $(ARGS)
else
reproduce: setup ## run RUN from data to verdict, then print the verdict (INVENTORY=FILE: over its trainers; ARGS="--force-stage train")
	@$(VENV)/bin/stack reproduce $(RUN) --work $(WORK) $(ARGS)
endif

ui: setup ## open the tracking server on loopback over the same store (PORT=5000)
	@$(VENV)/bin/stack track server --work $(WORK) --port $(PORT)

test: setup ## run the tests, two files at a time (JOBS=1 ARGS="tests/audit -k ts")
	@$(VENV)/bin/python -m pytest $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile) $(ARGS)

lint: setup ## format check, lint, types
	@$(VENV)/bin/python -m ruff format --check stack tests scripts ansible bench
	@$(VENV)/bin/python -m ruff check stack tests scripts ansible bench
	@$(VENV)/bin/python -m mypy

bench: setup ## time and memory against floors and lerobot's tools, into docs/bench.md and README.md (ARGS="--only join")
	@$(VENV)/bin/python -m bench --scratch $(WORK)/bench --write docs/bench.md --readme README.md $(ARGS)

locks: setup ## rewrite manifests/locks from pyproject.toml and manifests/wheels.yaml (needs an index)
	@$(VENV)/bin/stack locks make $(ARGS)

wheelhouse: setup ## fetch and prove the wheels of a target machine (FOR=container-aarch64 WHEELS=DIR)
	@$(VENV)/bin/stack mirror wheels --for $(FOR) --to $(WHEELS)

sbom: wheelhouse ## list a target's packages and licences, CycloneDX (FOR=container-aarch64)
	@$(VENV)/bin/stack mirror sbom --for $(FOR) --wheels $(WHEELS) --to $(WORK)/sbom/$(FOR).cdx.json

image: setup ## build the training image offline (BASE=IMAGE WHEELS=DIR ARGS="--cann any")
	@$(VENV)/bin/stack image build --wheels $(WHEELS) $(if $(BASE),--base $(BASE)) $(ARGS)

bundle: setup ## pack all that SITE needs into BUNDLE, and verify it (ARGS="--wheels DIR --site DIR --diff OLD")
	@$(VENV)/bin/stack mirror bundle $(SITE) --to $(BUNDLE) $(ARGS)
	@$(VENV)/bin/stack mirror bundle $(SITE) --to $(BUNDLE) $(ARGS) --verify

bundle-verify: ## verify every byte of BUNDLE with its own verifier; needs no set-up (ARGS="--base OLD")
	@python3 $(BUNDLE)/verify-bundle.py $(ARGS)

provision: ## bring the hosts of INVENTORY to a running engine with the bundle's images (ARGS="--check --diff")
	@cd ansible && ansible-playbook -i $(abspath $(INVENTORY)) playbooks/provision.yml $(ARGS)

services: ## bring inside server, weights, data and tracking server to provisioned hosts (ARGS="--tags site_check,mirror")
	@cd ansible && ansible-playbook -i $(abspath $(INVENTORY)) playbooks/services.yml $(ARGS)

verify: ## do the cards of INVENTORY's trainers compute, and reach each other? (ARGS="-e verify_timeout_s=900")
	@cd ansible && ansible-playbook -i $(abspath $(INVENTORY)) playbooks/verify.yml $(ARGS)

stop: ## stop the training of INVENTORY's trainers with a checkpoint; `make reproduce` goes on from it
	@cd ansible && ansible-playbook -i $(abspath $(INVENTORY)) playbooks/stop.yml $(ARGS)

teardown: ## undo what provisioning made on the hosts of INVENTORY; data stays (ARGS="-e teardown_data=true")
	@cd ansible && ansible-playbook -i $(abspath $(INVENTORY)) playbooks/teardown.yml $(ARGS)

test-hosts: setup ## walk from bare hosts to a verdict and back, on containers that stand for hosts (root, Debian)
	@sh scripts/walk.sh $(ARGS)
