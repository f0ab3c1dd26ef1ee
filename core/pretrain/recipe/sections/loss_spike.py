"""Part `train.loss_spike`: a loss that suddenly rises, and what is done about it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pretrain.recipe.section import Float, Int, Section


class LossSpikeSection(Section):
    """Losses that suddenly rise. Batches around a spike are left out as in PaLM (arXiv:2204.02311, section 5.1).

    PaLM started again about 100 steps before it; here the start is the latest checkpoint before it, however near.
    """

    threshold: Float | None = Field(
        default=None,
        gt=1,
        description="A step's loss above so many times the median of the last 100 steps (after at least 20) is a "
        "spike, and so is one that is not finite, but in fp16. By default losses are not watched.",
    )
    action: Literal["warn", "skip", "rollback"] = Field(
        default="warn",
        description="warn; skip: leave out the step's update (the host waits for the loss in each step); rollback: go "
        "back to the last checkpoint before the spike, and leave out the batches around it.",
    )
    leave_out: Int = Field(
        default=100,
        ge=0,
        description="Iterations before a spike, and as many after it, whose batches are left out by rollback (PaLM: "
        "200 to 500 batches). Before a loss that is not finite at least one.",
    )
