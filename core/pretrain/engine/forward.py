"""Forward pass of a model chunk over one micro-batch, and means of losses and gradients over tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from pretrain.engine.protocol import Batch
    from pretrain.recipe import Recipe


def forward_loss(
    batches: Iterator[Batch] | None, model: Any, *, device: torch.device
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]]:
    """Run the model on the next micro-batch; return its output, and a function from that to the summed loss."""
    batch = _next(batches, device)
    output = model(*map(batch.get, _INPUTS), labels=batch.get("labels"))
    return output, partial(_loss_and_tokens, batch.get("loss_mask"))


def forward_logits(
    position: int, batches: Iterator[Batch] | None, model: Any, *, device: torch.device
) -> tuple[Tensor, Any]:
    """Run the model without labels; return its output and a function from that to the logits of one position."""
    output = model(*map(_next(batches, device).get, _INPUTS), runtime_gather_output=True)
    return output, partial(_logits_at, position)


def prompt_batch(recipe: Recipe, tokens: Sequence[int]) -> tuple[Batch, int]:
    """Return the micro-batch of one sample that ends in `tokens`, padded, and the position of the last of them."""
    length = recipe.model.seq_length  # what the kernels were negotiated for
    window = list(tokens)[-length:]
    takes_mask = recipe.data.reset_attention_mask  # then the negotiated attention is given one
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1) if takes_mask else None
    batch: Batch = {
        "tokens": torch.tensor([window + [0] * (length - len(window))]),
        "position_ids": torch.arange(length)[None],
        "attention_mask": mask,
    }
    return batch, len(window) - 1


def _loss_and_tokens(loss_mask: Tensor | None, losses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss summed over the tokens [b, s] that count, their number, and both as fp32 [2] for reports."""
    weights = torch.ones_like(losses) if loss_mask is None else loss_mask
    loss, tokens = (losses.float() * weights).sum(), weights.sum()
    # The report is a tensor of its own: the schedule scales the sum in place.
    return loss, tokens.int(), torch.stack((loss.detach(), tokens.float()))


def _logits_at(position: int, output: Tensor, *, non_loss_data: bool) -> Tensor:  # noqa: ARG001  the schedule's call
    return output[0, position].float()


_INPUTS = ("tokens", "position_ids", "attention_mask")


def _next(batches: Iterator[Batch] | None, device: torch.device) -> dict[str, Tensor | None]:
    """Return the next micro-batch on the device; empty where this rank reads none."""
    batch = {} if batches is None else next(batches)
    return {name: None if tensor is None else tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


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
    masks = [batch["loss_mask"] for batch in batches]
    count = sum(int(mask.sum().item()) for mask in masks if mask is not None)  # on the host, where batches are
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
        for chunk in model:
            chunk.scale_gradients(1.0 / self.tokens)
