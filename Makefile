# make demo          the main job on data that comes along: about a minute after the install
# make test          linters, type check and tests; installs Chromium for those of the pages where apt-get may do so
# make test-all      the slow tests too
# make test-browser  the tests in a real browser alone
# make tables        the paper's tables, figures and docs/reproduction.md from results/
# make clean         removes what the others made

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
.DEFAULT_GOAL := help

.PHONY: help demo lint browser test test-all test-browser tables clean
help:
	@sed -n 's/^# make/make/p' Makefile

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	touch $@

demo: .venv/installed
	$(BIN)/metalabelnet compare digits --methods cross-entropy,clean-only,fine-tune,metalabelnet \
	  --noise uniform:0.4 --clean 100 --seeds 3 --out runs/demo --resume

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without a browser the tests that need one are skipped and say so; where CI is set, they fail.
browser:
	@for name in chromium chromium-browser google-chrome chrome; do command -v $$name >/dev/null && exit 0; done; \
	root=; [ "$$(id -u)" = 0 ] || root='sudo -n'; \
	{ $$root apt-get update -qq && $$root apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1 \
	  || echo 'no browser, and none could be installed (Debian: apt-get install chromium)'

test: lint browser
	$(BIN)/pytest --numprocesses $(JOBS)

test-all: lint browser
	$(BIN)/pytest --numprocesses $(JOBS) -m 'not gpu'

test-browser: .venv/installed browser
	$(BIN)/pytest -m browser

tables: .venv/installed
	$(BIN)/metalabelnet reproduce all --tables-only --doc docs/reproduction.md

clean:
	rm -rf .venv runs dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
