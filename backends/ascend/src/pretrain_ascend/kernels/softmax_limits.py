"""Documented limits of npu_scaled_masked_softmax: torch_npu-npu_scaled_masked_softmax.md of op-plugin 517f2e7d.

All families have it. It computes in fp32 and fills masked scores with -10000 before the softmax: the operator's own
test says so. `fixed_triu_mask=True` is reserved, its function unfinished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.plugins.requests import Mask
from pretrain_ascend.kernels import chip_requirements

if TYPE_CHECKING:
    from pretrain.plugins.requests import SoftmaxRequest

SHORTEST, LONGEST, STEP = 32, 4096, 32


def unsupported_reason(request: SoftmaxRequest) -> str:
    """Return the reason that the operator does not fit the request, or ""."""
    if request.mask is Mask.NONE:
        return f"mask {request.mask}; only with a mask"
    return chip_requirements.unsupported_reason(request) or sizes(request.queries, request.keys)


def sizes(queries: int, keys: int) -> str:
    """Return the reason that it declines scores of so many rows and columns, or ""."""
    if fits(queries, keys):
        return ""
    return f"{queries} queries, {keys} keys; only multiples of {STEP} from {SHORTEST} to {LONGEST}"


def fits(queries: int, keys: int) -> bool:
    """Return whether it takes scores of so many rows and columns."""
    return all(SHORTEST <= size <= LONGEST and size % STEP == 0 for size in (queries, keys))
