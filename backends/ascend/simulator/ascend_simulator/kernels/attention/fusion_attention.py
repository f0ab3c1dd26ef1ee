"""npu_fusion_attention. Contract and table of modes: torch_npu-npu_fusion_attention.md of op-plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ascend_simulator.kernels import random
from ascend_simulator.kernels.attention import layouts, score
from ascend_simulator.kernels.attention.problem import NAME, problem_of
from ascend_simulator.kernels.contract import require
from ascend_simulator.kernels.dropout import BITS, MULTIPLE
from ascend_simulator.kernels.registration import kernel, take_workspace

if TYPE_CHECKING:
    from torch import Tensor

    from ascend_simulator.kernels.attention.problem import Problem

WORDS = 8
"""The statistics of a row are stored eight times."""


@kernel(f"npu::{NAME}")
def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    *rest: Any,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Return context, softmax_max, softmax_sum, nothing, seed, offset and the size of the dropout mask."""
    given = _named(rest, options)
    require(not given.get("seed") and not given.get("offset"), NAME, "seed or offset, which is not simulated")
    seed, offset = random.draw() if given["keep_prob"] < 1 else (0, 0)
    problem = problem_of(query, key, value, head_num, input_layout, pse, given, seed, offset)
    _take_dropout_mask(problem)
    contexts, largest, total, dropped = [], [], [], 0
    for sample, q, k, v in problem.parts():
        found = problem.score(sample, q, k)
        contexts.append(found.dropped @ score.shared(v, q.shape[1]))
        largest.append(found.largest)
        total.append(found.total)
        dropped += found.weights.numel()
    context = layouts.join(torch.cat(contexts, 2), input_layout).to(query.dtype)
    statistics = (_stored(torch.cat(rows, 2), input_layout) for rows in (largest, total))
    return context, *statistics, query.new_empty(0), seed, offset, dropped if seed or offset else 0


@kernel(f"npu::{NAME}_grad")
def backward(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, *,
    pse: Tensor | None = None, softmax_max: Tensor, softmax_sum: Tensor, scale_value: float = 1.0, seed: int = 0,
    offset: int = 0, **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value, pse and sink; of the last two nothing where they were not given."""
    saved = ("softmax_in", "attention_in", "numels")
    given = _named((), {name: value for name, value in options.items() if name not in saved} | {"scale": scale_value})
    problem = problem_of(query, key, value, head_num, input_layout, pse, given, seed, offset)
    grads = [torch.zeros_like(x, dtype=torch.float32) for x in (problem.query, problem.key, problem.value)]
    _take_dropout_mask(problem)
    for (
        grad
    ) in grads:  # also on a device: flash_attention_score_grad_tiling_s1s2_bn2gs1s2.cpp of CANN's ops-transformer
        take_workspace(grad.nbytes)
    dpse = torch.zeros_like(pse, dtype=torch.float32) if pse is not None else query.new_empty(0)
    dcontext = layouts.split(dy, input_layout, problem.value.shape[-1])
    for sample, q, k, v in problem.parts():
        found = problem.score(sample, q, k)
        stored = (_read(x, input_layout)[:, :, sample.queries] for x in (softmax_max, softmax_sum))
        require(score.agrees(found, *stored), NAME, "softmax_max and softmax_sum are of another forward pass")
        g = dcontext[:, :, sample.queries]
        dq, dk, dv, dscores = score.backward(q, k, v, g, found, sample.masked, problem.settings.scale)
        for grad, part, where in zip(grads, (dq, dk, dv), (sample.queries, sample.keys, sample.keys), strict=True):
            grad[:, :, where] = part
        if pse is not None:
            dpse += dscores.sum_to_size(pse.shape)
    joined = (layouts.join(grad, input_layout).to(query.dtype) for grad in grads)
    return *joined, dpse.to(query.dtype), query.new_empty(0)


def _take_dropout_mask(problem: Problem) -> None:
    """Take a bit for each weight, in multiples of 128 (dropout_gen_mask_impl of op-plugin)."""
    if problem.settings.keep < 1:
        weights = sum(q.shape[:3].numel() * k.shape[2] for _, q, k, _ in problem.parts())
        take_workspace(-(-weights // MULTIPLE) * (MULTIPLE // BITS))


def _named(rest: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments after pse by name, with the schema's defaults."""
    arguments = torch.ops.npu.npu_fusion_attention.default._schema.arguments[6:]  # noqa: SLF001
    given = {argument.name: argument.default_value for argument in arguments}
    return given | dict(zip(given, rest, strict=False)) | options


def _stored(rows: Tensor, layout: str) -> Tensor:
    """Return [b, n, s, 8], or [t, n, 8] for TND."""
    words = rows.expand(*rows.shape[:3], WORDS)
    return (words[0].transpose(0, 1) if layout == "TND" else words).contiguous()


def _read(stored: Tensor, layout: str) -> Tensor:
    return (stored.transpose(0, 1)[None] if layout == "TND" else stored)[..., :1]
