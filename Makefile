# Every target makes its own environment: a fresh machine needs Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
DOCS := $(VENV)/.docs
VERSION := import sys; sys.exit(sys.version_info < (3, 11) and "saddlepoint needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test slow check bench docs clean
help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# The developer tools contain what the demonstration needs.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c '$(VERSION)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@ $(DEMO)

# Runtime packages only. Modules are compiled when they are first imported: most never are.
$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -c '$(VERSION)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -e .
	touch $@

$(DOCS): $(READY)
	$(PIP) -e '.[docs]'
	touch $@

demo: $(DEMO)  ## evaluate four defenses and a robust net in three ways and write a report
	$(BIN)/saddlepoint demo

test: $(READY)  ## run the tests, except those marked as slow
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

slow: $(READY)  ## run the tests marked as slow: paper tables, clusters, processes that are killed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

check: $(READY)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## compare speed and strength with peers; needs `pip install -r tests/references/requirements.txt --no-deps`
	$(BIN)/python -m benchmarks

docs: $(DOCS)  ## run every example of the pages and build the site in site/docs, warnings as errors
	$(BIN)/python -m pytest tests/docs
	$(BIN)/python -m sphinx -b html -W --keep-going docs site/docs

clean:
	rm -rf $(VENV) runs site dist
