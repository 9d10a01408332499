# Every target that needs Python sets up .venv, and updates it when a requirements file has changed.
#   make train TRAIN_ARGS="--env-id SkittlesEasy"     make test TEST_ARGS="tests/test_draw_utils.py -x"
#   make train TRAIN_ARGS="--env-id CartPole-v1 --no-partial-obs --no-capture-video"      (an id without twins or pixels)

PYTHON ?= python3
TRAIN_ARGS ?=
TEST_ARGS ?=
SOAK_ARGS ?=
TEST_WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
REQUIREMENTS := requirements
BASE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs
WORLDS := .venv-worlds

# What one test process compiles is reused by the others, and by the next run of the tests.
JAX_CACHE := JAX_COMPILATION_CACHE_DIR="$(CURDIR)/.cache/jax" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
PYTEST := $(JAX_CACHE) $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup train saliency docs docs-serve test test-quick test-worlds lint format throughput soak gallery wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(DEV) ## create .venv with everything that training and the tests need

train: $(BASE) ## train the same agent with and without memory, and compare (TRAIN_ARGS are flags of ppo_rnn.py)
	@$(BIN)/python benchmark/memory_demo.py $(TRAIN_ARGS)

saliency: $(BASE) ## show that an agent's decision depends on a number it no longer sees (writes to analysis/)
	@$(BIN)/python saliency.py --seed 2 --steps 6 --kind gradient perturbation --lag 0 1 2

docs: $(DOCS) ## build the documentation into site/; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(DOCS) ## serve the documentation at 127.0.0.1:8000, and reload it when a page changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --strict

test: $(DEV) ## run all tests (TEST_ARGS are pytest's)
	@$(PYTEST) $(TEST_ARGS)

test-quick: $(DEV) ## run the tests that are not marked slow
	@$(PYTEST) -m "not slow" $(TEST_ARGS)

test-worlds: $(WORLDS)/.installed ## install every other library that has environments (2 GB), and run the tests of all of them
	@$(JAX_CACHE) $(WORLDS)/bin/python -m pytest tests/test_worlds.py --thorough $(TEST_ARGS)

lint: $(DEV) ## check the style with ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(DEV) ## fix the style with ruff
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

throughput: $(BASE) ## measure frames per second of every environment (half an hour on an otherwise idle machine)
	@PYTHON=$(BIN)/python benchmark/throughput.sh

soak: $(DEV) ## inject faults into real trainings and see what they survive (half an hour; SOAK_ARGS: flags of soak.py)
	@$(BIN)/python benchmark/soak.py $(SOAK_ARGS)

gallery: $(DEV) ## draw the pictures and the video of the games for README and docs
	@$(BIN)/python benchmark/gallery.py --out docs/figures

wheel: $(DEV) ## build the package into dist/
	@$(BIN)/python -m build --wheel --outdir dist .

clean: ## remove .venv, .venv-worlds, caches and build folders (runs/ stays)
	rm -rf $(VENV) $(WORLDS) .cache .pytest_cache .ruff_cache build dist site *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An existing .venv is kept, even one made by hand.
$(VENV)/bin/python:
	@python=$$(for name in "$(PYTHON)" python3.12 python3.11 python3.13; do \
	    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; \
	done); \
	if [ -z "$$python" ]; then \
	    echo "found no Python 3.11 or newer (tried $(PYTHON)): install it and run make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	fi; \
	echo "Setting up $(VENV) with $$("$$python" --version) (about 1 GB, once)"; \
	"$$python" -m venv --clear $(VENV) || { rm -rf $(VENV); \
	    echo "$$python -m venv failed: on Debian and Ubuntu, install the package python3-venv" >&2; exit 1; }

$(BASE): $(REQUIREMENTS)/requirements.txt pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "$(VENV) contains a Python older than 3.11: remove it (make clean) and try again" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@echo "Installing $(REQUIREMENTS)/requirements.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(REQUIREMENTS)/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(DOCS): $(BASE) $(REQUIREMENTS)/requirements-docs.txt
	@echo "Installing $(REQUIREMENTS)/requirements-docs.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(REQUIREMENTS)/requirements-docs.txt
	@touch $@

$(DEV): $(BASE) $(REQUIREMENTS)/requirements-dev.txt $(REQUIREMENTS)/requirements-docs.txt
	@echo "Installing $(REQUIREMENTS)/requirements-dev.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(REQUIREMENTS)/requirements-dev.txt
	@touch $@

# Apart from .venv, because some of these libraries replace what the tests use.
$(WORLDS)/.installed: $(REQUIREMENTS)/requirements-worlds.txt $(REQUIREMENTS)/requirements-dev.txt pyproject.toml | $(BASE)
	@echo "Installing $(REQUIREMENTS)/requirements-worlds.txt in $(WORLDS)"
	@$(BIN)/python -m venv --clear $(WORLDS)
	@$(WORLDS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(REQUIREMENTS)/requirements-worlds.txt
	@$(WORLDS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
