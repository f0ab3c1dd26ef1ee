"""Log-likelihoods of given tokens after given context, which benchmarks of language models are made of."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from pretrain.engine.forward import next_on_device
from pretrain.engine.protocol import ScoredTokens
from pretrain.model.context import context_rank
from pretrain.model.requests import compute_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from pretrain.engine.protocol import Batch
    from pretrain.recipe import Recipe

_NOTHING = ScoredTokens((), 0)
_NO_TOKEN = 2.0**24  # above every id, and exact in fp32, in which ids travel: not every library reduces int64


def scored_batches(recipe: Recipe, samples: Sequence[ScoredTokens], multiple_of: int = 1) -> list[Batch]:
    """Return this rank's part of the samples as micro-batches, padded; of as many on all ranks, and of a multiple."""
    size, ranks = recipe.train.micro_batch_size, parallel_state.get_data_parallel_world_size()
    count = -(-len(samples) // (size * ranks * multiple_of)) * multiple_of
    first = parallel_state.get_data_parallel_rank() * count * size
    own = list(samples[first : first + count * size])
    own += [_NOTHING] * (count * size - len(own))
    return [_batch(recipe, own[begin : begin + size]) for begin in range(0, count * size, size)]


def _batch(recipe: Recipe, samples: Sequence[ScoredTokens]) -> Batch:
    length = recipe.model.seq_length  # what the kernels were negotiated for
    tokens, labels = torch.zeros(2, len(samples), length, dtype=torch.int64).unbind()
    mask = torch.zeros(len(samples), length)
    for row, sample in enumerate(samples):
        given = torch.tensor(sample.tokens, dtype=torch.int64)
        end = max(0, len(given) - 1)
        tokens[row, :end], labels[row, :end] = given[:-1], given[1:]
        mask[row, end - sample.scored : end] = 1
    batch: dict[str, Tensor | None] = {
        "tokens": tokens,
        "labels": labels,
        "loss_mask": mask,
        "position_ids": torch.arange(length).repeat(len(samples), 1),
    }
    has_documents = recipe.data.reset_attention_mask  # then the negotiated attention is given some: here one a sample
    ends = torch.arange(len(samples) + 1, dtype=torch.int32) * length if has_documents else None
    return context_rank().part(batch, ends)


def forward_scores(
    recipe: Recipe, gpt: Any, vocab_size: int, batches: Iterator[Batch] | None, model: Any, *, device: torch.device
) -> tuple[Tensor, Callable[..., Tensor]]:
    """Run the model without labels; return its output, and a function from that to the scores of the samples.

    `model` is a stage with the engine's wrappers, `gpt` the last one of this rank without them.
    """
    batch, documents = next_on_device(batches, device)
    output = model(batch.get("tokens"), batch.get("position_ids"), None, packed_seq_params=documents)
    dtype = compute_dtype(recipe)  # of the logits that the loss was negotiated for; a wrapper makes them fp32
    return output, partial(_scores, gpt, vocab_size, dtype, batch.get("labels"), batch.get("loss_mask"))


def _scores(
    gpt: Any,
    vocab_size: int,
    dtype: torch.dtype,
    labels: Any,  # tensors, which the last stage has
    mask: Any,
    output: Tensor,
    *,
    non_loss_data: bool,  # noqa: ARG001  the schedule's call
) -> Tensor:
    """Return of each sample the log-likelihood and the number of tokens that are not the most probable, fp32 [b, 2].

    Of the positions that this context-parallel rank has; output is [b, s / c, v / t].
    """
    logits = output.transpose(0, 1).to(dtype).contiguous()
    best = _most_probable(logits, vocab_size).transpose(0, 1)
    losses = gpt.compute_language_model_loss(labels, logits)  # the logits are overwritten
    is_counted = mask.bool()
    likelihoods = torch.where(is_counted, -losses.float(), 0.0).sum(1)
    others = (is_counted & (best != labels)).float().sum(1)
    return torch.stack((likelihoods, others), dim=1)


def _most_probable(logits: Tensor, vocab_size: int) -> Tensor:
    """Return the most probable token of each position, the first of equal ones, for logits [..., v / t]."""
    first = parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
    entries = min(max(vocab_size - first, 0), logits.shape[-1])  # the rest is padding
    if entries:
        value, column = logits[..., :entries].max(dim=-1)
        value = value.float()
    else:
        value = torch.full(logits.shape[:-1], torch.finfo(torch.float32).min, device=logits.device)
        column = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return column
    group = parallel_state.get_tensor_model_parallel_group()
    highest = value.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    token = torch.where(value == highest, (column + first).float(), _NO_TOKEN)
    dist.all_reduce(token, op=dist.ReduceOp.MIN, group=group)
    return token.long()


def scores_of_all(outputs: Sequence[Tensor], samples: int, rows: int, device: torch.device) -> Tensor:
    """Return the scores of all `samples`, fp32 [samples, 2], on all ranks, of which each had `rows`; collective.

    `outputs` are those of this rank's micro-batches on the last stage, nothing elsewhere.
    """
    total = torch.zeros(parallel_state.get_data_parallel_world_size(), rows, 2, device=device)
    if outputs and parallel_state.get_tensor_model_parallel_rank() == 0:  # the others have the same
        total[parallel_state.get_data_parallel_rank()] = torch.cat(tuple(outputs))
    dist.all_reduce(total)  # context-parallel ranks have sums over parts of a sample
    return total.flatten(0, 1)[:samples]
