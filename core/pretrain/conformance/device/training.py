"""A few iterations on the device, against the CPU: alone, from checkpoint to checkpoint, and on two ranks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from pretrain.conformance.device.training_runs import ITERATIONS, TrainingRuns

if TYPE_CHECKING:
    from pretrain.conformance.device.training_runs import Curve
    from pretrain.conformance.subject import Subject

TENSOR = ("parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true")
PIPELINE = ("parallel.pipeline_model_parallel_size=2",)
ZERO = ("engine.name=deepspeed", "engine.zero.stage=3")


class TestTraining:
    """`pretrain RECIPE` on the device computes what it computes on the CPU.

    Attributes:
        tolerance: relative to the CPU's loss; ten times as much for gradient norms. None:
            1e-4 in fp32, 2e-2 in fp16 and bf16. With the high learning rate the loss falls by a tenth each iteration.
    """

    tolerance: float | None = None

    @staticmethod
    def skip_reason(subject: Subject) -> str:
        """Return the reason that no test of the class fits the backend, or ""."""
        return f"{subject.name} is not an installed backend: `pretrain` cannot find it" if "." in subject.name else ""

    def test_one_rank(self, subject: Subject) -> None:
        """Two iterations from the same weights."""
        self._agrees(subject, _alone(_trainings(subject)), range(1, 3))

    def test_a_checkpoint_resumes_on_the_cpu(self, subject: Subject) -> None:
        """A checkpoint of the device after two iterations is continued on the CPU."""
        self._agrees(subject, _on_the_cpu(_trainings(subject)), range(3, 5))

    def test_a_checkpoint_of_the_cpu_resumes_on_two_tensor_parallel_ranks(self, subject: Subject) -> None:
        """The CPU's later checkpoint is continued on two devices, whose ranks have half of every layer."""
        _require_two(subject)
        trainings = _trainings(subject)
        _on_the_cpu(trainings)
        curve = trainings.run("tensor", trainings.backend, *TENSOR, ranks=2, load="on-the-cpu")
        self._agrees(subject, curve, range(5, ITERATIONS + 1))

    def test_two_pipeline_stages(self, subject: Subject) -> None:
        """Pipeline communication has the abilities that `Backend.point_to_point` claims."""
        _require_two(subject)
        trainings = _trainings(subject)
        self._agrees(subject, trainings.run("pipeline", trainings.backend, *PIPELINE, ranks=2, last=3), range(1, 4))

    def test_two_ranks_of_zero_3(self, subject: Subject) -> None:
        """DeepSpeed's third stage, which copies weights on a stream of its own."""
        _require_two(subject)
        if find_spec("deepspeed") is None:
            pytest.skip("DeepSpeed is not installed: pip install 'pretrain[deepspeed]'")
        trainings = _trainings(subject)
        self._agrees(subject, trainings.run("zero", trainings.backend, *ZERO, ranks=2, last=3), range(1, 4))

    def _agrees(self, subject: Subject, curve: Curve, iterations: range) -> None:
        trainings = TrainingRuns.of(subject)
        expected = trainings.run("cpu", "cpu")
        of_dtype = 1e-4 if trainings.dtype == "fp32" else 2e-2
        tolerance = self.tolerance or of_dtype
        # A run that ignored its checkpoint would have the right losses too, but from the first iteration on.
        assert sorted(curve.losses) == [*iterations], f"iterations {sorted(curve.losses)} were trained"
        losses = {iteration: expected.losses[iteration] for iteration in curve.losses}
        assert curve.losses == pytest.approx(losses, rel=tolerance), "losses, which must be those of the CPU"
        norms = {iteration: expected.norms[iteration] for iteration in curve.norms}
        assert curve.norms == pytest.approx(norms, rel=10 * tolerance), "gradient norms, which must be those of the CPU"


def _trainings(subject: Subject) -> TrainingRuns:
    _ = subject.device  # is asked what it supports
    return TrainingRuns.of(subject)


def _alone(trainings: TrainingRuns) -> Curve:
    return trainings.run("alone", trainings.backend, last=2)


def _on_the_cpu(trainings: TrainingRuns) -> Curve:
    _alone(trainings)
    return trainings.run("on-the-cpu", "cpu", last=4, load="alone")


def _require_two(subject: Subject) -> None:
    count = subject.plugins.backend.device_count()
    if count is not None and count < 2:
        pytest.skip(f"two ranks need two devices; there is {count}")
