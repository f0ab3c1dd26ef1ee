"""Choice of the optimizer that a recipe names: its file says its state and what each engine builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, assert_never

from pretrain.engine.optimizers.adam import AdamOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.plugins.signatures import OptimizerKernels
    from pretrain.recipe.sections.optimizer import OptimizerSection


class Optimizer(Protocol):
    """An optimizer; its file imports neither an engine nor torch at import, so that every tool may ask for its state.

    An engine that does not have it is refused before a run starts, in `pretrain.recipe.checks`.
    """

    @property
    def states(self) -> tuple[str, ...]:
        """Names of a weight's tensors of state, fp32 and shaped as it, in the optimizer and in checkpoints."""

    def for_megatron(self, kernels: OptimizerKernels) -> type[Any]:
        """Return the class that megatron-core builds, shaped like apex's FusedAdam."""

    def megatron_config(self, section: OptimizerSection) -> dict[str, Any]:
        """Return the arguments of megatron-core's OptimizerConfig that are its own."""

    def for_deepspeed(
        self, section: OptimizerSection, kernels: OptimizerKernels, stepping: Callable[[type[Any]], type[Any]]
    ) -> Callable[[list[dict[str, Any]]], Any]:
        """Return what makes it of parameter groups, with a settable count of the steps taken, `taken`.

        `stepping` gives an Adam shaped like apex's that count, or replaces it by one for host memory.
        """


def optimizer_of(section: OptimizerSection) -> Optimizer:
    """Return the optimizer that the section names."""
    match section.name:
        case "adamw":
            return AdamOptimizer(is_decoupled=True)
        case "adam":
            return AdamOptimizer(is_decoupled=False)
        case _:
            assert_never(section.name)


def state_bytes(section: OptimizerSection) -> int:
    """Return the bytes of optimizer state for each parameter, without main weights."""
    return 4 * len(optimizer_of(section).states)
