# Two commands for a fresh machine with Python 3.11 and make: `make demo` and `make test`.
# The demo installs the lab only; the tests add their frameworks to the same environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
LAB_READY := $(VENV)/.lab-ready
TEST_READY := $(VENV)/.test-ready

.PHONY: demo test test-all gpu check bench clean

$(LAB_READY): pyproject.toml constraints.txt
	@echo 'Installing torch and the lab into $(VENV): a minute or more'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r constraints.txt
	$(PIP) -c constraints.txt -e '.[lab]'
	touch $@

$(TEST_READY): $(LAB_READY)
	@echo 'Installing the frameworks and tools of the tests into $(VENV): a minute or more'
	$(PIP) -c constraints.txt -e '.[test]'
	touch $@

DEMO := --task digits --methods infobatch --seeds 3 --epochs 20 --eval-every 5
demo: $(LAB_READY)  ## digits with and without pruning: the answer in one sentence, and a page with plots
	$(BIN)/infobatch compare $(DEMO) --name demo-$$(date +%Y%m%d-%H%M%S)
	@echo 'To have the command infobatch on your path: . $(BIN)/activate'

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal
test: check  ## static checks, and every test but the slow ones and those that need a GPU: minutes
	$(PYTEST) -m 'not slow and not gpu'

test-all: $(TEST_READY)  ## the slow tests: ranks, soak, browser, the full matrix, every framework case
	$(PYTEST) -m 'slow and not gpu'

gpu: $(TEST_READY)  ## the tests that need a GPU
	$(BIN)/python -m pytest -m gpu

check: $(TEST_READY)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(TEST_READY)  ## what pruning costs, as ratios measured in one run
	$(BIN)/python benchmarks/core.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
