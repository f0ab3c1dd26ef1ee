"""Section `recompute`: activations that are computed again in the backward pass instead of kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pretrain.recipe.section import Bool, Int, Section


class RecomputeSection(Section):
    """Activations that are computed again in the backward pass instead of kept."""

    granularity: Literal["none", "selective", "full"] = Field(
        default="none", description="none, selective (the attention between its projections) or full (whole layers)."
    )
    method: Literal["uniform", "block"] = Field(
        default="uniform",
        description="For full: uniform keeps the input of every group of num_layers layers, which divides those of a "
        "stage; block recomputes the first num_layers layers of each stage.",
    )
    num_layers: Int = Field(default=1, gt=0, description="For full: see method.")
    distribute_saved_activations: Bool = Field(
        default=False, description="For full: whether kept activations are split over the tensor-parallel ranks."
    )
