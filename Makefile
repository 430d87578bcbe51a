# Needs Python >= 3.11 and make; everything else is installed into .venv, from the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint pytest bench rates full lock clean
demo: $(VENV)/.installed
	$(BIN)/tightrope demo

test: lint pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

pytest: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/overhead.py

rates: $(VENV)/.installed
	$(BIN)/python -m tightrope.experiments.rates --out src/tightrope/experiments/rates/checks.json

# Everything at full size: every method on every problem of the zoo that it takes, and the measured rates.
full: test bench rates
	FULL=1 $(BIN)/python -m pytest -n 2 tests/convergence

$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tightrope needs Python 3.11 or newer, this is %s" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'
	touch $@

# Renews the pinned versions from what pyproject.toml allows today.
lock:
	rm -rf .lock-env && $(PYTHON) -m venv .lock-env
	.lock-env/bin/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	.lock-env/bin/python -m pip freeze --exclude tightrope > requirements.lock
	rm -rf .lock-env

clean:
	rm -rf $(VENV)
