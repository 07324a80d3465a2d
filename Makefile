# `make demo` shows what swell does, `make test` proves it. Both need Python 3.11 or newer and make, nothing else: the rest is
# installed into .venv, once, and again only when pyproject.toml or constraints.txt has changed. Another Python gets an
# environment of its own: `make test-fast PYTHON=python3.13` makes .venv-3.13 and leaves .venv as it is.

PYTHON ?= python3
WORKERS ?= 2
SOAK_STRIKES ?= 200

ifeq ($(origin PYTHON),file)
  SUFFIX :=
else
  SUFFIX := -$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  ifeq ($(SUFFIX),-)
    $(error swell: PYTHON is $(PYTHON); expected a Python interpreter. Give for example PYTHON=python3.13)
  endif
endif
VENV := .venv$(SUFFIX)
VENV_KERAS := .venv-keras$(SUFFIX)
VENV_TRAINERS := .venv-trainers$(SUFFIX)
VENV_RAY := .venv-ray$(SUFFIX)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install --no-compile --constraint constraints.txt
# Files that do not parse on this Python (templates, tests of other versions) are left uncompiled; they are never imported.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

# One thread a process: the tests already use every core, and results do not depend on how a sum is split.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-keras test-trainers test-trackers test-ray soak check bench docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.stamp-run ## a small model three ways, and on workers that come, go and die: about 90 seconds
	@$(BIN)/swell demo

test: check docs ## everything: format, lint, types, layers, documentation, every test
	@echo "swell: running every test on $(WORKERS) workers"
	@$(BIN)/python -m pytest -n $(WORKERS) -q
	@$(MAKE) --no-print-directory test-keras
	@$(MAKE) --no-print-directory test-trainers
	@$(MAKE) --no-print-directory test-trackers
	@$(MAKE) --no-print-directory test-ray

test-keras: ## the Keras tests on torch, jax and tensorflow, each in its own process and in .venv-keras
	@PYTHON=$(PYTHON) VENV=$(VENV_KERAS) sh scripts/keras_environment.sh
	@$(VENV_KERAS)/bin/python scripts/keras_tests.py

test-trainers: ## swell inside Hugging Face's Trainer, TRL, Accelerate, Lightning and Fabric, in .venv-trainers
	@PYTHON=$(PYTHON) VENV=$(VENV_TRAINERS) sh scripts/trainers_environment.sh
	@echo "swell: running the tests inside other trainers on $(WORKERS) workers"
	@$(VENV_TRAINERS)/bin/python scripts/trainers_tests.py -n $(WORKERS)

test-trackers: ## the sinks for trackers against the real packages, and a job in a real notebook, in .venv-trackers
	@PYTHON=$(PYTHON) sh scripts/trackers_environment.sh
	@.venv-trackers/bin/python -m pytest -q tests/telemetry/test_trackers.py tests/telemetry/test_notebook.py

test-ray: ## runs on a Ray cluster of several nodes on this machine, in .venv-ray; left out where there is no Ray
	@PYTHON=$(PYTHON) VENV=$(VENV_RAY) sh scripts/ray_environment.sh
	@if [ -f $(VENV_RAY)/.stamp ]; then echo "swell: running the tests with Ray" && $(VENV_RAY)/bin/python scripts/ray_tests.py -n 2; fi

test-fast: $(VENV)/.stamp-dev ## the quick tests, which start no other process
	@echo "swell: running the fast tests on $(WORKERS) workers"
	@$(BIN)/python -m pytest -n $(WORKERS) -q -m "not slow and not distributed"

soak: $(VENV)/.stamp-run ## strike two small runs at once in every way, SOAK_STRIKES (200) times, and report; fails if anything is lost
	@$(BIN)/python scripts/run_soak.py --strikes $(SOAK_STRIKES) --folder runs/soak

check: $(VENV)/.stamp-dev ## format, lint, types, layers, licences and known vulnerabilities, without running anything
	@echo "swell: checking format, lint, types and layers"
	@$(BIN)/ruff format --check --quiet || (echo "swell: run $(BIN)/ruff format" >&2; exit 1)
	@$(BIN)/ruff check --quiet
	@$(BIN)/pyright --warnings --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/licences.py
	@$(BIN)/python scripts/audit.py

bench: $(VENV)/.stamp-dev ## every benchmark under benchmarks/, one after the other
	@for bench in benchmarks/*/run.py; do echo "swell: $$bench"; $(BIN)/python $$bench || exit 1; done

docs: $(VENV)/.stamp-dev ## build the documentation into site/, failing on any broken link
	@echo "swell: building the documentation into site/"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove .venv and everything that was built
	rm -rf .venv .venv-* site build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache docs/generated swell-demo

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  (echo "swell: $(PYTHON) is older than Python 3.11; choose a newer one: make PYTHON=python3.12 ..." >&2; exit 1)
	@echo "swell: making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
	  (rm -rf $(VENV); echo "swell: $(PYTHON) has no venv module; install it (on Debian: python3-venv)" >&2; exit 1)

# torch first and alone, so that the build which constraints.txt names is settled before anything else asks for one.
$(VENV)/.stamp-torch: constraints.txt | $(BIN)/python
	@echo "swell: installing torch (large; once)"
	@$(INSTALL) torch
	@touch $@

$(VENV)/.stamp-run: $(VENV)/.stamp-torch pyproject.toml
	@echo "swell: installing swell"
	@$(INSTALL) --editable '.[torch,report]'
	@$(COMPILE)
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-run
	@echo "swell: installing the development tools"
	@$(INSTALL) --editable '.[dev]'
	@$(COMPILE)
	@touch $@
