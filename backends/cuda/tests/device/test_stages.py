"""`make test-device`, with a stub in the place of Python: what runs and what is reported. The stages need a GPU."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from pretrain.conformance import suite

ROOT = Path(__file__).parents[4]
DEVICE = ROOT / "backends" / "cuda" / "device"
spec = importlib.util.spec_from_file_location("stages", DEVICE / "stages.py")
stages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stages)

FIRST, *_, LAST = stages.STAGES


@pytest.fixture
def call(tmp_path, capfd):
    """Run stages with a shell script of these cases for Python; return the exit code and what was shown."""

    def call(cases, *names):
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\necho "ran $*"\ncase "$*" in\n{cases}\nesac\n')
        python.chmod(0o755)
        code = stages.main(["--logs", str(tmp_path / "logs"), *names], str(python))
        return code, capfd.readouterr().out.splitlines()

    return call


def ran(lines):
    return [line.removeprefix("==> ") for line in lines if line.startswith("==> ") and ":" not in line]


def test_without_a_failure_all_stages_run_in_their_order(call, tmp_path):
    code, lines = call("x) ;;")
    assert code == 0
    assert ran(lines) == [*stages.STAGES, "report"]
    assert lines[-1] == f"0 of {len(stages.STAGES)} stages failed: none"
    assert (tmp_path / "logs" / f"{FIRST}.log").read_text().startswith("ran -m pretrain.cli.main conformance")


def test_a_stage_that_fails_stops_none_and_the_report_names_it(call):
    code, lines = call('*TestSoftmax) echo "FAILED test_one - it broke"; echo "1 failed"; exit 3 ;;', FIRST, SOFT, LAST)
    assert code == 1
    assert ran(lines) == [FIRST, SOFT, LAST, "report"]
    report = lines[lines.index("==> report") :]
    assert [line.split()[3:] for line in report[1:4]] == [["passed"], ["FAILED,", "exit", "status", "3"], ["passed"]]
    assert "FAILED test_one - it broke" in report
    assert lines[-1] == f"1 of 3 stages failed: {SOFT}"


SOFT = "conformance-softmax"


def test_a_stage_that_exceeds_its_timeout_is_stopped_with_its_children(call, monkeypatch):
    monkeypatch.setattr(stages, "LIMIT", 1)
    monkeypatch.setattr(stages, "GRACE", 1)
    code, lines = call("*TestSoftmax) trap '' INT; sleep 1000 & sleep 1000 ;;", SOFT, LAST)
    assert code == 1
    assert any(line.startswith(SOFT) and "FAILED, stopped after" in line for line in lines)
    assert any(line.startswith(LAST) and line.endswith("passed") for line in lines)


def test_without_a_gpu_nothing_runs(call):
    code, lines = call("*plugins*) exit 2 ;;")
    assert code == 2
    assert ran(lines) == []


def test_a_stage_that_is_not_there_is_named_with_those_that_are(call, capfd):
    with pytest.raises(SystemExit) as ended:
        call("x) ;;", "gpu_speed")
    assert ended.value.code == 2
    assert "no stage is called gpu_speed; there are: conformance-attention, " in capfd.readouterr().err


def test_every_benchmark_and_every_test_file_has_its_stage():
    words = [word for arguments in stages.STAGES.values() for word in arguments]
    benchmarks = {f"benchmarks.gpu.{path.stem}" for path in (ROOT / "benchmarks/gpu").glob("gpu_*.py")}
    assert benchmarks == {word for word in words if word.startswith("benchmarks.")}
    named = {word.removeprefix("--ignore=") for word in words if word.endswith(".py")}
    assert [path for path in named if not (ROOT / path).is_file()] == []
    elsewhere = {word for word in words if word.endswith(".py") and not word.startswith("--ignore=")}
    left_out = {word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")}
    assert left_out - elsewhere == {"backends/cuda/tests/test_conformance.py"}


def test_every_class_of_the_kit_that_is_named_is_there():
    """The last conformance stage runs those that no other names."""
    expressions = [arguments[-1] for name, arguments in stages.STAGES.items() if name.startswith("conformance")]
    named = {word.strip("()") for expression in expressions for word in expression.split() if "Test" in word}
    assert named <= set(suite.__all__)


def test_the_script_runs_the_stages_in_the_environment_that_bootstrap_makes(tmp_path):
    folder = tmp_path / "backends" / "cuda" / "device"
    shutil.copytree(DEVICE, folder)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for program, does in (("bootstrap", "echo made"), (".venv/bin/python", 'echo "$@"; exit 7')):
        (tmp_path / program).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / program).chmod(0o755)
    done = subprocess.run([folder / "test", "gpu_train"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (7, ["made", "backends/cuda/device/stages.py", "gpu_train"])
