# Everything from nothing: Python >= 3.11 with pip is all that must be there.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0   # the tested engine; any version pyproject.toml admits will do
BIN    := $(VENV)/bin
JOBS   ?= 2

.PHONY: demo test bench fix clean

demo: $(VENV)/.run                      ## install, fetch a small real model, and let it speak
	$(BIN)/cutaway run -m smollm2 --max-tokens 48 --temperature 0 "Once upon a time, a little robot"

test: $(VENV)/.dev                      ## every check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n $(JOBS)

bench: $(VENV)/.dev                     ## the measured claims, each beside its peer
	$(BIN)/python -m benchmarks

fix: $(VENV)/.dev                       ## format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Cutaway needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
