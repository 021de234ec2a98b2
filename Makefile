# Every target sets up what it needs; a second call installs nothing and touches no network.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A stamp per set of extras: newer than what says which packages are wanted, so nothing is to be installed.
$(VENV)/.installed-%: pyproject.toml constraints.txt .ci/setup
	@.ci/setup $(VENV) $*
	@touch $@

.PHONY: demo
demo: $(VENV)/.installed-base ## Run the whole pipeline on the bundled models and traffic (ARGS="--requests 400")
	@$(BIN)/shadowspec demo $(ARGS)

.PHONY: test
test: $(VENV)/.installed-test ## Run the tests, with a real Postgres, and report coverage (ARGS="-m 'not slow'")
	@.ci/postgres
	$(BIN)/python -m pytest --cov --cov-report=term --cov-report=xml $(ARGS)

.PHONY: lint
lint: $(VENV)/.installed-test,lint ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(VENV)/.installed-test,lint ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(VENV)/.installed-base ## Measure the engine against transformers (nothing else may run meanwhile)
	$(BIN)/python kernels/benchmarks/decode.py $(ARGS)

.PHONY: wheel
wheel: $(VENV)/.installed-base ## Build dist/shadowspec-*.whl
	@rm -rf build  # setuptools would pack what an earlier build left there
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

.PHONY: clean
clean: ## Remove what building and testing leave behind, and the virtual environment
	rm -rf $(VENV) build dist *.egg-info .coverage coverage.xml htmlcov
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
