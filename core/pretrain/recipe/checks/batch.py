"""Length of the training and size of its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe


def problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what is wrong with the length, the batch, and its ramp-up."""
    train = recipe.train
    if train.train_iters is None and train.train_samples is None:
        yield Problem("train.train_iters", "required, or train.train_samples.")
    if train.train_iters is not None and train.train_samples is not None:
        yield Problem("train.train_samples", "given beside train.train_iters; choose one.")
    if train.global_batch_size % train.micro_batch_size:
        yield Problem(
            "train.global_batch_size",
            f"{train.global_batch_size} is not a multiple of train.micro_batch_size {train.micro_batch_size}.",
        )
    if train.calculate_per_token_loss and recipe.engine.name == "megatron":
        yield from _per_token(recipe)
    if train.rampup_batch_size is not None:
        yield from _rampup(recipe, train.rampup_batch_size)
    if train.loss_spike.threshold is not None and train.loss_spike.action == "rollback":
        yield from _rollback(recipe)


def _per_token(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for fp16 or bf16 gradients: megatron-core sums them over all tokens before it divides."""
    precision = recipe.precision
    if precision.dtype != "fp32" and not precision.grad_reduce_in_fp32:
        yield Problem(
            "train.calculate_per_token_loss",
            f"true needs precision.grad_reduce_in_fp32: true with {precision.dtype}: gradients are summed over tokens "
            "before they are divided by their number.",
        )


def _rollback(recipe: Recipe) -> Iterator[Problem]:
    checkpoint = recipe.checkpoint
    if checkpoint.save is False or checkpoint.save_interval == 0:
        path = "checkpoint.save" if checkpoint.save is False else "checkpoint.save_interval"
        yield Problem(
            path,
            "train.loss_spike.action: rollback goes back to the last checkpoint: save some, with "
            "checkpoint.save_interval above 0.",
        )


def _rampup(recipe: Recipe, rampup: tuple[int, int, int]) -> Iterator[Problem]:
    path, last, micro = "train.rampup_batch_size", recipe.train.global_batch_size, recipe.train.micro_batch_size
    start, increment, samples = rampup
    if start < 1 or increment < 1 or samples < 1:
        yield Problem(path, f"{list(rampup)}: start, increment and samples must be greater than 0.")
    elif start >= last or (last - start) % increment:
        yield Problem(path, f"this does not reach train.global_batch_size {last} from {start} in steps of {increment}.")
    elif start % micro or increment % micro:
        yield Problem(path, f"{start} and {increment} must be multiples of train.micro_batch_size {micro}.")
    if recipe.train.train_iters is not None:
        yield Problem(path, "this counts samples: give train.train_samples instead of train.train_iters.")
