"""An optimizer's state beside a model's weights, where a checkpoint has it whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor

MAIN = "fp32_param"


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerState:
    """State of Adam.

    Attributes:
        tensors: `exp_avg.WEIGHT`, `exp_avg_sq.WEIGHT` and, where weights have 16 bits, `fp32_param.WEIGHT`; in fp32
            and by our names.
        step: optimizer steps taken.
        loss_scaler: scale, growth_tracker and hysteresis_tracker of megatron-core's dynamic loss scale; None without.
    """

    tensors: Mapping[str, LazyTensor]
    step: int
    loss_scaler: Mapping[str, float] | None
