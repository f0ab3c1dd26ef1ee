"""Samples of `data.index: native`: their order is computed, so no index is built, written or waited for."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from pretrain.data.token_files.reading import TokenFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class NativeSamples:
    """Samples of one or several token files, by their position in the training; `phase` chooses the file."""

    parts: Mapping[str, Windows]
    phase: Phase
    format: SampleFormat
    length: int

    @classmethod
    def of(cls, parts: list[tuple[Windows, float]], format_: SampleFormat, length: int) -> NativeSamples:
        """Start from sample 0; a file that is named twice gets the sum of its weights."""
        weights: dict[str, float] = {}
        for windows, weight in parts:
            weights[windows.identity] = weights.get(windows.identity, 0.0) + weight
        by_identity = {windows.identity: windows for windows, _ in parts}
        return cls(parts=by_identity, phase=Phase(0, weights), format=format_, length=length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        """Return the sample at a position of the training."""
        if not self.phase.begin <= position < self.length:
            msg = f"{position} is not in range({self.phase.begin}, {self.length})"
            raise IndexError(msg)
        name, number = self.phase.at(position)
        return self.format(self.parts[name][number])

    def resume(self, position: int, saved: Mapping[str, Any] | None) -> NativeSamples:
        """Return the samples from `position` on of a training whose checkpoint holds `saved`, of `blend` or None."""
        before = Phase(position, self.phase.weights)
        if saved:
            before = Phase(saved["begin"], dict(saved["weights"]), dict(saved["read"]))
        return replace(self, phase=before.resume(position, self.phase.weights))

    def blend(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return asdict(self.phase) | {"paths": {name: windows.prefix for name, windows in self.parts.items()}}

    def describe(self, position: int) -> list[str]:
        """Return a line for each token file: its weight, and the samples read of it before a position."""
        total, read = sum(self.phase.weights.values()), self.phase.read_before(position)
        return [
            f"{windows.prefix}: weight {self.phase.weights[name] / total:.4g}, {read.get(name, 0):,} samples read, "
            f"{windows.per_epoch:,} make an epoch"
            for name, windows in self.parts.items()
        ]


class Windows:
    """Consecutive runs of seq_length + 1 ids of a split, shuffled by the files' content and the seed alone.

    An epoch holds every token of the split once, except for fewer than `seq_length` at its two ends, which differ from
    epoch to epoch. The last id of a window is only a label, and is the first id of the next window.
    """

    def __init__(self, prefix: str, identity: str, tokens: range, seq_length: int, seed: int) -> None:
        """Take a split's tokens, and what `TokenFile.identity` says; the files are opened when a sample is read."""
        self.prefix, self.identity = prefix, identity
        self._first, self._size = tokens.start, len(tokens)
        self._seq_length, self._seed = seq_length, seed
        self.per_epoch = (self._size - 1) // seq_length

    def __getitem__(self, number: int) -> npt.NDArray[Any]:
        """Return the ids of a sample, [seq_length + 1], mapped from the file; epochs follow one another without end."""
        begin, shuffled = self._epoch(number // self.per_epoch)
        begin += shuffled(number % self.per_epoch) * self._seq_length
        return self._file.tokens[begin : begin + self._seq_length + 1]

    @cached_property
    def _file(self) -> TokenFile:
        return TokenFile.open(self.prefix)

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
        """Leave out the mapped files: a data worker maps those of which it reads."""
        return {name: value for name, value in self.__dict__.items() if name not in {"_file", "_epoch"}}


_ROUNDS = 6


class Permutation:
    """A keyed bijection of range(size): one element takes a few microseconds and no memory.

    A Feistel network of six rounds over a x b >= size cells, with BLAKE2b as its round function, iterated until the
    result is below size (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). As a and b are about the
    root of size, few cells lie outside.
    """

    def __init__(self, size: int, key: bytes) -> None:
        self.size = size
        rows = math.isqrt(size - 1) + 1
        self._sides = rows, -(-size // rows)
        self._keyed = blake2b(key=key, digest_size=8)

    def __call__(self, index: int) -> int:
        """Return the place of `index`, which is in range(size)."""
        if not 0 <= index < self.size:
            msg = f"{index} is not in range({self.size})"
            raise IndexError(msg)
        index = self._scrambled(index)
        while index >= self.size:
            index = self._scrambled(index)
        return index

    def _scrambled(self, cell: int) -> int:
        rows, columns = self._sides
        changed, kept = cell // columns, cell % columns  # in range(rows) and range(columns)
        for number in range(_ROUNDS):
            modulus = columns if number % 2 else rows
            changed, kept = kept, (changed + self._round(number, kept)) % modulus
        return changed * columns + kept

    def _round(self, number: int, value: int) -> int:
        digest = self._keyed.copy()
        digest.update(bytes([number]) + value.to_bytes(8, "little"))
        return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFormat:
    """Options of section `data` for the ends of documents; the result equals that of megatron-core's GPTDataset."""

    eod: int | None  # None: no token ends a document
    eod_mask_loss: bool
    reset_position_ids: bool

    def __call__(self, ids: npt.NDArray[Any]) -> dict[str, Tensor]:
        """Return the sample, as `pretrain.data.samples.datasets.Datasets` describes it, of ids [seq_length + 1]."""
        ids = ids.astype(np.int64)  # the only copy, from the mapped file
        tokens = ids[:-1]
        is_end = tokens == self.eod
        positions = np.arange(tokens.size)
        sample = {
            "tokens": tokens,
            "labels": ids[1:],
            "loss_mask": np.where(is_end & self.eod_mask_loss, np.float32(0), np.float32(1)),
            "position_ids": positions - _document_begins(is_end, positions) if self.reset_position_ids else positions,
        }
        return {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in sample.items()}


def _document_begins(is_end: npt.NDArray[np.bool_], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the begin of each token's document; an end-of-document token belongs to the document that it ends."""
    begins = np.zeros_like(positions)
    begins[1:] = np.maximum.accumulate(np.where(is_end, positions + 1, 0))[:-1]
    return begins


@dataclass(frozen=True)
class Phase:
    """A part of a training with a constant blend. Datasets are named by their identity."""

    begin: int  # sample of the training at which it begins
    weights: dict[str, float]
    read: dict[str, int] = field(default_factory=dict)  # before `begin`, of every dataset of this and earlier phases

    def at(self, position: int) -> tuple[str, int]:
        """Return the dataset of the sample at `position`, and its number there, counted over all phases and epochs."""
        dataset, turn = self._turns.at(position - self.begin)
        name = self._names[dataset]
        return name, self.read.get(name, 0) + turn

    def read_before(self, position: int) -> dict[str, int]:
        """Return the number of samples read of every dataset before `position`."""
        turns = dict(zip(self._names, self._turns.before(position - self.begin), strict=True))
        return {name: self.read.get(name, 0) + turns.get(name, 0) for name in self.read | turns}

    def resume(self, position: int, weights: Mapping[str, float]) -> Phase:
        """Return the phase of `position`: this one, or a new one if the weights have changed."""
        if _shares(weights) == _shares(self.weights):
            return self
        return Phase(position, dict(weights), self.read_before(position))

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.weights)  # the order in the recipe may change

    @cached_property
    def _turns(self) -> WeightedInterleave:
        return WeightedInterleave([self.weights[name] for name in self._names])


def _shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    total = sum(map(Fraction, weights.values()))
    return {name: Fraction(weight) / total for name, weight in weights.items()}


_Integers: TypeAlias = "npt.NDArray[np.int64]"
_ROUNDING = 2.0**-50  # more than the relative error of a share, of a product with it, and of a sum


class WeightedInterleave:
    """An endless sequence of turns, apportioned to datasets as fairly as whole samples allow, in every prefix.

    The k-th turn of a dataset of weight w, from 0, has the key (2 k + 1) / w, and turns come in the order of their keys
    (the method of Webster and Sainte-Lague, by which parliaments apportion seats). So the dataset of a position follows
    from the position alone. The order is that of exact arithmetic.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        ratios = [float(weight).as_integer_ratio() for weight in weights]
        common = max(denominator for _, denominator in ratios)  # all are powers of two
        self._weights = [numerator * (common // denominator) for numerator, denominator in ratios]
        self._floats = np.array([float(weight) for weight in weights])
        total = sum(self._weights)
        self._shares = np.array([weight / total for weight in self._weights])

    def before(self, position: int) -> list[int]:
        """Return the number of turns that each dataset has before a position, which is below 2^52."""
        counts, (datasets, _) = self._near(position)
        counts += np.bincount(datasets[: position - int(counts.sum())], minlength=len(counts))
        found: list[int] = counts.tolist()
        return found

    def at(self, position: int) -> tuple[int, int]:
        """Return the dataset of a position, which is below 2^52, and the number of its earlier turns."""
        counts, (datasets, turns) = self._near(position)
        place = position - int(counts.sum())
        return int(datasets[place]), int(turns[place])

    def _near(self, position: int) -> tuple[_Integers, tuple[_Integers, _Integers]]:
        """Return counts of turns that are all before a position, and dataset and number of those that follow in order.

        Of the latter there are about as many as datasets, and they reach beyond the position.
        """
        # Turns whose key is at most that of an ideal position differ from it in number by half a turn a dataset.
        margin = len(self._weights) / 2 + 2 + position * _ROUNDING
        counts, beyond = self._up_to(max(position - margin, 0.0)), self._up_to(position + margin)
        datasets = np.repeat(np.arange(len(counts)), beyond - counts)
        first = np.cumsum(beyond - counts) - (beyond - counts)
        turns = np.arange(len(datasets)) - np.repeat(first - counts, beyond - counts)
        # One rounding of an exact quotient: keys keep their order, and equal ones are equal.
        keys = (2 * turns + 1) / self._floats[datasets]
        order = np.lexsort((datasets, keys))
        return counts, self._exactly(datasets[order], turns[order], keys[order], position - int(counts.sum()))

    def _up_to(self, position: float) -> _Integers:
        """Return the number of turns of each dataset up to an ideal position."""
        return np.floor(position * self._shares + 0.5).astype(np.int64)

    def _exactly(
        self, datasets: _Integers, turns: _Integers, keys: npt.NDArray[np.float64], place: int
    ) -> tuple[_Integers, _Integers]:
        """Put the turns in order whose rounded keys equal that at `place`; their true ones may differ."""
        same = slice(*(int(np.searchsorted(keys, keys[place], side)) for side in ("left", "right")))
        pairs = list(zip(datasets[same].tolist(), turns[same].tolist(), strict=True))
        kinds = {(self._weights[dataset], turn) for dataset, turn in pairs}
        if len(kinds) > 1:
            key = {kind: Fraction(2 * kind[1] + 1, kind[0]) for kind in kinds}
            pairs.sort(key=lambda pair: (key[self._weights[pair[0]], pair[1]], pair[0]))
            datasets[same], turns[same] = np.array(pairs, np.int64).T
        return datasets, turns
