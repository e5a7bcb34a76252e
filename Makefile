# Everything works from a fresh clone: each target first sets up the part of .venv that it needs. All paths are relative.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --constraint "$(CONSTRAINTS)"
# a stamp file for each part of .venv: the demo, the tests (including the demo), the documentation site
MINIMAL := $(VENV)/.demo
STAMP := $(VENV)/.installed
SITE := $(VENV)/.docs
TOOLS := build/tools
# not --quiet, because --strict would then ignore warnings; the variable disables an advertisement of the theme
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.PHONY: setup demo demo-all loaders test test-all suite lint bench simulate device chaos soak corpus frozen cluster fuzz mutants matrix \
	pictures docs docs-check wheel clean
.NOTPARALLEL:  # pip cannot run twice in one environment at the same time, and tests that measure need the whole machine

setup: $(STAMP) $(SITE)  ## sets up everything that any target needs

$(MINIMAL): pyproject.toml $(CONSTRAINTS)
	@echo "setting up $(VENV): torch, numpy and unjam (takes a few minutes, once)"
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) torch numpy
	$(INSTALL) --quiet --editable .
	@touch $@

$(STAMP): $(MINIMAL)
	@echo "setting up $(VENV): frameworks, test libraries, linters"
	$(INSTALL) --quiet --editable ".[demo,bench,test,frameworks]"
	$(INSTALL) --quiet --editable ".[ray]" || echo "no Ray wheel for this machine: cluster tests will be skipped"
	@touch $@

$(SITE): $(MINIMAL)
	@echo "setting up $(VENV): mkdocs"
	$(INSTALL) --quiet --editable ".[docs]"
	@touch $@

demo: $(MINIMAL)  ## three small broken programs on torch and under `unjam check`: about a minute
	$(BIN)/python examples/demo.py

demo-all: $(STAMP)  ## a table of ten such programs, then `unjam run` and `unjam tune`: a few minutes
	$(BIN)/python examples/doctor.py

loaders: $(STAMP)  ## small programs on torch's loader and on unjam's
	$(BIN)/python examples/side_by_side.py

test: lint docs-check  ## lint, types, documentation and every test
	@$(MAKE) --no-print-directory suite

# the tests, then each part at full size, and the suite on every supported pair of Python and torch
EVERYTHING := test corpus frozen cluster simulate chaos soak fuzz mutants matrix

test-all:  ## everything at full size (hours); prints how long each part took
	@failed=0; for part in $(EVERYTHING); do \
		began=$$(date +%s); word=passed; $(MAKE) --no-print-directory $$part || { word=FAILED; failed=1; }; \
		told="$$told$$part: $$word in $$((($$(date +%s) - began + 30) / 60)) min\n"; \
	done; printf "$$told"; exit $$failed

# numpy's idle threads spin after each use in every process that a test starts; this setting makes them sleep at once
PYTEST := OPENBLAS_THREAD_TIMEOUT=4 $(BIN)/python -m pytest --durations=20

suite: $(STAMP)  ## every test once: most in parallel, then those that need all processors
	@$(BIN)/python -m compileall -q src  # tests start many interpreters, and some environments do not write bytecode
	$(PYTEST) -n 4 --dist worksteal -m "not alone"
	$(PYTEST) -m alone

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## torch and unjam interleaved; prints ratios
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
	$(BIN)/python benchmarks/resume.py

simulate: $(STAMP)  ## 100,000 simulated schedules of the engine
	UNJAM_SCHEDULES=100000 $(BIN)/python -m pytest tests/test_engine_simulation.py --timeout=3600 -q

device: $(STAMP)  ## needs an accelerator: checks every byte of the batches on it, then measures the throughput
	$(BIN)/python tests/stress_device.py
	$(BIN)/python benchmarks/device.py

chaos: $(STAMP)  ## kills workers (three minutes), then whole training programs (two minutes), at random
	$(BIN)/python tests/chaos.py
	$(BIN)/python tests/chaos_resume.py

soak: $(STAMP)  ## 200,000 batches and 20,000 epochs: memory and descriptors stay flat
	$(BIN)/python tests/soak.py

corpus: $(STAMP)  ## checks the programs of every rule, then of tests/corpus: verdict, culprit, confidence, seconds, false alarms
	UNJAM_RULES=all $(PYTEST) -n 3 --dist worksteal -m "not alone" tests/test_rules.py
	UNJAM_RULES=all $(PYTEST) -m alone tests/test_rules.py
	$(BIN)/python tests/run_corpus.py

frozen: $(STAMP)  ## `unjam why` on every program of tests/frozen: verdict and seconds
	$(BIN)/python tests/run_frozen.py

cluster: $(STAMP)  ## all tests on a real Ray cluster on this machine, and of workers killed for memory
	UNJAM_LONG=1 $(PYTEST) tests/test_ray.py tests/test_memory_kill.py

fuzz: $(STAMP)  ## ten minutes of random programs on torch's loader and on unjam's; reports every difference
	$(BIN)/python tests/fuzz/run.py --seconds 600

mutants: $(STAMP)  ## breaks the product in twenty places, one at a time, and checks that the tests notice
	$(BIN)/python tests/run_mutants.py

matrix:  ## the suite on every supported pair of Python and torch, each in its own environment
	"$(PYTHON)" tests/run_matrix.py

pictures: $(STAMP)  ## redraws the pictures of the README
	$(BIN)/python docs/pictures.py

docs: $(SITE)  ## updates the generated pages, checks every link, and builds the site into build/site
	$(BIN)/python docs/write_rules.py
	$(BIN)/python docs/write_api.py
	$(BIN)/python docs/write_cli.py
	$(BIN)/python docs/check_links.py
	$(MKDOCS) --site-dir build/site

docs-check: $(SITE)  ## the same without writing: checks generated pages, links and the site
	$(BIN)/python docs/write_rules.py --check
	$(BIN)/python docs/write_api.py --check
	$(BIN)/python docs/write_cli.py --check
	$(BIN)/python docs/check_links.py
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && echo "mkdocs build --strict" && \
		$(MKDOCS) --site-dir "$$folder/site"

$(TOOLS)/.installed: $(MINIMAL)
	$(BIN)/python -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --constraint "$(CONSTRAINTS)" build "setuptools>=77"
	@touch $@

wheel: $(TOOLS)/.installed  ## builds sdist and wheel into build/dist, and tests the wheel without the source tree
	$(BIN)/python tools/check_wheel.py --build-with $(TOOLS)/bin/python

clean:
	rm -rf $(VENV) .matrix build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
