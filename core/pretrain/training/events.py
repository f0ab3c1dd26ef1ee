"""What a training does beside its steps: log lines, checkpoints, evaluations, the prompt at the end.

A training whose numbers are not finite ends at the first log line or checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pretrain.collectives import on_rank0
from pretrain.report.hang.position import GENERATE, LOG
from pretrain.training.event import Event
from pretrain.training.generation import continue_prompt

if TYPE_CHECKING:
    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.recipe import Recipe
    from pretrain.report.metrics import EvalRecord
    from pretrain.training.event import Due
    from pretrain.training.loop import Training
    from pretrain.training.progress import Progress
    from pretrain.training.reporting.run_output import RunLogger
    from pretrain.training.safeguards.health import Health
    from pretrain.training.safeguards.spike_response import SpikeResponse
    from pretrain.training.saving import Saving
    from pretrain.training.training_data import Evaluation, Split


@dataclass(frozen=True, slots=True)
class LogLines(Event):
    """Logs each interval."""

    training: Training
    health: Health

    def after_iteration(self, due: Due) -> bool:
        """Log a line if it is due."""
        if due.line:
            with self.training.meter.timers.position.during(LOG):
                self._log(due.iteration)
        return False

    def _log(self, iteration: int) -> None:
        training, meter = self.training, self.training.meter
        step = meter.interval.last_step
        if step is None:
            where = f"iteration {iteration}/{training.length.iterations}"
            meter.logger.note(f"{where} | every batch since the last line was left out")
            return
        totals = meter.interval.take()
        self.health.check(totals)
        meter.log(totals, step, training.engine, training.progress)


@dataclass(frozen=True, slots=True)
class Checkpoints(Event):
    """Saves at an interval, before the training leaves, and at its end."""

    training: Training
    saving: Saving
    health: Health  # has the error of weights that are not finite
    spikes: SpikeResponse | None  # may take them back; None where losses are not watched

    def after_iteration(self, due: Due) -> bool:
        """Save if it is due; without a step since the latest checkpoint, only before the training leaves."""
        is_due = due.checkpoint and (bool(due.reason) or self.saving.has_new_step)
        return is_due and self._save(trains_on=not due.reason)

    def end(self, reason: str) -> None:  # noqa: ARG002  an event's signature
        """Save, before the last evaluations: a run that is killed in them loses nothing."""
        self._save(trains_on=False)

    def _save(self, *, trains_on: bool) -> bool:
        """Write a checkpoint, unless there is one of this iteration; return whether weights were taken back instead."""
        engine, progress, meter = self.training.engine, self.training.progress, self.training.meter
        if self.saving.is_done(progress):
            return False
        with meter.pausing():
            with meter.timers.phase("save"):
                # With fewer log lines than checkpoints, broken weights would be saved, and good ones removed.
                is_finite = math.isfinite(engine.parameters_norm().item())
                saved = self.saving.save(engine, progress, trains_on=trains_on) if is_finite else None
            if not is_finite and not (trains_on and self.spikes is not None and self.spikes.takes_back_weights()):
                raise self.health.not_finite()
            if saved is not None:
                meter.logger.note(f"checkpoint: {saved}")
        return not is_finite


@dataclass(frozen=True, slots=True)
class CopiesOnNodes(Event):
    """Copies the state to the nodes' own disks at an interval; at the end the checkpoint has it."""

    training: Training
    saving: Saving

    def after_iteration(self, due: Due) -> bool:
        """Copy if it is due, unless numbers are not finite: then the next log line or checkpoint ends the training."""
        training, meter = self.training, self.training.meter
        if not due.copy:
            return False
        with meter.pausing(), meter.timers.phase("save"):
            is_finite = math.isfinite(training.engine.parameters_norm().item())
            problem = self.saving.copy_to_nodes(training.engine, training.progress) if is_finite else None
        if problem is not None:
            meter.logger.note(f"checkpoint.local_dir: no copies of iteration {due.iteration}: {problem}")
        return False

    def end(self, reason: str) -> None:  # noqa: ARG002  an event's signature
        """Remove the copies, once the checkpoint is complete."""
        self.saving.settle()
        if self.saving.copies is not None:
            self.saving.copies.forget()


@dataclass(frozen=True, slots=True)
class Evaluations(Event):
    """Evaluates the validation split at an interval, and all splits at the end."""

    training: Training
    evaluation: Evaluation
    is_pending: bool = False  # the run stopped after the loaded checkpoint but before its evaluation

    def begin(self) -> None:
        """Evaluate what was loaded, if that is pending."""
        if self.is_pending:
            self._evaluate("valid")

    def after_iteration(self, due: Due) -> bool:
        """Evaluate if it is due."""
        if due.evaluation:
            self._evaluate("valid")
        return False

    def end(self, reason: str) -> None:
        """Evaluate all splits, unless the training stopped early."""
        target = self.training.recipe.evaluation.target_loss
        for split in () if reason else self.evaluation.splits:
            record = self._evaluate(split)
            if split == "valid" and target is not None:
                self.training.meter.logger.note(verdict(target, record))

    def _evaluate(self, split: Split) -> EvalRecord:
        meter, progress = self.training.meter, self.training.progress
        with meter.pausing():
            with meter.timers.phase("evaluation"):
                record = self.evaluation.run(split, progress.iteration)
            meter.logger.evaluation(record, progress.consumed_samples)
        return record


def evaluation_pending(recipe: Recipe, logger: RunLogger, progress: Progress) -> bool:
    """Say whether an evaluation was due after the loaded checkpoint and is not logged; all ranks call it together."""
    every, done = recipe.evaluation.interval, progress.iteration
    return bool(every and done and done % every == 0 and not on_rank0(partial(logger.has_evaluation, "valid", done)))


def verdict(target_loss: float, reached: EvalRecord) -> str:
    """Return the line that says whether the validation loss at the end of a run is at most `target_loss`."""
    met = reached.lm_loss <= target_loss  # False for nan
    word = "reached" if met else "missed"
    return f"target {word}: validation loss {reached.lm_loss:.4f}, evaluation.target_loss {target_loss:g}"


@dataclass(frozen=True, slots=True)
class Continuation(Event):
    """Logs at the end how the model continues the recipe's prompt."""

    training: Training
    tokenizer: Tokenizer

    def end(self, reason: str) -> None:
        """Continue the prompt, unless the training stopped early."""
        recipe, meter, engine = self.training.recipe, self.training.meter, self.training.engine
        prompt, length = recipe.evaluation.prompt, recipe.evaluation.prompt_tokens
        if reason or prompt is None:
            return
        with meter.timers.position.during(GENERATE):
            text = continue_prompt(engine, self.tokenizer, prompt, length, recipe.train.seed)
            meter.logger.note(f"the model continues: {text}")
