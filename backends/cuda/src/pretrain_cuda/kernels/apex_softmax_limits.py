"""Limits of the softmax extensions of apex, which Megatron-LM once built under the same names.

Read from apex csrc/megatron at commit 6424da3b (2026-07); none was run. All exponentiate in fp32. Older ones take fewer
keys and assert it, so that such a run stops at its first step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins import installed
from pretrain.plugins.offer import Absent
from pretrain.plugins.requests import Mask

if TYPE_CHECKING:
    from pretrain.plugins.requests import SoftmaxRequest

MODULES = {
    Mask.CAUSAL: "scaled_upper_triang_masked_softmax_cuda",
    Mask.NONE: "scaled_softmax_cuda",
    Mask.KEY_PADDING: "scaled_masked_softmax_cuda",
    Mask.ARBITRARY: "scaled_masked_softmax_cuda",
}
GENERIC = "generic_scaled_masked_softmax_cuda"

CAUSAL_KEYS, KEYS = 16384, 4096
"""Asserted. scaled_softmax_cuda takes 16384 forward, but its backward pass is that of the masked one, with 4096."""

GENERIC_KEYS = 11912
"""keys + 4 * ceil(keys / 128) floats in 48 KiB of shared memory. The launch is not checked: one that needs more does
nothing, and its output is uninitialized."""

MASKED_SCORE, VANISHES = -10000.0, 104.0
"""Score of a masked key, instead of minus infinity; exp(-104) is zero in fp32."""


def apex(request: SoftmaxRequest) -> str:
    """Return the reason that the module for the request's mask does not fit, or ""."""
    return _numbers(request) or _blocks(request) or _masked_score(request) or _missing(MODULES[request.mask])


def apex_generic(request: SoftmaxRequest) -> str:
    """Return the reason that the module with fewer rules, which only takes masks, does not fit, or ""."""
    if request.mask not in (Mask.KEY_PADDING, Mask.ARBITRARY):
        return f"mask {request.mask}; only {Mask.KEY_PADDING} and {Mask.ARBITRARY}"
    if request.keys > GENERIC_KEYS:
        return f"{request.keys} keys; at most {GENERIC_KEYS} fit into its shared memory"
    scores = request.heads * request.queries * request.keys
    if scores >= 2**31:
        return f"{scores} scores of one sample; fewer than 2^31, because its offsets have 32 bits"
    return _numbers(request) or _masked_score(request) or _missing(GENERIC)


def rows_per_block(keys: int) -> int:
    """Return how many rows 128 threads take: a warp for each, twice as many rows for up to 128 keys."""
    width = 1 << (keys - 1).bit_length()
    return 128 // min(width, 32) * (2 if width <= 128 else 1)


def _numbers(request: SoftmaxRequest) -> str:
    if request.dtype not in (torch.float16, torch.bfloat16):
        return f"dtype {request.dtype}; only float16, bfloat16"
    # On the host, though a model is built under its device: reading a device's value would wait for it.
    rounded = torch.tensor(request.scale, dtype=request.dtype, device="cpu").item()
    if rounded != request.scale:
        return (
            f"scale {request.scale}; the forward pass would round it to {rounded} ({request.dtype}), "
            "the backward pass would not"
        )
    return ""


def _blocks(request: SoftmaxRequest) -> str:
    causal, rows, keys = request.mask is Mask.CAUSAL, rows_per_block(request.keys), request.keys
    most = CAUSAL_KEYS if causal else KEYS
    if keys > most:
        return f"{keys} keys; at most {most}"
    if keys > 64 and keys % 4:
        return f"{keys} keys; above 64 only multiples of 4: a row is read by fours"
    if not causal:
        return f"{request.queries} queries; with {keys} keys only multiples of {rows}" if request.queries % rows else ""
    if request.queries != keys:
        return f"{request.queries} queries, {keys} keys; needs equally many"
    if request.heads % rows:  # the request has no micro batch size, and a prompt has 1
        return f"{request.heads} heads; with {keys} keys only multiples of {rows}, whatever the micro batch"
    return ""


def _masked_score(request: SoftmaxRequest) -> str:
    """Return the reason if scores may come near the masked score, or "".

    Masked keys would get weight, or the row would lose its own.
    """
    if request.mask not in (Mask.KEY_PADDING, Mask.ARBITRARY):
        return ""
    lowest, allowed = -abs(request.scale) * torch.finfo(request.dtype).max, MASKED_SCORE + VANISHES
    if lowest >= allowed:
        return ""
    return (
        f"mask {request.mask}: what is masked gets the score {MASKED_SCORE:.0f}, and no weight only where others are "
        f"above {allowed:.0f}; {request.dtype} times {request.scale} goes down to {lowest:.4g}"
    )


def _missing(module: str) -> str:
    if installed.has(module):
        return ""
    return Absent(
        f"{module} is not installed; apex (github.com/NVIDIA/apex) brings it when it is built with --cuda_ext"
    )
