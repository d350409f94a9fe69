# Two commands to know: `make demo` and `make test`. Each works alone on a fresh clone and needs only Python and make.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test lint types setup lab bench setup-vllm test-vllm clean

VENV := .venv
BIN  := $(VENV)/bin
VLLM := .venv-vllm
PIP  := $(BIN)/python -m pip install --disable-pip-version-check
comma := ,
# A GPU machine gets the GPU bindings as well; they install nowhere else to any use.
SETUP_EXTRAS := dev,bench,lab$(if $(shell command -v nvidia-smi),$(comma)cuda)

# Arguments for the command behind a target: make demo ARGS="--seeds 3", make test ARGS="tests/test_cli.py -x".
ARGS ?=

help:  ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.core  ## Install into .venv, train the tiny model, write out/report.html (ARGS="--seeds 3")
	@$(BIN)/rollplex demo $(ARGS)

# A process a core, eight at most, with a thread each: the models are too small for more than one.
test: $(VENV)/.dev lint types  ## Install into .venv, then lint, type-check and run every test
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadscope $(ARGS)

lint: $(VENV)/.dev
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(VENV)/.dev
	@$(BIN)/pyright

setup: $(VENV)/.setup  ## Install all that tests, benches and notebooks need, the bench peer included
	@echo "ready: $(BIN)/rollplex doctor says what works on this machine"

lab: $(VENV)/.setup  ## Open JupyterLab on the quickstart
	@$(BIN)/jupyter lab notebooks/00_quickstart.ipynb

bench: $(VENV)/.setup  ## Measure against the peer, the schedules, generate, and our own overhead (writes out/*.json)
	@mkdir -p out
	@for name in peers schedules decode overhead; do $(BIN)/rollplex bench $$name --json out/$$name.json; done

setup-vllm: $(VLLM)/.ready  ## Install vLLM for a CPU into .venv-vllm, an environment of its own
	@echo "ready: $(VLLM)/bin/rollplex bench decode --engines torch,vllm"

test-vllm: $(VLLM)/.ready  ## Run the tests that need vLLM
	@$(VLLM)/bin/python -m pytest -m vllm tests/engines tests/bench tests/sharing $(ARGS)

clean:  ## Remove the environments, outputs and caches
	@rm -rf $(VENV) $(VLLM) out build dist .pytest_cache .ruff_cache .hypothesis wandb
	@find . -path ./.git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# --- installation: a stamp file for each set of extras, remade when pyproject.toml changes ------------------------

# The first interpreter that fits, python3 before the numbered ones; PYTHON=... names another.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(if $(shell $(p) -c '$(FITS)' 2>/dev/null && echo y),$(p))))
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))

$(VENV)/.made:
	@$(or $(PYTHON),false) -c '$(FITS)' 2>/dev/null || { \
	  echo "making $(VENV): needs Python 3.11 to 3.14, found $$($(or $(PYTHON),python3) --version 2>&1 || true)." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: pyproject.toml $(VENV)/.made
	@echo "installing rollplex and torch into $(VENV) (two to three minutes the first time)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.made
	@echo "installing rollplex, torch and the test tools into $(VENV) (two to three minutes the first time)"
	@$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.core

$(VENV)/.setup: pyproject.toml $(VENV)/.made
	@echo "installing rollplex with $(SETUP_EXTRAS) into $(VENV) (about three minutes the first time)"
	@$(PIP) -e ".[$(SETUP_EXTRAS)]"
	@touch $@ $(VENV)/.dev $(VENV)/.core

# vLLM's wheel first and alone, then what its metadata asks for, but for torch's family: scripts/vllm_requirements.py says
# why, and pip's warning about it is no news.
$(VLLM)/.ready: pyproject.toml scripts/vllm_requirements.py $(VENV)/.made
	@echo "installing vLLM and torch into $(VLLM) (6 GB; two to four minutes the first time)"
	@test -x $(VLLM)/bin/python || $(BIN)/python -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip install -q --disable-pip-version-check packaging
	@$(VLLM)/bin/python scripts/vllm_requirements.py wheel > $(VLLM)/wheel.txt
	@$(VLLM)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r $(VLLM)/wheel.txt
	@$(VLLM)/bin/python scripts/vllm_requirements.py rest > $(VLLM)/rest.txt
	@$(VLLM)/bin/python -m pip install -q --disable-pip-version-check --no-warn-conflicts -r $(VLLM)/rest.txt -e .
	@touch $@
