"""Adam that counts optimizer steps, however many times DeepSpeed calls it for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def counted(adam: type[torch.optim.Optimizer]) -> type[Any]:
    """Return a subclass of an Adam shaped like apex's whose groups all take the same step.

    apex's Adam counts its own calls in each group's `step`. ZeRO-3 calls it once for every sub-group of weights, with
    the other groups empty (deepspeed/runtime/zero/stage3.py 1235), so its count would run away from the steps taken.
    Whoever takes the steps sets `taken` after each.
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
