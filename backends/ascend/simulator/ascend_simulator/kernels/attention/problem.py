"""One call of npu_fusion_attention, checked and taken apart into samples with equally many tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascend_simulator.kernels.attention import layouts, masks, samples, score
from ascend_simulator.kernels.attention.samples import Sample
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
        return Problem(q, k, v, None, tuple(samples.of_lengths(q, k, given)), settings)
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
