# make run    set up and run the course on this machine; ends with a table and an index.html
# make lab    set up and open the course in JupyterLab, on this machine only
# make update fetch a newer version of the course; what you have changed stays yours
# make report show what was measured on this machine as one page: runs/report.html
# make book   set up, run the chapters that have not run, and make a book of all: build/book/html/index.html (PARTIAL=1: as it is)
# make slides   the same chapters as slides for teaching, which need no network: build/slides (PARTIAL=1: as it is; needs npm)
# make test   set up and pass the tests: style, types, units, ranks, every exercise, chapters 00, 01, 08 and 09
# make test-ci   what .ci/run adds: the other chapters, Slurm, JupyterLab in a browser, a hub, the book, a fresh clone
# make test-nightly   what takes very long, before a release: all wrong answers, the fuzzer, 100 kills, Ray, DALI, torch 2.6
# make gpu    on a machine with a GPU: its tests, the chapters that need it, and recordings, in 12 minutes (ARGS=--dry-run: on a CPU)
# make gpus   the same for the chapters that need several GPUs; this has not run on GPUs so far
# make lint   style of code and notebooks, types
# make clean  remove what the targets made (.venv, the book, artifacts/); your runs and the data in your cache stay
# Another Python: make run PYTHON=python3.12. More options for the course: make run ARGS="01 --preset laptop".
.DEFAULT_GOAL := help
.PHONY: help run lab update report book slides test test-ci test-nightly test-oldest gpu gpus lint clean
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

help:
	@grep -E '^# make' Makefile | cut -c3-

.venv/.course: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dltutorial needs Python 3.11 or newer, this is " \
		+ sys.version.split()[0] + "; name another one: make run PYTHON=python3.12")'
	@echo "setting up .venv (a minute or two, once; nothing is printed meanwhile)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	@$(PIP) -e '.[$(EXTRAS)]'
	@echo "$(EXTRAS)" > $@

# All at once where there is nothing yet; what the tests need is added where the course is there already.
.venv/.test: EXTRAS = lab,hub,book,test
.venv/.test: .venv/.course
	@grep -q test .venv/.course || { echo "adding what the tests need"; $(PIP) -e '.[$(EXTRAS)]'; }
	@touch $@

run: .venv/.course
	@$(BIN)/dltutorial run $(ARGS)

# hub/labconfig: JupyterLab shows Markdown files as pages, and it asks nothing about news. Your own settings have priority.
lab: .venv/.course
	@PYTHONSTARTUP="$(CURDIR)/hub/startup.py" JUPYTER_CONFIG_PATH="$(CURDIR)/hub$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
		$(BIN)/jupyter lab --ip=127.0.0.1 $(ROOT) --LabApp.default_url=/lab/tree/README.md $(ARGS)

# gitpuller ends with a traceback where the branch is missing, so git is asked for the branch first.
update: .venv/.course
	@branch="$$(git branch --show-current 2>/dev/null)"; \
	if git ls-remote --quiet --exit-code origin "refs/heads/$$branch" >/dev/null 2>&1; then \
		log="$$($(BIN)/gitpuller "$$(git remote get-url origin)" "$$branch" . 2>&1)" || { echo "$$log" >&2; exit 2; }; \
		echo "$$log" | grep '^Renamed'; \
		echo "The course now has the version of $$(git log -1 --format='%cs (%h)' "origin/$$branch"). Your changes have stayed."; \
		echo "In JupyterLab, choose File > Reload Notebook from Disk in each open notebook, and restart its kernel."; \
	else \
		echo "make update: no branch '$$branch' can be read from the remote 'origin'; git remote -v shows its address" >&2; \
		exit 2; \
	fi

report: .venv/.course
	@$(BIN)/jupyter nbconvert --log-level=ERROR --to html --execute --no-input --output-dir="$(DLTUTORIAL_RUNS)" pages/report.ipynb
	@echo "$(DLTUTORIAL_RUNS)/report.html"

.venv/.book: .venv/.course
	@grep -q book .venv/.course || { echo "adding what the book needs"; $(PIP) -e '.[lab,book]'; }
	@touch $@

