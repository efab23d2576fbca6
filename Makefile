# Thin names for the commands in the README. Each target makes the environment it needs.

# Which Python makes the environment: yours (`make test PYTHON=/path/to/python3.12`), else the first
# of these that is at least 3.11.
PYTHON ?=
CANDIDATES := python3.11 python3 python3.12 python3.13
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install --disable-pip-version-check --constraint constraints.txt
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
# Empty files that say what is installed; newer requirements make them out of date.
MADE := $(VENV)/.made
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
LAB := $(VENV)/.lab
# A second environment, with the versions that Colab ships; it is $(VENV) of its own make.
COLAB := .venv-colab
FLOOR := $(VENV)/.floor
# What `make bench` runs; another one is tests/bench/verifier_throughput.py.
BENCH ?= tests/bench/vs_trl.py

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help cascade test test-slow test-colab lab notebooks bench lint venv clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
	@echo 'ARGS="..." is passed on: make cascade ARGS="--seed 1", make test ARGS="-k matrix -x"'

cascade: $(CORE) ## all five stages on the embedded model; prints the matrix and the report's path
	$(RUN) -m cascade_kit run $(ARGS)

test: $(DEV) ## every test that is not marked slow
	$(RUN) -m pytest $(ARGS)

test-slow: $(DEV) ## the tests that are marked slow
	$(RUN) -m pytest -m slow --timeout 3600 $(ARGS)

test-colab: ## notebooks and panels with Colab's versions of ipywidgets, IPython and transformers
	@$(MAKE) --no-print-directory VENV=$(COLAB) $(COLAB)/.floor
	$(COLAB)/bin/python -m pytest -m colab tests/test_colab.py $(ARGS)
	$(COLAB)/bin/python -m pytest tests/test_panels.py $(ARGS)

lab: $(LAB) ## JupyterLab in notebooks/
	$(RUN) -m jupyterlab --notebook-dir $(or $(wildcard notebooks),.) $(ARGS)

notebooks: $(DEV) ## badge and setup cell into every notebook, outputs out of them
	$(RUN) notebooks/first_cell.py $(ARGS)

bench: $(DEV) ## speed and memory against TRL; another script: make bench BENCH=tests/bench/NAME.py
	$(RUN) $(BENCH) $(ARGS)

lint: $(DEV) ## ruff on modules, tests and notebooks
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

venv: $(MADE) ## only the empty environment, to choose a build of torch before the rest is installed

clean: ## remove the environment and all caches; runs/ stays
	rm -rf $(VENV) $(COLAB) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that someone made by hand, perhaps with another build of torch, is kept.
$(MADE):
	@if $(RUN) -c 'import pip; $(NEW_ENOUGH)' 2>/dev/null; then touch $@; exit 0; fi; \
	python='$(PYTHON)'; \
	if [ -z "$$python" ]; then \
	  for name in $(CANDIDATES); do \
	    if "$$name" -c '$(NEW_ENOUGH)' 2>/dev/null; then python=$$name; break; fi; \
	  done; \
	fi; \
	if ! "$${python:-none}" -c '$(NEW_ENOUGH)' 2>/dev/null; then \
	  echo "cascade-kit needs Python 3.11 or newer$${python:+, and $$python is not}:" \
	    "apt-get install python3.11 python3.11-venv, or name one: make PYTHON=/path/to/python3.11" >&2; \
	  exit 2; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "$$python cannot make environments yet: apt-get install python$$version-venv" >&2; \
	  exit 2; \
	fi; \
	echo "making $(VENV) with $$python"; \
	"$$python" -m venv --clear $(VENV) && touch $@

$(CORE): $(MADE) pyproject.toml constraints.txt
	$(INSTALL) --editable '.[gguf]'
	@touch $@

$(DEV): $(MADE) pyproject.toml constraints.txt
	$(INSTALL) --editable '.[dev]'
	@touch $(CORE) $@

$(LAB): $(MADE) pyproject.toml constraints.txt
	$(INSTALL) --editable '.[gguf,lab]'
	@touch $(CORE) $@

# Versions of constraints-colab.txt go before those of constraints.txt.
$(FLOOR): $(MADE) pyproject.toml constraints.txt constraints-colab.txt
	awk -F== '!/^#/ && !seen[$$1]++' constraints-colab.txt constraints.txt > $(VENV)/constraints.txt
	$(RUN) -m pip install --disable-pip-version-check --constraint $(VENV)/constraints.txt \
	  --editable . ipython ipykernel nbclient nbformat
	@touch $@
