"""Samples of one split of a token file, with a new order in each epoch."""

from __future__ import annotations

from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from pretrain.data.samples.native.permutation import Permutation
from pretrain.data.token_files.reading import TokenFile, split_range

if TYPE_CHECKING:
    import numpy.typing as npt


class Windows:
    """Consecutive runs of seq_length + 1 ids of a split, shuffled.

    An epoch holds every token of the split once, except for fewer than `seq_length` at its two ends, which differ from
    epoch to epoch. The last id of a window is only a label, and is the first id of the next window.

    Attributes:
        prefix: of the token files.
        identity: hash of the content of the files; it and the seed alone determine the order.
        per_epoch: number of samples in an epoch.
    """

    def __init__(self, file: TokenFile, identity: str, bounds: tuple[float, float], seq_length: int, seed: int) -> None:
        """Find the split in the index of a token file.

        Args:
            file: mapped token file.
            identity: of the file; given, because computing it reads from the disk, and it serves every split.
            bounds: of the split, as a share of the sequences (as Megatron cuts it).
            seq_length: tokens of a sample.
            seed: of all shuffles.
        """
        self.prefix, self.identity, self._file = str(file.prefix), identity, file
        sequences = split_range(bounds, file.lengths.size)
        self._first, self._size = file.tokens_before(sequences.start), file.tokens_in(sequences)
        self._seq_length, self._seed = seq_length, seed
        self.per_epoch = (self._size - 1) // seq_length

    def __getitem__(self, number: int) -> npt.NDArray[Any]:
        """Return the ids of a sample, [seq_length + 1], mapped from the file; epochs follow one another without end."""
        begin, shuffled = self._epoch(number // self.per_epoch)
        begin += shuffled(number % self.per_epoch) * self._seq_length
        return self._file.tokens[begin : begin + self._seq_length + 1]

    @cached_property
    def _file(self) -> TokenFile:
        return TokenFile.open(self.prefix)  # in a data worker

    @cached_property
    def _epoch(self) -> Any:
        return lru_cache(maxsize=2)(self._start_epoch)

    def _start_epoch(self, epoch: int) -> tuple[int, Permutation]:
        """Return the begin of an epoch's first window, in tokens of the file, and the epoch's order."""
        key = blake2b(f"{self._seed} {self.identity} {epoch}".encode()).digest()
        surplus = self._size - 1 - self.per_epoch * self._seq_length
        shift = int.from_bytes(key[:8], "little") % (surplus + 1)
        return self._first + shift, Permutation(self.per_epoch, key)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the mapped files: a data worker maps them itself."""
        return {name: value for name, value in self.__dict__.items() if name not in {"_file", "_epoch"}}
