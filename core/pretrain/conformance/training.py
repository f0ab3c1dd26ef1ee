"""Trains a tiny GPT on the device and compares its losses with the CPU's: on one rank, resumed, and on two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from pretrain.conformance.subject import Subject


TENSOR = ("parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true")
PIPELINE = ("parallel.pipeline_model_parallel_size=2",)
ZERO = ("engine.name=deepspeed", "engine.zero.stage=3")


class TestTraining:
    """`pretrain RECIPE` on the device computes what it computes on the CPU.

    Losses agree within `tolerance`, relative to the CPU's, and gradient norms within ten times as much. None: 1e-4 in
    fp32, 2e-2 in fp16 and bf16. With the high learning rate the loss falls by a tenth each iteration.
    """

    tier = "training"
    tolerance: float | None = None

    @staticmethod
    def skip_reason(subject: Subject) -> str:
        """Return the reason that no test of the class fits the backend, or ""."""
        return f"{subject.name} is not an installed backend: `pretrain` cannot find it" if "." in subject.name else ""

    def test_one_rank(self, subject: Subject) -> None:
        """Two iterations from the same weights."""
        self._agrees(subject, _alone(TrainingRuns.of(subject)), range(1, 3))

    def test_a_checkpoint_resumes_on_the_cpu(self, subject: Subject) -> None:
        """A checkpoint of the device after two iterations is continued on the CPU."""
        self._agrees(subject, _on_the_cpu(TrainingRuns.of(subject)), range(3, 5))

    def test_a_checkpoint_of_the_cpu_resumes_on_two_tensor_parallel_ranks(self, subject: Subject) -> None:
        """The CPU's later checkpoint is continued on two devices, whose ranks have half of every layer."""
        _require_two(subject)
        trainings = TrainingRuns.of(subject)
        _on_the_cpu(trainings)
        curve = trainings.run("tensor", trainings.backend, *TENSOR, ranks=2, load="on-the-cpu")
        self._agrees(subject, curve, range(5, ITERATIONS + 1))

    def test_two_pipeline_stages(self, subject: Subject) -> None:
        """Pipeline communication has the abilities that `Backend.point_to_point` claims."""
        _require_two(subject)
        trainings = TrainingRuns.of(subject)
        self._agrees(subject, trainings.run("pipeline", trainings.backend, *PIPELINE, ranks=2, last=3), range(1, 4))

    def test_two_ranks_of_zero_3(self, subject: Subject) -> None:
        """DeepSpeed's third stage, which copies weights on a stream of its own."""
        _require_two(subject)
        if find_spec("deepspeed") is None:
            pytest.skip("DeepSpeed is not installed: pip install 'pretrain[deepspeed]'")
        trainings = TrainingRuns.of(subject)
        self._agrees(subject, trainings.run("zero", trainings.backend, *ZERO, ranks=2, last=3), range(1, 4))

    def _agrees(self, subject: Subject, curve: LossCurve, iterations: range) -> None:
        trainings = TrainingRuns.of(subject)
        expected = trainings.run("cpu", "cpu")
        tolerance = self.tolerance or (1e-4 if trainings.dtype == "fp32" else 2e-2)
        # A run that ignored its checkpoint would have the right losses too, but from the first iteration on.
        assert sorted(curve.losses) == [*iterations], f"trained iterations {[*curve.losses]}, expected {[*iterations]}"
        losses = {iteration: expected.losses[iteration] for iteration in curve.losses}
        assert curve.losses == pytest.approx(losses, rel=tolerance), "the losses differ from the CPU's"
        norms = {iteration: expected.norms[iteration] for iteration in curve.norms}
        assert curve.norms == pytest.approx(norms, rel=10 * tolerance), "the gradient norms differ from the CPU's"


def _alone(trainings: TrainingRuns) -> LossCurve:
    return trainings.run("alone", trainings.backend, last=2)


def _on_the_cpu(trainings: TrainingRuns) -> LossCurve:
    _alone(trainings)
    return trainings.run("on-the-cpu", "cpu", last=4, load="alone")


def _require_two(subject: Subject) -> None:
    count = subject.plugins.backend.device_count()
    if count is not None and count < 2:
        pytest.skip(f"two ranks need two devices; there is {count}")


SECONDS = 900
ITERATIONS = 6
RECIPE = {
    "model": {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "seq_length": 32,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "tokenizer": {"type": "bytes"},
    "data": {"path": "text_text_document", "split": "98,1,1", "num_workers": 0},
    "train": {"micro_batch_size": 2, "global_batch_size": 4, "train_iters": ITERATIONS},
    "optimizer": {"lr": 1e-2},
    "evaluation": {"interval": 0},
    "logging": {"log_interval": 1, "loggers": []},
}
"""Without dropout: devices generate different random numbers."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Loss and gradient norm by iteration; no norm where an overflow skipped the step."""

    losses: dict[int, float]
    norms: dict[int, float | None]


class TrainingRuns:
    """The trainings of one backend, each run once, in a folder of their own."""

    def __init__(self, subject: Subject) -> None:
        """Find the dtype and make the text."""
        _ = subject.device  # some plugins know what the device supports only once it is there
        supports = subject.plugins.backend.supports
        self.backend = subject.name
        self.dtype = next((name for name, dtype in DTYPES.items() if supports(dtype)), "fp32")
        self._kept = tempfile.TemporaryDirectory(prefix="pretrain-conformance-")
        self._folder = Path(self._kept.name)
        self._outcomes: dict[str, LossCurve | str] = {}
        (self._folder / "recipe.yml").write_text(json.dumps(RECIPE))  # which is YAML too
        lines = (json.dumps({"text": f"line {number} counts to {number * number}"}) for number in range(200))
        (self._folder / "text.jsonl").write_text("\n".join(lines))
        self._fault = self._start("data", "build", "text.jsonl", "--output-prefix", "text", "--tokenizer-type", "bytes")

    @staticmethod
    @lru_cache
    def of(subject: Subject) -> TrainingRuns:
        """Return the trainings of a backend; the same ones for every test of this process."""
        return TrainingRuns(subject)

    def run(
        self, name: str, backend: str, *settings: str, ranks: int = 1, last: int = ITERATIONS, load: str = ""
    ) -> LossCurve:
        """Train until iteration `last`, from the start or from where the training called `load` ended, or fail."""
        if name not in self._outcomes:
            loaded = [f"checkpoint.load={load}/checkpoints"] if load else []
            overrides = [f"precision.dtype={self.dtype}", f"train.exit_interval={last}", *loaded, *settings]
            options = [part for setting in overrides for part in ("--set", setting)]
            self._outcomes[name] = (
                self._fault
                or self._start("--backend", backend, "recipe.yml", "--run-dir", name, "--nproc", str(ranks), *options)
                or self._curve(name)
            )
        outcome = self._outcomes[name]
        if isinstance(outcome, str):
            pytest.fail(outcome, pytrace=False)
        return outcome

    def _curve(self, name: str) -> LossCurve:
        lines = [json.loads(line) for line in (self._folder / name / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "train"]
        return LossCurve(
            losses={step["iteration"]: step["lm_loss"] for step in steps},
            norms={step["iteration"]: step["grad_norm"] for step in steps},
        )

    def _start(self, *arguments: str) -> str:
        """Run the command; return the end of its output if it failed, else ""."""
        done = subprocess.run(
            [sys.executable, "-m", "pretrain.cli.main", *arguments],
            cwd=self._folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        end = "\n".join(done.stdout.splitlines()[-30:])
        return f"`pretrain {' '.join(arguments)}` ended with code {done.returncode}:\n{end}" if done.returncode else ""
