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
    """Counts of an optimizer."""

    step: int  # taken, which Adam's bias correction depends on
    loss_scaler: LossScaler | None  # None without a dynamic loss scale


class EngineState(Protocol):
    """State of an engine in a checkpoint: megatron-core's sharded tensors, named alike by every engine.

    Weights are called as megatron-core calls them, the optimizer's state `optimizer.state.STATE.WEIGHT`, main weights
    `optimizer.state.fp32_param.WEIGHT`; in fp32 there are none. `optimizer_states` are the names of STATE.
    """

    optimizer_states: tuple[str, ...]

    def sharded(self) -> dict[str, Any]:
        """Return what this rank has to save; all ranks call it together."""

    def weight_names(self) -> set[str]:
        """Return the names of this rank's weights; layers are counted from 0 over the whole model."""

    def counters(self) -> Counters:
        """Return the steps taken and the loss scale."""

    def load(self, read: Callable[[dict[str, Any]], dict[str, Any]], counters: Counters | None) -> None:
        """Take over a checkpoint, together with all ranks; without `counters` the weights alone."""


class Saved(Protocol):
    """The part of an engine that a checkpoint holds; `vocab_size` is without the padding."""

    recipe: Recipe
    vocab_size: int
    schedule: OptimizerParamScheduler

    @property
    def state(self) -> EngineState:
        """Weights and optimizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Result of loading a checkpoint: the progress that `storage.save` was given, and what the user should know."""

    progress: Mapping[str, Any]
    notices: Sequence[str] = ()
