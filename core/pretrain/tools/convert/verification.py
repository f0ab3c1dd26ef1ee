"""Verify a checkpoint's weights: readable, complete, finite; and equal to another's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint import checksums, torch_file
from pretrain.checkpoint.identity import structure
from pretrain.errors import CheckpointError
from pretrain.tools.convert.lazy_tensor import with_rows
from pretrain.tools.convert.model_weights import EMBEDDING, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.model_weights import ModelWeights


_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference of two weights.

    Attributes:
        name: of the weight.
        largest: of the absolute differences, computed in fp32 at least; nan where one has numbers that are not finite.
        shape: None if the shapes are equal, else both, as text.
    """

    name: str
    largest: float
    shape: str | None = None


_UNVERIFIED = {".safetensors", ".distcp"}


def files_without_checksums(weights: ModelWeights) -> list[Path]:
    """Verify the files of torch.save, also those beside the weights: optimizer, generators, other state.

    Returns:
        files in which a changed number is not found: of safetensors, of torch before 1.6, and sharded ones, of which
        the weights' records alone are verified; none in a folder whose checksums were verified when it was opened.

    Raises:
        DamageError: one is damaged, or not a file of torch.save.
    """
    if checksums.are_there(weights.path):
        return []
    files = [file for file in sorted(weights.path.rglob("*")) if file.is_file()]
    unread = {file for file in files if file.suffix in {".pt", ".bin"} and not torch_file.require_readable(file)}
    return [file for file in files if file in unread or file.suffix in _UNVERIFIED]


def not_finite(weights: ModelWeights, read: Callable[[int], None] = lambda count: None) -> list[str]:  # noqa: ARG005
    """Read all weights; return the names of those with a number that is not finite.

    Args:
        weights: of a checkpoint.
        read: is called with the bytes of each block that has been read.

    Raises:
        DamageError: a file is cut off, or its checksum has changed.
    """

    def is_finite(tensor: LazyTensor) -> bool:
        finite = True
        for block in tensor.blocks():
            finite = finite and bool(block.isfinite().all())
            read(block.nbytes)
        return finite

    with ThreadPoolExecutor(_WORKERS) as pool:
        found = pool.map(is_finite, weights.tensors.values())
        return [name for name, finite in zip(weights.tensors, found, strict=True) if not finite]


def differences(
    ours: ModelWeights,
    theirs: ModelWeights,
    read: Callable[[int], None] = lambda count: None,  # noqa: ARG005
) -> list[Difference]:
    """Compare two models weight by weight.

    Where the size of the vocabulary is known its padding does not count; otherwise all rows do.

    Raises:
        CheckpointError: one has weights that the other lacks.
        DamageError: a file is cut off.
    """
    if missing := sorted(set(ours.tensors) ^ set(theirs.tensors)):
        owner = ours if missing[0] in ours.tensors else theirs
        msg = f"the models differ: only {owner.path} has {missing[0]} ({len(missing)} such weights)."
        raise CheckpointError(msg)
    size = min(ours.tokens, theirs.tokens)
    if (ours.vocab_size, theirs.vocab_size) == (None, None):
        size = max(ours.rows, theirs.rows)

    def compare(name: str) -> Difference:
        one, other = ours.tensors[name], theirs.tensors[name]
        if name in {EMBEDDING, OUTPUT}:
            one, other = (with_rows(each, min(each.shape[0], size)) for each in (one, other))
        if one.shape != other.shape:
            return Difference(name, float("inf"), f"{list(one.shape)} and {list(other.shape)}")
        return Difference(name, _largest(one, other, read))

    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(compare, ours.tensors))


def settings_that_differ(ours: ModelWeights, theirs: ModelWeights) -> dict[str, tuple[Any, Any]]:
    """Return the settings of the models that differ, with both values."""
    one, other = structure(ours.model), structure(theirs.model)
    return {name: (value, other[name]) for name, value in one.items() if value != other[name]}


def _largest(one: LazyTensor, other: LazyTensor, read: Callable[[int], None]) -> float:
    if one.by_rows and not other.by_rows:  # whose rows are read together
        one, other = other, one
    largest, first = 0.0, 0
    for block in one.blocks():
        theirs = other.rows(first, first + block.shape[0])
        first += block.shape[0]
        if not (block.dtype == theirs.dtype and torch.equal(block, theirs)):
            wide = torch.promote_types(torch.promote_types(block.dtype, theirs.dtype), torch.float32)
            found = (block.to(wide) - theirs.to(wide)).abs().max().item()
            largest = found if found != found else max(largest, found)  # noqa: PLR0124  nan
        read(block.nbytes)
    return largest
