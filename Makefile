# `make demo` and `make test` do all their own set-up: a virtual environment in .venv, then the job.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/demo-ready
	$(BIN)/dafuse demo

test: .venv/test-ready lint
	$(BIN)/pytest -n 2 --dist loadfile

lint: .venv/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dafuse needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/demo-ready: .venv/ready pyproject.toml
	@echo "installing dafuse and torch into .venv (some minutes, several GB) ..."
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/test-ready: .venv/ready pyproject.toml
	@echo "installing dafuse, torch and the test tools into .venv (some minutes, several GB) ..."
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ .venv/demo-ready

clean:
	rm -rf .venv build dist