book: .venv/.book
	@[ -n "$(PARTIAL)" ] || { stale="$$($(BIN)/python book/reading.py)" && { [ -z "$$stale" ] || $(BIN)/dltutorial run $$stale; }; }
	@rm -rf build/book/new book/reference
	@MPLBACKEND=agg OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -E -n -W -j auto -c book -D partial=$(PARTIAL) $(ARGS) . build/book/new
	@rm -rf build/book/html && mv build/book/new build/book/html && echo build/book/html/index.html

# reveal.js shows the slides. It lies beside the decks, so that their folder can be copied to any machine.
REVEAL := .venv/node/node_modules/reveal.js
$(REVEAL):
	@command -v npm >/dev/null || { echo "make slides: npm is missing, and it downloads reveal.js, which shows the slides." \
		"Install Node.js with npm (https://nodejs.org, or apt-get install npm), and repeat." >&2; exit 2; }
	@npm install --silent --no-audit --no-fund --prefix .venv/node reveal.js@6.0.2 || { echo "make slides: npm could not" \
		"download reveal.js, which shows the slides. Repeat with a network. Later calls need none." >&2; exit 2; }

slides: .venv/.book $(REVEAL)
	@[ -n "$(PARTIAL)" ] || { stale="$$($(BIN)/python book/reading.py notebooks/[0-9]*.ipynb)" \
		&& { [ -z "$$stale" ] || $(BIN)/dltutorial run $$stale; }; }
	@rm -rf build/slides
	@$(BIN)/python book/slides.py build/slides "$(PARTIAL)" notebooks/[0-9]*.ipynb && echo build/slides

# Each chapter is executed once: four of them by make test, the others by make test-ci. tests/chapters reads the results.
NUMBERS = $(foreach file,$(wildcard $(1)/[0-9][0-9]_*.ipynb),$(firstword $(subst _, ,$(notdir $(file)))))
CHAPTERS := $(call NUMBERS,notebooks) $(addsuffix -further,$(call NUMBERS,notebooks/further))
FIRST := 00 01 08 09
REST := $(filter-out $(FIRST),$(CHAPTERS))
OWN_FOLDERS = XDG_CACHE_HOME=$(CURDIR)/artifacts/cache DLTUTORIAL_DATA=$(CURDIR)/artifacts/data DLTUTORIAL_RUNS=$(CURDIR)/artifacts/runs
# Exit status 1 means that a chapter failed. tests/chapters then says which one, and the other tests run all the same.
EXECUTE = rm -rf artifacts/chapters/$(1) && { env -u DLTUTORIAL_RECORDS $(OWN_FOLDERS) $(BIN)/dltutorial run $(2) \
	--preset smoke --jobs 2 --out artifacts/chapters/$(1) || [ $$? -eq 1 ]; }
# Three tests at a time, on two cores too, because a third of their time is waiting. Tests of one file stay together in
# make test-ci, because they share a server that is slow to start. pytest makes bytecode of its own files.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3

test: .venv/.test lint
	@$(call EXECUTE,first,$(FIRST))
	@$(PYTEST) --dist worksteal -m "not ci and not nightly" $(ARGS)

test-ci: .venv/.test
	@$(call EXECUTE,rest,$(REST))
	@$(PYTEST) --dist loadfile -m "ci and not nightly" $(ARGS)

# Needs the extras tune and dali; what is missing is skipped, and the summary says so.
test-nightly: .venv/.test test-oldest
	@$(PYTEST) --dist loadfile -m nightly $(ARGS)

gpu: .venv/.test
	@$(BIN)/python tests/gpu/prove.py $(ARGS)

gpus: .venv/.test
	@$(BIN)/python tests/gpu/prove.py --several $(ARGS)

# The oldest supported torch, in an environment of its own. It brings its CUDA libraries along, which are gigabytes. The
# other versions there are not the pinned ones, so the tests of the project's files are left out.
.venv-oldest/.test: pyproject.toml
	@[ -x .venv-oldest/bin/python ] || $(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.6.0' -e '.[lab,hub,book,test]'
	@touch $@

test-oldest: .venv-oldest/.test
	@.venv-oldest/bin/python -m pytest -n 3 -m "not ci and not nightly" tests/parallel tests/unit --ignore=tests/unit/test_project.py

lint: .venv/.test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "run .venv/bin/ruff format"; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/dltutorial exercises build --check

clean:
	rm -rf .venv .venv-oldest build artifacts *.egg-info .mypy_cache .pytest_cache .ruff_cache
