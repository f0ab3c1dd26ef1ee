"""What an optimizer says of itself: its state, and what each engine builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from pretrain.plugins.signatures import OptimizerKernels
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.optimizer import OptimizerSection, StateDtype

STATES = ("exp_avg", "exp_avg_sq")
"""Adam's: running means of the gradient and of its square."""


class WeightRanks(Protocol):
    """The ranks that have a weight; `is_expert` is `is_expert_parallel` of its parameter group."""

    def parts(self, *, is_expert: bool) -> ProcessGroup:
        """Return the tensor-parallel ranks, which have parts of it."""

    def copies(self, *, is_expert: bool) -> ProcessGroup:
        """Return the ranks that hold the same part of it as this one, and the same gradient."""


class Optimizer:
    """An optimizer; its file imports neither an engine nor torch at import, so that every tool may ask for its state.

    An engine that does not have it is refused before a run starts, in `pretrain.recipe.checks`, and so is the
    distributed optimizer with any but Adam: it cuts weights anywhere, and has Adam's states alone.
    """

    states: tuple[str, ...] = STATES
    """Names of a weight's tensors of state, shaped as it, in the optimizer and in checkpoints."""
    options: tuple[str, ...] = ()
    """Names in `optimizer.options` that an installed optimizer reads; any other is refused."""
    kinds: tuple[str, ...] = ("",)
    """All that `kind_of` returns."""

    def for_megatron(self, recipe: Recipe, kernels: OptimizerKernels, ranks: WeightRanks) -> type[Any]:
        """Return the class that megatron-core builds, called as apex's FusedAdam; see `OptimizerKernels.adam`.

        Where ranks share a weight (`tensor_model_parallel`), it is cut along its `partition_dim`, a weight with a
        `partition_stride` of 2 each half by itself.
        """
        raise NotImplementedError

    def megatron_config(self, section: OptimizerSection) -> dict[str, Any]:
        """Return the arguments of megatron-core's OptimizerConfig that are its own."""
        return {
            "optimizer": "adam",  # megatron-core's name for the class that `for_megatron` returns
            "decoupled_weight_decay": True,
            "adam_beta1": section.adam_beta1,
            "adam_beta2": section.adam_beta2,
            "adam_eps": section.adam_eps,
        }

    def kind_of(self, name: str, weight: Tensor) -> str:  # noqa: ARG002
        """Return the `kind` of a weight's parameter group: weights of another kind are in groups of their own."""
        return ""

    def states_of(self, kind: str) -> tuple[str, ...]:  # noqa: ARG002
        """Return the names of the state of a weight of this kind: all of `states`, or some."""
        return self.states

    def state_dtypes(self, section: OptimizerSection) -> Mapping[str, StateDtype]:  # noqa: ARG002
        """Return the dtype in which each of `states` is kept.

        Where one is not fp32, `load_state_dict` of the class that is built must keep that dtype: torch's turns every
        state into the dtype of its weight.
        """
        return dict.fromkeys(self.states, "fp32")

    def torch_state_dtypes(self, section: OptimizerSection) -> dict[str, torch.dtype]:
        """Return `state_dtypes` as torch names them."""
        from pretrain.model.requests import DTYPES  # noqa: PLC0415  imports torch

        return {name: DTYPES[dtype] for name, dtype in self.state_dtypes(section).items()}

    def new_state(self, section: OptimizerSection, weight: Tensor, kind: str) -> dict[str, Tensor]:
        """Return the state of a weight of this kind before its first step: zeros."""
        import torch  # noqa: PLC0415  see above

        dtypes = self.torch_state_dtypes(section)
        return {name: torch.zeros_like(weight.detach(), dtype=dtypes[name]) for name in self.states_of(kind)}

    def for_deepspeed(
        self, section: OptimizerSection, kernels: OptimizerKernels, stepping: Callable[[type[Any]], type[Any]]
    ) -> Callable[[list[dict[str, Any]]], Any]:
        """Return what makes it of parameter groups, with a settable count of the steps taken, `taken`.

        `stepping` gives an Adam shaped like apex's that count, or replaces it by one for host memory.
        """
        raise NotImplementedError
