"""Forward pass of a model chunk over one micro-batch, for every engine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from pretrain.engine.protocol import Batch
    from pretrain.recipe import Recipe


def forward_loss(
    batches: Iterator[Batch] | None, model: Any, *, device: torch.device
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]]:
    """Run the model on the next micro-batch; return its output and a function from that to the loss.

    megatron-core's schedules divide the loss by the tokens, or with `calculate_per_token_loss` leave it a sum.
    """
    batch = _to(device, next(batches)) if batches is not None else {}
    output = model(
        batch.get("tokens"), batch.get("position_ids"), batch.get("attention_mask"), labels=batch.get("labels")
    )
    return output, partial(_loss_and_tokens, batch.get("loss_mask"))


def forward_logits(
    position: int, batches: Iterator[Batch] | None, model: Any, *, device: torch.device
) -> tuple[Tensor, Any]:
    """Run the model without labels; return its output and a function from that to the logits of one position."""
    batch = _to(device, next(batches)) if batches is not None else {}
    output = model(
        batch.get("tokens"), batch.get("position_ids"), batch.get("attention_mask"), runtime_gather_output=True
    )
    return output, partial(_logits_at, position)


def prompt_batch(recipe: Recipe, tokens: Sequence[int]) -> tuple[Batch, int]:
    """Return the micro-batch of one sample that ends in `tokens`, padded, and the position of the last of them."""
    length = recipe.model.seq_length  # what the kernels were negotiated for
    window = list(tokens)[-length:]
    batch: Batch = {
        "tokens": torch.tensor([window + [0] * (length - len(window))]),
        "position_ids": torch.arange(length)[None],
        "attention_mask": _causal_mask(recipe, length),
    }
    return batch, len(window) - 1


def _loss_and_tokens(loss_mask: Tensor | None, losses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss summed over the tokens [b, s] that count, their number, and both as fp32 [2] for reports.

    The report is a tensor of its own: the schedule scales the sum in place.
    """
    weights = torch.ones_like(losses) if loss_mask is None else loss_mask
    loss, tokens = (losses.float() * weights).sum(), weights.sum()
    return loss, tokens.int(), torch.stack((loss.detach(), tokens.float()))


def _logits_at(position: int, output: Tensor, *, non_loss_data: bool) -> Tensor:  # noqa: ARG001  the schedule's call
    return output[0, position].float()


def _causal_mask(recipe: Recipe, length: int) -> Tensor | None:
    """Return the mask if the negotiated attention takes one, else None."""
    if not recipe.data.reset_attention_mask:
        return None
    return torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)


def _to(device: torch.device, batch: Batch) -> dict[str, Tensor | None]:
    return {name: None if tensor is None else tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
