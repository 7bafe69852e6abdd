# Every target makes its own environment: a fresh machine needs Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test check bench docs clean
help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "saddlepoint needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)  ## audit two embedded nets on the embedded digits and write an HTML report
	$(BIN)/saddlepoint demo

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest -n 2

check: $(READY)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## compare speed and strength with peers; needs `pip install -r tests/references/requirements.txt --no-deps`
	$(BIN)/python -m benchmarks

docs: $(READY)  ## run every example in README and docs
	$(BIN)/python -m pytest tests/docs

clean:
	rm -rf $(VENV) runs site dist
