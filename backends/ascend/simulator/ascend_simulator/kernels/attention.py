"""npu_fusion_attention. Contract and table of modes: torch_npu-npu_fusion_attention.md of op-plugin."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ascend_simulator.kernels import attention_layouts as layouts
from ascend_simulator.kernels import attention_masks as masks
from ascend_simulator.kernels import attention_score, random
from ascend_simulator.kernels.attention_score import Settings
from ascend_simulator.kernels.contract import broadcasts, require, require_dtype, require_one_dtype, require_second_generation
from ascend_simulator.kernels.registration import kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "npu_fusion_attention"
LARGEST_HEAD, MOST_HEADS = 768, 256
WORDS = 8
"""The statistics of a row are stored eight times."""

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

    def score(self, sample: Sample, query: Tensor, key: Tensor) -> attention_score.Score:
        """Return one sample's weights."""
        return attention_score.score(query, key, self.bias, sample.masked, self.settings)


@kernel(f"npu::{NAME}")
def forward(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, pse: Tensor | None = None, *rest: Any, **options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Return context, softmax_max, softmax_sum, nothing, seed, offset and the size of the dropout mask."""
    given = _named(rest, options)
    require(not given["seed"] and not given["offset"], NAME, "seed or offset, which is not simulated")
    seed, offset = random.draw() if given["keep_prob"] < 1 else (0, 0)
    problem = _problem(query, key, value, head_num, input_layout, pse, given, seed, offset)
    contexts, largest, total, dropped = [], [], [], 0
    for sample, q, k, v in problem.parts():
        found = problem.score(sample, q, k)
        contexts.append(found.dropped @ attention_score.shared(v, q.shape[1]))
        largest.append(found.largest)
        total.append(found.total)
        dropped += found.weights.numel()
    context = layouts.join(torch.cat(contexts, 2), input_layout).to(query.dtype)
    statistics = (_stored(torch.cat(rows, 2), input_layout) for rows in (largest, total))
    return context, *statistics, query.new_empty(0), seed, offset, dropped if seed or offset else 0


@kernel(f"npu::{NAME}_grad")
def backward(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, *, pse: Tensor | None = None,
    softmax_max: Tensor, softmax_sum: Tensor, scale_value: float = 1.0, seed: int = 0, offset: int = 0, **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value, pse and sink; of the last two nothing where they were not given."""
    saved = ("softmax_in", "attention_in", "numels")
    given = _named((), {name: value for name, value in options.items() if name not in saved} | {"scale": scale_value})
    problem = _problem(query, key, value, head_num, input_layout, pse, given, seed, offset)
    grads = [torch.zeros_like(x, dtype=torch.float32) for x in (problem.query, problem.key, problem.value)]
    dpse = torch.zeros_like(pse, dtype=torch.float32) if pse is not None else query.new_empty(0)
    dcontext = layouts.split(dy, input_layout, problem.value.shape[-1])
    for sample, q, k, v in problem.parts():
        found = problem.score(sample, q, k)
        stored = (_read(x, input_layout)[:, :, sample.queries] for x in (softmax_max, softmax_sum))
        require(attention_score.agrees(found, *stored), NAME, "softmax_max and softmax_sum are of another forward pass")
        g = dcontext[:, :, sample.queries]
        dq, dk, dv, dscores = attention_score.backward(q, k, v, g, found, sample.masked, problem.settings.scale)
        for grad, part, where in zip(grads, (dq, dk, dv), (sample.queries, sample.keys, sample.keys), strict=True):
            grad[:, :, where] = part
        if pse is not None:
            dpse += dscores.sum_to_size(pse.shape)
    joined = (layouts.join(grad, input_layout).to(query.dtype) for grad in grads)
    return *joined, dpse.to(query.dtype), query.new_empty(0)


def _named(rest: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments after pse by name, with the schema's defaults."""
    arguments = torch.ops.npu.npu_fusion_attention.default._schema.arguments[6:]  # noqa: SLF001
    given = {argument.name: argument.default_value for argument in arguments}
    return given | dict(zip(given, rest, strict=False)) | options


def _problem(
    query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str, pse: Tensor | None, given: dict[str, Any], seed: int, offset: int
) -> Problem:
    _check(query, key, value, given)
    size = query.shape[-1] // heads if layout in {"BSH", "SBH"} else query.shape[-1]
    q, k = (layouts.split(x, layout, size) for x in (query, key))
    value_size = value.shape[-1] // k.shape[1] if layout in {"BSH", "SBH"} else value.shape[-1]
    v = layouts.split(value, layout, value_size)
    _check_sizes(q, k, v, heads)
    settings = Settings(given["scale"], given["keep_prob"], seed, offset, given["inner_precise"] == 2)  # noqa: PLR2004
    if layout == "TND":
        require(pse is None, NAME, "pse with TND, which is not simulated")
        return Problem(q, k, v, None, tuple(_ragged(q, k, given)), settings)
    shape = (q.shape[0], heads, q.shape[2], k.shape[2])
    require(pse is None or broadcasts(pse.shape, shape), NAME, f"pse {None if pse is None else tuple(pse.shape)} for {shape}")
    masked = masks.masked(given["sparse_mode"], given["atten_mask"], *shape, given["pre_tockens"], given["next_tockens"])
    return Problem(q, k, v, pse, (Sample(slice(None), slice(None), masked),), settings)


def _ragged(query: Tensor, key: Tensor, given: dict[str, Any]) -> Iterator[Sample]:
    """Yield the samples of TND, whose lengths are given as cumulative ends without the leading zero."""
    ends = given["actual_seq_qlen"], given["actual_seq_kvlen"]
    for tokens, end, name in zip((query.shape[2], key.shape[2]), ends, ("actual_seq_qlen", "actual_seq_kvlen"), strict=True):
        rises = bool(end) and all(a <= b for a, b in pairwise((0, *end)))
        require(rises and end[-1] == tokens, NAME, f"{name} {end}; TND wants ends that rise to {tokens}, without a 0 first")
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
    require(not given["softmax_layout"], NAME, "softmax_layout, which is not simulated")
    for name in NOT_SIMULATED:
        require(given[name] is None, NAME, f"{name}, which is not simulated")


def _check_sizes(q: Tensor, k: Tensor, v: Tensor, heads: int) -> None:
    require(q.shape[1] == heads <= MOST_HEADS, NAME, f"head_num {heads} for {q.shape[1]} heads; at most {MOST_HEADS}")
    require(heads % k.shape[1] == 0, NAME, f"{heads} heads of queries and {k.shape[1]} of keys; only a multiple")
    require(k.shape[:3] == v.shape[:3], NAME, f"keys {tuple(k.shape)} and values {tuple(v.shape)} in [b, n, s, d]")
    require(q.shape[0] == k.shape[0], NAME, f"{q.shape[0]} samples of queries and {k.shape[0]} of keys")
    fits = q.shape[3] == k.shape[3] >= v.shape[3] >= 1 and q.shape[3] <= LARGEST_HEAD
    require(fits, NAME, f"heads of {q.shape[3]}, {k.shape[3]}, {v.shape[3]}; query = key >= value, at most {LARGEST_HEAD}")


def _stored(rows: Tensor, layout: str) -> Tensor:
    """Return [b, n, s, 8], or [t, n, 8] for TND."""
    words = rows.expand(*rows.shape[:3], WORDS)
    return (words[0].transpose(0, 1) if layout == "TND" else words).contiguous()


def _read(stored: Tensor, layout: str) -> Tensor:
    return (stored.transpose(0, 1)[None] if layout == "TND" else stored)[..., :1]
