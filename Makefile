# Everything runs in .venv, which the first target that needs it makes (see tools/setup.sh).

BIN := .venv/bin
ARGS ?= model=mlp scaling.num_workers=4
# The name holds the checkout's path: a checkout that was moved or copied gets an environment of its own.
STAMP := .venv/.ready-$(firstword $(shell printf '%s' '$(CURDIR)' | cksum))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test faults soak format lock clean

help:  ## say what the targets do
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

setup: $(STAMP)  ## make .venv with the locked packages and Horovod (PYTHON=... names the interpreter)

run: $(STAMP)  ## train the main job (ARGS=... overrides its configuration)
	$(BIN)/python -m runner $(ARGS)

test: $(STAMP)  ## formatter check, linter, type checker, all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --ignore tests/end_to_end --ignore tests/faults -n 2 --dist loadfile
	$(BIN)/python -m pytest tests/end_to_end tests/faults

faults: $(STAMP)  ## inject every fault in every way and print the table of what must hold and what was measured
	$(BIN)/python -m pytest tests/faults -m 'not soak'

soak: $(STAMP)  ## the longest tests: 200 kills of one training, 10,000 configs, 1,000 command lines, 1,000 files (RUNNER_SOAK_KILLS=6: six)
	$(BIN)/python -m pytest -m soak

format: $(STAMP)  ## format the code and mend what the linter can mend
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lock: $(STAMP)  ## renew constraints.txt from pyproject.toml with the newest versions that fit
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/uv pip compile --quiet --upgrade --universal \
		--python-version 3.11 --extra dev --extra build --no-annotate --no-emit-index-url \
		--output-file constraints.txt pyproject.toml

clean:  ## remove .venv and the checkers' caches (outputs and built Horovod wheels stay)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A .venv whose Python is gone is no environment, whatever its stamp says.
ifeq ($(wildcard $(BIN)/python),)
.PHONY: $(STAMP)
endif
$(STAMP): pyproject.toml constraints.txt tools/setup.sh $(wildcard tools/build_*.py tools/*.patch)
	@PYTHON='$(PYTHON)' tools/setup.sh $@
