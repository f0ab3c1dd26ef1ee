"""The same bits every time: torch's switch, for as long as a training lasts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def deterministic(*, is_wanted: bool) -> Iterator[None]:
    """Let torch take deterministic algorithms alone, or any; put back what was before.

    torch would also fill every tensor of torch.empty, which costs a pass over it: what reads memory that nobody has
    written is a mistake, and would be one without this.
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
