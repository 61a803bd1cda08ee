# The two commands of the README are `make demo` and `make test`; both do all set-up on a fresh machine.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER := 0
export RAY_USAGE_STATS_ENABLED := 0
# Bytecode is kept: the tests start hundreds of processes, and each would compile the sources again.
export PYTHONDONTWRITEBYTECODE :=
# One thread per test process: two processes with two threads each only wait for each other. OMP_NUM_THREADS=2 is a matrix cell.
quick unit test test-long: export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-long test-frameworks test-matrix test-lowest unit quick lint check soak bench docs images man words setup clean

demo: .venv/.installed-for-demo
	$(BIN)/rldbg demo

# These start hundreds of processes and clusters: a pipe or socket that garbage collection closes is blamed on whatever
# test runs then, so that one warning is shown here and an error in the unit tests only.
INTEGRATION := $(BIN)/pytest tests/integration tests/e2e -W default::pytest.PytestUnraisableExceptionWarning -n 2 --no-loadscope-reorder

test: unit
	$(INTEGRATION) -m "not soak and not long"

# Clusters of several nodes, third-party clients, benchmarks: as many minutes again.
test-long: setup
	$(INTEGRATION) -m "long and not soak"

# Real frameworks, each in an environment of its own below .venvs/, which is made once. One at a time: they are slow to import.
test-frameworks: setup
	$(BIN)/pytest tests/frameworks --durations 8 -m "not soak"

unit: setup
	$(BIN)/pytest tests/unit -n 2 -m "not soak"

quick: setup
	$(BIN)/pytest tests/unit -n 2 -m "not soak and not thorough"

# The unit tests on other processors' instructions, other Pythons, the lowest packages, as another user, and so on.
# CELLS='random busy' chooses some; tests/matrix.py --list names them.
test-matrix: setup
	$(BIN)/python tests/matrix.py $(CELLS)

test-lowest: setup
	$(BIN)/python tests/matrix.py lowest

# Side by side: mypy has one thread, and the tests leave it a core now and then.
check: setup
	@$(MAKE) --no-print-directory -j 2 lint quick

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

soak: setup
	$(BIN)/pytest tests -m soak --timeout 7200

bench: setup
	for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

# The generated pages, then the site in site/, which opens from disk and fetches nothing. Its search needs a server:
# python -m http.server -d site
docs: setup
	$(BIN)/python docs/generate.py
	$(BIN)/zensical build --strict
	rm -rf site/__pycache__ site/*.py


# The manual page, from the texts of --help. `man man/rldbg.1` shows it.
man: setup
	$(BIN)/python docs/generate.py

# The pictures of README and docs: from a real tour, and by the tests in a browser.
images: setup
	$(BIN)/python docs/record_images.py
	UI_PICTURES=$(CURDIR)/docs/images $(BIN)/pytest -q tests/integration/test_ui_browser.py

# Every text that a user can see, with its place.
words: setup
	@$(BIN)/python docs/words.py

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) .ci/setup dev
	@touch $@

# The tour needs less than the tests, and nothing more where the tests' packages are installed.
.venv/.installed-for-demo: pyproject.toml constraints.txt
	@test .venv/.installed -nt pyproject.toml -a .venv/.installed -nt constraints.txt || PYTHON=$(PYTHON) .ci/setup ray,train,serve
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache
