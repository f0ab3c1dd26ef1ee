"""Forward pass of a model chunk over one micro-batch, and means of losses and gradients over tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads

from pretrain.model.context import PackedDocuments, context_rank
from pretrain.plugins.signatures import Documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from pretrain.engine.protocol import Batch
    from pretrain.recipe import Recipe


def forward_loss(
    batches: Iterator[Batch] | None, model: Any, *, device: torch.device
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]]:
    """Run the model on the next micro-batch; return its output, and a function from that to the summed loss."""
    batch, documents = next_on_device(batches, device)
    ids = batch.get("tokens"), batch.get("position_ids")
    output = model(*ids, None, labels=batch.get("labels"), packed_seq_params=documents)  # None: no mask is made
    return output, partial(_loss_and_tokens, batch.get("loss_mask"), batch.get("num_tokens"))


def forward_logits(
    position: int | None, batches: Iterator[Batch] | None, model: Any, *, device: torch.device
) -> tuple[Tensor, Any]:
    """Run the model without labels; return its output and a function from that to the logits of one position."""
    batch, documents = next_on_device(batches, device)
    ids = batch.get("tokens"), batch.get("position_ids")
    output = model(*ids, None, runtime_gather_output=True, packed_seq_params=documents)
    return output, partial(_logits_at, position)


def prompt_batch(recipe: Recipe, tokens: Sequence[int]) -> tuple[Batch, int | None]:
    """Return this rank's part of the micro-batch of one sample that ends in `tokens`, padded.

    And the place in it of the last of them, None where another context-parallel rank has it.
    """
    length = recipe.model.seq_length  # what the kernels were negotiated for
    window = list(tokens)[-length:]
    batch: dict[str, Tensor | None] = {
        "tokens": torch.tensor([window + [0] * (length - len(window))]),
        "position_ids": torch.arange(length)[None],
        "loss_mask": torch.ones(1, length),
    }
    has_documents = recipe.data.reset_attention_mask  # then the negotiated attention is given some: here one
    context = context_rank()
    part = context.part(batch, torch.tensor([0, length], dtype=torch.int32) if has_documents else None)
    own = context.positions(length).tolist()
    last = len(window) - 1
    return part, own.index(last) if last in own else None


def _loss_and_tokens(
    loss_mask: Tensor | None, num_tokens: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss summed over the tokens [b, s / c] that count, their number, and both as fp32 [2] for reports.

    Under context parallelism the number is that of whole sequences, and the loss is c times that of this rank's part:
    gradients and losses are averaged over the ranks that share a sequence too. So it does not matter how many tokens
    of each part count.
    """
    weights = torch.ones_like(losses) if loss_mask is None else loss_mask
    loss = (losses.float() * weights).sum() * parallel_state.get_context_parallel_world_size()
    tokens = weights.sum() if num_tokens is None else num_tokens
    # The report is a tensor of its own: the schedule scales the sum in place.
    return loss, tokens.int(), torch.stack((loss.detach(), tokens.float()))


def _logits_at(
    position: int | None,
    output: Tensor,
    *,
    non_loss_data: bool,  # noqa: ARG001  the schedule's call
) -> Tensor:
    """Return the logits of a position on all ranks that share the sequence, fp32; position None: others have it."""
    logits = output[0, 0].float().zero_() if position is None else output[0, position].float()
    if parallel_state.get_context_parallel_world_size() > 1:
        dist.all_reduce(logits, group=parallel_state.get_context_parallel_group())
    return logits


def next_on_device(
    batches: Iterator[Batch] | None, device: torch.device
) -> tuple[dict[str, Tensor | None], PackedDocuments | None]:
    """Return the next micro-batch and its documents on the device; nothing where this rank reads none."""
    batch = dict(next(batches)) if batches is not None else {}

    def place(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    ends, documents, tokens = batch.pop("documents", None), None, batch.get("tokens")
    if ends is not None and tokens is not None:
        length = tokens.shape[1] * parallel_state.get_context_parallel_world_size()
        pieces = zip(place(ends), ends.tolist(), strict=True)  # one copy; the numbers are read where they are
        documents = PackedDocuments(
            pieces=tuple(Documents.of(*piece) for piece in pieces), max_seqlen_q=length, max_seqlen_kv=length
        )
    return {name: None if tensor is None else place(tensor) for name, tensor in batch.items()}, documents


def mean_over_ranks(reports: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the loss per token over all ranks, fp32 scalar, nan without a token; reports are fp32 [2]. Collective."""
    total = torch.stack(tuple(reports)).sum(dim=0) if reports else torch.zeros(2, device=device)
    dist.all_reduce(total)
    return total[0] / total[1]


def mean_of_means(reports: Sequence[Tensor]) -> Tensor:
    """Return the mean over micro-batches of their means over tokens, which is the default loss, fp32 scalar."""
    sums, tokens = torch.stack(tuple(reports)).unbind(dim=1)
    return (sums / tokens.clamp(min=1)).mean()


def share_of_mean(reports: Sequence[Tensor], tokens: Tensor) -> Tensor:
    """Return this data-parallel rank's part of the mean over all `tokens`; the mean of the parts is that mean."""
    ranks = parallel_state.get_data_parallel_world_size()
    loss: Tensor = torch.stack(tuple(reports))[:, 0].sum() * (ranks / tokens)
    return loss


def count_tokens(batches: Sequence[Batch], device: torch.device) -> Tensor:
    """Return the unmasked tokens in the micro-batches of all data-parallel ranks, int64, at least 1; collective."""
    counts = [batch["num_tokens"] for batch in batches]
    count = sum(int(each.item()) for each in counts if each is not None)  # on the host, where batches are
    tokens = torch.full((), count, dtype=torch.int64, device=device)  # a copy from the host would wait for the device
    dist.all_reduce(tokens, group=parallel_state.get_data_parallel_group())
    return tokens.clamp(min=1)


class PerTokenGradients:
    """Division of a step's gradients by its tokens; `finalize_model_grads` would synchronize with the device for it."""

    def __init__(self) -> None:
        self.tokens = torch.ones(())

    def __call__(self, model: list[Any], num_tokens: Tensor, **options: Any) -> None:
        """Reduce the gradients, and divide them by the tokens; `num_tokens` is 0 but on the last stage."""
        finalize_model_grads(model, None, **options)
        last = parallel_state.get_pipeline_model_parallel_last_rank()
        dist.broadcast(num_tokens, src=last, group=parallel_state.get_pipeline_model_parallel_group())
        dist.all_reduce(num_tokens, group=parallel_state.get_data_parallel_group())
        self.tokens = num_tokens.clamp(min=1)
        copies = parallel_state.get_context_parallel_world_size()  # of each loss: see `_loss_and_tokens`
        for chunk in model:
            chunk.scale_gradients(1.0 / (self.tokens * copies))
