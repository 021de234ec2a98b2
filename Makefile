# Every target sets up what it needs; a second call installs nothing and touches no network.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# For two cores: part of the time they wait for services.
WORKERS ?= 4
# Where it is set, each of the hundreds of processes that the tests start compiles torch and the rest from source.
export PYTHONDONTWRITEBYTECODE :=
SECONDS_EACH ?= 600
SEED ?= 1
FAULTS ?= 40
MESSAGES ?= 5000
DEMO ?= shadowspec-demo

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A stamp per set of extras: newer than what says which packages are wanted, so nothing is to be installed.
$(VENV)/.installed-%: pyproject.toml constraints.txt .ci/setup .ci/overrides-test.txt
	@.ci/setup $(VENV) $*
	@touch $@

.PHONY: demo
demo: $(VENV)/.installed-engine ## Run the whole pipeline on the bundled models and traffic (ARGS="--requests 400")
	@$(BIN)/shadowspec demo $(ARGS)

.PHONY: dashboard
dashboard: $(VENV)/.installed-dashboard,engine ## Open the dashboard on the demo's results, which are made first if there are none (ARGS="--port 8600")
	@[ -e $(DEMO)/report.html ] || $(BIN)/shadowspec demo --out $(DEMO)
	@$(BIN)/shadowspec db upgrade --config $(DEMO)/shadowspec.toml  # results of an earlier version
	@$(BIN)/shadowspec dashboard --config $(DEMO)/shadowspec.toml $(ARGS)

# Threads of several processes would stand in each other's way on two cores.
PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# One process collects all tests once, so that Python compiles what they load once and not in every worker at the same
# time. It does so while services are being downloaded.
$(VENV)/.compiled-test: $(VENV)/.installed-test
	@echo "compiling what the tests load" >&2
	@$(BIN)/python -m pytest --collect-only -q -p no:cacheprovider > /dev/null || true  # pytest itself names what is wrong
	@touch $@

.PHONY: test-tools
test-tools: $(VENV)/.installed-test
	@.ci/postgres
	@.ci/kafka
	@.ci/chromium
	@.ci/strace
	@.ci/promtool

.PHONY: test-services
test-services:
	@$(MAKE) --no-print-directory --jobs=2 test-tools $(VENV)/.compiled-test
	@$(BIN)/python -m tests.kafka_server

.PHONY: test
test: test-services ## Run the tests, with a real Postgres and Kafka, in about 10 minutes on two cores (WORKERS=4 ARGS="-k gate")
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL) --durations=15 $(ARGS)

.PHONY: test-all
test-all: test-services ## Run every case of every test, browser tests last, and report coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m slipcover -m pytest $(PARALLEL) --durations=30 --hypothesis-profile=all -m "not browser" $(ARGS)
	$(MAKE) test-browser

.PHONY: test-browser
test-browser: $(VENV)/.installed-test ## Look at every page of the dashboard in a real browser, in every state (ARGS="-k board")
	@.ci/postgres
	@.ci/chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=10 -m "browser or not browser" tests/browser $(ARGS)

.PHONY: pictures
pictures: $(VENV)/.installed-test ## Take README's pictures again (ARGS="--report shadowspec-demo/report.html", "--config large.toml")
	@.ci/chromium
	$(BIN)/python -m tests.browser.pictures $(ARGS)

.PHONY: test-faults
test-faults: $(VENV)/.installed-test ## Break everything around two workers, then count (SEED=1 FAULTS=40 MESSAGES=5000)
	@.ci/postgres
	@.ci/kafka
	$(BIN)/python -m tests.faults.storm --seed $(SEED) --faults $(FAULTS) --messages $(MESSAGES) $(ARGS)

.PHONY: test-compose
test-compose: $(VENV)/.installed-test ## Build and start docker-compose.yml, then kill and restart each container (ARGS="--messages 400")
	@.ci/chromium
	@.ci/docker
	$(BIN)/python -m tests.compose.trial $(ARGS)

.PHONY: test-kubernetes
test-kubernetes: $(VENV)/.installed-test ## Install deploy/kubernetes on a cluster of one node, update, kill pods and drain (as root; ARGS="--messages 400")
	@.ci/docker
	@.ci/kubernetes
	$(BIN)/python -m tests.kubernetes.trial $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.installed-test ## Fuzz everything that reads bytes with atheris, adapters with hypothesis too, for SECONDS_EACH=600 each
	for target in openai litellm cloudevents kong otlp body row batch langfuse sglang databricks sagemaker bedrock map \
			page stream parquet model; do \
	    $(BIN)/python tests/fuzz/fuzz.py $$target -max_total_time=$(SECONDS_EACH) build/corpus/$$target || exit; \
	done
	for format in openai litellm cloudevents kong; do \
	    timeout $(SECONDS_EACH) $(BIN)/python -m pytest -q --hypothesis-profile=long tests/tap/formats/test_properties.py \
	        -k "changed_samples and $$format" || [ $$? = 124 ]; \
	done

.PHONY: services
services: $(VENV)/.installed-base ## Start a local Kafka and Postgres in the background, and say how to use them
	@.ci/postgres
	@.ci/kafka
	@$(BIN)/python .ci/services.py up

.PHONY: services-down
services-down: $(VENV)/.installed-base ## Stop them; what they hold stays in .services/
	@$(BIN)/python .ci/services.py down

.PHONY: lint
lint: $(VENV)/.installed-test,lint ## Check style, types, the direction of imports, and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory prose

