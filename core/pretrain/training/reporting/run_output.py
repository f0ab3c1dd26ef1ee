"""Output of a run: console, metrics.jsonl and TensorBoard, and files that describe it. Only rank 0 writes."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist

from pretrain.atomic_files import replacing
from pretrain.data.token_files.reading import unigram_entropy
from pretrain.errors import RunError
from pretrain.recipe.load import to_yaml
from pretrain.report.console import Console
from pretrain.report.environment_file import FILE as ENVIRONMENT
from pretrain.report.environment_file import describe_environment, write_environment
from pretrain.report.flops import active_text, parameter_count
from pretrain.report.metrics import FILE as METRICS
from pretrain.report.metrics import MetricsWriter
from pretrain.report.plain_text import kernel_table_text
from pretrain.report.run_page import write_report
from pretrain.report.tensorboard import TensorBoard
from pretrain.report.timers import timers_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.report.environment_file import Begin
    from pretrain.report.metrics import EvalRecord, EventRecord, Record, TaskRecord, TrainRecord
    from pretrain.report.timers import Spread
    from pretrain.training.progress import Progress
    from pretrain.training.rank_setup import RankSetup

RECIPE = "recipe.yml"
REPORT = "report.html"


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
        self._metrics = MetricsWriter(run_dir / METRICS, resume_at=resume_at, left_out=progress.left_out)
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

    def task(self, record: TaskRecord) -> None:
        """Log the results of a task; in the files once, as an evaluation."""
        self._console.task(record)
        if self.has_evaluation(record.task, record.iteration):
            return
        self._append(record)
        if self._tensorboard:
            self._tensorboard.task(record)

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
                    f"warning: {METRICS} cannot be written ({error.strerror}): lines are lost until it can be. "
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


def describe(logger: RunLogger, setup: RankSetup, table: KernelTable, run_dir: Path, remark: str, begin: Begin) -> None:
    """Write the files that describe a run, and log its head, on rank 0; all ranks call it together."""
    devices: list[str] = [""] * setup.world.world_size
    dist.all_gather_object(devices, setup.plugins.backend.describe().get("device", str(setup.device)))
    if setup.world.rank == 0:
        write(setup, table, run_dir, devices, begin)
        log_head(logger, setup, table, run_dir, remark)


def write(setup: RankSetup, table: KernelTable, run_dir: Path, devices: Sequence[str], begin: Begin) -> None:
    """Write the resolved recipe and environment.json."""
    run_dir.mkdir(parents=True, exist_ok=True)
    text = to_yaml(setup.recipe).encode()
    environment = describe_environment(
        backend=setup.plugins.backend,
        provider=setup.plugins.provider,
        devices=devices,
        kernels=table.to_json(),
        layout=dataclasses.asdict(setup.layout),
        begin=begin,
    )
    environment["started_after"] = _begin_of_part(run_dir, text, environment)
    with replacing(run_dir / RECIPE) as stream:
        stream.write(text)
    write_environment(run_dir, environment)


def _begin_of_part(run_dir: Path, recipe: bytes, environment: Mapping[str, Any]) -> int:
    """Return the iteration after which the run has had this recipe, layout and these devices."""
    begin: int = environment["started_after"]
    try:
        before = json.loads((run_dir / ENVIRONMENT).read_bytes())
        now = json.loads(json.dumps(environment))  # JSON has no tuples
        is_same = recipe == (run_dir / RECIPE).read_bytes()
        is_same = is_same and all(before[key] == now[key] for key in ("devices", "layout"))
        return min(begin, before["started_after"]) if is_same else begin
    except (OSError, ValueError, KeyError, TypeError):  # none there, or damaged
        return begin


def log_head(logger: RunLogger, setup: RankSetup, table: KernelTable, run_dir: Path, remark: str) -> None:
    """Log the model, its layout over the ranks, the kernels, and what plugins have to say."""
    recipe, layout = setup.recipe, setup.layout
    rows = setup.padded_vocab_size
    active = active_text(recipe.model, rows, lambda count: f"{count / 1e6:,.1f} M")
    lines = [
        *setup.plugins.notices,
        f"run directory: {run_dir}",
        kernel_table_text(table),
        (
            f"{parameter_count(recipe.model, rows) / 1e6:,.1f} M parameters{active}, {recipe.precision.dtype}; "
            f"{layout.world_size} rank{'s' * (layout.world_size > 1)}: "
            f"{layout.sizes}"
        ),
    ]
    if recipe.data.path is not None:
        entropy = unigram_entropy(recipe.data.path, setup.tokenizer.vocab_size)
        lines.append(f"unigram entropy of the corpus: {entropy:.3f} nats per token; a model that learns gets below it")
    for line in (*lines, *recipe.notices, remark):
        if line:
            logger.note(line)


def finish(logger: RunLogger, run_dir: Path, reason: str, iteration: int) -> None:
    """Write the report and log the run directory; what cannot be read or written is a warning: the training is over."""
    try:
        try:
            if (run_dir / METRICS).stat().st_size:  # a run that had nothing left to do has nothing to report
                write_report([run_dir], run_dir / REPORT)
        except RunError as error:  # of a full disk: the training is complete all the same
            logger.note(f"warning: {error}\nWrite it later: pretrain report {run_dir}")
        logger.note(f"stopped after iteration {iteration}: {reason}" if reason else f"done: {iteration} iterations")
        files = sorted(entry.name for entry in run_dir.iterdir() if not entry.name.startswith("."))
        logger.note(f"run directory: {run_dir} ({', '.join(files)})")
    except OSError as error:
        logger.note(f"warning: {error}\nThe run directory cannot be listed; its checkpoints are written.")
