"""Write scalars for TensorBoard, under Megatron's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pretrain.report.event_file import EventFile
from pretrain.report.metric_table import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pretrain.report.records import EvalRecord, TrainRecord
    from pretrain.report.timers import Spread


class TensorBoard:
    """Write event files below a run directory. Made on rank 0 only.

    The curves over samples ("lm loss vs samples") have their own folder, `samples`: a resumed run hides events after
    the checkpoint by a step number, which counts iterations in one folder and samples in the other.
    """

    def __init__(
        self,
        directory: Path,
        *,
        warn: Callable[[str], None],
        queue_size: int = 1000,
        resume_at: int | None = None,
        resume_samples: int = 0,
    ) -> None:
        """Open the event files.

        Args:
            directory: usually RUN/tensorboard.
            warn: is told once if the files cannot be written; the curves have a gap then.
            queue_size: most events that wait for the writing thread.
            resume_at: the iteration from which training continues; later events of earlier parts are hidden.
            resume_samples: samples consumed until then.
        """
        self._directory, self._warn, self._has_warned = directory, warn, False
        self._iterations = EventFile(directory, queue_size, self._lose)
        self._samples = EventFile(directory / "samples", queue_size, self._lose)
        self._open(resume_at, resume_samples)

    def go_back(self, iteration: int, samples: int) -> None:
        """Hide the events of later iterations, which the training will write again."""
        self.close()
        self._open(iteration, samples)

    def _open(self, resume_at: int | None, resume_samples: int) -> None:
        is_new = resume_at is None
        self._iterations.open(None if is_new else (resume_at or 0) + 1)
        self._samples.open(None if is_new else resume_samples + 1)

    def train(self, record: TrainRecord) -> None:
        """Add a logged interval."""
        for metric in METRICS:
            if tag := metric.tensorboard:
                samples = record.consumed_samples if tag.over_samples else None
                self._add(tag.name, record.metrics[metric.name], record.iteration, samples)

    def evaluation(self, record: EvalRecord, consumed_samples: int) -> None:
        """Add loss and perplexity of one split."""
        tag = {"valid": "lm loss validation", "test": "lm loss test"}[record.split]
        self._add(tag, record.lm_loss, record.iteration, consumed_samples)
        self._add(f"{tag} ppl", record.ppl, record.iteration, consumed_samples)

    def timers(self, spreads: Mapping[str, Spread], iteration: int) -> None:
        """Add the slowest rank's time of each phase in milliseconds, as "forward-backward-time"."""
        for name, (_, slowest) in spreads.items():
            self._add(f"{name}-time", slowest, iteration)

    def close(self) -> None:
        """Write the waiting events and close the files."""
        self._iterations.close()
        self._samples.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lose(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            reason = getattr(error, "strerror", None) or error
            self._warn(
                f"warning: {self._directory} cannot be written ({reason}): TensorBoard's curves have a gap until it "
                "can be. The training goes on."
            )

    def _add(self, tag: str, value: float | None, iteration: int, samples: int | None = None) -> None:
        if value is None:
            return
        self._iterations.add(tag, value, iteration)
        if samples is not None:
            self._samples.add(f"{tag} vs samples", value, samples)
