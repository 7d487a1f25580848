PYTHON ?= python3
BIN := .venv/bin

# What is given on the command line counts; a variable of the same name in the environment does not.
given = $(if $(filter command,$(origin $(1))),$(2))
RUN_OPTIONS = \
	$(call given,SENTENCE,-p sentence "$(SENTENCE)") \
	$(call given,SEED,-p seed "$(SEED)") \
	$(call given,D_OUT,-p d_out "$(D_OUT)") \
	$(call given,NUM_HEADS,-p num_heads "$(NUM_HEADS)") \
	$(call given,PARAMS,$(PARAMS)) \
	$(call given,OUT,--out "$(OUT)")

.PHONY: help run test lint lab grade browser-test bench bench-checks portable mutants alterations audit clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

run: .venv/installed ## execute every notebook and store its outputs (copies: SENTENCE=attention SEED=1 D_OUT=4 NUM_HEADS=2 OUT=build/copies)
	@$(if $(strip $(RUN_OPTIONS)),,if [ -f tools/make_exercises.py ]; then $(BIN)/python tools/make_exercises.py; fi)
	@$(BIN)/python tools/run_notebooks.py $(RUN_OPTIONS)

test: .venv/installed ## unit tests, doctests, and every notebook executed and compared with its stored outputs (ALL=1: slow tests even where nothing changed)
	@$(BIN)/python tools/run_tests.py $(call given,ALL,--all)

lint: .venv/installed ## style of code and notebooks, types of the package
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

grade: .venv/installed ## run the checks of a folder of submitted notebooks (DIR=folder, with a folder for each student)
	@$(if $(DIR),,$(error DIR must name the folder of submissions, as in make grade DIR=submissions))
	@$(BIN)/python tools/grade.py "$(DIR)"

lab: .venv/installed ## open JupyterLab in notebooks/
	@$(BIN)/jupyter lab --notebook-dir=notebooks

browser-test: .venv/browser ## run lessons and exercises in JupyterLab in a headless browser (needs chromium; IF_AVAILABLE=1: else skip)
	@$(BIN)/python tools/browser_test.py $(call given,IF_AVAILABLE,--if-available)

bench: .venv/installed ## time and peak memory against the alternatives (BENCH="--quick", BENCH="--device cuda --dtype bfloat16")
	@$(BIN)/python benchmarks/run.py $(call given,BENCH,$(BENCH))

bench-checks: .venv/installed ## time of make test, against starting its kernels and importing torch
	@$(BIN)/python benchmarks/checks.py

portable: .venv/installed ## every digit under several instruction sets and numbers of threads (TORCH=2.6.0: with that version, several GB)
	@$(BIN)/python tools/portable.py $(call given,TORCH,--torch "$(TORCH)")

mutants: .venv/mutants ## change the package in every small way and see which tests notice (half an hour; MUTANTS="unit --only '*.masks.*'")
	@$(BIN)/python tools/mutants.py $(call given,MUTANTS,$(MUTANTS))

alterations: .venv/installed ## alter the stored outputs in every known way and see that each is noticed (minutes)
	@$(BIN)/python -m pytest --numprocesses=0 --quiet tests/test_alterations.py --all-alterations

audit: .venv/installed ## known vulnerabilities in what is installed (needs a network that reaches an advisory database)
	@$(BIN)/python tools/audit.py

clean: ## remove .venv, build/ and caches
	rm -rf .venv .venv-torch-* build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

.venv/installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python must be 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); try make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "setting up .venv; the first time this takes a minute or more"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	@touch $@

.venv/mutants: requirements-mutants.txt .venv/installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-mutants.txt
	@touch $@

.venv/browser: requirements-browser.txt .venv/installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-browser.txt
	@touch $@
