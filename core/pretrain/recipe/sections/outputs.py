"""Sections `checkpoint`, `evaluation` and `logging`: what a run starts from, saves, evaluates and shows."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from pretrain.recipe.section import Bool, Float, Int, LocalPath, Section, Str, local_path, shown


def _switch_or_folder(given: object) -> object:
    if isinstance(given, bool) or (isinstance(given, str) and given):
        return local_path(given)
    msg = f"{shown(given)} is not true, false or a folder."
    raise ValueError(msg)


class CheckpointSection(Section):
    """Checkpoints to save and to start from. Paths are relative to the working directory."""

    save: Annotated[bool | str, BeforeValidator(_switch_or_folder)] = True
    """true (into checkpoints/ of the run directory), false, or another folder."""
    load: LocalPath | None = None
    """Folder of checkpoints to start from; its latest is taken. Another program's gives its weights (see
    checkpoints.md). By default a fresh start."""
    save_interval: Int = Field(default=0, ge=0)
    """Iterations between two checkpoints; 0: only at the end."""
    keep: Int | None = Field(default=None, gt=0)
    """Number of latest checkpoints that are kept; by default all."""
    async_save: Bool = False
    """Whether checkpoints are written while training goes on; a step waits only until the state is copied to host
    memory, which must have room for it. The last one is waited for."""
    finetune: Bool = False
    """Whether only the weights of `load` are taken and the run starts at iteration 0."""


class EvaluationSection(Section):
    """Loss and perplexity on held-out text, and a sample of what the model writes."""

    interval: Int = Field(default=1000, ge=0)
    """Iterations between two evaluations; there is one at the end too. 0: no evaluation at all."""
    iters: Int = Field(default=100, gt=0)
    """Global batches of one evaluation."""
    target_loss: Float | None = Field(default=None, gt=0)
    """Validation loss to reach by the end, in nats per token; the run reports whether it was reached."""
    prompt: Str | None = Field(default=None, min_length=1)
    """Text that the model continues at the end of the run."""
    prompt_tokens: Int = Field(default=48, gt=0)
    """Length of that continuation in tokens."""
    tasks: tuple[Str, ...] = ()
    """Tasks of lm-evaluation-harness (extra `pretrain[eval]`) that are evaluated at the end, by their names there."""
    tasks_interval: Int = Field(default=0, ge=0)
    """Iterations between two evaluations of `tasks`; 0: only at the end."""
    tasks_include_path: LocalPath | None = None
    """Folder with further tasks as YAML, such as those whose data are local files."""
    tasks_num_fewshot: Int | None = Field(default=None, ge=0)
    """Examples before each question; by default as each task says."""
    tasks_limit: Int | None = Field(default=None, gt=0)
    """Documents of each task that are evaluated, the first ones; by default all."""


class LoggingSection(Section):
    """Metrics that are measured and shown."""

    log_interval: Int = Field(default=100, gt=0)
    """Iterations between two lines of metrics."""
    tensorboard: Bool = True
    """Whether metrics go to tensorboard/ of the run directory too."""
    tensorboard_queue_size: Int = Field(default=1000, gt=0)
    """Events that are held back before they are written."""
    hang_after_seconds: Float | None = Field(default=None, ge=0)
    """Seconds without progress after which a rank counts as hanging: all ranks report where they are, and the run ends;
    0: never. By default 10 times the median step, at least 60 (docs/reliability.md)."""
    log_timers: Bool = False
    """Whether the phases of an iteration are timed, least and most of all ranks."""
    log_straggler: Bool = True
    """Whether the slowest rank of each logged interval is named, by the time of its own work."""
    log_params_norm: Bool = False
    """Whether the norm of all weights is measured."""
    log_num_zeros_in_grad: Bool = False
    """Whether zeros in the gradient are counted, without the vocabulary's padding."""
