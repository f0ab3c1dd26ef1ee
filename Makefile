# Every target makes .venv first if it is missing or out of date; ./bootstrap says how.
.PHONY: quickstart test lint bench wheels test-device venv
PY := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(PY)/python -m pytest

quickstart: venv
	$(PY)/pretrain --backend cpu recipes/quickstart.yml

# Two workers; tests that start several ranks share one of them, and so do not compete for the cores.
test: venv
	$(PYTEST) --numprocesses 2 --dist loadgroup

lint: venv
	$(PY)/ruff check
	$(PY)/ruff format --check
	$(PY)/mypy
	$(PY)/lint-imports
	$(PYTEST) --quiet -m "not slow" tests/structure

bench: venv
	$(PY)/python -m pip --quiet install --editable ".[benchmarks]"
	$(PY)/python benchmarks/run.py

# Tests, trainings and benchmarks on a GPU. Without a network there: make wheels here first, and copy wheels/ along.
test-device:
	backends/cuda/device/test

wheels: venv
	$(PY)/python backends/cuda/device/wheels.py wheels $(THERE)

venv:
	@./bootstrap