.PHONY: prose
prose: $(VENV)/.installed-test $(VENV)/bin/vale ## Check the words of docs and messages, after showing that each rule fires (ARGS="docs/live.md shadowspec/cli/gate.py")
	$(BIN)/python .ci/prose.py $(BIN)/vale $(ARGS)

$(VENV)/bin/vale: .ci/vale $(VENV)/.installed-test
	@.ci/vale $(VENV)
	@touch $@

.PHONY: format
format: $(VENV)/.installed-test,lint ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What a benchmark needs beside the package: extras, packages, and services of its own.
NAME ?= decode
EXTRAS_kernel_costs := kernels
EXTRAS_gpu_decode := kernels
EXTRAS_gpu_trial := kernels,test
EXTRAS_backfill := backfill
EXTRAS_dashboard := test
EXTRAS_scale := test
PACKAGES_capture := uvicorn
PACKAGES_classifier := uvicorn
TOOLS_backfill := postgres
TOOLS_store_writer := postgres
TOOLS_capture := kafka
TOOLS_tap := kafka
TOOLS_dashboard := postgres chromium
TOOLS_scale := postgres chromium

.PHONY: bench
bench: $(VENV)/.installed-$(or $(EXTRAS_$(NAME)),engine),simulate ## Run a benchmark, beside nothing else: the engine against transformers, or another one (NAME=decode ARGS="--rounds 3"; `make benches` lists them)
	@for tool in $(TOOLS_$(NAME)); do .ci/$$tool; done
	@for package in $(PACKAGES_$(NAME)); do $(BIN)/python -m pip install --quiet -c constraints.txt $$package; done
	$(BIN)/python -m kernels.benchmarks.$(NAME) $(ARGS)

.PHONY: benches
benches: ## List the benchmarks
	@for script in $$(grep -l '^if __name__' kernels/benchmarks/*.py); do \
	    printf "  %-18s %s\n" $$(basename $$script .py) "$$(sed -n '1s/^"""//;1s/"""$$//;1p' $$script)"; \
	done

.PHONY: bench-llm
bench-llm: ## Measure a public language model on vLLM and llama.cpp, hold the verdicts against a second run, and write docs/research/real-model.md (ARGS="--vllm-python PATH")
	@$(MAKE) --no-print-directory bench NAME=bench_llm

.PHONY: gpu-trial
gpu-trial: ## Measure everything that needs a GPU, within twelve minutes (ARGS="--small" tries it without one)
	@$(MAKE) --no-print-directory bench NAME=gpu_trial

.PHONY: bench-scale
bench-scale: ## Measure gate, board, writer and retention at 100 million runs and 2,000 slices (hours, 150 GB; ARGS="--runs 100000" tries it)
	@$(MAKE) --no-print-directory bench NAME=scale

.PHONY: validate-vllm
validate-vllm: ## Hold acceptance and predicted speedup against vLLM's servers (ARGS="--vllm-python PATH"), and write docs/research/validation.md
	@$(MAKE) --no-print-directory bench NAME=validate_vllm

.PHONY: validate-llamacpp
validate-llamacpp: ## Hold acceptance against llama.cpp's servers (ARGS="--server PATH/llama-server --source PATH"), and write docs/research/validation-llamacpp.md
	@$(MAKE) --no-print-directory bench NAME=validate_llamacpp

.PHONY: simulation
simulation: $(VENV)/.installed-simulate ## Simulate the gate's error rates in full, taken up where it stopped, and write docs/research/simulation.md
	$(BIN)/shadowspec simulate --out kernels/benchmarks/results/simulation.json $(ARGS) || [ $$? = 4 ]
	$(BIN)/python -m kernels.benchmarks.simulation_page kernels/benchmarks/results/simulation.json docs/research

.PHONY: site
site: $(VENV)/.installed-docs ## Build the documentation as a site in build/site, every link checked (python3 -m http.server -d build/site)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: docs
docs: $(VENV)/.installed-base ## Write the parts of the documentation that are made from code, and the picture of the packages
	$(BIN)/python docs/draw_architecture.py
	$(BIN)/python docs/command_reference.py > docs/cli.md
	$(BIN)/python -m docs.generate

.PHONY: licences
licences: $(VENV)/.installed-test,lint ## Write the table of dependencies and licences again, after a change of constraints.txt
	@.ci/uv $(VENV) pip install --quiet --no-deps --python $(BIN)/python --requirement constraints.txt  # further ones, so that every row is new
	$(BIN)/python -m docs.generate licences.md

.PHONY: wheel
wheel: $(VENV)/.installed-base ## Build dist/shadowspec-*.whl
	@rm -rf build  # setuptools would pack what an earlier build left there
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

.PHONY: release
release: $(VENV)/.installed-release ## Make a release of this commit in dist/, and publish nothing (ARGS="--require-audit --tag v0.1.0")
	@$(BIN)/python .ci/release.py $(ARGS)

.PHONY: audit
audit: $(VENV)/.installed-release ## Ask a vulnerability service about every pinned package (ARGS="--require")
	@$(BIN)/python .ci/audit.py $(ARGS)

IMAGE ?= shadowspec:0.1.0
.PHONY: sbom-image
sbom-image: $(VENV)/.installed-release ## List the Python and Debian packages of an image in dist/image.cdx.json (IMAGE=shadowspec:0.1.0)
	@$(BIN)/python .ci/sbom.py image $(IMAGE) dist/image.cdx.json

.PHONY: clean
clean: ## Remove what building and testing leave behind, and the virtual environment
	rm -rf $(VENV) build dist *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
