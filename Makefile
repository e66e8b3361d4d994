# Everything a person or CI runs. Each target sets up what it needs; `make help` lists them.

# The interpreter that .venv is made with: the first of these that is 3.10 to 3.13, or PYTHON=/path/to/python3.
SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))
ifndef PYTHON
PYTHON := $(shell for candidate in python3 python3.13 python3.12 python3.11 python3.10; do \
	"$$candidate" -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo "$$candidate"; break; }; done)
endif
VENV      ?= .venv
BIN       := $(VENV)/bin
# Made last: an installation that was interrupted is done again.
INSTALLED := $(VENV)/.installed
# For example: make test PYTEST_ARGS="-m 'not slow' -x"
PYTEST_ARGS ?=
# Tests of one file run in order in one process, the long ones first; WORKERS=0 runs all of them in this one.
WORKERS   ?= 2
DEMO_ARGS   ?=
BENCH_ARGS  ?=
# Of all targets together; CI runs its two minutes with the tests.
FUZZ_SECONDS ?= 1800

.DEFAULT_GOAL := help
.PHONY: help demo test lint format fuzz bench dist clean tools

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## cold and warm starts of two real pipelines with random weights, side by side
	$(BIN)/cachekit demo $(DEMO_ARGS)

test: lint ## lint, then all tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(INSTALLED) ## format and rules (ruff), types (mypy --strict)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED) ## rewrite the code as `make lint` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(INSTALLED) ## fuzz all decoders, FUZZ_SECONDS=1800; renews tests/fuzz/corpus and its README
	$(BIN)/python -m tests.fuzz.campaign --seconds $(FUZZ_SECONDS)

bench: $(INSTALLED) ## measure this machine; JSON goes to benchmarks/results/
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

dist: $(INSTALLED) ## build the wheels of the library and of the server into dist/
	$(BIN)/python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist . ./server

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What no package index provides: asked for by name before minutes are spent on installing.
tools:
	@test -n "$(PYTHON)" || { echo >&2 \
	  "make: no Python 3.10 to 3.13 was found; install one, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c '$(SUPPORTED)' || { echo >&2 \
	  "make: $(PYTHON) is not Python 3.10 to 3.13; name another: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo >&2 \
	  "make: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@"$(PYTHON)" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
	  || { echo >&2 "make: the headers of $(PYTHON) are missing, torch compiles against them;" \
	  "on Debian and Ubuntu: apt-get install python3-dev"; exit 1; }
	@command -v "$${CXX:-g++}" >/dev/null || { echo >&2 \
	  "make: no C++ compiler, torch.compile needs one on a CPU; on Debian and Ubuntu: apt-get install g++"; exit 1; }

$(INSTALLED): pyproject.toml server/pyproject.toml
	@$(MAKE) --no-print-directory tools
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
	@touch $@
