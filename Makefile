# Everything from nothing: Python >= 3.11 with pip is all that must be there.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0   # the tested engine; any version pyproject.toml admits will do
BIN    := $(VENV)/bin
JOBS   ?= 3       # on two cores: some tests wait for a process or a browser

.PHONY: demo test bench fix clean

demo: $(VENV)/.run                      ## install, let the bundled model speak, train another on Python's own library
	$(BIN)/cutaway run -m bard --max-tokens 120 --seed 3 --temperature 0.7 "ROMEO:"
	rm -rf runs/demo
	$(BIN)/cutaway train "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/*.py" \
	  --out runs/demo --size nano --vocab-size 1024 --batch-size 8 --steps 250 --lr 0.01 --eval-every 125 --sample-every 0
	$(BIN)/cutaway run -m runs/demo --max-tokens 70 --seed 1 --temperature 0.6 "    def"
	@echo "Watch bard think: start $(BIN)/cutaway serve, and open http://127.0.0.1:8000/"

test: $(VENV)/.dev                      ## every check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
