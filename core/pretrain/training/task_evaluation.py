"""Evaluation on tasks of lm-evaluation-harness: rank 0 asks, and all ranks compute the answers in their layout."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import orjson

from pretrain.checkpoint import generators
from pretrain.checkpoint.agreement import between_hosts
from pretrain.collectives import on_rank0
from pretrain.data.tokenizers.tokenizer import end_token
from pretrain.engine.protocol import ScoredTokens
from pretrain.errors import PretrainError, TaskError, without_lm_eval
from pretrain.report.hang.position import TASKS, Position
from pretrain.report.metrics import FILE, MetricsWriter, TaskRecord
from pretrain.report.run_page import write_report
from pretrain.training.event import Event
from pretrain.training.reporting.run_output import REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from pretrain.engine.protocol import ForwardEngine
    from pretrain.recipe import Recipe
    from pretrain.training.event import Due
    from pretrain.training.loop import Training
    from pretrain.training.rank_setup import RankSetup
    from pretrain.training.trained_model import TrainedModel

_WAITING_MINUTES = 24 * 60  # timeout of ranks that wait until rank 0 has downloaded, tokenized or resampled
_BATCHES_AT_ONCE = 8  # micro-batches of a rank and stage that are sent and computed together


def harness() -> Any:
    """Return `pretrain.training.harness`; TaskError: the extra is not installed."""
    try:
        from pretrain.training import harness as found  # noqa: PLC0415  a large library, and an extra
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pretrain"):
            raise
        raise without_lm_eval(str(error.name)) from error
    return found


class TaskEvaluation:
    """Tasks with their data, on rank 0, and the model that answers."""

    def __init__(
        self, setup: RankSetup, engine: ForwardEngine, *, quiet: bool, position: Position | None = None
    ) -> None:
        """Load the recipe's tasks; all ranks call it together, and a TaskError is raised on all."""
        end_token(setup.tokenizer, "evaluation.tasks")
        self._setup, self._engine, self._quiet = setup, engine, quiet
        self._position = position or Position()
        self._waiting = between_hosts(TASKS, _WAITING_MINUTES)
        self._loaded: Any = None
        with self._position.during(TASKS):
            on_rank0(self._load, self._waiting)

    def _load(self) -> None:
        with _own_generators():
            self._loaded = harness().load_tasks(self._setup.recipe.evaluation)

    def run(self) -> Mapping[str, Any] | None:
        """Return lm-eval's results on rank 0, None elsewhere; all ranks call it together."""
        with _own_generators(), self._position.during(TASKS):
            if self._setup.world.rank == 0:
                return self._ask()
            self._answer()
            return None

    def _ask(self) -> Mapping[str, Any]:
        is_computing = False

        def score(samples: Sequence[ScoredTokens]) -> Tensor:
            nonlocal is_computing
            is_computing = True
            self._tell([tuple(sample) for sample in samples])
            found = self._log_likelihoods(samples)
            is_computing = False
            return found

        library, recipe = harness(), self._setup.recipe
        layout = self._setup.layout.data_parallel_size * recipe.parallel.pipeline_model_parallel_size
        at_once = _BATCHES_AT_ONCE * recipe.train.micro_batch_size * layout
        model = library.HarnessModel(self._setup.tokenizer, recipe.model.seq_length, score, at_once, quiet=self._quiet)
        try:
            results: Mapping[str, Any] = library.evaluate_tasks(self._loaded, model, recipe.evaluation)
        except PretrainError as error:
            self._tell(error)
            raise
        except Exception as error:
            if is_computing:  # the other ranks are in the same collective, and not here
                raise
            problem = _failed(error)
            self._tell(problem)
            raise problem from error
        self._tell(None)
        return results

    def _tell(self, what: Sequence[Any] | Exception | None) -> None:
        """Tell the other ranks samples to compute, the error that ends the evaluation, or its end."""
        self._waiting.first_of(what)

    def _log_likelihoods(self, samples: Sequence[ScoredTokens]) -> Tensor:
        with self._position.during("evaluation"):
            return self._engine.log_likelihoods(samples).cpu()

    def _answer(self) -> None:
        while True:
            told: Any = self._waiting.first_of(None)
            if told is None:
                return
            if isinstance(told, Exception):
                raise told
            self._log_likelihoods([ScoredTokens(*sample) for sample in told])


