.PHONY: quickstart test lint bench venv
PY := .venv/bin

venv:
	./bootstrap

quickstart: venv
	$(PY)/pretrain --backend cpu recipes/quickstart.yml

test: venv
	$(PY)/python -m pytest

lint: venv
	$(PY)/ruff check
	$(PY)/ruff format --check
	$(PY)/mypy
	$(PY)/lint-imports

bench: venv
	$(PY)/python -m pip -q install -e ".[benchmarks]"
	$(PY)/python benchmarks/run.py
