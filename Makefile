# Two commands for a fresh machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test gpu check bench clean

$(READY): pyproject.toml constraints.txt
	@echo 'Installing torch and the rest into $(VENV): a minute or more'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

DEMO := --task digits --methods full infobatch random:ratio=0.45 --seeds 3 --epochs 20 --eval-every 2
demo: $(READY)  ## digits with and without pruning: the comparison, and a page with plots
	$(BIN)/infobatch compare $(DEMO) --name demo-$$(date +%Y%m%d-%H%M%S)
	@echo 'To have infobatch on your path: . $(BIN)/activate'

test: check  ## every test but those that need a GPU, after the static checks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

gpu: $(READY)  ## the tests that need a GPU
	$(BIN)/python -m pytest -m gpu

check: $(READY)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## what pruning costs, as ratios measured in one run
	$(BIN)/python benchmarks/core.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
