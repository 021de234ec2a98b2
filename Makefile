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
demo: $(VENV)/.installed-base ## Run the whole pipeline on the bundled models and traffic (ARGS="--requests 400")
	@$(BIN)/shadowspec demo $(ARGS)

.PHONY: dashboard
dashboard: $(VENV)/.installed-dashboard ## Open the dashboard on the demo's results, which are made first if there are none (ARGS="--port 8600")
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
fuzz: $(VENV)/.installed-test ## Fuzz every adapter with atheris, then with hypothesis, for SECONDS_EACH=600 each
	for format in openai litellm cloudevents kong; do \
	    mkdir -p build/corpus/$$format; \
	    PYTHONPATH=. $(BIN)/python tests/fuzz/fuzz_$$format.py -max_total_time=$(SECONDS_EACH) build/corpus/$$format; \
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

.PHONY: bench
bench: $(VENV)/.installed-base ## Measure the engine against transformers (nothing else may run meanwhile)
	$(BIN)/python kernels/benchmarks/decode.py $(ARGS)

.PHONY: bench-bookkeeping
bench-bookkeeping: $(VENV)/.installed-base ## Measure the share of a step that is no forward pass
	$(BIN)/python kernels/benchmarks/bookkeeping.py $(ARGS)

.PHONY: bench-contexts
bench-contexts: $(VENV)/.installed-base ## Measure acceptance, speedup and memory by context (nothing else may run meanwhile)
	$(BIN)/python kernels/benchmarks/contexts.py $(ARGS)

.PHONY: bench-costs
bench-costs: $(VENV)/.installed-base ## Hold the cost model against the loop (nothing else may run meanwhile)
	$(BIN)/python kernels/benchmarks/cost_model.py $(ARGS)

.PHONY: bench-kernels
bench-kernels: $(VENV)/.installed-kernels ## Measure the Triton kernels against their torch reference, on a GPU (ARGS=--small tries it without)
	$(BIN)/python kernels/benchmarks/kernel_costs.py $(ARGS)

.PHONY: bench-gpu
bench-gpu: $(VENV)/.installed-kernels ## Measure the engine on a GPU: against transformers, a step, its waits, and the kernels (ARGS=--small tries it without)
	$(BIN)/python kernels/benchmarks/gpu_decode.py $(ARGS)
	$(BIN)/python kernels/benchmarks/kernel_costs.py $(ARGS)

.PHONY: soak
soak: $(VENV)/.installed-base ## Measure the same blocks for 45 minutes: flat memory, steady steps, equal results (ARGS="--minutes 5")
	$(BIN)/python kernels/benchmarks/soak.py $(ARGS)

.PHONY: bench-replay
bench-replay: $(VENV)/.installed-base ## Hold replay against the loop on the bundled pair (nothing else may run meanwhile)
	$(BIN)/python kernels/benchmarks/replay.py $(ARGS)

.PHONY: bench-server-costs
bench-server-costs: $(VENV)/.installed-base ## Hold what profile-server predicts against vLLM's servers (ARGS="--vllm-python PATH"; nothing else may run meanwhile)
	$(BIN)/python kernels/benchmarks/server_costs.py $(ARGS)

.PHONY: bench-classifier
bench-classifier: $(VENV)/.installed-base ## Time `classify --listen` for prompts of 4 kB, and compare it with the tap (nothing else may run meanwhile)
	$(BIN)/python -m pip install --quiet -c constraints.txt uvicorn
	$(BIN)/python kernels/benchmarks/classifier.py $(ARGS)

.PHONY: bench-control
bench-control: $(VENV)/.installed-base ## Simulate the control of partial rollouts: false moves back, and delays
	PYTHONPATH=. $(BIN)/python kernels/benchmarks/control.py $(ARGS)

.PHONY: bench-server-verdicts
bench-server-verdicts: $(VENV)/.installed-base ## Decide endpoints through two of vLLM's servers under the default policy, and structured output (ARGS="--vllm-python PATH"; nothing else may run meanwhile)
	$(BIN)/python kernels/benchmarks/server_verdicts.py $(ARGS)

.PHONY: bench-server-audits
bench-server-audits: $(VENV)/.installed-base ## Audit the counts of vLLM's servers by replay (ARGS="--vllm-python PATH")
	$(BIN)/python kernels/benchmarks/server_audits.py $(ARGS)

