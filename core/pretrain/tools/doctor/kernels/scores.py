"""Trials of attention and of its softmax, whose scores grow with the square of the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.masks import documents
from pretrain.plugins.requests import Mask, SoftmaxRequest
from pretrain.tools.doctor.kernels.compared import Compared, octaves, outer
from pretrain.tools.doctor.kernels.oracle import oracle
from pretrain.tools.doctor.kernels.trial import Trial, random

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.kernels.room import Room
    from pretrain.tools.doctor.kernels.trial import Function

OF_FLASH, STORED = 12, 8
"""Tensors of the inputs' size that attention holds, forward and backward; and of the scores' size, where it has them.

Assumed, with gradients and copies counted: the room for a trial need not be exact.
"""


def attention(request: AttentionRequest, recipe: Recipe, room: Room, *, kind: str) -> Trial:
    """Return the trial of an `AttentionFn`, compared whole, or in the part that `Compared` chooses.

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
    groups, shared = request.query_groups, heads // request.query_groups
    compared = Compared.of(batch, groups, shared, length, length)
    of_groups = _heads(compared.groups, shared)
    of_queries, of_keys = _scales(0, compared.queries), _scales(0, torch.arange(length))
    counts = {"query": heads, "key": groups, "value": groups}
    mask = _mask(request.mask, batch, length)
    keys = slice(None), *outer(compared.sequences, compared.groups)
    parts: dict[str, Any] = {
        "query": outer(compared.queries, compared.sequences, of_groups),
        "key": keys,
        "value": keys,
        "output": outer(compared.queries, compared.sequences, _heads(of_groups, size)),
    }
    return Trial(
        inputs={
            name: random(length, batch, count, size, dtype=request.dtype, seed=seed)
            for seed, (name, count) in enumerate(counts.items())
        },
        constants={"mask": mask, "training": False},
        oracle=_oracle(request, compared, length, heads=len(of_groups), query_groups=len(compared.groups)),
        parts={} if compared.is_whole else parts | _part_of_mask(mask, compared),
        scales={"query": of_queries, "key": of_keys, "value": of_keys, "output": of_queries},
        sizes=f"s {length}, b {batch}{_cut(batch, recipe)}, {heads} heads of {size}"
        + _shown(compared, batch, len(of_groups), heads, length),
    )


def softmax(request: SoftmaxRequest, recipe: Recipe, room: Room) -> Trial:
    """Return the trial of a `SoftmaxFn`, compared whole, or in the part that `Compared` chooses."""
    length, heads = request.keys, request.heads
    scores = heads * request.queries * length
    batch = room.units(recipe.train.micro_batch_size, "one sequence", size=4.0 * STORED * scores)
    compared = Compared.of(batch, heads, 1, request.queries, length)
    mask = _mask(request.mask, batch, length)
    part = outer(compared.sequences, compared.groups, compared.queries)
    return Trial(
        inputs={"scores": random(batch, heads, request.queries, length, dtype=request.dtype, seed=0)},
        constants={"mask": mask},
        oracle=_oracle(request, compared, length, heads=len(compared.groups)),
        parts={} if compared.is_whole else {"scores": part, "output": part, **_part_of_mask(mask, compared)},
        scales=dict.fromkeys(("scores", "output"), _scales(2, compared.queries)),
        sizes=f"s {length}, b {batch}{_cut(batch, recipe)}, {heads} heads"
        + _shown(compared, batch, len(compared.groups), heads, request.queries),
    )


def _oracle(request: AttentionRequest | SoftmaxRequest, compared: Compared, length: int, **changed: int) -> Function:
    """Return the oracle for the part, whose causal queries are no longer the last ones: their mask is given to it."""
    if compared.is_whole or request.mask is not Mask.CAUSAL:
        return oracle(request, **changed)
    queries = request.queries if isinstance(request, SoftmaxRequest) else length
    masked, kernel = compared.masked(queries, length), oracle(request, **changed, mask=Mask.ARBITRARY)
    return lambda **given: kernel(**given | {"mask": masked})


def _heads(groups: Tensor, shared: int) -> Tensor:
    """Return the numbers of all members of the groups: heads, or columns of heads."""
    return (groups[:, None] * shared + torch.arange(shared)).flatten()


def _scales(dimension: int, positions: Tensor) -> tuple[tuple[Any, ...], ...]:
    before = (slice(None),) * dimension
    return tuple((*before, places) for places in octaves(positions))


def _shown(compared: Compared, batch: int, compared_heads: int, heads: int, queries: int) -> str:
    if compared.is_whole:
        return ""
    sequences = f"{len(compared.sequences)} of {batch} sequences"
    return f"; compared: {sequences}, {compared_heads} of {heads} heads, {len(compared.queries)} of {queries} queries"


def _cut(batch: int, recipe: Recipe) -> str:
    wanted = recipe.train.micro_batch_size
    return f" of {wanted}" if batch < wanted else ""


def _mask(kind: Mask, batch: int, length: int) -> Tensor | None:
    return documents(batch, length) if kind is Mask.ARBITRARY else None


def _part_of_mask(mask: Tensor | None, compared: Compared) -> dict[str, Any]:
    return {} if mask is None else {"mask": outer(compared.sequences, torch.tensor([0]), compared.queries)}
