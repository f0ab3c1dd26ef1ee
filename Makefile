# Every target makes .venv first if it is missing or out of date; ./bootstrap says how.
.PHONY: quickstart test test-all test-core test-beside test-cuda test-ascend test-ascend-older test-versions test-clusters integrations test-integrations lint bench build docs wheels test-device venv
# Empty is as not set: tests start some hundred processes, which would each compile what they import.
export PYTHONDONTWRITEBYTECODE =
PY := .venv/bin
SIMULATED := backends/ascend/tests/test_conformance.py backends/ascend/tests/simulated
SELECTED := not full
NPU_WORKERS := --numprocesses 2 --dist loadgroup
PYTEST := OMP_NUM_THREADS=1 $(PY)/python -m pytest

quickstart: venv
	$(PY)/pretrain --backend cpu recipes/quickstart.yml

# Side by side, since tests of ranks often wait; what the simulated NPU's say is shown after the others' end.
test: venv
	@says=$$(mktemp) && trap 'rm -f $$says' EXIT && trap 'exit 130' INT TERM && { \
	$(MAKE) --no-print-directory --jobs 2 --keep-going test-core test-beside SELECTED="$(SELECTED)" SAYS=$$says; \
	code=$$?; cat $$says; exit $$code; }

test-beside: SAYS ?= /dev/stdout
test-beside: venv
	@nice -n 10 $(MAKE) --no-print-directory test-ascend NPU_WORKERS= >$(SAYS) 2>&1

# And what takes longer than CI can bear: the tests marked full, and an installation.
test-all: SELECTED :=
test-all: integrations test test-ascend-older test-versions

# Three workers on two cores, since tests often wait; one of them has all tests whose ranks compute, one after the other.
# The tests of the code's structure are in `make lint`.
test-core: venv
	$(PYTEST) --numprocesses 3 --dist loadgroup -m "$(SELECTED)" --ignore tests/structure

# Of test-core those on fake GPUs alone: ranks of large CUDA jobs, untranslated, on torch's CPU build (docs/fake-gpu.md).
test-cuda: venv
	$(PYTEST) -m "$(SELECTED)" backends/cuda/tests/ranks/test_fake_gpu.py backends/cuda/tests/ranks/test_fake_ranks.py

# The ascend backend under the real torch_npu, on a simulated NPU: in processes of its own, since torch_npu changes torch.
# The environment's exit code 77 says, with the reason, that there is none here.
test-ascend: venv
	@backends/ascend/environment || { code=$$?; [ $$code = 77 ] && exit 0; exit $$code; } && \
	OMP_NUM_THREADS=1 .venv-ascend/bin/python -m pytest $(NPU_WORKERS) -m "$(SELECTED)" \
		backends/ascend/simulator/tests $(wildcard $(SIMULATED))

# The same under the release that Huawei pairs with CANN 8.5.0; installs several GB.
test-ascend-older: venv
	backends/ascend/environment 2.9.0
	OMP_NUM_THREADS=1 .venv-ascend-2.9.0/bin/python -m pytest --numprocesses 2 --dist loadgroup -m "$(SELECTED)" \
		backends/ascend/simulator/tests $(wildcard $(SIMULATED))

# Other versions of Python and torch; of Python those that are installed. Installs several GB.
test-versions:
	tests/versions

# Trackers, lm-eval and an S3 server, the real ones, which are larger than all else that is installed here.
test-integrations: integrations
	$(PYTEST) tests/report/loggers tests/cli/test_evaluate_tasks.py tests/e2e/test_object_store.py

integrations: venv
	@EXTRA=integrations ./bootstrap

# Runs under a real Slurm, pdsh, ssh, mpirun and torchrun, on virtual nodes; as root, who may make them.
test-clusters: venv
	tests/clusters/install
	$(PYTEST) -v tests/clusters

lint: venv
	$(PY)/ruff check
	$(PY)/ruff format --check
	$(PY)/mypy
	$(PY)/lint-imports
	$(PYTEST) --quiet --numprocesses 2 tests/structure

bench: venv
	$(PY)/python -m pip --quiet install --editable ".[benchmarks]"
	$(PY)/python benchmarks/run.py

# Tests, trainings and benchmarks on a GPU. Without a network there: make wheels here first, and copy wheels/ along.
test-device:
	backends/cuda/device/test

# The wheels of pretrain, pretrain-cuda and pretrain-ascend, in dist/. tests/packaging installs them.
build: venv
	$(PY)/python -m pip --quiet wheel --no-deps --no-build-isolation --wheel-dir dist . backends/cuda backends/ascend

# The pages of docs/ as a site, in site/. A link or an anchor that leads nowhere is an error. site/index.html opens as a
# file; its search needs `python -m http.server --directory site`.
docs: venv
	$(PY)/python -m pip --quiet install --editable ".[docs]"
	$(PY)/mkdocs build --strict

wheels: venv
	$(PY)/python backends/cuda/device/wheels.py wheels $(THERE)

venv:
	@./bootstrap
