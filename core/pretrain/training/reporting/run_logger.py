"""Output of a run: console, metrics.jsonl and TensorBoard. Only rank 0 writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pretrain.errors import RunError
from pretrain.report.console import Console
from pretrain.report.metrics import FILE, MetricsWriter
from pretrain.report.tensorboard import TensorBoard
from pretrain.report.timers import timers_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.report.metrics import EvalRecord, EventRecord, Record, TrainRecord
    from pretrain.report.timers import Spread
    from pretrain.training.progress import Progress
    from pretrain.training.rank_setup import RankSetup


class RunLogger:
    """Sends each record to every output."""

    def __init__(
        self, setup: RankSetup, run_dir: Path, total_iterations: int, progress: Progress, *, resumed: bool
    ) -> None:
        recipe, rank = setup.recipe, setup.world.rank
        self._console = Console(total_iterations, start_iteration=progress.iteration, rank=rank)
        self._metrics: MetricsWriter | None = None
        self._metrics_fail = False
        self._tensorboard: TensorBoard | None = None
        if rank != 0:
            return
        resume_at = progress.iteration if resumed else None
        self._metrics = MetricsWriter(run_dir / FILE, resume_at=resume_at, left_out=progress.left_out)
        if recipe.logging.tensorboard:
            self._tensorboard = TensorBoard(
                run_dir / "tensorboard",
                warn=self._console.note,
                queue_size=recipe.logging.tensorboard_queue_size,
                resume_at=resume_at,
                resume_samples=progress.consumed_samples,
            )

    def train(self, record: TrainRecord) -> None:
        """Log the record of an interval."""
        self._console.train(record)
        self._append(record)
        if self._tensorboard:
            self._tensorboard.train(record)

    def evaluation(self, record: EvalRecord, consumed_samples: int) -> None:
        """Log an evaluation; in the files once, also where a finished run is started again."""
        self._console.evaluation(record)
        if self.has_evaluation(record.split, record.iteration):
            return
        self._append(record)
        if self._tensorboard:
            self._tensorboard.evaluation(record, consumed_samples)

    def has_evaluation(self, split: str, iteration: int) -> bool:
        """Say whether the run had logged this evaluation before it was started or resumed; False on other ranks."""
        return self._metrics is not None and self._metrics.has_evaluation(split, iteration)

    def event(self, record: EventRecord) -> None:
        """Log something that happened to the training."""
        self._console.note(record.text)
        self._append(record)

    def go_back(self, progress: Progress) -> None:
        """Drop what the files have of later iterations: the training has gone back."""
        if self._metrics:
            try:
                self._metrics.go_back(progress.iteration, progress.left_out)
            except RunError as error:
                self.note(
                    f"warning: {str(error).splitlines()[0]} Its lines after iteration {progress.iteration} stay, and "
                    "will be there twice. The training continues."
                )
        if self._tensorboard:
            self._tensorboard.go_back(progress.iteration, progress.consumed_samples)

    def timers(self, spreads: Mapping[str, Spread], iteration: int) -> None:
        """Log the time of each phase on the fastest and the slowest rank."""
        self._console.note(timers_line(spreads))
        if self._tensorboard:
            self._tensorboard.timers(spreads, iteration)

    def _append(self, record: Record) -> None:
        """Append a record to metrics.jsonl; one for which there is no room is lost."""
        if self._metrics is None:
            return
        try:
            self._metrics.write(record)
        except OSError as error:
            if not self._metrics_fail:
                self._metrics_fail = True
                self.note(
                    f"warning: {FILE} cannot be written ({error.strerror}): lines are lost until it can be. "
                    "The training continues."
                )

    def note(self, text: str) -> None:
        """Print a remark."""
        self._console.note(text)

    def close(self) -> None:
        """Close the files and restore the terminal; may be called twice."""
        self._console.close()
        for output in (self._metrics, self._tensorboard):
            if output:
                output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
