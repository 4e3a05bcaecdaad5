# Two commands for a fresh machine: `make demo` and `make test`. Each sets up .venv from nothing.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format docs figures clean

demo: .venv/.ready
	$(BIN)/contextcaps demo

test: .venv/.ready
	$(BIN)/python -m pytest

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

figures: .venv/.ready
	$(BIN)/python docs/figures/architecture.py
	$(BIN)/python docs/figures/scenes.py
	$(BIN)/python docs/figures/evidence.py

clean:
	rm -rf .venv dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
