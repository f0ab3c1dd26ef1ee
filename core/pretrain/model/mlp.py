"""Feed-forward block with the negotiated activation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron.core.transformer.mlp import MLP

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.signatures import ActivationFn


class FeedForward(MLP):
    """megatron-core's MLP, with bias and activation in one kernel."""

    def __init__(self, config: Any, submodules: Any, *, activation: ActivationFn, **kwargs: Any) -> None:
        super().__init__(config, submodules, ffn_hidden_size=config.ffn_hidden_size, **kwargs)
        self.activation = activation

    def forward(self, hidden_states: Tensor, **_kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Return the output [s, b, h] and the bias [h] that is still to be added."""
        intermediate, bias = self.linear_fc1(hidden_states)
        output, output_bias = self.linear_fc2(self.activation(intermediate, bias))
        return output, output_bias
