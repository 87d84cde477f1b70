# The commands of the project. On a bare machine with Python 3.10 to 3.13 every one of them installs what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A torch that sees a GPU is kept: it fits the machine's CUDA, and flash-attn is built for it.
CUDA := $(shell $(PYTHON) -c 'import torch; print(int(torch.cuda.is_available()))' 2>/dev/null || echo 0)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt
JOBS ?= 3  # of 2 cores: tests wait for processes; with 4 each takes longer than it gains
unexport PYTHONDONTWRITEBYTECODE  # each of the processes that tests start would compile the package anew

.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(if $(filter 1,$(CUDA)),--system-site-packages) $(VENV)
	grep -v $(if $(filter 1,$(CUDA)),-e '^torch==' -e '^numpy==' -e '^triton==',-e '^$$') constraints.txt > $(VENV)/constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/.development: $(VENV)/.package
	$(PIP) -e '.[development,packages]'
	touch $@

$(VENV)/.browser: $(VENV)/.development
	$(PIP) -e '.[browser]'
	touch $@

demo: $(VENV)/.package ## measure every variant on this machine and write a report, in a minute
	@$(BIN)/accuracy experiment=demo

test: $(VENV)/.development ## lint, types and every promise, large corpora as a seeded sample (5 minutes of 2 cores)
	@+$(MAKE) --no-print-directory -j2 lint suite  # mypy's half minute beside the first tests

suite: $(VENV)/.development
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m 'not browser'

stress: lint ## lint, types and all tests on all faults, kills and bad inputs; writes the rates that README quotes
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m 'not browser' --stress
	mkdir -p reports/selfcheck
	$(BIN)/python -m tests.unit.fault > reports/selfcheck/rates.txt
	tail -n 2 reports/selfcheck/rates.txt

# With PYTHON=... on the command line that Python is taken as it is: no venv, nothing is installed.
GPU_PYTHON := $(if $(filter command line,$(origin PYTHON)),$(PYTHON),$(BIN)/python)
test-gpu: $(if $(filter command line,$(origin PYTHON)),,$(VENV)/.development) ## every public entry and the GPU tests on CUDA tensors: 8 minutes of one GPU
	$(GPU_PYTHON) -m tests.gpu

test-browser: $(VENV)/.browser ## the report in a real headless Chromium, which must be installed
	$(BIN)/python -m pytest -m browser

lint: $(VENV)/.development ## style, imports between folders, types, and the numbers of the documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/python -m experiments.blocks --check

format: $(VENV)/.development ## mend style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.development ## speed of the measuring itself, as ratios within one run
	$(BIN)/python -m bench

trace: $(VENV)/.package ## how many files, functions and calls one ring case runs through
	$(BIN)/python -m bench.trace

charts: ## Observable Plot as the reports carry it: accuracy/report/page/plot.min.js, which is committed (needs npm)
	npm ci --silent --prefix accuracy/report/page/vendor
	npm run --silent --prefix accuracy/report/page/vendor build

$(VENV)/.site: $(VENV)/.package
	$(PIP) -e '.[site]'
	touch $@

site: $(VENV)/.site ## findings, every published report, API and tutorial with one search: site/index.html
	$(BIN)/python -m docs . site

docs: $(VENV)/.package ## write the numbers of README, FINDINGS and the experiments from the published tables
	$(BIN)/python -m experiments.blocks

# On a GPU's machine with PYTHON=python3; DEVICE=gpu PART=3 is one part of at most 8 minutes.
DEVICE ?= cpu
evidence: $(if $(filter command line,$(origin PYTHON)),,$(VENV)/.development) ## measure again what stands in generated blocks, publish what is finished: DEVICE=cpu|gpu|gpus
	$(GPU_PYTHON) -m experiments.evidence $(DEVICE) $(PART)
	-$(GPU_PYTHON) -m experiments.evidence publish
	$(GPU_PYTHON) -m experiments.blocks
	$(GPU_PYTHON) -m experiments.blocks --changed

clean: ## remove what the commands above made
	rm -rf $(VENV) outputs multirun site .pytest_cache .mypy_cache .ruff_cache

.PHONY: help demo test suite stress test-gpu test-browser lint format bench trace charts docs site evidence clean
