"""Work of a choice, made of the pieces, as if its stages had been traced."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pretrain.model.requests import compute_dtype
from pretrain.tools.plan.costs import Costs, Message, Operation
from pretrain.tools.plan.search.choice_memory import FP32

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.plan.search.choice_memory import StageLoad
    from pretrain.tools.plan.search.choices import Choice
    from pretrain.tools.plan.search.pieces import Piece, Pieces

Item = TypeVar("Item")


def stage_costs(recipe: Recipe, choice: Choice, pieces: Pieces, load: StageLoad) -> Costs:
    """Return the work of a step on one stage.

    Args:
        recipe: with the choice.
        choice: of the layout.
        pieces: of the model, for its tensor-parallel size.
        load: of the stage.
    """
    parts = _parts(pieces, load)
    forward, backward, sent = Counter[Operation](), Counter[Operation](), Counter[Message]()
    update = Counter[Operation]()
    for piece, count in parts:
        again = {"none": Counter[Operation](), "selective": piece.attention, "full": piece.forward}[choice.recompute]
        _add(forward, piece.forward, count)
        _add(backward, piece.backward, count)
        _add(update, piece.update, count)
        if piece is pieces.layer:
            _add(backward, again, count)
            _add(sent, piece.sent_forward, count * (2 if choice.recompute == "full" else 1))
        else:
            _add(sent, piece.sent_forward, count)
        _add(sent, piece.sent_backward, count)
    fixed = pieces.layer.fixed
    scaled = {replace(message, moved=message.moved * choice.micro_batch): float(n) for message, n in sent.items()}
    messages = scaled | _between_stages(choice, pieces, load)
    share = 1 / choice.data if choice.zero else 1.0
    return Costs(
        forward=_for_samples(forward, fixed, choice.micro_batch),
        backward=_for_samples(backward, fixed, choice.micro_batch),
        once={operation: n * share for operation, n in update.items()},
        messages=messages | _gathered_weights(recipe, choice, load),
        messages_once=_between_replicas(recipe, choice, load),
    )


def _parts(pieces: Pieces, load: StageLoad) -> list[tuple[Piece, int]]:
    return [(pieces.layer, load.layers), (pieces.embedding, int(load.is_first)), (pieces.head, int(load.is_last))]


def _add(found: Counter[Item], items: Mapping[Item, int], count: int) -> None:
    for item, number in items.items():
        found[item] += number * count


def _for_samples(
    operations: Mapping[Operation, int], fixed: frozenset[Operation], samples: int
) -> dict[Operation, float]:
    if samples == 1:
        return dict(operations)
    found: dict[Operation, float] = {}
    for operation, count in operations.items():
        larger = replace(operation, flops=operation.flops * samples, moved=operation.moved * samples)
        key = operation if operation in fixed else larger
        found[key] = found.get(key, 0) + count
    return found


def _between_stages(choice: Choice, pieces: Pieces, load: StageLoad) -> dict[Message, float]:
    """Return what a stage receives: activations of the one before, gradients of the one after."""
    if choice.pipeline == 1:
        return {}
    moved = pieces.entering * choice.micro_batch
    sides = 2 * choice.chunks - int(load.is_first) - int(load.is_last)
    return {Message("receive", "pipeline", choice.pipeline, moved): float(sides)}


def _between_replicas(recipe: Recipe, choice: Choice, load: StageLoad) -> dict[Message, float]:
    """Return the sums of gradients, and the weights that are gathered after the update."""
    if choice.data == 1:
        return {}
    weight = compute_dtype(recipe).itemsize
    parallel, zero = recipe.parallel, recipe.engine.zero
    if recipe.engine.name == "megatron":
        gradient = FP32 if recipe.precision.grad_reduce_in_fp32 else weight
        reduces, gathers = parallel.overlap_grad_reduce, parallel.overlap_param_gather
        bucket = parallel.ddp_bucket_size or max(40_000_000, 1_000_000 * choice.data)
    else:
        gradient, gathers, bucket = weight, False, zero.reduce_bucket_size
        reduces = choice.zero == 3 if zero.overlap_comm is None else zero.overlap_comm
    count = max(1.0, load.parameters / bucket) if reduces or gathers else 1.0
    moved = round(load.parameters / count)
    summing = "all-reduce" if choice.zero == 0 else "reduce-scatter"
    found = {Message(summing, "data", choice.data, moved * gradient, reduces): count}
    if choice.zero in {1, 2}:
        found[Message("all-gather", "data", choice.data, moved * weight, gathers)] = count
    return found


def _gathered_weights(recipe: Recipe, choice: Choice, load: StageLoad) -> dict[Message, float]:
    """Return the weights that ZeRO-3 gathers for the forward pass, and again for the backward pass."""
    if choice.data == 1 or choice.zero < 3:
        return {}
    moved = load.parameters * compute_dtype(recipe).itemsize
    return {Message("all-gather", "data", choice.data, moved, overlaps=True): 2.0}
