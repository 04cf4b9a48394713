# `make demo` and `make test` on a fresh machine need Python 3.11 or newer and nothing else: they
# set up .venv the first time. On Linux, pip's default torch brings CUDA along; without a GPU,
#     make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
# downloads a tenth of that.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
TORCH_INDEX ?=
JOBS ?= auto
BENCH ?= surgery
ARGS ?=

PY = .venv/bin/python
INSTALL = $(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: help demo test lint docs bench proof

help:
	@echo "make demo    see it all on a small model, in three minutes (ARGS='-o DIR')"
	@echo "make test    run the tests (ARGS='-k plan' to choose)"
	@echo "make lint    ruff and mypy"
	@echo "make docs    write anew what the docs take from the program"
	@echo "make bench   surgery beside cp and mergekit (ARGS='--size 7b'); BENCH=observe, tune, sweep, report"
	@echo "make proof   the long proofs: fuzzing, kill -9 at random moments"

demo: .venv/.ready
	@.venv/bin/restack demo $(ARGS)

test: .venv/.ready-dev
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: .venv/.ready-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: .venv/.ready-dev
	$(PY) -m tools.docs

bench: .venv/.ready-dev
	$(PY) bench/$(BENCH).py $(ARGS)

proof: .venv/.ready-dev
	@for script in tests/fuzz_*.py; do echo "$$script 20000"; $(PY) $$script 20000 || exit 1; done
	@for script in tests/kill_*.py; do echo "$$script 100"; $(PY) $$script 100 || exit 1; done

# The stamps are newer than what they depend on when everything is installed, so that the next run
# starts at once. torch comes first and alone: whatever is installed later finds it there.
.venv/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "restack needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "setting up .venv: some minutes, this once" >&2
	@$(PYTHON) -m venv .venv
	@$(INSTALL) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@$(INSTALL) -e '.[report]'
	@touch $@

.venv/.ready-dev: .venv/.ready
	@echo "adding the tools for tests and lint to .venv" >&2
	@$(INSTALL) -e '.[dev]'
	@touch $@
