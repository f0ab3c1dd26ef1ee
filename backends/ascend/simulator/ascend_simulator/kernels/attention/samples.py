"""The samples of a call; in the layout TND those of different lengths. Limits: torch_npu-npu_fusion_attention.md."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ascend_simulator.kernels.attention import masks
from ascend_simulator.kernels.contract import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

NAME = "npu_fusion_attention"
ENDS = ("actual_seq_qlen", "actual_seq_kvlen")
MOST_SAMPLES, MOST_TOKENS = 1024, 2**20
"""Of TND: the documentation has 1K and 1M."""


@dataclass(frozen=True)
class Sample:
    """Samples with equally many tokens: where they lie in TND, and their mask."""

    queries: slice
    keys: slice
    masked: Tensor | None


def of_lengths(query: Tensor, key: Tensor, given: dict[str, Any]) -> Iterator[Sample]:
    """Yield the samples of TND that have queries; keys of the others get a gradient of zero."""
    _check_ends((query.shape[2], key.shape[2]), given)
    places = [list(pairwise((0, *given[name]))) for name in ENDS]
    _check_whole_mask(places, given)
    for queries, keys in zip(*places, strict=True):
        if queries[0] < queries[1]:
            yield Sample(slice(*queries), slice(*keys), _masked(query.shape[1], queries, keys, given))


def _masked(heads: int, queries: tuple[int, int], keys: tuple[int, int], given: dict[str, Any]) -> Tensor | None:
    rows, columns = queries[1] - queries[0], keys[1] - keys[0]
    require(columns > 0, NAME, "queries without a key; TND forbids them")
    mask, mode, band = given["atten_mask"], given["sparse_mode"], (given["pre_tockens"], given["next_tockens"])
    if mode == masks.BAND:  # flash_attention_score_grad_tiling_s1s2_bn2gs1s2.cpp of CANN's ops-transformer
        require(sum(band) > 0, NAME, f"a band of {sum(band) + 1} keys in TND, which the backward pass refuses")
    own = mask[:rows, :columns] if mask is not None and mode in masks.WHOLE else mask
    masked = masks.masked(mode, own, 1, heads, rows, columns, *band)
    is_empty = masked is not None and bool(masked.all(-1).any())
    require(not is_empty, NAME, "a query that sees no key; TND forbids them")
    return masked


def _check_ends(tokens: tuple[int, int], given: dict[str, Any]) -> None:
    """Require ends that are cumulative, without the leading zero; those of a sample without tokens are repeated."""
    for name, total in zip(ENDS, tokens, strict=True):
        end = given[name]
        rises = bool(end) and all(a <= b for a, b in pairwise((0, *end)))
        require(
            rises and end[-1] == total, NAME, f"{name} {end}; TND wants ends that rise to {total}, without a 0 first"
        )
        require(total <= MOST_TOKENS, NAME, f"{total} tokens in TND; at most {MOST_TOKENS}")
    numbers = [len(given[name]) for name in ENDS]
    require(numbers[0] == numbers[1], NAME, f"{numbers[0]} ends of queries and {numbers[1]} of keys")
    require(numbers[0] <= MOST_SAMPLES, NAME, f"{numbers[0]} samples in TND; at most {MOST_SAMPLES}")


def _check_whole_mask(places: list[list[tuple[int, int]]], given: dict[str, Any]) -> None:
    mask = given["atten_mask"]
    if mask is not None and given["sparse_mode"] in masks.WHOLE:
        longest = tuple(max(end - begin for begin, end in each) for each in places)
        require(tuple(mask.shape) == longest, NAME, f"atten_mask {tuple(mask.shape)}; TND wants the longest, {longest}")
