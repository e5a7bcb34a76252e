# Everything runs from a fresh clone: each target sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo loaders test lint bench simulate chaos soak corpus frozen fuzz matrix docs clean setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo,bench,test,frameworks]"
	touch $@

demo: setup  ## small broken programs: what torch prints, and what `unjam check` says
	$(BIN)/python examples/doctor.py

loaders: setup  ## the same small programs on torch's loader and on unjam's
	$(BIN)/python examples/side_by_side.py

# Tests start programs and look at them while they run; a machine that is busy with something else can upset one. What failed is run once more, alone.
AGAIN := --last-failed --last-failed-no-failures none

test: setup lint  ## types, lint and every test, in two processes: most of them wait for processes of their own
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone" || $(BIN)/python -m pytest $(AGAIN) -m "not alone"
	$(BIN)/python -m pytest -m alone || $(BIN)/python -m pytest $(AGAIN) -m alone

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup  ## torch and unjam interleaved; prints ratios
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/turnaround.py
	$(BIN)/python benchmarks/starved.py
	$(BIN)/python benchmarks/pipeline.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/timing.py
	$(BIN)/python benchmarks/tune.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/never_worse.py

simulate: setup  ## 100,000 schedules through the engine
	UNJAM_SCHEDULES=100000 $(BIN)/python -m pytest tests/test_engine_simulation.py --timeout=3600 -q

chaos: setup  ## three minutes of workers killed at random
	$(BIN)/python tests/chaos.py

soak: setup  ## 200,000 batches and 20,000 epochs: memory and descriptors stay flat
	$(BIN)/python tests/soak.py

corpus: setup  ## every program of tests/corpus: verdict, culprit, confidence, seconds, false alarms
	$(BIN)/python tests/run_corpus.py

frozen: setup  ## every program of tests/frozen, stuck or well: what `unjam why` says of it, and how fast
	$(BIN)/python tests/run_frozen.py

fuzz: setup  ## ten minutes of programs that nobody wrote, on torch's loader and on ours: everything that differs
	$(BIN)/python tests/fuzz/run.py --seconds 600

matrix:  ## the whole suite under every promised pair of Python and torch, each in an environment of its own
	$(PYTHON) tests/run_matrix.py

docs: setup  ## writes the rules' pages anew, and checks that every link leads somewhere
	$(BIN)/python docs/write_rules.py
	$(BIN)/python docs/check_links.py

clean:
	rm -rf $(VENV) .matrix build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
