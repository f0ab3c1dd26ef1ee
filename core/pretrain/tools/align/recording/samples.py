"""Identity of the samples that a rank reads, so that both sides are known to have read the same ones."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from pretrain.engine.protocol import Batch

_KEYS = ("tokens", "labels", "loss_mask")


class Samples:
    """Micro-batches on their way to the engine, and a hash of each sample."""

    def __init__(self, batches: Iterator[Batch], data_rank: int, data_size: int) -> None:
        """Pass on the micro-batches of a data-parallel rank."""
        self._batches = batches
        self._data_rank, self._data_size = data_rank, data_size
        self._micro_batch = 0
        self.digests: dict[str, str] = {}
        self.step = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        count = len(_tensor(batch, "tokens"))
        first = (self._micro_batch * self._data_size + self._data_rank) * count
        for number in range(count):
            self.digests[f"{self.step}.{first + number}"] = _digest(batch, number)
        self._micro_batch += 1
        return batch

    def begin_step(self, step: int) -> None:
        """Count samples from 0 again."""
        self.step, self._micro_batch = step, 0


def _digest(batch: Mapping[str, Tensor | None], number: int) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for key in _KEYS:
        digest.update(_tensor(batch, key)[number].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _tensor(batch: Mapping[str, Tensor | None], key: str) -> Tensor:
    tensor = batch[key]
    if tensor is None:
        msg = f"a micro-batch without {key}"
        raise TypeError(msg)
    return tensor
