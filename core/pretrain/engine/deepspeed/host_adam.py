"""Adam for DeepSpeed: its steps are counted here, and the state may be in host memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pretrain.collectives import first_problem
from pretrain.engine.deepspeed.extension import CPU_ADAM, load_extension
from pretrain.errors import KernelError
from pretrain.reference.adam import FusedAdam

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.recipe import Recipe


_KEY = "engine.zero.offload_optimizer.cpu_adam"


def stepping_adam(adam: type[Any], *, recipe: Recipe, notify: Callable[[str], None], planned: bool) -> type[Any]:
    """Return the given Adam, or that of the host where the recipe keeps the state there, with settable `taken`."""
    is_on_host = recipe.engine.zero.offload_optimizer.device != "none"
    return host_adam(recipe, notify, planned=planned) if is_on_host else counted(adam)


def host_adam(recipe: Recipe, notify: Callable[[str], None], *, planned: bool = False) -> type[Any]:
    """Return the class that `cpu_adam` names; all ranks call it together, after the bridge has imported DeepSpeed.

    On fake tensors (`planned`) no compiled Adam runs: torch's, which has the same state.
    """
    wanted = recipe.engine.zero.offload_optimizer.cpu_adam
    if wanted == "torch" or planned:
        return counted(FusedAdam)
    # All step with one Adam, also where only some nodes have a compiler.
    problem = first_problem(load_extension(CPU_ADAM, notify))
    if problem is None:
        return _deepspeed_adam()
    if wanted == "auto":
        notify(f"torch's fused AdamW is used instead of DeepSpeed's CPU Adam: {problem}")
        return counted(FusedAdam)
    msg = (
        f"{_KEY}: deepspeed is compiled at its first use, but {problem}.\n"
        f"Fix that, or set {_KEY} to torch (its fused AdamW), or to auto (torch's where DeepSpeed's is not available)."
    )
    raise KernelError(msg)


def _deepspeed_adam() -> type[Any]:
    adam: Any = importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam

    class HostAdam(adam):  # type: ignore[misc]
        """DeepSpeedCPUAdam with apex's argument names and a step count that can be set."""

        def __init__(self, params: Any, *, adam_w_mode: bool, **options: Any) -> None:
            super().__init__(params, adamw_mode=adam_w_mode, **options)
            self._taken = 0

        @property
        def taken(self) -> int:
            return self._taken

        @taken.setter
        def taken(self, steps: int) -> None:
            self._taken = steps
            for state in self.state.values():  # it counts for each tensor
                state["step"] = steps

    return HostAdam


def counted(adam: type[Any]) -> type[Any]:
    """Return a subclass of an Adam shaped like apex's whose groups all take the same step.

    apex's Adam counts its own calls in each group's `step`. ZeRO-3 calls it once for every sub-group of weights, with
    the other groups empty (DeepSpeedZeroOptimizer_Stage3._optimizer_step), so its count would exceed the steps taken.
    The engine sets `taken` after each step.
    """

    class CountedAdam(adam):  # type: ignore[misc]
        taken = 0

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["step"] = self.taken
            return super().step(closure)

    CountedAdam.__name__ = CountedAdam.__qualname__ = adam.__name__
    return CountedAdam
