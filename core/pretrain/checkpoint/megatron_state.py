"""State of the megatron engine in a checkpoint, the same for all of megatron-core's optimizers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedBase, ShardedTensor
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.grad_scaler import DynamicGradScaler

from pretrain.checkpoint import distributed_states
from pretrain.checkpoint.sharded_format import MAIN, PREFIX
from pretrain.model.weights import saved_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from megatron.core.optimizer import MegatronOptimizer

    from pretrain.bridge.deepspeed.zero_step import LossScaler
    from pretrain.checkpoint.contents import Counters
    from pretrain.checkpoint.distributed_states import States

_MAIN = f"{PREFIX}.{MAIN}."


class MegatronState:
    """The `EngineState` of the unwrapped model chunks and their optimizer.

    megatron-core's optimizers each have a structure of their own around the same tensors. The checkpoint holds the
    tensors alone, under one name each, so that any of them, and any other engine, reads what another one wrote.
    """

    def __init__(
        self,
        chunks: list[Any],
        optimizer: MegatronOptimizer,
        gathered: Callable[[], AbstractContextManager[None]],
        *,
        states: Mapping[str, torch.dtype],
        is_fp32: bool,
    ) -> None:
        """In a block of `gathered` every rank has the weights of the last step."""
        self.optimizer_states = tuple(states)
        self._dtypes = {f"{PREFIX}.{name}.": dtype for name, dtype in states.items()}
        self._gathered = gathered
        self._chunks = [_inner(chunk) for chunk in chunks]
        self._optimizer = optimizer
        self._is_fp32 = is_fp32

    def sharded(self) -> dict[str, Any]:
        """Return this rank's weights and optimizer state for saving."""
        with self._gathered():
            self._allocate()
            models = self._models()
            if self._is_distributed:
                parts = list(self._distributed(models, {}))
            else:
                optimizer = self._optimizer.sharded_state_dict(models, is_loading=False, metadata=sharding_metadata())
                parts = list(_sharded_in(optimizer))
            parts = [self._rounded(part) for part in parts]
        if self._is_fp32:  # the weights themselves are what the optimizer updates
            parts = [part for part in parts if not part.key.startswith(_MAIN)]
        return {**models, "optimizer": dict(enumerate(parts))}

    @property
    def _is_distributed(self) -> bool:
        return any(isinstance(each, DistributedOptimizer) for each in self._optimizer.chained_optimizers)

    def _with_weights(self) -> list[Any]:
        """Return the optimizers that have weights; a rank may have none of a kind."""
        return [each for each in self._optimizer.chained_optimizers if each.optimizer is not None]

    def _distributed(self, models: dict[str, Any], loaded: dict[Any, dict[torch.Tensor, States]]) -> Iterator[Any]:
        """Yield the pieces that this rank holds of a distributed optimizer's states, and collect these in `loaded`."""
        weights = {part.data: part for part in _sharded_in(models) if isinstance(part.data, torch.Tensor)}
        for optimizer in self._with_weights():
            of_all = loaded.setdefault(optimizer, {})
            for weight, start, states in distributed_states.held(optimizer):
                of_all[weight] = states
                for name, flat in states.items():
                    prefix = f"{PREFIX}.{MAIN if name == 'param' else name}."
                    yield from distributed_states.pieces(weights[weight], prefix, start, flat)

    def _rounded(self, part: Any) -> Any:
        """Return a state in the dtype that it has in steps; the distributed optimizer gathers it in fp32."""
        dtype = next((dtype for begin, dtype in self._dtypes.items() if part.key.startswith(begin)), torch.float32)
        if dtype is torch.float32 or part.data is None or part.data.dtype is dtype:
            return part
        data = part.data.to(dtype)
        return replace(part, data=data, dtype=dtype) if isinstance(part, ShardedTensor) else replace(part, data=data)

    def weight_names(self) -> set[str]:
        """Return the names of this rank's weights."""
        return {name for chunk in self._chunks for name in saved_names(chunk)}

    def counters(self) -> Counters:
        """Return the steps taken and the loss scale."""
        steps = [group.get("step", 0) for group in self._optimizer.param_groups if group["params"]]
        return {"step": int(steps[0]) if steps else 0, "loss_scaler": self._loss_scaler()}

    def _loss_scaler(self) -> LossScaler | None:
        scaler = getattr(self._optimizer.chained_optimizers[0], "grad_scaler", None)
        if not isinstance(scaler, DynamicGradScaler):
            return None
        state = scaler.state_dict()
        return {
            "scale": state["scale"].item(),
            "growth_tracker": state["growth_tracker"],
            "hysteresis_tracker": state["hysteresis_tracker"],
        }

    def load(self, read: Callable[[dict[str, Any]], dict[str, Any]], counters: Counters | None) -> None:
        """Read the weights, and with counters the optimizer's state."""
        with self._gathered():  # a gather that is still on its way would overwrite what is loaded
            models = self._models()
            if counters is None:
                self._take_weights(read(models))
                self._optimizer.reload_model_params()
            elif self._is_distributed:
                self._load_distributed(read, models, counters)
            else:
                structure = self._optimizer.sharded_state_dict(models, is_loading=True, metadata=sharding_metadata())
                loaded = read({**models, "optimizer": dict(enumerate(_sharded_in(structure)))})
                self._take_weights(loaded)
                values = iter([loaded["optimizer"][number] for number in range(len(loaded["optimizer"]))])
                self._optimizer.load_state_dict(_filled(structure, values, counters))

    def _load_distributed(
        self, read: Callable[[dict[str, Any]], dict[str, Any]], models: dict[str, Any], counters: Counters
    ) -> None:
        self._allocate()
        for optimizer in self._with_weights():
            optimizer.load_state_dict(_filled(optimizer.state_dict(), iter(()), counters))
        states: dict[Any, dict[torch.Tensor, States]] = {}
        parts = list(self._distributed(models, states))
        if self._is_fp32:
            parts = [part for part in parts if not part.key.startswith(_MAIN)]
        self._take_weights(read({**models, "optimizer": dict(enumerate(parts))}))
        for optimizer, of_all in states.items():
            distributed_states.put(optimizer, of_all)

    def _take_weights(self, loaded: dict[str, Any]) -> None:
        for number, chunk in enumerate(self._chunks):
            chunk.load_state_dict(loaded[f"model{number}"], strict=False)  # empty extra states

    def _allocate(self) -> None:
        """Allocate the moments (zeros) before the first step: an fp16 run may save before a step is not skipped."""
        for optimizer in self._with_weights():
            optimizer.init_state_fn(optimizer.optimizer, optimizer.config)

    def _models(self) -> dict[str, Any]:
        return {
            f"model{number}": chunk.sharded_state_dict(metadata=sharding_metadata())
            for number, chunk in enumerate(self._chunks)
        }


