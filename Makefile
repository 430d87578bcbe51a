# Needs Python >= 3.11 and make; everything else is installed into .venv, from the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint pytest pytest-full bench reproduce docs full lock clean
demo: $(VENV)/.installed
	$(BIN)/tightrope demo

# At the same time: pyright uses one core.
test: $(VENV)/.installed
	$(MAKE) --jobs=2 lint pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

pytest: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2

# Overhead, time to an answer, sweeps, growth, certificates, bias at kinks, the defaults against tuned methods; writes to benchmarks/results.
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/answer.py
	$(BIN)/python benchmarks/sweep.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/kinks.py
	$(BIN)/python benchmarks/defaults.py --jobs 2
	$(BIN)/python benchmarks/constants.py
	$(BIN)/python benchmarks/networks.py
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/page.py

# An experiment at full size, goes on where it was stopped; its checks are kept in the package and in docs/reproduction.md.
REPRODUCED := build/reproduction
EXPERIMENTS := $(subst _,-,$(patsubst src/tightrope/experiments/%/__init__.py,%,$(wildcard src/tightrope/experiments/*/__init__.py)))
.PHONY: $(EXPERIMENTS)
$(EXPERIMENTS): $(VENV)/.installed
	$(BIN)/tightrope reproduce $@ --out $(REPRODUCED)
	cp $(REPRODUCED)/$@/checks.json src/tightrope/experiments/$(subst -,_,$@)/checks.json
	$(BIN)/tightrope reproduce --summary docs/reproduction.md

reproduce: $(EXPERIMENTS)

# All tests, including those marked full: every method on every problem that it takes, and so on.
pytest-full: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 -m "full or not full"

# The documentation site, in build/site; runs the tutorials, some minutes.
docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Everything at full size: hours.
full: lint pytest-full bench reproduce

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
