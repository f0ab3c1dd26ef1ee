"""Adam that counts optimizer steps, not DeepSpeed's calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def counted(adam: type[torch.optim.Optimizer]) -> type[Any]:
    """Return a subclass of an Adam shaped like apex's whose groups all take the same step.

    apex's Adam counts its own calls in each group's `step`. ZeRO-3 calls it once for every sub-group of weights, with
    the other groups empty (DeepSpeedZeroOptimizer_Stage3._optimizer_step), so its count would exceed the steps taken.
    The engine sets `taken` after each step.
    """

    class CountedAdam(adam):  # type: ignore[misc, valid-type]
        taken = 0

        def step(self, closure: Any = None) -> Any:
            """Update all parameters that have a gradient, as step `taken` + 1."""
            for group in self.param_groups:
                group["step"] = self.taken
            return super().step(closure)

    CountedAdam.__name__ = CountedAdam.__qualname__ = adam.__name__
    return CountedAdam
