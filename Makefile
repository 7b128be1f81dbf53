# make demo      the main job on data that comes along: about a minute after the install
# make test      linters, type check and tests
# make test-all  the slow tests too
# make test-browser  the tests in a real browser (Debian: chromium)
# make tables    the paper's tables, figures and docs/reproduction.md from results/
# make clean     removes what the others made

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
.DEFAULT_GOAL := help

.PHONY: help demo lint test test-all test-browser tables clean
help:
	@sed -n 's/^# //p' Makefile

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	touch $@

demo: .venv/installed
	$(BIN)/metalabelnet compare digits --methods cross-entropy,meta-only,fine-tune,metalabelnet \
	  --noise uniform:0.4 --meta 100 --seeds 3 --out runs/demo --resume

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest --numprocesses $(JOBS)

test-all: lint
	$(BIN)/pytest --numprocesses $(JOBS) -m 'not gpu and not dist and not browser'

test-browser: .venv/installed
	$(BIN)/pytest -m browser

tables: .venv/installed
	$(BIN)/metalabelnet reproduce all --tables-only --doc docs/reproduction.md

clean:
	rm -rf .venv runs dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
