"""Sums of a rank's own gradients, taken right before megatron-core reduces them over the data-parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def install() -> None:
    """Have megatron-core's check of local gradients keep their sum instead of waiting for the device.

    `check_for_nan_in_grad` calls it for each group of buckets, overlapped or not. The group keeps the sum, because
    several engines may live in a process.
    """
    from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup  # noqa: PLC0415  after the bridge

    _ParamAndGradBucketGroup.check_grads = _keep_sum


def local_sum(chunks: Sequence[Any]) -> Tensor:
    """Return the sum of this rank's own gradients in the last step, fp32 scalar; not finite if one of them is not.

    Args:
        chunks: in megatron-core's data parallelism.
    """
    groups = [group for chunk in chunks for group in chunk.bucket_groups + chunk.expert_parallel_bucket_groups]
    return torch.stack([group.local_sum for group in groups]).sum()


def _keep_sum(group: Any, check_for_nan_or_inf: bool, check_for_large: bool) -> None:  # noqa: ARG001  its signature
    sums = [bucket.grad_data.sum(dtype=torch.float32) for bucket in group.buckets]
    group.local_sum = torch.stack(sums).sum()
