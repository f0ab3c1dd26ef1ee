"""Compares the weights of data-parallel replicas; a difference is silent corruption on a device or a link."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pretrain.collectives import first_problem, rank_rows
from pretrain.engine import groups
from pretrain.errors import TrainingError
from pretrain.model.weights import is_replicated
from pretrain.report.plain_text import some_of
from pretrain.training.event import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from pretrain.training.event import Due
    from pretrain.training.loop import Training
    from pretrain.training.saving import Saving


_SHOWN = 5  # weights that an error names; the others are counted


class ReplicaCheck(Event):
    """Compares the weights of the data-parallel ranks by hashes, which alone leave a device."""

    @classmethod
    def of(cls, training: Training, saving: Saving | None) -> ReplicaCheck | None:
        """Return the comparison that the recipe asks for; None if it is off, or if there is one replica alone."""
        recipe, note, every = training.recipe, training.meter.logger.note, training.recipe.train.check_replicas_interval
        if every is None:
            return None
        layout = training.length.layout
        if layout.replicas == layout.expert_data_parallel_size == 1:
            note("train.check_replicas_interval has no effect: there is only one replica")
            return None
        if recipe.engine.name == "megatron" and recipe.parallel.overlap_param_gather:
            note(
                "train.check_replicas_interval: parallel.overlap_param_gather gathers the weights again right before "
                "they are compared, so only faults of that gather are found"
            )
        return cls(training, (groups.data_parallel_group(), groups.expert_data_parallel_group()), every, saving)

    def __init__(
        self, training: Training, replicas: Sequence[dist.ProcessGroup], every: int, saving: Saving | None
    ) -> None:
        """Take the ranks that hold the same weights, and those that hold the same experts."""
        self._engine, self._progress, self._interval = training.engine, training.progress, training.meter.interval
        self._replicas, self._every, self._saving = replicas, every, saving
        self._hash = WeightHash()

    def after_iteration(self, due: Due) -> bool:
        """Compare if it is due."""
        if due.iteration % self._every == 0:
            self._interval.wait()
            self._interval.pause()
            self.compare(due.iteration)
            self._interval.resume()
        return False

    def compare(self, iteration: int) -> None:
        """Compare after this iteration, and wait for the device; raises on all ranks, which call it together."""
        problem = first_problem(self._difference())
        if problem is not None:
            distrusted = "" if self._saving is None else self._saving.distrust_after(self._progress.equal_at)
            raise TrainingError("\n".join(filter(None, (problem, self._advice(iteration), distrusted))))
        self._progress.equal_at = iteration

    def _difference(self) -> str | None:
        with self._engine.replicated_weights() as weights:
            experts = [named for named in weights if not is_replicated(named[1])]
            others = [named for named in weights if is_replicated(named[1])]
            problems = [self._compared(*pair) for pair in zip((others, experts), self._replicas, strict=True)]
        return next(filter(None, problems), None)

    def _compared(self, weights: Sequence[tuple[str, Tensor]], group: dist.ProcessGroup) -> str | None:
        if not weights or group.size() == 1:
            return None
        if not _different(rank_rows(self._hash.buckets([weight for _, weight in weights]), group).tolist()):
            return None
        # All ranks of the group are here: weight by weight, to name them.
        found = rank_rows(torch.stack([self._hash.one(weight) for _, weight in weights]), group).tolist()
        return describe(found, [name for name, _ in weights], dist.get_process_group_ranks(group))

    def _advice(self, iteration: int) -> str:
        since = (
            f"They were equal after iteration {self._progress.equal_at}: start again from a checkpoint up to there"
            if self._progress.equal_at is not None
            else "They were not compared before: start again from a checkpoint that you trust"
        )
        return (
            f"Found after iteration {iteration}. {since}, without the faulty device (pretrain doctor tests each): it "
            "would compute or store wrong numbers again."
        )


def describe(hashes: Sequence[Sequence[int]], names: Sequence[str], ranks: Sequence[int]) -> str:
    """Return the sentence that names ranks and weights whose hashes, by replica and weight, differ."""
    usual = [Counter(column).most_common(1)[0] for column in zip(*hashes, strict=True)]
    wrong = [
        [name for name, mine, (hash_, _) in zip(names, row, usual, strict=True) if mine != hash_] for row in hashes
    ]
    differing = [name for name, (_, count) in zip(names, usual, strict=True) if count < len(ranks)]
    if not differing:
        return (
            f"weights of ranks {_listed(ranks)} differed, but were equal when compared again one by one: a device "
            "sometimes computes or reads wrong numbers."
        )
    if not all(2 * count > len(ranks) for _, count in usual):
        return (
            f"the replicas of ranks {_listed(ranks)} do not hold equal weights: {some_of(differing, _SHOWN)}. "
            "No majority of them is equal, so the wrong one is unknown."
        )
    parts = [
        f"rank {rank} in {some_of(weights, _SHOWN)}" for rank, weights in zip(ranks, wrong, strict=True) if weights
    ]
    others = [rank for rank, weights in zip(ranks, wrong, strict=True) if not weights]
    text = f"weights differ from those of the other replicas: {'; '.join(parts)}."
    if len(others) > 1:
        return f"{text} Ranks {_listed(others)} are equal."
    return f"{text} Rank {others[0]} has the weights of the majority." if others else text


def _different(hashes: Sequence[Sequence[int]]) -> bool:
    return any(row != hashes[0] for row in hashes)


def _listed(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers]
    if len(shown) > 8:
        shown = [*shown[:6], "...", shown[-1]]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


BUCKET = 1 << 24  # bytes of weights that are hashed at a time: 16 MiB, and five times as much beside them

_STEP = 0x9E3779B97F4A7C15 - (1 << 64)  # as a signed number
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


class WeightHash:
    """Hash of weights on their device: equal bits have equal hashes on every device, other bits almost never.

    The bits of a bucket of weights are read as 32-bit words w_i, and the hash is the sum of w_i c_i modulo 2^64, with
    odd numbers c_i that depend on the position alone (SplitMix64's mixing function; Steele, Lea, Flood: Fast splittable
    pseudorandom number generators, OOPSLA 2014). A multilinear hash of this kind is order-sensitive, and its sum may be
    taken in any order (Lemire, Kaser: Strongly universal string hashing is fast, 2014):

    - one word that differs is always found, whichever of its bits: |w - w'| < 2^32 times an odd number is not 0 modulo
      2^64;
    - several words that differ have equal hashes with a probability of at most 2^-32 over numbers c_i that are drawn,
      and of 2^-63 where at least one of the differences is odd.

    Integer arithmetic of tensors wraps around. It costs one copy of a bucket, one multiplication and one sum.
    """

    def __init__(self) -> None:
        self._multipliers = torch.empty(0, dtype=torch.int64)

    def buckets(self, weights: Iterable[Tensor]) -> Tensor:
        """Return the hashes of all buckets of weights, int64 [buckets], on their device; does not wait for it."""
        # Weights that differ in size, order or dtype have other buckets. The gradient is not recorded.
        return torch.stack([self._of(bucket) for bucket in _buckets(weights)])

    def one(self, weight: Tensor) -> Tensor:
        """Return the hash of one weight, int64 scalar, on its device."""
        hashes = self.buckets([weight])
        return (hashes * multipliers(len(hashes), hashes.device)).sum()  # odd too: buckets that change places differ

    def _of(self, words: Tensor) -> Tensor:
        if self._multipliers.device != words.device or len(self._multipliers) < len(words):
            self._multipliers = multipliers(len(words), words.device)
        return (words * self._multipliers[: len(words)]).sum()


def multipliers(count: int, device: torch.device) -> Tensor:
    """Return the numbers c_i of the first positions, odd int64 [count]."""
    state = torch.arange(1, count + 1, device=device) * _STEP
    for shift, factor in zip((30, 27), _MIX, strict=True):
        # The shift of signed numbers brings in copies of the sign, which are masked away.
        state = (state ^ ((state >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (state ^ ((state >> 31) & ((1 << 33) - 1))) | 1


def _buckets(weights: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the bits of the weights as int32 words, about `BUCKET` at a time."""
    parts: list[Tensor] = []
    size = 0
    for weight in weights:
        for part in torch.split(weight.detach().reshape(-1), max(1, BUCKET // weight.element_size())):
            if parts and (size + part.nbytes > BUCKET or part.dtype != parts[0].dtype):
                yield _words(parts)
                parts, size = [], 0
            parts.append(part)
            size += part.nbytes
    if parts:
        yield _words(parts)


def _words(parts: Sequence[Tensor]) -> Tensor:
    flat = parts[0] if len(parts) == 1 else torch.cat(tuple(parts))
    odd = -flat.numel() * flat.element_size() % 4
    if odd:
        flat = torch.cat((flat.view(torch.uint8), torch.zeros(odd, dtype=torch.uint8, device=flat.device)))
    elif flat.storage_offset() * flat.element_size() % 4:
        flat = flat.clone()  # a view as wider words has to begin at a whole one
    return flat.view(torch.int32)
