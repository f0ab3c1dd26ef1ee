"""Access main weights and Adam's moments of each weight in any ZeRO stage of DeepSpeed 0.19.

DeepSpeed's own functions for this (utils/tensor_fragment.py) have no state before the first step. At stage 3 they
cannot set a weight whose last part is padded (DeepSpeedZeroOptimizer_Stage3.set_full_hp_param), and they read and write
whole sub-groups of files for each of their weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
import torch.distributed as dist

from pretrain.bridge.deepspeed.zero_swapped_tensors import SubGroups, part_of, put_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def full_shape(parameter: Tensor) -> tuple[int, ...]:
    """Return the shape of this tensor-parallel rank's weight; ZeRO-3 leaves a parameter empty between its uses."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def own_part(parameter: Any) -> Tensor:
    """Return this rank's part of a weight: all of it, or with ZeRO-3 its part of the flat weight, unpadded."""
    if not hasattr(parameter, "ds_tensor"):
        return cast("Tensor", parameter.detach())
    part = part_of(parameter)
    start = dist.get_rank(parameter.ds_process_group) * part.numel()
    return part[: max(0, parameter.ds_numel - start)]


MAIN = "fp32_param"


class ZeroState(Protocol):
    """The optimizer's state by weight; call `close` after the last use, before the next step."""

    def allocate(self) -> None:
        """Allocate the moments, as zeros, if no step has been taken."""
        ...

    def order(self, parameter: Any) -> int:
        """Return a sort key of a weight; access in this order is cheapest. Several weights may share a key."""
        ...

    def close(self) -> None:
        """Write back and release tensors that were read from files."""
        ...

    def whole(self, parameter: Any, name: str) -> Tensor:
        """Return a moment or the main weight, fp32, shaped as this rank's weight. Collective."""
        ...

    def put(self, parameter: Any, name: str, value: Tensor) -> None:
        """Set this rank's part of a moment or main weight from the whole."""
        ...

    def put_weight(self, parameter: Any, value: Tensor) -> None:
        """Set this rank's part of the weight itself, in its own dtype."""
        ...


def zero_state(optimizer: Any, stage: int, states: Sequence[str]) -> ZeroState:
    """Return the access to an optimizer that `deepspeed.initialize` returned, whose state has these names."""
    if stage == 3:
        return _Stage3(optimizer, states)
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):  # ZeRO 1 and 2, BF16_Optimizer
        return _Flat(optimizer, states)
    return _Unsplit(optimizer, states)


class _InMemory:
    def order(self, parameter: Any) -> int:  # noqa: ARG002
        return 0

    def close(self) -> None: ...


class _Unsplit(_InMemory):
    """Stage 0: every rank holds everything; fp16 and bf16 weights have an fp32 copy (FP16_UnfusedOptimizer)."""

    def __init__(self, optimizer: Any, states: Sequence[str]) -> None:
        self._states = states
        self._adam = getattr(optimizer, "optimizer", optimizer)
        self._main = {
            weight: main
            for weights, mains in zip(
                getattr(optimizer, "fp16_groups", ()), getattr(optimizer, "fp32_groups", ()), strict=True
            )
            for weight, main in zip(weights, mains, strict=True)
        }

    def allocate(self) -> None:
        _allocate(self._adam, self._states)

    def whole(self, parameter: Any, name: str) -> Tensor:
        return self._tensor(parameter, name).detach()

    def put(self, parameter: Any, name: str, value: Tensor) -> None:
        self._tensor(parameter, name).data.copy_(value)

    def put_weight(self, parameter: Any, value: Tensor) -> None:
        parameter.data.copy_(value)

    def _tensor(self, parameter: Any, name: str) -> Tensor:
        main = self._main.get(parameter, parameter)
        tensor: Tensor = main if name == MAIN else self._adam.state[main][name]
        return tensor


class _Flat(_InMemory):
    """Stages 1 and 2: each rank holds a contiguous range of all weights, concatenated; `_hp_mapping` describes it."""

    def __init__(self, optimizer: Any, states: Sequence[str]) -> None:
        self._states = states
        self._optimizer = optimizer

    def allocate(self) -> None:
        _allocate(self._optimizer.optimizer, self._states)
        self._optimizer._lazy_init_hp_params_optimizer_state()  # noqa: SLF001

    def whole(self, parameter: Any, name: str) -> Tensor:
        value: Tensor = parameter.get_full_hp_param(None if name == MAIN else name)
        return value

    def put(self, parameter: Any, name: str, value: Tensor) -> None:
        parameter.set_full_hp_param(value, None if name == MAIN else name)

    def put_weight(self, parameter: Any, value: Tensor) -> None:
        parameter.data.copy_(value)
        parameter.set_full_hp_param(value)


class _Stage3:
    """Stage 3: each rank holds a part of every weight, the last one padded."""

    def __init__(self, optimizer: Any, states: Sequence[str]) -> None:
        self._states = states
        self._optimizer = optimizer
        self._groups = SubGroups(optimizer)

    def allocate(self) -> None:
        for number in range(len(self._groups)):
            _allocate(self._optimizer.optimizer, self._states, [self._groups.flat(number, changes=True)])
        self.close()

    def order(self, parameter: Any) -> int:
        return self._groups.number_of(parameter)

    def close(self) -> None:
        self._groups.put_away()

    def whole(self, parameter: Any, name: str) -> Tensor:
        part = self._groups.part(parameter, None if name == MAIN else name, changes=False)
        value: Tensor = self._optimizer._fp32_state_allgather(parameter, part)  # noqa: SLF001
        return value

    def put(self, parameter: Any, name: str, value: Tensor) -> None:
        part = self._groups.part(parameter, None if name == MAIN else name, changes=True)
        part.copy_(_own(parameter, value))

    def put_weight(self, parameter: Any, value: Tensor) -> None:
        own = _own(parameter, value)
        put_part(parameter, own)
        self.put(parameter, MAIN, value)
        if parameter.shape == value.shape:  # a small weight, which stays whole on every rank
            parameter.data.copy_(value)


def _own(parameter: Any, value: Tensor) -> Tensor:
    """Return this rank's part of a whole weight, padded with zeros."""
    size, rank = parameter.ds_tensor.ds_numel, dist.get_rank(parameter.ds_process_group)
    part = value.flatten()[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(part, (0, size - part.numel()))


def _allocate(adam: torch.optim.Optimizer, states: Sequence[str], tensors: list[Tensor] | None = None) -> None:
    """Allocate the state of these tensors, or of all."""
    for tensor in tensors or [tensor for group in adam.param_groups for tensor in group["params"]]:
        state = adam.state[tensor]
        for name in states:
            state.setdefault(name, torch.zeros_like(tensor, requires_grad=False))
