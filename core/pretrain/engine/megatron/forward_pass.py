"""The model chunks of a rank and their forward pass in megatron-core's schedules."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

from pretrain.checkpoint.megatron_state import MegatronState
from pretrain.engine.forward import forward_logits, forward_loss, mean_over_ranks, prompt_batch
from pretrain.engine.megatron.data_parallel import in_compute_dtype
from pretrain.engine.schedule import build_schedule
from pretrain.engine.scoring import forward_scores, scored_batches, scores_of_all
from pretrain.plugins.constant_weights import constant_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from pretrain.engine.protocol import Batch, EngineParts, ScoredTokens


class ForwardPass:
    """The members of `pretrain.engine.protocol.ForwardEngine`, without its state in a checkpoint."""

    def __init__(self, parts: EngineParts, chunks: list[Any]) -> None:
        """Take the wrapped model chunks of this rank."""
        self.recipe = parts.recipe
        self.vocab_size = parts.vocab_size
        self.chunks = chunks
        self._device = parts.device
        self._forward_backward = get_forward_backward_func()
        self.models = [_unwrapped(chunk) for chunk in chunks]
        has_documents = parts.recipe.data.reset_attention_mask
        self._reads = [bool(model.pre_process or model.post_process or has_documents) for model in self.models]

    @property
    def reads_data(self) -> bool:
        """True if this rank's pipeline stages need micro-batches."""
        return any(self._reads)

    @torch.no_grad()
    def evaluate(self, batches: Iterator[Batch] | None, num_microbatches: int, iters: int = 1) -> Tensor:
        """Return the mean loss over all ranks' tokens."""
        with self._gathered(), constant_weights(micro_batches=iters * num_microbatches):
            for chunk in self.chunks:
                chunk.eval()
            reports = [
                report
                for _ in range(iters)
                for report in self._run(forward_loss, batches, num_microbatches, forward_only=True)
            ]
        return mean_over_ranks(reports, self._device)

    @torch.no_grad()
    def next_token_logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits of the token after `tokens`."""
        batch, position = prompt_batch(self.recipe, tokens)
        repeats = self._multiple_of
        with self._gathered():
            for chunk in self.chunks:
                chunk.eval()
            outputs = self._run(
                partial(forward_logits, position),
                iter([batch] * repeats),
                repeats,
                forward_only=True,
                collect_non_loss_data=True,
                samples=1,
            )
        logits = torch.zeros(self.recipe.padded_vocab_size(self.vocab_size), device=self._device)
        if outputs:
            logits.copy_(outputs[0])
        dist.all_reduce(logits, group=parallel_state.get_pipeline_model_parallel_group())
        return logits[: self.vocab_size]

    @torch.no_grad()
    def log_likelihoods(self, samples: Sequence[ScoredTokens]) -> Tensor:
        """Return log-likelihoods and numbers of tokens that are not the most probable."""
        batches = scored_batches(self.recipe, samples, self._multiple_of)
        with self._gathered(), constant_weights(micro_batches=len(batches)):
            for chunk in self.chunks:
                chunk.eval()
            outputs = self._run(
                partial(forward_scores, self.recipe, self.models[-1], self.vocab_size),
                iter(batches),
                len(batches),
                forward_only=True,
                collect_non_loss_data=True,
            )
        rows = len(batches) * self.recipe.train.micro_batch_size
        return scores_of_all(outputs, len(samples), rows, self._device)

    @property
    def _multiple_of(self) -> int:
        """The number of stages, by which the interleaved schedule takes micro-batches; else 1."""
        return self.recipe.parallel.pipeline_model_parallel_size if len(self.chunks) > 1 else 1

    def close(self) -> None:
        """Release nothing: the garbage collector finds all of it."""

    def _run(
        self,
        forward: Any,
        batches: Iterator[Batch] | None,
        num_microbatches: int,
        *,
        samples: int | None = None,
        **options: bool,
    ) -> list[Tensor]:
        """Run megatron-core's schedule; return the reports of the last stage, an empty list elsewhere."""
        outputs = self._forward_backward(
            forward_step_func=partial(forward, device=self._device),
            data_iterator=self._iterators(batches, num_microbatches),
            model=self.chunks,
            num_microbatches=num_microbatches,
            seq_length=self.recipe.model.seq_length,
            micro_batch_size=samples or self.recipe.train.micro_batch_size,
            **options,
        )
        return list(outputs)

    def _iterators(self, batches: Iterator[Batch] | None, num_microbatches: int) -> Any:
        """Give every chunk that reads data the same micro-batches."""
        if len(self.chunks) == 1:
            return batches
        shared = [] if batches is None else [next(batches) for _ in range(num_microbatches)]
        return [iter(shared) if reads else None for reads in self._reads]

    def _gathered(self) -> AbstractContextManager[None]:
        """Return a block in which this rank has its weights as the last step left them."""
        return nullcontext()


def _unwrapped(chunk: Any) -> Any:
    while hasattr(chunk, "module"):  # data parallelism, Float16Module
        chunk = chunk.module
    return chunk


class ForwardOnlyEngine(ForwardPass):
    """A `ForwardEngine` for recipes of every engine: no ZeRO, gradient buffers, moments and main weights."""

    def __init__(self, parts: EngineParts) -> None:
        """Build the model chunks of this rank with the negotiated kernels."""
        # Weights keep requires_grad: megatron-core's linear layers would use another kernel for frozen ones.
        super().__init__(parts, [in_compute_dtype(parts.recipe, chunk) for chunk in parts.chunks()])
        nothing: Any = _NoOptimizer()
        self.schedule = build_schedule(parts.recipe, nothing)
        is_fp32 = parts.recipe.precision.dtype == "fp32"
        self.state = MegatronState(self.chunks, nothing, self._gathered, states={}, is_fp32=is_fp32)


class _NoOptimizer:
    """The part of an optimizer that loading weights asks for; the rest of its state is for trainings."""

    param_groups: tuple[dict[str, Any], ...] = ()

    def reload_model_params(self) -> None:
        """Do nothing: there are no copies of the weights."""
