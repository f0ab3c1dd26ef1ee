"""Transformer layers, serial and with GPT-NeoX's parallel residual: norm, attention and MLP with negotiated kernels."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel import (
    get_cuda_rng_tracker,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.core.utils import make_viewless_tensor
from torch import nn

from pretrain.model.context import ContextAttention
from pretrain.model.weights import PARTIAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from megatron.core.transformer import TransformerConfig
    from torch import Tensor

    from pretrain.model.context import PackedDocuments
    from pretrain.plugins.signatures import ActivationFn, AttentionFn, BiasDropoutAddFn, NormFn, RotaryFn


class Norm(nn.Module):
    """Normalize the last dimension of [s, b, h], or of [s, b, n, d] for the heads of a rank.

    megatron-core's own `WrappedTorchNorm` rejects sequence parallelism. Here weights are marked for `partial_gradients`
    where each tensor-parallel rank normalizes other tokens, or other heads (`is_of_heads`, a QK norm).
    """

    def __init__(
        self,
        config: TransformerConfig,
        hidden_size: int,
        eps: float = 1e-5,  # noqa: ARG002  part of the kernel's request; megatron-core passes it
        *,
        kernel: NormFn,
        sequence_parallel: bool | None = None,
        is_of_heads: bool = False,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size)) if config.normalization == "LayerNorm" else None
        is_of_tokens = config.sequence_parallel if sequence_parallel is None else sequence_parallel
        for parameter in self.parameters():
            setattr(parameter, PARTIAL, is_of_tokens or is_of_heads)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized tensor in its own dtype."""
        return self.kernel(x, self.weight, self.bias)


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
        self.context = ContextAttention(self.kernel) if config.context_parallel_size > 1 else None
        self.forks_generator = config.attention_dropout > 0 and not config.sequence_parallel

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: None,  # noqa: ARG002  megatron-core's tensor, which is never made
        *,
        packed_seq_params: PackedDocuments | None = None,
        **_kwargs: Any,
    ) -> Tensor:
        """Return [s, b, n * d] for query [s, b, n, d], key and value [s, b, g, d]."""
        documents = None if packed_seq_params is None else packed_seq_params.pieces
        generator = get_cuda_rng_tracker().fork() if self.forks_generator and self.training else nullcontext()
        with generator:
            if self.context is not None:
                return self.context(query, key, value, documents, training=self.training)
            return self.kernel(query, key, value, documents and documents[0], training=self.training)


class TrainingAttention(SelfAttention):
    """megatron-core's self attention without inference caches and packed sequences."""

    def __init__(self, *args: Any, rotary: RotaryFn | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rotary = rotary

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: None,
        rotary_pos_emb: Tensor | None = None,
        packed_seq_params: PackedDocuments | None = None,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, shaped as hidden_states [s, b, h] or [s / t, b, h], and the bias [h] still to be added.

        There is no mask: it is causal, within documents if there are any. rotary_pos_emb is cos and sin, fp32
        [2, s, 1, 1, rotary_size].
        """
        query, key, value = self.get_query_key_value_tensors(hidden_states)
        if rotary_pos_emb is not None and self.rotary is not None:
            cos, sin = rotary_pos_emb.unbind(0)
            query, key = self.rotary(query, cos, sin), self.rotary(key, cos, sin)
        if self.checkpoint_core_attention and self.training:
            attend = self._checkpointed_attention_forward
        else:
            attend = self.core_attention
        context = attend(query, key, value, attention_mask, packed_seq_params=packed_seq_params)
        output, bias = self.linear_proj(context)
        return output, bias


class SerialLayer(TransformerLayer):
    """x = x + attention(norm(x)); x = x + mlp(norm(x)), as in GPT-2 and GPT-3."""

    marks: tuple[Callable[[Tensor], None], Callable[[Tensor], None]] | None = None
    """Called with the input and the output [s, b, h], outside of what is compiled: see `pretrain.model.marks`."""

    def __init__(self, *args: Any, bias_dropout_add: BiasDropoutAddFn, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bias_dropout_add = bias_dropout_add

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer between its marks, which stay outside of what is compiled."""
        if self.marks is None:
            return super().__call__(*args, **kwargs)
        enter, leave = self.marks
        enter(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])
        result = super().__call__(*args, **kwargs)
        leave(result[0])
        return result

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: None = None,
        context: Tensor | None = None,
        rotary_pos_emb: Tensor | None = None,
        packed_seq_params: PackedDocuments | None = None,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the new hidden states [s, b, h], and the unchanged context (megatron-core's block passes it on)."""
        output, bias = self.self_attention(
            self.input_layernorm(hidden_states), attention_mask, rotary_pos_emb, packed_seq_params
        )
        hidden_states = self.bias_dropout_add(output, bias, hidden_states, training=self.training)
        output, bias = self.mlp(self.pre_mlp_layernorm(hidden_states))
        return _own(self.bias_dropout_add(output, bias, hidden_states, training=self.training)), context


class ParallelLayer(SerialLayer):
    """x = x + attention(norm1(x)) + mlp(norm2(x)), as GPT-J and GPT-NeoX (`gpt_j_residual`).

    Both branches end in a row-parallel linear. Without dropout their partial sums are added first, so that one
    all-reduce serves both; with dropout each branch has its own dropout mask and is reduced separately.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reduces_once = self.hidden_dropout == 0 and self.config.tensor_model_parallel_size > 1
        if self.reduces_once:
            # With this flag, RowParallelLinear.forward leaves the all-reduce to its caller.
            self.self_attention.linear_proj.explicit_expert_comm = True
            self.mlp.linear_fc2.explicit_expert_comm = True

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: None = None,
        context: Tensor | None = None,
        rotary_pos_emb: Tensor | None = None,
        packed_seq_params: PackedDocuments | None = None,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the new hidden states [s, b, h], and the unchanged context."""
        attended, attention_bias = self.self_attention(
            self.input_layernorm(hidden_states), attention_mask, rotary_pos_emb, packed_seq_params
        )
        fed, mlp_bias = self.mlp(self.pre_mlp_layernorm(hidden_states))
        if self.reduces_once:
            bias = None if attention_bias is None else attention_bias + mlp_bias
            return _own(self.bias_dropout_add(self._reduce(attended + fed), bias, hidden_states)), context
        hidden_states = self.bias_dropout_add(attended, attention_bias, hidden_states, training=self.training)
        return _own(self.bias_dropout_add(fed, mlp_bias, hidden_states, training=self.training)), context

    def _reduce(self, partial: Tensor) -> Tensor:
        reduce = (
            reduce_scatter_to_sequence_parallel_region
            if self.config.sequence_parallel
            else reduce_from_tensor_model_parallel_region
        )
        return reduce(partial, group=self.tp_group)  # type: ignore[no-any-return]


def _own(output: Tensor) -> Tensor:
    """Return a tensor that is not a view: the pipeline schedule frees it after sending (deallocate_output_tensor)."""
    return make_viewless_tensor(output, requires_grad=output.requires_grad, keep_graph=True)  # type: ignore[no-any-return]
