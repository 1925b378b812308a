# PRECAD. `make help` lists what there is; `make demo` and `make test` set everything up by themselves.

# The first of these that runs and is new enough; or say make PYTHON=/path/to/python3.11.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALLED := $(VENV)/.installed
PEERS := .venv-peers

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit vectors integration faults texts test-slow docs bench peers lint prose format protos lock release clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## Make the virtual environment from the lock files

# The lock file holds versions and hashes. --no-deps gets past CrypTen's requirement `sklearn`, which no longer installs.
$(INSTALLED): requirements.lock requirements-cuda.lock requirements-cpu.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "precad needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	if ! command -v nvidia-smi > /dev/null; then \
	  $(PIP) install --no-deps --require-hashes -r requirements-cpu.lock 2> /dev/null \
	    || echo "no locked CPU build of torch for this Python on this index: taking the default one"; fi
	$(PIP) install --no-deps --require-hashes -r requirements.lock
	if $(BIN)/python deploy/hosts/lock.py --torch-needs-cuda; then \
	  $(PIP) install --no-deps --require-hashes -r requirements-cuda.lock; fi
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(INSTALLED)  ## Train on bundled data: dealer, two aggregators, eight clients (two malicious)
	$(BIN)/precad demo

# Whole files go to one process: what a file's tests share, such as a certificate authority, is made once. In the order
# of their names: by the number of their tests, the files of few long ones would come last and leave a core idle. Four
# on two cores, as tests of processes and sockets wait.
TEST_PROCESSES ?= 4
PYTEST := $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test: $(INSTALLED)  ## Run the tests (ten minutes on two cores, twelve the first time)
	$(PYTEST)

unit vectors integration faults texts: $(INSTALLED)  ## Run one layer of the tests (unit: within a minute)
	$(PYTEST) $$($(BIN)/python -m tests.layers $@)

test-slow: $(INSTALLED)  ## Run all tests, the long ones too
	PRECAD_THOROUGH=1 $(BIN)/python -m pytest -m 'slow or not slow' --timeout 1800

docs: $(INSTALLED)  ## Build the documentation's site in build/site, and check its links
	$(BIN)/python -m docs.generate --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(INSTALLED)  ## Measure the norm check beside its peers (two minutes; `make peers` adds peers)
	$(BIN)/precad bench validation --quick

peers: $(PEERS)/.installed  ## Make the virtual environment of the benchmarks' peers (SPU, OpenDP, Opacus)

# Their requirements conflict with our lock file, so they get an environment of their own; Opacus runs on our torch.
$(PEERS)/.installed: lab/bench/peers.txt requirements-cpu.lock requirements-cuda.lock
	@test -n "$(PYTHON)" || { echo "the peers need Python 3.11: make peers PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps -r lab/bench/peers.txt
	if command -v nvidia-smi > /dev/null || ! $(PEERS)/bin/python -m pip --disable-pip-version-check --quiet install \
	    --no-deps --require-hashes -r requirements-cpu.lock 2> /dev/null; then \
	  $(PEERS)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps torch==2.13.0 \
	    && $(PEERS)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes \
	      -r requirements-cuda.lock; fi
	@touch $@

lint: $(INSTALLED)  ## Check style, types and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.prose --quiet
	$(BIN)/mypy

prose: $(INSTALLED)  ## Say which sentences of docstrings and documents are long
	$(BIN)/python -m tests.prose

format: $(INSTALLED)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(INSTALLED)  ## Generate the gRPC stubs from protos/precad/v1
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. precad/protos/precad/v1/*.proto

lock: $(INSTALLED)  ## Resolve the lock files anew from pyproject.toml
	$(PIP) install uv
	$(BIN)/python deploy/hosts/lock.py

# What is asked for first needs no environment: without it nothing is set up.
release:  ## Make a release, here only: make release VERSION=x.y.z KEY=~/.ssh/id_ed25519
	@test -n "$(VERSION)" || { echo "release: expected VERSION=x.y.z, found none" >&2; exit 2; }
	@test -f "$(KEY)" || { echo "release: expected KEY=FILE, a private key of SSH, found none at '$(KEY)'" >&2; exit 2; }
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python .ci/make_release.py "$(VERSION)" --key "$(KEY)"

clean:  ## Remove the virtual environments and caches (runs/ stays)
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
