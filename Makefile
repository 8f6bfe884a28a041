# Each target does all its own set-up: .venv-light has the light core, without torch; .venv all of it.
PYTHON ?= python3
BIN := .venv/bin
LIGHT := .venv-light/bin

.PHONY: demo demo-research test test-light test-oldest lint faults wheel clean

demo: .venv-light/demo-ready
	$(LIGHT)/dafuse demo

demo-research: .venv/research-ready
	$(BIN)/dafuse demo-research

test: .venv/test-ready .venv-light/test-ready
	$(MAKE) --jobs=2 lint test-light
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder  # in the order of tests/conftest.py

# tests/conftest.py imports torch, so it is cut off here
test-light: .venv-light/test-ready
	$(LIGHT)/pytest --confcutdir tests/light tests/light

# the storm: kills, full disks, damaged files, hostile images and requests (docs/reliability.md)
MINUTES ?= 5
SEED ?= 1
faults: .venv/test-ready
	PYTHONPATH=tests $(BIN)/python -m faults --minutes $(MINUTES) --seed $(SEED)

# the oldest versions that pyproject.toml allows; WHAT=all for everything with torch
WHAT ?= light
test-oldest:
	PYTHON=$(PYTHON) scripts/test_oldest.sh $(WHAT)

# the wheel and its software bill of materials, in dist/
wheel:
	$(PYTHON) scripts/make_wheel.py

lint: .venv/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/ready .venv-light/ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dafuse needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(@D)
	@touch $@

.venv-light/demo-ready: .venv-light/ready pyproject.toml
	@echo "installing dafuse into .venv-light (seconds, 0.2 GB) ..."
	$(LIGHT)/python -m pip install --quiet --editable .
	@touch $@

.venv-light/test-ready: .venv-light/ready pyproject.toml
	@echo "installing dafuse, its server and scikit-learn into .venv-light ..."
	$(LIGHT)/python -m pip install --quiet --editable '.[light-tests]'
	@touch $@ .venv-light/demo-ready

.venv/research-ready: .venv/ready pyproject.toml
	@echo "installing dafuse and torch into .venv (some minutes, several GB) ..."
	$(BIN)/python -m pip install --quiet --editable '.[torch]'
	@touch $@

.venv/test-ready: .venv/ready pyproject.toml
	@echo "installing dafuse, torch and the test tools into .venv (some minutes, several GB) ..."
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ .venv/research-ready

clean:
	rm -rf .venv .venv-* build dist
