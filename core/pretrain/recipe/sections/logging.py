"""Section `logging`: what is measured and shown."""

from __future__ import annotations

from pydantic import Field

from pretrain.recipe.section import Bool, Float, Int, Section


class LoggingSection(Section):
    """Metrics that are measured and shown."""

    log_interval: Int = Field(default=100, gt=0, description="Iterations between two lines of metrics.")
    tensorboard: Bool = Field(default=True, description="Whether metrics go to tensorboard/ of the run directory too.")
    tensorboard_queue_size: Int = Field(
        default=1000, gt=0, description="Events that are held back before they are written."
    )
    hang_after_seconds: Float | None = Field(
        default=None,
        ge=0,
        description="Seconds without movement after which a rank hangs, so that all say what they are in and the run "
        "ends; 0: never. By default 10 times the median step, at least 60 (docs/reliability.md).",
    )
    log_timers: Bool = Field(
        default=False, description="Whether the phases of an iteration are timed, least and most of all ranks."
    )
    log_straggler: Bool = Field(
        default=True,
        description="Whether the slowest rank of each logged interval is named, by the time of its own work.",
    )
    log_params_norm: Bool = Field(default=False, description="Whether the norm of all weights is measured.")
    log_num_zeros_in_grad: Bool = Field(
        default=False, description="Whether zeros in the gradient are counted, without the vocabulary's padding."
    )