.PHONY: bench-conversations
bench-conversations: $(VENV)/.installed-base ## Measure four-turn conversations through vLLM's servers with their prefix caches (ARGS="--vllm-python PATH")
	$(BIN)/python kernels/benchmarks/conversations.py $(ARGS)

.PHONY: bench-distill
bench-distill: $(VENV)/.installed-base ## Distil the bundled draft on a shifted slice, and hold its gain against the loop
	$(BIN)/python kernels/benchmarks/distillation.py $(ARGS)

.PHONY: bench-backfill
bench-backfill: $(VENV)/.installed-backfill ## Hold backfill against replay on 20,000 responses, with actors killed, on a Postgres of its own
	@.ci/postgres
	PYTHONPATH=. $(BIN)/python kernels/benchmarks/backfill.py $(ARGS)

.PHONY: bench-lookup
bench-lookup: $(VENV)/.installed-base ## Hold suffix drafts against prompt lookup, by replay of the bundled traffic
	$(BIN)/python kernels/benchmarks/lookup.py $(ARGS)

.PHONY: bench-vllm
bench-vllm: $(VENV)/.installed-base ## Hold the engine against vLLM in an environment of its own (ARGS="--vllm-python PATH", nothing else may run)
	$(BIN)/python kernels/benchmarks/vllm.py $(ARGS)

.PHONY: validate-vllm
validate-vllm: $(VENV)/.installed-base ## Hold acceptance and predicted speedup against vLLM's servers (ARGS="--vllm-python PATH"), and write docs/research/validation.md
	$(BIN)/python kernels/benchmarks/validate_vllm.py $(ARGS)

.PHONY: validate-llamacpp
validate-llamacpp: $(VENV)/.installed-base ## Hold acceptance against llama.cpp's servers (ARGS="--server PATH/llama-server --source PATH"), and write docs/research/validation-llamacpp.md
	$(BIN)/python kernels/benchmarks/validate_llamacpp.py $(ARGS)

.PHONY: bench-llm
bench-llm: $(VENV)/.installed-base ## Measure a public language model in process, on vLLM and on llama.cpp, and write docs/research/real-model.md (ARGS="--vllm-python PATH")
	$(BIN)/python kernels/benchmarks/bench_llm.py $(ARGS)

.PHONY: bench-llm-cpu
bench-llm-cpu: $(VENV)/.installed-base ## Hold steps of real model sizes on a CPU against its memory, torch, llama.cpp and vLLM (ARGS="--llama-server PATH/llama-server --llama-source PATH --vllm-python PATH"; nothing else may run)
	$(BIN)/python kernels/benchmarks/llm_cpu.py $(ARGS)

.PHONY: bench-tap
bench-tap: $(VENV)/.installed-base ## Measure the tap against a bare poll loop, on a Kafka of its own
	@.ci/kafka
	PYTHONPATH=. $(BIN)/python kernels/benchmarks/tap.py $(ARGS)

.PHONY: bench-store
bench-store: $(VENV)/.installed-base ## Measure the writer, on a Postgres of its own
	@.ci/postgres
	PYTHONPATH=. $(BIN)/python kernels/benchmarks/store_writer.py $(ARGS)

.PHONY: bench-start-up
bench-start-up: $(VENV)/.installed-base ## Measure how soon each command says something, on a demo's results (nothing else may run meanwhile)
	@[ -e $(DEMO)/report.html ] || $(BIN)/shadowspec demo --out $(DEMO)
	$(BIN)/python kernels/benchmarks/start_up.py --demo $(DEMO) $(ARGS)

.PHONY: bench-dashboard
bench-dashboard: $(VENV)/.installed-test ## Measure the dashboard in a browser, on a large synthetic store in a Postgres of its own
	@.ci/postgres
	@.ci/chromium
	PYTHONPATH=. $(BIN)/python kernels/benchmarks/dashboard.py $(ARGS)

.PHONY: bench-scale
bench-scale: $(VENV)/.installed-test ## Measure gate, board, writer and retention at 100 million runs and 2,000 slices (hours, 150 GB; ARGS="--runs 100000" tries it)
	@.ci/postgres
	@.ci/chromium
	PYTHONPATH=. $(BIN)/python kernels/benchmarks/scale.py $(ARGS)

.PHONY: simulation
simulation: $(VENV)/.installed-base ## Simulate the gate's error rates in full, taken up where it stopped, and write docs/research/simulation.md
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
