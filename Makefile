# What a developer types. Nothing is needed beforehand but Python 3.11+, Go 1.26+ and, for the cluster, root on Linux.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test lint crds images cluster-up cluster-down venv lock gate-table

CACHE := $(if $(SPECULATOR_CACHE),$(SPECULATOR_CACHE),$(HOME)/.cache/speculator-operator)
CLUSTER_COMMAND := hack/cluster/cluster
PYTHON ?= python3
PYTEST_ARGS ?=
# uv from the PATH, else one that `make venv` puts into the cache.
UV := $(or $(shell uv --version >/dev/null 2>&1 && command -v uv),$(CACHE)/uv/bin/uv)
export UV_PYTHON_DOWNLOADS ?= never

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: venv ## The closed loop on a real cluster on this machine (CLUSTER=existing: on yours)
	hack/demo/run $(DEMO_ARGS)

test: venv ## Unit, integration and end-to-end tests, with everything that they need
	$(CLUSTER_COMMAND) up >/dev/null
	$(CLUSTER_COMMAND) images >/dev/null
	KUBEBUILDER_ASSETS=$(CACHE)/bin .venv/bin/pytest tests/unit tests/integration tests/e2e $(PYTEST_ARGS)

lint: venv ## Formatting, lint, types, import rules, drift of crds/
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/python -m speculator_operator.api.crds --check

gate-table: venv ## The gate's error rates by long simulation: docs/benchmarks/gate.json, tables of docs/gate.md
	OMP_NUM_THREADS=1 PYTHONPATH=tests .venv/bin/python tests/bench/gate_table.py

crds: venv ## Generate crds/ from the Pydantic models
	.venv/bin/python -m speculator_operator.api.crds

images: ## Build the images whose sources changed (CLUSTER=existing: and push them to IMAGE_REGISTRY)
	$(CLUSTER_COMMAND) images

cluster-up: ## Bring the local cluster up, building its programs if need be
	$(CLUSTER_COMMAND) up

cluster-down: ## End it: no process, mount, interface or rule stays; images and S3 data do
	$(CLUSTER_COMMAND) down

venv: .venv/.ready ## Virtual environment with the locked dependencies and this project, editable

.venv/.ready: pyproject.toml requirements/dev.txt requirements/build.txt | $(UV)
	test -x .venv/bin/python || $(UV) venv --python '>=3.11' .venv
	VIRTUAL_ENV=.venv $(UV) pip install --require-hashes -r requirements/dev.txt -r requirements/build.txt
	VIRTUAL_ENV=.venv $(UV) pip install --no-deps --no-build-isolation --editable .
	touch $@

$(CACHE)/uv/bin/uv:
	$(PYTHON) -m venv $(CACHE)/uv
	$(CACHE)/uv/bin/python -m pip install --quiet --require-hashes -r requirements/build.txt

COMPILE := pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet
lock: | $(UV) ## Lock the dependencies of pyproject.toml anew, keeping versions that still fit
	$(UV) $(COMPILE) -c requirements/pins.txt --extra operator --extra runtime --extra dev pyproject.toml -o requirements/dev.txt
	# Builds and images get what the tests ran with.
	$(UV) $(COMPILE) -c requirements/dev.txt requirements/build.in -o requirements/build.txt
	$(UV) $(COMPILE) -c requirements/dev.txt --extra operator pyproject.toml -o requirements/operator.txt
	$(UV) $(COMPILE) -c requirements/dev.txt --extra runtime pyproject.toml -o requirements/runtime.txt
