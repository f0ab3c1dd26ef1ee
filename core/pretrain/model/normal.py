"""Generate any rows of a reproducible matrix of normal numbers, equal on every device and with any number of threads.

Rows are generated in blocks. A CPU generator seeded by a key and the block's number gives the numbers of a block.
"""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from torch import Tensor

BLOCK_ELEMENTS = 1 << 16
GROUP = 32
"""Blocks that are made together, 8 MiB in fp32, so that a piece of a matrix written by columns has several in a row."""


def normal_rows(key: str, row: Sequence[int], deviation: float, first: int, end: int) -> Iterator[tuple[int, Tensor]]:
    """Yield rows `first` up to `end` of a tensor of normal numbers in pieces, as (number of the first row, fp32 rows).

    As many threads as torch uses make pieces ahead of the caller; torch releases the GIL while it draws.

    Args:
        key: seed of the numbers, together with the number of the row.
        row: shape of one row.
        deviation: standard deviation; the mean is 0.
        first: row to begin with.
        end: row after the last.
    """
    height = max(1, BLOCK_ELEMENTS // max(1, torch.Size(row).numel()))
    blocks = range(first // height, -(-end // height))
    pending: deque[tuple[int, Future[Tensor]]] = deque()
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for begin in range(0, len(blocks), GROUP):
            group = blocks[begin : begin + GROUP]
            pending.append((group[0] * height, threads.submit(_draw, key, group, (height, *row), deviation)))
            if len(pending) > torch.get_num_threads():
                yield _clipped(*pending.popleft(), first, end)
        while pending:
            yield _clipped(*pending.popleft(), first, end)


def _clipped(begin: int, drawn: Future[Tensor], first: int, end: int) -> tuple[int, Tensor]:
    """Return a piece without rows before `first` and from `end` on."""
    numbers = drawn.result()
    return max(begin, first), numbers[max(0, first - begin) : end - begin]


def _draw(key: str, blocks: range, shape: tuple[int, ...], deviation: float) -> Tensor:
    numbers = torch.empty((len(blocks), *shape), device="cpu")
    for number, block in zip(blocks, numbers, strict=True):
        block.normal_(0.0, deviation, generator=_generator(f"{key}/{number}"))
    return numbers.flatten(0, 1)


def _generator(key: str) -> torch.Generator:
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
    return torch.Generator().manual_seed(seed)
