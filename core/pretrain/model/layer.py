"""Transformer layers: serial, and with GPT-NeoX's parallel residual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from megatron.core.tensor_parallel import (
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.core.utils import make_viewless_tensor

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.signatures import BiasDropoutAddFn


class Marks(Protocol):
    """Sees a layer's calls from outside, where it is not compiled."""

    def begin(self, hidden_states: Tensor) -> None:
        """See the layer's input [s, b, h]."""

    def end(self, hidden_states: Tensor) -> None:
        """See its output [s, b, h]."""


class SerialLayer(TransformerLayer):
    """x = x + attention(norm(x)); x = x + mlp(norm(x)), as in GPT-2 and GPT-3."""

    marks: Marks | None = None
    """See `pretrain.model.marks`."""

    def __init__(self, *args: Any, bias_dropout_add: BiasDropoutAddFn, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bias_dropout_add = bias_dropout_add

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer between its marks, which stay outside of what is compiled."""
        marks = self.marks
        if marks is None:
            return super().__call__(*args, **kwargs)
        marks.begin(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])
        result = super().__call__(*args, **kwargs)
        marks.end(result[0])
        return result

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        context: Tensor | None = None,
        rotary_pos_emb: Tensor | None = None,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the new hidden states [s, b, h], and the unchanged context (megatron-core's block passes it on)."""
        output, bias = self.self_attention(
            self.input_layernorm(hidden_states), attention_mask, rotary_pos_emb=rotary_pos_emb
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
        attention_mask: Tensor | None = None,
        context: Tensor | None = None,
        rotary_pos_emb: Tensor | None = None,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the new hidden states [s, b, h], and the unchanged context."""
        attended, attention_bias = self.self_attention(
            self.input_layernorm(hidden_states), attention_mask, rotary_pos_emb=rotary_pos_emb
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
