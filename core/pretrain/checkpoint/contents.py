"""Contents of a checkpoint, in terms common to all engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    from pretrain.bridge.deepspeed.zero_step import LossScaler
    from pretrain.recipe import Recipe


class Counters(TypedDict):
    """Counts of an optimizer.

    Attributes:
        step: optimizer steps taken, which Adam's bias correction depends on.
        loss_scaler: None without a dynamic loss scale.
    """

    step: int
    loss_scaler: LossScaler | None


class EngineState(Protocol):
    """State of an engine in a checkpoint: megatron-core's sharded tensors, named alike by every engine.

    Weights are called as megatron-core calls them, the optimizer's state `optimizer.state.STATE.WEIGHT`, main weights
    `optimizer.state.fp32_param.WEIGHT`; in fp32 there are none.

    Attributes:
        optimizer_states: names of a weight's tensors of state, such as Adam's exp_avg and exp_avg_sq.
    """

    optimizer_states: tuple[str, ...]

    def sharded(self) -> dict[str, Any]:
        """Return what this rank has to save; all ranks call it together."""
        ...

    def weight_names(self) -> set[str]:
        """Return the names of this rank's weights; layers are counted from 0 over the whole model."""
        ...

    def counters(self) -> Counters:
        """Return the steps taken and the loss scale."""
        ...

    def load(self, read: Callable[[dict[str, Any]], dict[str, Any]], counters: Counters | None) -> None:
        """Take over a checkpoint; all ranks call it together.

        Args:
            read: reads what is asked for into a structure of the same shape; all ranks call it together.
            counters: of the checkpoint; None: only the weights are read, and the optimizer starts from them.
        """
        ...


class Saved(Protocol):
    """The part of an engine that a checkpoint holds.

    Attributes:
        recipe: what is trained.
        vocab_size: entries of the tokenizer, before padding.
        schedule: the learning-rate schedule.
    """

    recipe: Recipe
    vocab_size: int
    schedule: OptimizerParamScheduler

    @property
    def state(self) -> EngineState:
        """Weights and optimizer."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Result of loading a checkpoint.

    Attributes:
        progress: what `storage.save` was given.
        notices: what the user should know, such as values of the checkpoint that win over the recipe's.
    """

    progress: Mapping[str, Any]
    notices: Sequence[str] = ()
