"""A sticky overflow flag in DeepSpeed's fp16 optimizers, which look for inf and nan alone."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.plugins.backend import Overflow


def watch_overflow(optimizer: Any, overflow: Overflow) -> None:
    """Let the optimizer skip a step, and lower its loss scale, when any rank of the world has raised the flag.

    Args:
        optimizer: what `deepspeed.initialize` returned for fp16. ZeRO 1 and 2 (runtime/zero/stage_1_and_2.py 3219) and
            ZeRO 3 (stage3.py 2991) ask themselves whether gradients have overflowed; without ZeRO their CheckOverflow
            is asked (runtime/fp16/fused_optimizer.py 270, unfused_optimizer.py 205).
        overflow: cleared before the backward passes of a step, by whoever runs them.
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
