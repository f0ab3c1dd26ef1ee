"""Self attention: projections by megatron-core, everything between them by the negotiated kernels."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from megatron.core.transformer import TransformerConfig
    from torch import Tensor

    from pretrain.plugins.signatures import AttentionFn, RotaryFn


class CoreAttention(nn.Module):
    """Attention without projections, in place of megatron-core's DotProductAttention.

    Attention weights are split over the tensor-parallel ranks, so their dropout masks are drawn from each rank's own
    generator. With sequence parallelism megatron-core's block already forks that generator.
    """

    def __init__(
        self, config: TransformerConfig, layer_number: int, kernel_of: Callable[[int], AttentionFn], **_kwargs: Any
    ) -> None:
        super().__init__()
        self.kernel = kernel_of(layer_number)
        self.forks_generator = config.attention_dropout > 0 and not config.sequence_parallel

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_kwargs: Any) -> Tensor:
        """Return [s, b, n * d] for query [s, b, n, d], key and value [s, b, g, d]."""
        generator = get_cuda_rng_tracker().fork() if self.forks_generator and self.training else nullcontext()
        with generator:
            return self.kernel(query, key, value, mask, training=self.training)


class Attention(SelfAttention):
    """megatron-core's self attention, for training only: without inference caches and packed sequences."""

    def __init__(self, *args: Any, rotary: RotaryFn | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rotary = rotary

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        rotary_pos_emb: Tensor | None = None,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute self attention with both projections.

        Args:
            hidden_states: [s, b, h]; with sequence parallelism [s / t, b, h].
            attention_mask: bool [b, 1, s, s], True = masked, or None for causal.
            rotary_pos_emb: cos and sin, fp32 [2, s, 1, 1, rotary_size], or None.

        Returns:
            The output, shaped as the input, and the bias [h] that is still to be added.
        """
        query, key, value = self.get_query_key_value_tensors(hidden_states)
        if rotary_pos_emb is not None and self.rotary is not None:
            cos, sin = rotary_pos_emb.unbind(0)
            query, key = self.rotary(query, cos, sin), self.rotary(key, cos, sin)
        if self.checkpoint_core_attention and self.training:
            context = self._checkpointed_attention_forward(query, key, value, attention_mask)
        else:
            context = self.core_attention(query, key, value, attention_mask)
        output, bias = self.linear_proj(context)
        return output, bias


__all__ = ["Attention", "CoreAttention", "SelfAttentionSubmodules"]