def sharding_metadata() -> dict[str, Any]:
    """Return how megatron-core's sharded state dicts are to be laid out."""
    return {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "chained_optim_avoid_prefix": True,
    }


def _sharded_in(structure: Any) -> Iterator[Any]:
    """Yield the sharded leaves, always in the same order."""
    if isinstance(structure, ShardedBase):
        yield structure
    elif isinstance(structure, dict):
        for value in structure.values():
            yield from _sharded_in(value)
    elif isinstance(structure, list | tuple):
        for value in structure:
            yield from _sharded_in(value)


def _inner(chunk: Any) -> Any:
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def _filled(structure: Any, values: Iterator[Any], counters: Counters) -> Any:
    """Return the structure with its sharded leaves replaced, and its counters set."""
    if isinstance(structure, ShardedBase):
        return next(values)
    if isinstance(structure, LocalNonpersistentObject):
        return structure.unwrap()
    if isinstance(structure, dict):
        filled = {key: _filled(value, values, counters) for key, value in structure.items()}
        if "params" in filled or "wd_mult" in filled:  # a parameter group, and one of the distributed optimizer
            filled["step"] = counters["step"]
        scaler = counters["loss_scaler"]
        if scaler is not None and "growth_tracker" in filled:
            filled |= {**scaler, "scale": torch.full_like(filled["scale"], scaler["scale"])}
        return filled
    if isinstance(structure, list | tuple):
        return [_filled(value, values, counters) for value in structure]
    return structure
