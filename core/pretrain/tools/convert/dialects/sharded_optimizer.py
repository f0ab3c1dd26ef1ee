"""The optimizer of Megatron-LM's sharded checkpoints.

Without its distributed optimizer, and with --dist-ckpt-optim-fully-reshardable, every state of a weight is a tensor of
its own (sharded_state_dict of Float16OptimizerWithFloat16Params and DistributedOptimizer in megatron-core). The
distributed optimizer's default, dp_reshardable, keeps flat buckets instead, which only the same layout can read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.checkpoint.sharded_format import weight_names
from pretrain.engine.optimizers.adam import STATES
from pretrain.tools.convert.weights.optimizer_state import MAIN, OptimizerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pretrain.tools.convert.weights.sharded_tensors import ShardedTensor

_PREFIX = "optimizer.state."
_STATES = {state: state for state in (*STATES, MAIN)} | {"param": MAIN}
"""State in a key -> ours; the distributed optimizer has a name of its own for main weights."""

_SCALER = ("scale", "growth_tracker", "hysteresis_tracker")
_DEEPEST = 8


def optimizer_of(
    common: Mapping[str, Any], stored: Mapping[str, ShardedTensor], weights: Iterable[str]
) -> OptimizerState | None:
    """Return the optimizer's state; None if it is not there for all weights, or does not tell its step.

    Args:
        common: what all ranks share.
        stored: all tensors by their keys.
        weights: our names of the model's weights.
    """
    tensors = {}
    for key, tensor in stored.items():
        state, _, rest = key.removeprefix(_PREFIX).partition(".")
        if key.startswith(_PREFIX) and state in _STATES:
            for name, place in weight_names(rest, tensor.shape[0]):
                tensors[f"{_STATES[state]}.{name}"] = tensor.whole() if place is None else tensor.of_first(place)
    steps = {int(step) for step in _steps(common.get("optimizer"), _DEEPEST)}
    if len(steps) != 1 or any(f"{moment}.{name}" not in tensors for name in weights for moment in STATES):
        return None
    return OptimizerState(tensors=tensors, step=steps.pop(), loss_scaler=_loss_scaler(common.get("optimizer")))


def _steps(state: Any, depth: int) -> Iterator[Any]:
    """Yield the steps of parameter groups, at any depth: chained optimizers are nested."""
    if isinstance(state, dict) and depth:
        for key, value in state.items():
            if key in {"step", "common_step"}:
                yield value
            else:
                yield from _steps(value, depth - 1)
    elif isinstance(state, list) and depth:
        for value in state:
            yield from _steps(value, depth - 1)


def _loss_scaler(state: Any) -> dict[str, float] | None:
    scaler = state.get("grad_scaler") if isinstance(state, dict) else None
    if not isinstance(scaler, dict) or not all(name in scaler for name in _SCALER):
        return None
    return {"scale": float(scaler["scale"]), **{name: int(scaler[name]) for name in _SCALER[1:]}}
