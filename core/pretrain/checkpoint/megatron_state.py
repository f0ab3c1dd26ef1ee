"""State of the megatron engine in a checkpoint, the same for all of megatron-core's optimizers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedBase, ShardedTensor
from megatron.core.optimizer.grad_scaler import DynamicGradScaler

from pretrain.checkpoint.sharded_format import MAIN, PREFIX
from pretrain.model.weights import saved_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from megatron.core.optimizer import MegatronOptimizer

    from pretrain.bridge.deepspeed.zero_step import LossScaler
    from pretrain.checkpoint.contents import Counters

_MAIN = f"{PREFIX}.{MAIN}."
_MAIN_OF_DISTRIBUTED = f"{PREFIX}.param."


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
            optimizer = self._optimizer.sharded_state_dict(models, is_loading=False, metadata=sharding_metadata())
            parts = [self._rounded(_renamed(part)) for part in _sharded_in(optimizer)]
        if self._is_fp32:  # the weights themselves are what the optimizer updates
            parts = [part for part in parts if not part.key.startswith(_MAIN)]
        return {**models, "optimizer": dict(enumerate(parts))}

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
            request = models = self._models()
            structure: Any = None
            if counters is not None:
                structure = self._optimizer.sharded_state_dict(models, is_loading=True, metadata=sharding_metadata())
                if self._is_fp32:
                    self._leave_out_main_weights(structure)
                request = {**models, "optimizer": dict(enumerate(map(_renamed, _sharded_in(structure))))}
            loaded = read(request)
            for number, chunk in enumerate(self._chunks):
                chunk.load_state_dict(loaded[f"model{number}"], strict=False)  # empty extra states
            if counters is None:
                self._optimizer.reload_model_params()
            else:
                values = iter([loaded["optimizer"][number] for number in range(len(loaded["optimizer"]))])
                self._optimizer.load_state_dict(_filled(structure, values, counters))

    def _allocate(self) -> None:
        """Allocate the moments (zeros) before the first step: an fp16 run may save before a step is not skipped."""
        for optimizer in self._optimizer.chained_optimizers:
            if optimizer.optimizer is not None:  # None on a rank without weights of this kind
                optimizer.init_state_fn(optimizer.optimizer, optimizer.config)

    def _models(self) -> dict[str, Any]:
        return {
            f"model{number}": chunk.sharded_state_dict(metadata=sharding_metadata())
            for number, chunk in enumerate(self._chunks)
        }

    def _leave_out_main_weights(self, structure: Any) -> None:
        """Put the weights where the distributed optimizer expects main weights, which in fp32 are parts of them.

        It numbers them in the order of its buffers (DistributedOptimizer.sharded_param_state_fully_reshardable).
        """
        optimizers = self._optimizer.chained_optimizers  # where experts are on several ranks one of theirs besides
        for optimizer, part in zip(
            optimizers, [structure] if len(optimizers) == 1 else structure.values(), strict=True
        ):
            if "param_state" not in part:
                continue
            weights = [weight for buffer in optimizer.buffers for weight in buffer.param_index_map]
            for number, weight in enumerate(weights):
                part["param_state"][number]["param"] = weight.detach()


def _renamed(part: Any) -> Any:
    """Call main weights by one name; the distributed optimizer has another."""
    if not part.key.startswith(_MAIN_OF_DISTRIBUTED):
        return part
    return replace(part, key=_MAIN + part.key.removeprefix(_MAIN_OF_DISTRIBUTED))


def sharding_metadata() -> dict[str, Any]:
    """Return how megatron-core's sharded state dicts are to be laid out."""
    return {
        # Of the distributed optimizer's formats that can be read at another tensor and pipeline size, the one that is
        # not deprecated; gathered between hosts on one rank of each replica group instead of on every device.
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": True,
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
