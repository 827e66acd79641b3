# make run    set up and run the course on this machine; ends with a table and an index.html
# make lab    set up and open the course in JupyterLab, on this machine only
# make update fetch a newer version of the course; what you have changed stays yours
# make book   set up, run the chapters that have not run, and make a book of all: build/book/html/index.html (PARTIAL=1: as it is)
# make test   set up and pass the tests: style, types, units, ranks, chapters 00 to 07, every exercise
# make test-all   the rest of the tests: chapters from 08 on, Slurm, JupyterLab in a browser, hub, book, kills, a fresh clone, coverage
# make lint   style of code and notebooks, types
# make clean  remove what the targets made (.venv, the book, what tests keep in artifacts); simulated data and your runs stay
# Another Python: make run PYTHON=python3.12. More options for the course: make run ARGS="01 --preset laptop".
ifneq ($(lastword $(MAKEFILE_LIST)),Makefile)
$(error this Makefile works in its own folder only: make -C $(dir $(lastword $(MAKEFILE_LIST))))
endif
.DEFAULT_GOAL := help
.PHONY: help here run lab update book test test-all lint clean
SHELL := /bin/bash
PYTHON ?= python3
ARGS ?=
# The tested versions. Empty: keep what .venv holds, such as the torch build of a GPU machine.
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
# With bytecode of everything: where PYTHONDONTWRITEBYTECODE is set, no process would ever make its own.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
EXTRAS = lab
export DLTUTORIAL_RUNS ?= $(CURDIR)/runs
# Threads that wait give their core away. Measured on 2 cores: a fifth slower alone, 4 to 10 times faster beside other work.
export OMP_WAIT_POLICY ?= PASSIVE
# JupyterLab refuses to start for root without this word.
ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# What is installed in the .venv of a copied or moved folder is the course of the other place.
here:
	@[ ! -e .venv/.course ] || $(BIN)/python -P -c 'import os; from importlib.util import find_spec; \
		assert os.path.samefile(os.path.dirname(find_spec("dltutorial").origin), "dltutorial")' 2>/dev/null || { echo \
		"$(CURDIR)/.venv is of another place: this folder was copied or moved. Remove it (rm -rf .venv), and make again" >&2; exit 2; }

help:
	@grep -E '^# make' Makefile | cut -c3-

.venv/.course: pyproject.toml constraints.txt | here
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dltutorial needs Python 3.11 or newer, this is " \
		+ sys.version.split()[0] + "; name another one: make run PYTHON=python3.12")'
	@echo "setting up .venv (a minute or two, once)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	@$(PIP) -e '.[$(EXTRAS)]'
	@echo "$(EXTRAS)" > $@

# All at once where there is nothing yet; what the tests need is added where the course is there already.
.venv/.test: EXTRAS = lab,hub,book,test
.venv/.test: .venv/.course
	@grep -q test .venv/.course || { echo "adding what the tests need"; $(PIP) -e '.[$(EXTRAS)]'; }
	@touch $@

run: .venv/.course
	@$(BIN)/dltutorial exercises build
	@$(BIN)/dltutorial run $(ARGS)

lab: .venv/.course
	@$(BIN)/dltutorial exercises build
	@PYTHONSTARTUP="$(CURDIR)/hub/startup.py" $(BIN)/jupyter lab --ip=127.0.0.1 $(ROOT) --LabApp.default_url=/lab/tree/README.md $(ARGS)

# gitpuller ends with a traceback where the branch is missing, so git is asked for the branch first.
update: .venv/.course
	@branch="$$(git branch --show-current 2>/dev/null)"; \
	if git ls-remote --quiet --exit-code origin "refs/heads/$$branch" >/dev/null 2>&1; then \
		$(BIN)/gitpuller "$$(git remote get-url origin)" "$$branch" .; \
	else \
		echo "make update: no branch '$$branch' can be read from the remote 'origin'; git remote -v shows its address" >&2; \
		exit 2; \
	fi

.venv/.book: .venv/.course
	@echo "adding what the book needs"
	@$(PIP) -e '.[lab,book]'
	@touch $@

book: .venv/.book
	@[ -n "$(PARTIAL)" ] || { stale="$$($(BIN)/python book/reading.py)" && { [ -z "$$stale" ] || $(BIN)/dltutorial run $$stale; }; }
	@rm -rf build/book/new book/reference
	@MPLBACKEND=agg OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -E -n -W -j auto -c book -D partial=$(PARTIAL) $(ARGS) . build/book/new
	@rm -rf build/book/html && mv build/book/new build/book/html && echo build/book/html/index.html

# Three tests at a time, on two cores too: a third of their time is waiting. Coverage: of what runs in a test's own process;
# `make test ARGS=--cov=dltutorial` has counted it already. With bytecode: pytest makes that of 400 files of tests itself.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --dist loadgroup
test: .venv/.test lint
	@rm -f .coverage
	@$(PYTEST) -m "not full" $(ARGS)

test-all: .venv/.test
	@$(PYTEST) -m full $(ARGS)
	@[ -f .coverage ] || $(PYTEST) -m "not full" -q --no-header --cov=dltutorial --cov-report= tests/unit \
		$(addprefix --ignore=tests/unit/test_,cli.py hub_kernel.py keeping_up.py project.py)
	@$(BIN)/coverage report --skip-covered

lint: .venv/.test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "run .venv/bin/ruff format"; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/dltutorial exercises build --check

clean:
	rm -rf .venv $(addprefix build/book/,html new) *.egg-info .mypy_cache .pytest_cache .ruff_cache .coverage
	rm -rf $(addprefix artifacts/,browser cache config data door.lock ipython jupyter otherwise room.lock)
	@rmdir --ignore-fail-on-non-empty artifacts build/book build 2>/dev/null || true
