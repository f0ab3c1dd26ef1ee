"""GPTModel with three additions to megatron-core's: negotiated kernels, embedding norm, loss without padding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.utils import get_pg_size

from pretrain.model.layer import Norm
from pretrain.model.rope import Rotations

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.plugins.signatures import LinearFn, NormFn
    from pretrain.recipe import Recipe


class GPT(GPTModel):
    """One pipeline stage of a GPT."""

    def __init__(self, recipe: Recipe, kernels: Kernels, norm_of: Callable[[int], NormFn], **kwargs: Any) -> None:
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
                self.config, model.hidden_size, kernel_of=norm_of, sequence_parallel=scattered
            )
            self.embedding.word_embeddings.register_forward_hook(self._normalize_embedding)
        for module in self.modules():
            if isinstance(module, ColumnParallelLinear | RowParallelLinear):
                module._forward_impl = partial(_linear, kernels.linear)  # noqa: SLF001  megatron-core's extension point
        self.tensor_parallel_size = get_pg_size(self.pg_collection.tp)

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Return the loss of every token, fp32 [b, s], for labels [b, s] and logits [s, b, v / t]."""
        group = self.pg_collection.tp if self.tensor_parallel_size > 1 else None
        return self.cross_entropy(logits, labels.transpose(0, 1), group).transpose(0, 1)

    def _normalize_embedding(self, _module: Any, _inputs: Any, output: Tensor) -> Tensor:
        return self.embedding_layernorm(output)  # type: ignore[no-any-return]


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
