"""Output of a run: console, metrics.jsonl and other loggers, and files that describe it. Only rank 0 writes."""

from __future__ import annotations

import dataclasses
import json
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from pretrain.atomic_files import replacing
from pretrain.collectives import tree_of_world
from pretrain.data.token_files.reading import TokenFile, unigram_entropy
from pretrain.errors import RunError
from pretrain.plugins.logger import LoggedEvent, Point, Run
from pretrain.recipe.load import to_yaml
from pretrain.report.console import Console
from pretrain.report.environment_file import FILE as ENVIRONMENT
from pretrain.report.environment_file import describe_environment, write_environment
from pretrain.report.flops import active_text, parameter_count
from pretrain.report.loggers.background import Background
from pretrain.report.loggers.background import finish as finish_loggers
from pretrain.report.loggers.choice import loggers_of
from pretrain.report.loggers.curves import of_evaluation, of_event, of_task, of_timers, of_train
from pretrain.report.loggers.metrics_file import MetricsFile
from pretrain.report.metrics import FILE as METRICS
from pretrain.report.plain_text import kernel_table_text
from pretrain.report.run_page import write_report
from pretrain.report.timers import timers_line
from pretrain.stores.stored_inputs import local_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.plugins.logger import Metrics
    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.report.environment_file import Begin
    from pretrain.report.metrics import EvalRecord, EventRecord, TaskRecord, TrainRecord
    from pretrain.report.timers import Spread
    from pretrain.training.progress import Progress
    from pretrain.training.rank_setup import RankSetup

RECIPE = "recipe.yml"
REPORT = "report.html"


class RunLogger:
    """Sends each record to the screen and to every logger."""

    def __init__(
        self, setup: RankSetup, run_dir: Path, total_iterations: int, progress: Progress, *, resumed: bool
    ) -> None:
        self._console = Console(total_iterations, start_iteration=progress.iteration, rank=setup.world.rank)
        self._notes: SimpleQueue[str] = SimpleQueue()  # of loggers, which call from their own threads
        self._metrics: MetricsFile | None = None
        self._loggers: list[MetricsFile | Background] = []
        self._unfinished: list[Background] = []
        if setup.world.rank != 0:
            return
        run = Run(directory=run_dir, resumed=_point(progress) if resumed else None, note=self._notes.put)
        named = [Background(name, each, run.note) for name, each in loggers_of(setup.recipe, run).items()]
        try:
            for logger in named:
                logger.start(is_required=not resumed)
                self._unfinished.append(logger)
            self._metrics = MetricsFile(run)  # last: with this file a directory holds a run, which has begun
        except BaseException:
            self.close(failed=True)
            raise
        self._loggers = [self._metrics, *named]
        if resumed:
            for logger in named:
                text = f"resumed after iteration {progress.iteration}"
                logger.event(LoggedEvent(name="resume", iteration=progress.iteration, text=text))
        self._show_notes()

    def train(self, record: TrainRecord) -> None:
        """Log the record of an interval."""
        self._console.train(record)
        self._send(of_train(record))

    def evaluation(self, record: EvalRecord, consumed_samples: int) -> None:
        """Log an evaluation; in the loggers once, also where a finished run is started again."""
        self._console.evaluation(record)
        if not self._has(record.to_json()):
            self._send(of_evaluation(record, consumed_samples))

    def task(self, record: TaskRecord, consumed_samples: int) -> None:
        """Log the results of a task; in the loggers once, as an evaluation."""
        self._console.task(record)
        if not self._has(record.to_json()):
            self._send(of_task(record, consumed_samples))

    def has_evaluation(self, split: str, iteration: int) -> bool:
        """Say whether the run had logged this evaluation before it was started or resumed; False on other ranks."""
        return self._has({"kind": "eval", "split": split, "iteration": iteration})

    def _has(self, line: Mapping[str, Any]) -> bool:
        return self._metrics is not None and self._metrics.has_evaluation(line)

    def event(self, record: EventRecord) -> None:
        """Log something that happened to the training."""
        self._console.note(record.text)
        for logger in self._loggers:
            logger.event(of_event(record))
        self._show_notes()

    def go_back(self, progress: Progress) -> None:
        """Tell the loggers that the training has gone back, so that later iterations come again."""
        for logger in self._loggers:
            logger.go_back(_point(progress))
        self._show_notes()

    def timers(self, spreads: Mapping[str, Spread], iteration: int, consumed_samples: int) -> None:
        """Log the time of each phase on the fastest and the slowest rank."""
        self._console.note(timers_line(spreads))
        self._send(of_timers(spreads, iteration, consumed_samples))

    def artifact(self, file: Path) -> None:
        """Hand over a file of the run directory, if it is there."""
        for logger in self._loggers if file.exists() else ():
            logger.artifact(file)

    def _send(self, metrics: Metrics) -> None:
        for logger in self._loggers:
            logger.metrics(metrics)
        self._show_notes()

    def _show_notes(self) -> None:
        while not self._notes.empty():
            self._console.note(self._notes.get())

    def note(self, text: str) -> None:
        """Print a remark."""
        self._console.note(text)

    def close(self, *, failed: bool = False) -> None:
        """Finish the loggers and restore the terminal; may be called twice."""
        if self._metrics is not None:
            self._metrics.finish(failed=failed)
        unfinished, self._unfinished = self._unfinished, []
        finish_loggers(unfinished, failed=failed)
        self._show_notes()
        self._console.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self.close(failed=kind is not None)


