"""Add a sticky overflow flag to DeepSpeed's fp16 optimizers, which check only for inf and nan."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.plugins.backend import Overflow


def watch_overflow(optimizer: Any, overflow: Overflow) -> None:
    """Let the optimizer skip a step, and lower its loss scale, if any rank of the world has set the flag.

    Args:
        optimizer: result of `deepspeed.initialize` for fp16. ZeRO's optimizers check gradients in their own
            `has_overflow` (called by `_check_overflow`); FP16_Optimizer and FP16_UnfusedOptimizer, without ZeRO, in
            that of their `overflow_checker` (CheckOverflow).
        overflow: cleared before the backward passes of a step, by the code that runs them.
    """
    checker = getattr(optimizer, "overflow_checker", optimizer)
    checker.has_overflow = _or_flag(checker.has_overflow, overflow)


def _or_flag(check: Callable[..., bool], overflow: Overflow) -> Callable[..., bool]:
    @functools.wraps(check)
    def has_overflow(*args: Any, **kwargs: Any) -> bool:
        flag = overflow.read()
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return check(*args, **kwargs) or bool(flag.item())

    return has_overflow
