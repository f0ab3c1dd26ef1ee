"""One call of npu_fusion_attention, checked and taken apart into samples with equally many tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ascend_simulator.kernels.attention import layouts, masks, score
from ascend_simulator.kernels.attention.score import Settings
from ascend_simulator.kernels.contract import (
    broadcasts,
    require,
    require_dtype,
    require_one_dtype,
    require_second_generation,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ascend_simulator.kernels.attention.score import Score

NAME = "npu_fusion_attention"
LARGEST_HEAD, MOST_HEADS = 768, 256
# Older releases have not all of these.
NOT_SIMULATED = ("padding_mask", "prefix", "sink", "dropout_mask")


@dataclass(frozen=True)
class Sample:
    """Samples with equally many tokens: where they lie in TND, and their mask."""

    queries: slice
    keys: slice
    masked: Tensor | None


@dataclass(frozen=True)
class Problem:
    """One call, checked: query, key and value as [b, n, s, d]."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    samples: tuple[Sample, ...]
    settings: Settings

    def parts(self) -> Iterator[tuple[Sample, Tensor, Tensor, Tensor]]:
        """Yield each sample with its query, key and value."""
        for sample in self.samples:
            key, value = self.key[:, :, sample.keys], self.value[:, :, sample.keys]
            yield sample, self.query[:, :, sample.queries], key, value

    def score(self, sample: Sample, query: Tensor, key: Tensor) -> Score:
        """Return one sample's weights."""
        return score.score(query, key, self.bias, sample.masked, self.settings)


def problem_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    layout: str,
    pse: Tensor | None,
    given: dict[str, Any],
    seed: int,
    offset: int,
) -> Problem:
    """Return the call's problem, or raise ContractError."""
    _check(query, key, value, given)
    size = query.shape[-1] // heads if layout in {"BSH", "SBH"} else query.shape[-1]
    q, k = (layouts.split(x, layout, size) for x in (query, key))
    value_size = value.shape[-1] // k.shape[1] if layout in {"BSH", "SBH"} else value.shape[-1]
    v = layouts.split(value, layout, value_size)
    _check_sizes(q, k, v, heads)
    settings = Settings(given["scale"], given["keep_prob"], seed, offset, given["inner_precise"] == 2)
    if layout == "TND":
        require(pse is None, NAME, "pse with TND, which is not simulated")
        return Problem(q, k, v, None, tuple(_ragged(q, k, given)), settings)
    shape = (q.shape[0], heads, q.shape[2], k.shape[2])
    require(
        pse is None or broadcasts(pse.shape, shape),
        NAME,
        f"pse {None if pse is None else tuple(pse.shape)} for {shape}",
    )
    masked = masks.masked(
        given["sparse_mode"], given["atten_mask"], *shape, given["pre_tockens"], given["next_tockens"]
    )
    return Problem(q, k, v, pse, (Sample(slice(None), slice(None), masked),), settings)


def _ragged(query: Tensor, key: Tensor, given: dict[str, Any]) -> Iterator[Sample]:
    """Yield the samples of TND, whose lengths are given as cumulative ends without the leading zero."""
    ends = given["actual_seq_qlen"], given["actual_seq_kvlen"]
    for tokens, end, name in zip(
        (query.shape[2], key.shape[2]), ends, ("actual_seq_qlen", "actual_seq_kvlen"), strict=True
    ):
        rises = bool(end) and all(a <= b for a, b in pairwise((0, *end)))
        require(
            rises and end[-1] == tokens, NAME, f"{name} {end}; TND wants ends that rise to {tokens}, without a 0 first"
        )
    require(len(ends[0]) == len(ends[1]), NAME, f"{len(ends[0])} ends of queries and {len(ends[1])} of keys")
    longest = tuple(max(b - a for a, b in pairwise((0, *end))) for end in ends)
    mask, mode = given["atten_mask"], given["sparse_mode"]
    if mask is not None and mode in {masks.DEFAULT, masks.ALL}:
        require(tuple(mask.shape) == longest, NAME, f"atten_mask {tuple(mask.shape)}; TND wants the longest, {longest}")
    for (q0, q1), (k0, k1) in zip(*(pairwise((0, *end)) for end in ends), strict=True):
        own = mask[: q1 - q0, : k1 - k0] if mask is not None and mode in {masks.DEFAULT, masks.ALL} else mask
        shape = (1, query.shape[1], q1 - q0, k1 - k0)
        masked = masks.masked(mode, own, *shape, given["pre_tockens"], given["next_tockens"])
        empty = masked is not None and bool(masked.all(-1).any())
        require(not empty, NAME, "a query that sees no key; TND forbids them")
        yield Sample(slice(q0, q1), slice(k0, k1), masked)


def _check(query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> None:
    require_second_generation(NAME)
    require_dtype(NAME, "query", query)
    require_one_dtype(NAME, query=query, key=key, value=value)
    require(query.dim() == key.dim() == value.dim(), NAME, "query, key and value of different dimensions")
    require(0 < given["keep_prob"] <= 1, NAME, f"keep_prob {given['keep_prob']}; only above 0, up to 1")
    require(not given.get("softmax_layout"), NAME, "softmax_layout, which is not simulated")
    for name in NOT_SIMULATED:
        require(given.get(name) is None, NAME, f"{name}, which is not simulated")


def _check_sizes(q: Tensor, k: Tensor, v: Tensor, heads: int) -> None:
    require(q.shape[1] == heads <= MOST_HEADS, NAME, f"head_num {heads} for {q.shape[1]} heads; at most {MOST_HEADS}")
    require(heads % k.shape[1] == 0, NAME, f"{heads} heads of queries and {k.shape[1]} of keys; only a multiple")
    require(k.shape[:3] == v.shape[:3], NAME, f"keys {tuple(k.shape)} and values {tuple(v.shape)} in [b, n, s, d]")
    require(q.shape[0] == k.shape[0], NAME, f"{q.shape[0]} samples of queries and {k.shape[0]} of keys")
    fits = q.shape[3] == k.shape[3] >= v.shape[3] >= 1 and q.shape[3] <= LARGEST_HEAD
    require(
        fits, NAME, f"heads of {q.shape[3]}, {k.shape[3]}, {v.shape[3]}; query = key >= value, at most {LARGEST_HEAD}"
    )
