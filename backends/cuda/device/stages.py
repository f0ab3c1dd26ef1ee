"""The stages of `make test-device`, one after the other: every one runs, even after a failed one.

    backends/cuda/device/test [--logs FOLDER] [STAGE ...]

Without a name all of them. Each ends after 8 minutes at the latest, so that each fits into one command on a machine
that is lent for ten; how long they take on a GPU was not seen. What a stage says is shown and kept in FOLDER/STAGE.log;
the report at the end repeats what failed. The exit code is 0 only if nothing did, and 2 where there is no GPU.

The order is that in which a first GPU tells most: kernels alone, trainings, what decides the order of the kernels, the
rest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).parents[3]
TESTS = "backends/cuda/tests"
LIMIT = 8 * 60
"""Seconds of a stage."""
GRACE = 15
"""Seconds in which a stage that is interrupted may end what it started."""
SHOWN = 12
"""Lines of a failed stage in the report."""

CONFORMANCE = ("-m", "pretrain.cli.main", "conformance", "--backend", "cuda", "-k")
ELEMENTWISE = "TestActivation or TestBiasDropoutAdd or TestCrossEntropy or TestNorm or TestRotary"


def _files(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{TESTS}/{folder}test_{name}.py" for name in names)


TRAINING = _files("", "training")
TRITON = _files("kernels/", "activation", "bias_dropout_add", "cross_entropy", "norm", "rotary")
SOFTMAX = _files("kernels/", "softmax", "softmax_compiled", "apex_softmax")
ATTENTION = (*_files("", "attention"), *_files("kernels/", "flash_attn", "sdpa", "transformer_engine", "triangle"))
ELSEWHERE = (*_files("", "conformance"), *TRAINING, *TRITON, *SOFTMAX, *ATTENTION)
"""Test files that are not of the stage tests-rest."""


def _pytest(*arguments: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", *arguments)


def _benchmark(name: str, *arguments: str) -> tuple[str, ...]:
    return ("-m", f"benchmarks.gpu.{name}", "--keep", *arguments)


STAGES = {
    # Triton compiles each variant when it is first called: the kit is split so that no stage waits for all of them.
    "conformance-attention": (*CONFORMANCE, "TestAttention"),
    "conformance-softmax": (*CONFORMANCE, "TestSoftmax"),
    "conformance-elementwise": (*CONFORMANCE, ELEMENTWISE),
    "conformance-rest": (*CONFORMANCE, f"not ({ELEMENTWISE} or TestAttention or TestSoftmax)"),
    "training": _pytest(*TRAINING, "-k", "not layer"),
    "training-compiled": _pytest(*TRAINING, "-k", "layer"),
    "gpu_attention": _benchmark("gpu_attention"),
    "gpu_layers": _benchmark("gpu_layers"),
    "gpu_train": _benchmark("gpu_train"),
    "tests-triton": _pytest(*TRITON),
    "tests-softmax": _pytest(*SOFTMAX),
    "tests-attention": _pytest(*ATTENTION),
    "tests-rest": _pytest(TESTS, *(f"--ignore={path}" for path in ELSEWHERE)),
    "gpu_elementwise": _benchmark("gpu_elementwise"),
    "gpu_softmax": _benchmark("gpu_softmax"),
    "gpu_shares": _benchmark("gpu_shares"),
}
"""Stage -> arguments of Python."""

HAS_DEVICE = ("-c", "from benchmarks.gpu import command; command.plugins(tiny=False)")


class Ended(NamedTuple):
    """Result of a stage: its exit status, None after a timeout."""

    name: str
    status: int | None
    seconds: float
    log: Path

    def line(self) -> str:
        """Return its line of the report."""
        verdict = "passed" if self.status == 0 else f"FAILED, exit status {self.status}"
        if self.status is None:
            verdict = f"FAILED, stopped after {LIMIT / 60:g} minutes"
        return f"{self.name:<24} {self.seconds:6.0f} s  {verdict}"


def main(arguments: list[str], python: str = sys.executable) -> int:
    """Run the stages, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="backends/cuda/device/test", description="Test this machine's GPU, in stages."
    )
    parser.add_argument("stages", metavar="STAGE", nargs="*", help=f"of {', '.join(STAGES)}; none: all")
    parser.add_argument("--logs", type=Path, default=ROOT / "runs" / "test-device", help="default: runs/test-device")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.stages if name not in STAGES]:
        parser.error(f"no stage is called {', '.join(unknown)}; there are: {', '.join(STAGES)}")
    if subprocess.run([python, *HAS_DEVICE], cwd=ROOT, check=False).returncode:
        return 2  # it has said why
    asked.logs.mkdir(parents=True, exist_ok=True)
    ended = [run(name, python, asked.logs / f"{name}.log") for name in asked.stages or STAGES]
    return report(ended)


def run(name: str, python: str, log: Path) -> Ended:
    """Run a stage in a process group of its own; show and keep what it says."""
    _say(f"==> {name}")
    start = time.monotonic()
    stage = subprocess.Popen(
        [python, *STAGES[name]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    reader = threading.Thread(target=_keep, args=(stage.stdout, log), daemon=True)
    reader.start()
    try:
        status: int | None = stage.wait(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        status = None
        _stop(stage)
    reader.join(timeout=GRACE)  # a process that left the group may hold the pipe open
    return Ended(name, status, time.monotonic() - start, log)


def _keep(output: IO[str], log: Path) -> None:
    with log.open("w") as kept:
        for line in output:
            kept.write(line)
            kept.flush()
            _say(line.rstrip("\n"))


def _stop(stage: subprocess.Popen[str]) -> None:
    """Interrupt a stage, so that pytest ends what it started and says how far it came; then kill what is left."""
    os.killpg(stage.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        stage.wait(timeout=GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(stage.pid, signal.SIGKILL)
    stage.wait()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def report(ended: list[Ended]) -> int:
    """Print the result of every stage and the end of those that failed; return the exit code."""
    failed = [stage for stage in ended if stage.status != 0]
    _say("==> report")
    for stage in ended:
        _say(stage.line())
    for stage in failed:
        _say(f"==> {stage.name}: {stage.log}")
        _say("\n".join(_telling(stage.log.read_text().splitlines())))
    _say(f"{len(failed)} of {len(ended)} stages failed: {', '.join(stage.name for stage in failed) or 'none'}")
    return 1 if failed else 0


def _telling(lines: list[str]) -> list[str]:
    """Return the tests that failed, as pytest lists them at the end, or the last lines."""
    listed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return [*listed[:SHOWN], *lines[-1:]] if listed else lines[-SHOWN:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
