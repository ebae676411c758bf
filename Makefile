# Each target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
RECIPE ?= recipes/tiny/recipe.yaml

.DEFAULT_GOAL := help
.PHONY: help demo test test-sweep test-chaos test-gpu check format bench clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -m venv .venv

# Of the pytriton wheel only its tritonserver is used, so what its Python API needs is not installed.
.venv/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps nvidia-pytriton
	@touch $@

.venv/.dev: .venv/.demo
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: .venv/.demo ## Build the tiny pair, serve it under Triton, stream one completion, stop
	PATH="$(CURDIR)/$(BIN):$$PATH" recipes/tiny/demo.sh

test: .venv/.dev ## The test suite; no GPU, under 10 minutes on 2 cores
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-sweep: .venv/.dev ## Every draft length over 200 prompts, through Triton in both layouts
	$(BIN)/python -m pytest -m sweep

test-chaos: .venv/.dev ## 20,000 requests while everything breaks; about 15 minutes on 2 cores
	$(BIN)/python -m pytest -m chaos

test-gpu: .venv/.dev ## What needs an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu

check: .venv/.dev ## ruff, formatting, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev ## Let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev ## Measure the pair and the coordinator; JSON on stdout
	$(BIN)/python tests/perf/bench.py

clean: ## Remove the environment and every build
	rm -rf .venv build