def _failed(error: Exception) -> TaskError:
    reason = next(iter(str(error).splitlines()), "")
    return TaskError(
        f"a task fails in lm-eval: {type(error).__name__}: {reason[:200]}\n"
        "Check its YAML file and its data, or leave it out; PRETRAIN_TRACEBACK=1 shows where it happens."
    )


@contextmanager
def _own_generators() -> Iterator[None]:
    """Give the training its random generators back as they were: tasks draw from Python's and numpy's."""
    before = generators.states()
    try:
        yield
    finally:
        generators.restore(before)


def records_of(results: Mapping[str, Any], iteration: int, limit: int | None) -> list[TaskRecord]:
    """Return a record for each task, and for each group that has numbers of its own."""
    found = {**results["results"], **results.get("groups", {})}
    return [
        TaskRecord(
            iteration=iteration,
            task=name,
            num_fewshot=results["n-shot"].get(name),
            limit=limit,
            metrics={key: value for key, value in numbers.items() if "," in key and isinstance(value, int | float)},
        )
        for name, numbers in found.items()
    ]


@dataclass(frozen=True, slots=True)
class TaskEvaluations(Event):
    """Evaluates the recipe's tasks at an interval, and at the end."""

    training: Training
    evaluation: TaskEvaluation

    def after_iteration(self, due: Due) -> bool:
        """Evaluate if it is due."""
        every = self.training.recipe.evaluation.tasks_interval
        goes_on = due.iteration < self.training.length.iterations
        if every and due.iteration % every == 0 and goes_on and not due.urgent:
            self._evaluate()
        return False

    def end(self, reason: str) -> None:
        """Evaluate, unless the training stopped early."""
        if not reason:
            self._evaluate()

    def _evaluate(self) -> None:
        meter, iteration = self.training.meter, self.training.progress.iteration
        limit = self.training.recipe.evaluation.tasks_limit
        with meter.pausing():
            try:
                with meter.timers.phase("evaluation"):
                    results = self.evaluation.run()
            except TaskError as error:  # all ranks have it
                meter.logger.note(f"warning: tasks are not evaluated: {error}\nThe training continues.")
                return
            for record in records_of(results, iteration, limit) if results else ():
                meter.logger.task(record, self.training.progress.consumed_samples)


def with_tasks(
    recipe: Recipe, tasks: Sequence[str], *, include_path: str | None, num_fewshot: int | None, limit: int | None
) -> Recipe:
    """Return the recipe with other tasks to evaluate; where an option is None the recipe's own value stays."""
    given = {"tasks_include_path": include_path, "tasks_num_fewshot": num_fewshot, "tasks_limit": limit}
    changed = {"tasks": tuple(tasks)} | {key: value for key, value in given.items() if value is not None}
    return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update=changed)})


def evaluate_checkpoint_on_tasks(model: TrainedModel, run_dir: Path | None, *, as_json: bool) -> None:
    """Evaluate the recipe's tasks, and write the results into the run; rank 0 prints them. All ranks together."""
    results = TaskEvaluation(model.setup, model.engine, quiet=False).run()
    if results is None:
        return
    records = records_of(results, model.origin.iteration or 0, model.setup.recipe.evaluation.tasks_limit)
    if run_dir is not None:
        _write(run_dir, records)
    if as_json:
        kept = {key: results[key] for key in ("results", "groups", "versions", "n-shot", "n-samples") if key in results}
        told = {"checkpoint": str(model.origin.path), "iteration": model.origin.iteration, **kept}
        click.echo(orjson.dumps(told, default=str))  # what is not finite is null
    else:
        click.echo(harness().table(results))
    if run_dir is not None:
        click.echo(f"written to {run_dir / FILE} and {run_dir / REPORT}", err=True)


def _write(run_dir: Path, records: Sequence[TaskRecord]) -> None:
    writer = MetricsWriter(run_dir / FILE)
    try:
        for record in records:
            writer.write(record)
    finally:
        writer.close()
    write_report([run_dir], run_dir / REPORT)
