# make demo          compare four methods on a small data set: about two minutes after the install
# make test          linters, type checks and tests
# make test-all      the slow tests too
# make test-gpu      the tests that need a CUDA GPU
# make test-browser  the tests in a real browser alone
# make fuzz          damaged files and odd arguments: FUZZ_SECONDS (300), FUZZ_SEED (random), FUZZ_BUSY=1 on a busy machine
# make docs          build the documentation into site/, tutorials executed, warnings as errors
# make tables        the paper's tables, figures and docs/results/reproduction.md from results/
# make clean         remove what the others made

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
.DEFAULT_GOAL := help

.PHONY: help demo lint browser test test-all test-gpu test-browser fuzz docs tables clean
help:
	@sed -n 's/^# make/make/p' Makefile

# Every file that pip downloads must have a hash in requirements*.txt. They list all packages, so pip resolves nothing
# (--no-deps); `pip check` fails where one is missing. torch comes from requirements-cpu.txt if pip finds a CPU build: put
# its wheel into a folder and set PIP_FIND_LINKS to that folder. Otherwise, and always for a GPU, torch comes from the
# package index; on Linux that build needs the CUDA libraries of requirements-cuda.txt even where there is no GPU.
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps

.venv/installed: pyproject.toml requirements.txt requirements-cpu.txt requirements-cuda.txt
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) --require-hashes --requirement requirements-cpu.txt 2>/dev/null \
	  || echo 'no CPU build of torch found: torch is installed from the package index'
	$(PIP_INSTALL) --require-hashes --requirement requirements.txt
	if $(BIN)/pip check | grep '^torch .* requires cuda-toolkit' >/dev/null; then \
	  $(PIP_INSTALL) --require-hashes --requirement requirements-cuda.txt; fi
	$(PIP_INSTALL) --no-build-isolation --editable .
	$(BIN)/pip check
	touch $@

demo: .venv/installed
	$(BIN)/metalabelnet compare digits --methods cross-entropy,fine-tune,fixmatch,metalabelnet-plus \
	  --noise uniform:0.4 --clean 100 --seeds 2 --epochs 14 --out runs/demo --resume

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without a browser the tests that need one are skipped and say so; where CI is set, they fail.
browser:
	@for name in chromium chromium-browser google-chrome chrome; do command -v $$name >/dev/null && exit 0; done; \
	[ "$$(id -u)" = 0 ] && { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1 \
	  || echo 'no browser, and none could be installed (Debian: apt-get install chromium)'

# The tests of a file share trained runs, servers and a browser: they run in one process.
PARALLEL := --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

test: lint browser
	$(BIN)/pytest $(PARALLEL)

test-all: lint browser
	$(BIN)/pytest $(PARALLEL) -m 'not gpu'

test-gpu: .venv/installed
	$(BIN)/pytest -m gpu

test-browser: .venv/installed browser
	$(BIN)/pytest -m browser

fuzz: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py --seconds $(or $(FUZZ_SECONDS),300) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED)) \
	  $(if $(FUZZ_BUSY),--busy)

docs: .venv/installed
	work=$$(mktemp -d) && PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 DOCS_WORK="$$work" \
	  DOCS_EXAMPLES="$(CURDIR)/examples" $(BIN)/mkdocs build --strict --quiet; status=$$?; rm -rf "$$work"; exit $$status

tables: .venv/installed
	$(BIN)/metalabelnet reproduce all --tables-only --doc docs/results/reproduction.md
	$(BIN)/metalabelnet reproduce beyond beyond-ablation beyond-clean-given beyond-unlabeled --tables-only --doc docs/results/beyond.md
	$(BIN)/metalabelnet reproduce beyond --tables-only --doc docs/how-it-works/metalabelnet-plus.md

clean:
	rm -rf .venv runs dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
