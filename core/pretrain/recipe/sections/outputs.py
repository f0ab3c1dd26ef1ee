"""Sections `checkpoint`, `evaluation`, `logging` and `profile`: what a run starts from, saves, evaluates and shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pretrain.distributions import Role, registered
from pretrain.recipe.section import (
    Bool,
    Float,
    Int,
    LocalPath,
    Section,
    StoredPath,
    Str,
    as_written,
    shown,
    stored_path,
)

if TYPE_CHECKING:
    from pretrain.distributions import Installed

LoggerName = Literal["tensorboard", "wandb", "mlflow", "comet"]
"""A logger has a file in pretrain.report.loggers; metrics.jsonl, which every run writes, has no name here."""
LOGGERS = "pretrain.loggers"
"""Entry-point group of other distributions' loggers; see docs/writing-a-logger.md."""


def installed_loggers() -> list[Installed]:
    """Return the loggers that other distributions bring, sorted by name; reading them imports none."""
    return registered(LOGGERS, Role.LOGGER)


def _switch_or_folder(given: object) -> object:
    if isinstance(given, bool) or (isinstance(given, str) and given):
        return stored_path(given)
    msg = f"{shown(given)} is not true, false or a folder."
    raise ValueError(msg)


def _without_password(uri: str) -> str:
    if urlsplit(uri).password is None:
        return uri
    msg = (
        "a password is not written here: it would stand in recipe.yml, in the report and in trackers. Give the address "
        "without it and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or leave the key out and set "
        "MLFLOW_TRACKING_URI."
    )
    raise ValueError(msg)


class CheckpointSection(Section):
    """Checkpoints to save and to start from: paths, relative to the working directory, or s3:// or gs:// addresses."""

    save: Annotated[bool | str, BeforeValidator(_switch_or_folder)] = True
    """true (into checkpoints/ of the run directory), false, or another folder."""
    load: StoredPath | None = None
    """Folder of checkpoints to start from; its latest is taken. Another program's gives its weights (see
    checkpoints.md). By default a fresh start."""
    save_interval: Int = Field(default=0, ge=0)
    """Iterations between two checkpoints; 0: only at the end."""
    keep: Int | None = Field(default=None, gt=0)
    """Number of latest checkpoints that are kept; by default all."""
    async_save: Bool = False
    """Whether checkpoints are written while training goes on; a step waits only until the state is copied to host
    memory, which must have room for it. The last one is waited for."""
    local_interval: Int = Field(default=0, ge=0)
    """Iterations between two copies on the nodes' own disks, from which their restart goes on; 0: none."""
    local_dir: LocalPath | None = None
    """Folder for these copies on each node's own disk, or in its memory as /dev/shm/copies."""
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
    loggers: tuple[Str, ...] = ("tensorboard",)
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow, comet, installed ones by name; tensorboard:
    true or false, the key of before, adds or removes that one (docs/loggers.md)."""
    logger_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of installed loggers, by the logger's name and its own names; no secrets, since recipe.yml has them."""
    tensorboard_queue_size: Int = Field(default=1000, gt=0)
    """Events that are held back before they are written."""
    wandb_project: Str | None = Field(default=None, min_length=1)
    """Weights & Biases: the project; by default that of WANDB_PROJECT, or uncategorized."""
    wandb_entity: Str | None = Field(default=None, min_length=1)
    """Weights & Biases: the team or user; by default that of WANDB_ENTITY, or the user's own."""
    wandb_exp_name: Str | None = Field(default=None, min_length=1)
    """Weights & Biases: the run's name; by default that of its directory."""
    wandb_group: Str | None = Field(default=None, min_length=1)
    """Weights & Biases: the group of runs to which it belongs."""
    mlflow_tracking_uri: Annotated[Str, Field(min_length=1), AfterValidator(_without_password)] | None = None
    """MLflow: address of the server without a password, or sqlite:///file; by default that of MLFLOW_TRACKING_URI, or
    MLflow's own."""
    mlflow_experiment: Str | None = Field(default=None, min_length=1)
    """MLflow: the experiment, which is made if it is absent; by default that of MLFLOW_EXPERIMENT_NAME, or Default."""
    mlflow_run_name: Str | None = Field(default=None, min_length=1)
    """MLflow: the run's name; by default that of its directory."""
    comet_project: Str | None = Field(default=None, min_length=1)
    """Comet: the project; by default that of COMET_PROJECT_NAME, or general."""
    comet_workspace: Str | None = Field(default=None, min_length=1)
    """Comet: the workspace; by default that of COMET_WORKSPACE, or the user's own."""
    comet_experiment_name: Str | None = Field(default=None, min_length=1)
    """Comet: the experiment's name; by default that of the run directory."""
    comet_tags: tuple[Str, ...] = ()
    """Comet: the experiment's tags."""
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

    @property
    def of_others(self) -> list[str]:
        """The loggers that other distributions bring."""
        return [name for name in self.loggers if name not in get_args(LoggerName)]

    @model_validator(mode="before")
    @classmethod
    def _tensorboard_as_logger(cls, given: Any) -> Any:
        """Read `tensorboard: true or false`, the key of before, as the word in or out of loggers."""
        if not isinstance(given, dict) or "tensorboard" not in given:
            return given
        rest, is_wanted = {key: value for key, value in given.items() if key != "tensorboard"}, given["tensorboard"]
        if not isinstance(is_wanted, bool | None):
            msg = f"tensorboard: {as_written(is_wanted)} is not true or false."
            raise ValueError(msg)  # noqa: TRY004  pydantic collects only ValueError
        loggers = rest.get("loggers")
        if is_wanted is None or not isinstance(loggers, list | tuple | None):
            return rest
        others = [name for name in loggers or () if name != "tensorboard"]
        return {**rest, "loggers": ["tensorboard", *others] if is_wanted else others}


class ProfileSection(Section):
    """A trace of a few steps, and where their time goes (docs/profiling.md); SIGUSR2 takes one of a running job."""

    start: Int = Field(default=10, gt=0)
    """First iteration that is profiled, counted from 1."""
    steps: Int = Field(default=0, ge=0)
    """Number of iterations that are profiled; 0: none. SIGUSR2 profiles so many, or 3 where this is 0."""
    ranks: tuple[Annotated[Int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)
    """Ranks that are profiled."""
    use_pytorch_profiler: Bool = True
    """Whether torch.profiler records a trace. false: the device's own profiler, by its maker's tool (Nsight Systems,
    msprof), with the same names and without a summary."""
    memory: Bool = False
    """Whether allocations are recorded too: in torch's trace, and, with either profiler, as a snapshot where the device
    has them."""
