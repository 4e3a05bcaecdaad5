# Each target sets up .venv from nothing. `make demo` to see it work, `make check` before a commit, `make test` for all.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo check test lint format docs page figures hashes clean

demo: .venv/.ready
	$(BIN)/contextcaps demo

check: lint  # under 90 seconds on two cores
	$(BIN)/python -m pytest -m 'not slow and not long'

test: .venv/.ready
	$(BIN)/python -m pytest

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

page: .venv/.ready  # the page that tags in a browser, into web/dist; needs Node.js
	cd web && npm install --no-audit --no-fund
	$(BIN)/contextcaps export coco80 --explain --out web/tagger.onnx
	cd web && node build.mjs tagger.onnx

figures: .venv/.ready
	$(BIN)/python docs/figures/architecture.py
	$(BIN)/python docs/figures/scenes.py
	$(BIN)/python docs/figures/photographs.py
	$(BIN)/python docs/figures/explanation.py
	$(BIN)/python docs/figures/evidence.py

hashes: .venv/.ready
	$(BIN)/python .ci/hashes.py

clean:
	rm -rf .venv dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
