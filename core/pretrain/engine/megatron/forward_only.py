"""A model without an optimizer: weights in the recipe's dtype, and nothing else of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.checkpoint.megatron_state import MegatronState
from pretrain.engine.megatron.data_parallel import in_compute_dtype
from pretrain.engine.megatron.forward_pass import ForwardPass
from pretrain.engine.schedule import build_schedule

if TYPE_CHECKING:
    from pretrain.engine.parts import Parts


class ForwardOnlyEngine(ForwardPass):
    """See `pretrain.engine.protocol.ForwardEngine`; for recipes of every engine, which share model and kernels.

    There are no gradient buffers, moments and main weights. With `engine.name: deepspeed` there is no ZeRO either: each
    rank holds the weights of its tensor-parallel part whole.
    """

    def __init__(self, parts: Parts) -> None:
        """Build the model chunks of this rank with the negotiated kernels."""
        # Weights keep requires_grad: megatron-core's linear layers would use another kernel for frozen ones.
        super().__init__(parts, [in_compute_dtype(parts.recipe, chunk) for chunk in parts.chunks()])
        nothing: Any = _NoOptimizer()
        self.schedule = build_schedule(parts.recipe, nothing)
        is_fp32 = parts.recipe.precision.dtype == "fp32"
        self.state = MegatronState(self.chunks, nothing, self._gathered, is_fp32=is_fp32)


class _NoOptimizer:
    """The part of an optimizer that loading weights asks for; the rest of its state is for trainings."""

    param_groups: tuple[dict[str, Any], ...] = ()

    def reload_model_params(self) -> None:
        """Do nothing: there are no copies of the weights."""
