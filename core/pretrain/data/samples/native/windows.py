"""The samples of one split of a token file, each epoch in an order of its own."""

from __future__ import annotations

from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from pretrain.data.samples.native.permutation import Permutation
from pretrain.data.token_files.reading import TokenFile, split_range

if TYPE_CHECKING:
    import numpy.typing as npt


class Windows:
    """Runs of seq_length + 1 ids, cut one after the other from a split, and shuffled.

    An epoch holds every token of the split once, but for fewer than `seq_length` at its two ends, which are others in
    every epoch. The last id of a window, a label only, is the first of the next.

    Attributes:
        prefix: of the token files.
        identity: what tells the content of the files from any other; it alone, with the seed, decides on the order.
        per_epoch: samples of an epoch.
    """

    def __init__(self, file: TokenFile, identity: str, bounds: tuple[float, float], seq_length: int, seed: int) -> None:
        """Look at the index of a token file.

        Args:
            file: mapped.
            identity: of it; not asked here, because it is read from the disk and serves every split.
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
        """Return the ids of a sample, [seq_length + 1], mapped from the file; epochs go on without an end."""
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
        """Return where the first window of an epoch begins, in tokens of the file, and the epoch's order."""
        key = blake2b(f"{self._seed} {self.identity} {epoch}".encode()).digest()
        surplus = self._size - 1 - self.per_epoch * self._seq_length
        shift = int.from_bytes(key[:8], "little") % (surplus + 1)
        return self._first + shift, Permutation(self.per_epoch, key)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the mapped files behind: a data worker maps them itself."""
        return {name: value for name, value in self.__dict__.items() if name not in {"_file", "_epoch"}}
