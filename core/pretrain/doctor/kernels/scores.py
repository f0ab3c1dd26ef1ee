"""Trials of attention and of its softmax, whose scores grow with the square of the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.doctor.kernels.oracle import oracle
from pretrain.doctor.kernels.room import ORACLE_ELEMENTS
from pretrain.doctor.kernels.trial import Trial, random
from pretrain.plugins.requests import Mask
from pretrain.testing.kernels.masks import documents

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.doctor.kernels.room import Room
    from pretrain.plugins.requests import AttentionRequest, SoftmaxRequest
    from pretrain.recipe import Recipe

OF_FLASH, STORED = 12, 8
"""Tensors of the inputs' size that attention holds, forward and backward; and of the scores' size, where it has them.

Assumed, with gradients and copies counted: the room for a trial need not be exact.
"""


def attention(request: AttentionRequest, recipe: Recipe, room: Room, *, kind: str) -> Trial:
    """Return the trial of an `AttentionFn`: last sequence, last group of heads, and last queries are compared.

    Args:
        request: of the kernel.
        recipe: of the training.
        room: of the trial.
        kind: of the kernel; "flash" stores no scores.
    """
    length, heads, size = request.seq_length, request.heads, request.head_size
    stored = 0 if kind == "flash" else STORED * heads * length**2
    batch = room.units(
        recipe.train.micro_batch_size,
        "one sequence",
        flops=14.0 * heads * size * length**2,  # two matmuls forward, five backward
        size=4.0 * (OF_FLASH * length * heads * size + stored),
    )
    shared = heads // request.query_groups
    queries = _queries(length, length * shared)
    counts = {"query": heads, "key": request.query_groups, "value": request.query_groups}
    last = slice(-queries, None), slice(-1, None)
    whole = slice(None), slice(-1, None), slice(-1, None)
    mask = _mask(request.mask, batch, length)
    return Trial(
        inputs={
            name: random(length, batch, count, size, dtype=request.dtype, seed=seed)
            for seed, (name, count) in enumerate(counts.items())
        },
        constants={"mask": mask, "training": False},
        oracle=oracle(request, heads=shared, query_groups=1, micro_batch_size=1),
        parts={
            "query": (*last, slice(-shared, None)),
            "key": whole,
            "value": whole,
            "output": (*last, slice(-shared * size, None)),
            **_part_of_mask(mask, queries),
        },
        sizes=f"s {length}, b {batch}{_cut(batch, recipe)}, {heads} heads of {size}; compared: 1 sequence, "
        f"{shared} of {heads} heads, {queries} queries",
    )


def softmax(request: SoftmaxRequest, recipe: Recipe, room: Room) -> Trial:
    """Return the trial of a `SoftmaxFn`: last sequence, last head, and last queries are compared."""
    length, heads = request.keys, request.heads
    scores = heads * request.queries * length
    batch = room.units(recipe.train.micro_batch_size, "one sequence", size=4.0 * STORED * scores)
    queries = _queries(request.queries, length)
    mask = _mask(request.mask, batch, length)
    part = slice(-1, None), slice(-1, None), slice(-queries, None)
    return Trial(
        inputs={"scores": random(batch, heads, request.queries, length, dtype=request.dtype, seed=0)},
        constants={"mask": mask},
        oracle=oracle(request, heads=1),
        parts={"scores": part, "output": part, **_part_of_mask(mask, queries)},
        sizes=f"s {length}, b {batch}{_cut(batch, recipe)}, {heads} heads; compared: 1 head, {queries} queries",
    )


def _queries(wanted: int, scores_of_query: int) -> int:
    return max(1, min(wanted, ORACLE_ELEMENTS // scores_of_query))


def _cut(batch: int, recipe: Recipe) -> str:
    wanted = recipe.train.micro_batch_size
    return f" of {wanted}" if batch < wanted else ""


def _mask(kind: Mask, batch: int, length: int) -> Tensor | None:
    return documents(batch, length) if kind is Mask.ARBITRARY else None


def _part_of_mask(mask: Tensor | None, queries: int) -> dict[str, Any]:
    return {} if mask is None else {"mask": (slice(-1, None), slice(None), slice(-queries, None))}
