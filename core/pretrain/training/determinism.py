"""Deterministic algorithms of torch for the duration of a training."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def deterministic(*, is_wanted: bool) -> Iterator[None]:
    """Allow only torch's deterministic algorithms, or any; restore the setting afterwards.

    torch would also fill every tensor of torch.empty, which costs a pass over it; a read of uninitialized memory is a
    bug in any mode.
    """
    algorithms, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(is_wanted)
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms, warn_only=warns)
        memory.fill_uninitialized_memory = fills
