"""GPTModel with additions to megatron-core's: negotiated kernels, embedding norm, scaled rope, loss without padding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.utils import get_pg_size

from pretrain.model.context import context_rank
from pretrain.model.layer import Norm
from pretrain.model.rope import attention_factor, frequencies

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.plugins.signatures import LinearFn
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.model import ModelSection


class Rotations(RotaryEmbedding):
    """Return cos and sin in place of megatron-core's angles, so that no layer computes them again.

    Frequencies are computed on the host in double precision, for the same fp32 numbers on every device.
    """

    inv_freq: Tensor

    def __init__(self, model: ModelSection) -> None:
        super().__init__(model.head_size, model.rotary_percent, rotary_base=model.rotary_base)
        self._frequencies = frequencies(model)
        self._factor, self._context = attention_factor(model), context_rank()
        self._tables: dict[int, Tensor] = {}

    def forward(self, max_seq_len: int, **_kwargs: Any) -> Tensor:
        """Return cos and sin of this rank's part of s positions, fp32 [2, s / c, 1, 1, rotary_size].

        The two halves of the last dimension are equal. With YaRN both are multiplied by its factor: queries and keys
        become longer.
        """
        if max_seq_len not in self._tables:
            # Not before the first batch: deepspeed.zero.Init rounds tensors that a model makes to bf16 or fp16.
            host = torch.tensor(self._frequencies, dtype=torch.float32)
            self.inv_freq = host.to(self.inv_freq.device, non_blocking=True)
            angles = self.get_emb(max_seq_len)  # forward's cache would keep this module and its group's threads
            table = self._factor * torch.stack((angles.cos(), angles.sin()))
            self._tables[max_seq_len] = self._context.own(table, 1)
        return self._tables[max_seq_len]


class GPT(GPTModel):
    """One pipeline stage of a GPT."""

    def __init__(self, recipe: Recipe, kernels: Kernels, **kwargs: Any) -> None:
        model = recipe.model
        super().__init__(
            max_sequence_length=model.max_position_embeddings,
            share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
            position_embedding_type=model.position_embedding_type,
            rotary_percent=model.rotary_percent,
            rotary_base=model.rotary_base,
            **kwargs,
        )
        self.cross_entropy = kernels.cross_entropy
        if model.position_embedding_type == "rope":
            self.rotary_pos_emb = Rotations(model)
        if model.embedding_layernorm and self.pre_process:
            # As in bigscience's Megatron-DeepSpeed: before positions are added; on all tokens unless they are
            # scattered.
            scattered = self.embedding.reduce_scatter_embeddings
            self.embedding_layernorm = Norm(
                self.config, model.hidden_size, kernel=kernels.norm, sequence_parallel=scattered
            )
            embedding = self.embedding.word_embeddings
            embedding.register_forward_hook(lambda _module, _inputs, output: self.embedding_layernorm(output))
        for name, module in self.named_modules():
            if isinstance(module, ColumnParallelLinear | RowParallelLinear):
                kernel = kernels.linear_of("output") if name == "output_layer" else kernels.linear
                module._forward_impl = partial(_linear, kernel)  # noqa: SLF001  megatron-core's extension point
        self.tensor_parallel_size = get_pg_size(self.pg_collection.tp)

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Return the loss of every token, fp32 [b, s], for labels [b, s] and logits [s, b, v / t]."""
        group = self.pg_collection.tp if self.tensor_parallel_size > 1 else None
        return self.cross_entropy(logits, labels.transpose(0, 1), group).transpose(0, 1)


def _linear(
    kernel: LinearFn,
    input: Tensor,  # noqa: A002  megatron-core's keyword
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    allreduce_dgrad: bool = False,
    sequence_parallel: bool = False,
    tp_group: Any = None,
    **_unused: Any,
) -> Tensor:
    return kernel(input, weight, bias, tp_group if allreduce_dgrad or sequence_parallel else None)