def _point(progress: Progress) -> Point:
    # Loggers read it later, in other threads, while the training moves its progress on.
    left_out = tuple((first, last) for first, last in progress.left_out)
    return Point(iteration=progress.iteration, consumed_samples=progress.consumed_samples, left_out=left_out)


def describe(logger: RunLogger, setup: RankSetup, table: KernelTable, run_dir: Path, remark: str, begin: Begin) -> None:
    """Write the files that describe a run, and log its head, on rank 0; all ranks call it together."""
    own: str = setup.plugins.backend.describe().get("device", str(setup.device))
    devices = tree_of_world().gathered(own)
    if devices is not None:
        write(setup, table, run_dir, devices, begin)
        for name in (RECIPE, ENVIRONMENT):
            logger.artifact(run_dir / name)
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
    if len(recipe.data.splits[0]) == 1:
        entropy = unigram_entropy(local_prefix(recipe.data.splits[0][0].path), setup.tokenizer.vocab_size)
        lines.append(f"unigram entropy of the corpus: {entropy:.3f} nats per token; a model that learns gets below it")
    lines.append(validation_text(recipe))
    for line in (*lines, *recipe.notices, remark):
        if line:
            logger.note(line)


def validation_text(recipe: Recipe) -> str:
    """Say how much of its text a validation reads; empty without one, and for a blend, whose files are read apart."""
    files, batch = recipe.data.splits[1], recipe.train.global_batch_size
    if not recipe.evaluation.interval or len(files) != 1:
        return ""
    tokens = TokenFile.open(local_prefix(files[0].path)).range_of(recipe.data.bounds[1], recipe.data.split_by)
    read, samples = recipe.evaluation.iters * batch, (len(tokens) - 1) // recipe.model.seq_length
    there = f"the validation text has {samples:,}, which evaluation.iters {-(-samples // batch):,} reads"
    return f"every evaluation reads the same {read:,} samples; {there}"


def finish(logger: RunLogger, run_dir: Path, reason: str, iteration: int) -> None:
    """Write the report and log the run directory; what cannot be read or written is a warning: the training is over."""
    try:
        try:
            if (run_dir / METRICS).stat().st_size:  # a run that had nothing left to do has nothing to report
                write_report([run_dir], run_dir / REPORT)
                logger.artifact(run_dir / REPORT)
        except RunError as error:  # of a full disk: the training is complete all the same
            logger.note(f"warning: {error}\nWrite it later: pretrain report {run_dir}")
        logger.note(f"stopped after iteration {iteration}: {reason}" if reason else f"done: {iteration} iterations")
        files = sorted(entry.name for entry in run_dir.iterdir() if not entry.name.startswith("."))
        logger.note(f"run directory: {run_dir} ({', '.join(files)})")
    except OSError as error:
        logger.note(f"warning: {error}\nThe run directory cannot be listed; its checkpoints are written.")
