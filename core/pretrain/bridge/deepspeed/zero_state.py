"""Access main weights and Adam's moments of each weight in any ZeRO stage of DeepSpeed 0.19.

DeepSpeed's own functions for this (utils/tensor_fragment.py) have no state before the first step. At stage 3 they
cannot set a weight whose last part is padded (DeepSpeedZeroOptimizer_Stage3.set_full_hp_param), and they read and write
whole sub-groups of files for each of their weights.

DeepSpeed reads what it keeps in files only when it needs it. Between two steps a tensor that is in a file is empty, or
its memory holds another tensor. Tensors of less than 1 MiB (MIN_AIO_BYTES in runtime/swap_tensor/utils.py) stay in
memory, and are handled here likewise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from pretrain.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


class ZeroState:
    """The optimizer's state by weight; call `close` after the last use, before the next step."""

    def allocate(self) -> None:
        """Allocate the moments, as zeros, if no step has been taken."""
        raise NotImplementedError

    def order(self, parameter: Any) -> int:  # noqa: ARG002
        """Return a sort key of a weight; access in this order is cheapest. Several weights may share a key."""
        return 0

    def close(self) -> None:
        """Write back and release tensors that were read from files."""

    def whole(self, parameter: Any, name: str) -> Tensor:
        """Return a moment or the main weight, fp32, shaped as this rank's weight. Collective."""
        raise NotImplementedError

    def put(self, parameter: Any, name: str, value: Tensor) -> None:
        """Set this rank's part of a moment or main weight from the whole."""
        raise NotImplementedError

    def put_weight(self, parameter: Any, value: Tensor) -> None:
        """Set this rank's part of the weight itself, in its own dtype."""
        parameter.data.copy_(value)


def zero_state(optimizer: Any, stage: int, states: Mapping[str, torch.dtype]) -> ZeroState:
    """Return the access to an optimizer that `deepspeed.initialize` returned, with names and dtypes of its state."""
    if stage == 3:
        return _Stage3(optimizer, states)
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):  # ZeRO 1 and 2, BF16_Optimizer
        return _Flat(optimizer, states)
    return _Unsplit(optimizer, states)


class _Unsplit(ZeroState):
    """Stage 0: every rank holds everything; fp16 and bf16 weights have an fp32 copy (FP16_UnfusedOptimizer)."""

    def __init__(self, optimizer: Any, states: Mapping[str, torch.dtype]) -> None:
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

    def _tensor(self, parameter: Any, name: str) -> Tensor:
        main = self._main.get(parameter, parameter)
        tensor: Tensor = main if name == MAIN else self._adam.state[main][name]
        return tensor


class _Flat(ZeroState):
    """Stages 1 and 2: each rank holds a contiguous range of all weights, concatenated; `_hp_mapping` describes it."""

    def __init__(self, optimizer: Any, states: Mapping[str, torch.dtype]) -> None:
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
        super().put_weight(parameter, value)
        parameter.set_full_hp_param(value)


class _Stage3(ZeroState):
    """Stage 3: each rank holds a part of every weight, the last one padded."""

    def __init__(self, optimizer: Any, states: Mapping[str, torch.dtype]) -> None:
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
        put_part(parameter, _own(parameter, value))
        self.put(parameter, MAIN, value)
        if parameter.shape == value.shape:  # a small weight, which stays whole on every rank
            parameter.data.copy_(value)


def _own(parameter: Any, value: Tensor) -> Tensor:
    """Return this rank's part of a whole weight, padded with zeros."""
    size, rank = parameter.ds_tensor.ds_numel, dist.get_rank(parameter.ds_process_group)
    part = value.flatten()[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(part, (0, size - part.numel()))


def _allocate(
    adam: torch.optim.Optimizer, states: Mapping[str, torch.dtype], tensors: list[Tensor] | None = None
) -> None:
    """Allocate the state of these tensors, or of all."""
    if tensors is None:
        tensors = [tensor for group in adam.param_groups for tensor in group["params"]]
    for tensor in tensors:
        state = adam.state[tensor]
        for name, dtype in states.items():
            state.setdefault(name, torch.zeros_like(tensor, dtype=dtype, requires_grad=False))


_BUFFERS = "engine.zero.offload_param.buffer"


def read_in_turn(swapper: Any) -> None:
    """Let the swapper of a `zero.Init` read the weights in use, even if prefetched weights occupy its buffers.

    If a weight is used twice in a row, DeepSpeed reads it twice, without a buffer for the second read. After an
    evaluation all buffers are taken: they hold the weights prefetched for the backward pass
    (PartitionedParameterCoordinator.__prefetch_nvme_param_partitions).
    """
    swap_in, get_buffer = swapper.swap_in, swapper.get_buffer
    seen: dict[int, Any] = {}

    def read(parameters: list[Any], async_op: bool = True, swap_in_buffers: Any = None) -> None:
        parameters = list(dict.fromkeys(parameters))
        if len(parameters) > swapper.available_swap_in_buffers():
            drop_prefetched(seen.values())
        if len(parameters) > swapper.available_swap_in_buffers():
            msg = (
                f"{_BUFFERS}_count: {swapper.param_buffer_count} is too few for the weights in use at the same time.\n"
                f"Give more (each takes {_BUFFERS}_size elements of host memory), or set "
                "engine.zero.stage3_max_reuse_distance: 0, which keeps no weight for its next use."
            )
            raise RecipeError(msg)
        seen.update({parameter.ds_id: parameter for parameter in parameters})
        swap_in(parameters, async_op, swap_in_buffers)

    def buffer(parameter: Any, size: int) -> Tensor:
        if size > swapper.elements_per_buffer:
            msg = (
                f"{_BUFFERS}_size: {swapper.elements_per_buffer} is too small for a weight of which every rank holds "
                f"{size} elements.\nGive at least {size}."
            )
            raise RecipeError(msg)
        taken: Tensor = get_buffer(parameter, size)
        return taken

    swapper.swap_in, swapper.get_buffer = read, buffer


def part_of(parameter: Any) -> Tensor:
    """Return this rank's part of a weight with ZeRO-3's padding; a part in memory is not copied."""
    part: Tensor = parameter.ds_tensor
    if not is_in_file(parameter):
        return part.detach()
    parameter.nvme_swapper.synchronize_reads()
    if _was_read(parameter):
        return part.detach()
    parameter.nvme_swapper.swap_in([parameter], async_op=False)
    value = part.detach().clone()
    parameter.nvme_swapper.remove_partition_and_release_buffers([parameter])
    return value


def put_part(parameter: Any, value: Tensor) -> None:
    """Set this rank's part of a weight, shaped as `part_of` returns it."""
    if is_in_file(parameter):
        drop_prefetched([parameter])
        parameter.nvme_swapper.swap_out_partitioned_params([parameter], [value])
    else:
        parameter.ds_tensor.data.copy_(value)


def drop_prefetched(parameters: Iterable[Any]) -> None:
    """Release weights that were prefetched, because their files are about to change.

    DeepSpeed would update the copy (DeepSpeedZeroOptimizer_Stage3._partitioned_params_swap_out), and read the file.
    """
    for parameter in parameters:
        if is_in_file(parameter) and parameter.ds_status.name == "NOT_AVAILABLE":
            parameter.nvme_swapper.synchronize_reads()
            if _was_read(parameter):
                parameter.nvme_swapper.remove_partition_and_release_buffers([parameter])


def is_in_file(parameter: Any) -> bool:
    """Return whether this rank's part of a weight is in a file between its uses."""
    return bool(parameter.ds_tensor.final_location == "nvme")


def _was_read(parameter: Any) -> bool:
    return bool(parameter.ds_tensor.status.name == "AVAILABLE")


class SubGroups:
    """The flat tensors that a ZeRO-3 optimizer steps one after the other; those in files are read one at a time."""

    def __init__(self, optimizer: Any) -> None:
        """Take the optimizer that `deepspeed.initialize` returned."""
        self._optimizer = optimizer
        self._loaded: int | None = None
        self._is_changed = False

    def __len__(self) -> int:
        return len(self._optimizer.fp32_partitioned_groups_flat)

    def is_in_files(self, number: int) -> bool:
        """Return whether a sub-group is in files between two steps."""
        return bool(self._optimizer._swappable_optimizer_subgroup(number))  # noqa: SLF001

    def number_of(self, parameter: Any) -> int:
        """Return the sub-group of a weight."""
        number: int = self._place(parameter)[0]
        return number

    def part(self, parameter: Any, name: str | None, *, changes: bool) -> Tensor:
        """Return this rank's part of a state (None: the main weight), fp32, padded, until another group is read."""
        number, offset, size = self._place(parameter)
        main = self.flat(number, changes=changes)
        tensor: Tensor = main if name is None else self._optimizer.optimizer.state[main][name]
        return tensor.detach().narrow(0, offset, size)

    def flat(self, number: int, *, changes: bool) -> Tensor:
        """Return the main weights of a sub-group; they and Adam's state stay in memory until another one is read."""
        main: Tensor = self._optimizer.fp32_partitioned_groups_flat[number]
        if self.is_in_files(number):
            if number != self._loaded:
                self.put_away()
                self._optimizer.optimizer_swapper.swap_in_optimizer_state(main, async_parameter=None)
                self._loaded = number
            self._is_changed |= changes
        return main

    def put_away(self) -> None:
        """Write the sub-group that was read last, if it was changed, and release it, as DeepSpeed requires."""
        if self._loaded is None:
            return
        swapper = self._optimizer.optimizer_swapper
        main = self._optimizer.fp32_partitioned_groups_flat[self._loaded]
        if self._is_changed:
            swapper.swap_out_optimizer_state(main, async_swap=False)
        else:
            swapper.release_swap_buffers(main)
        # After writing, the pipelined swapper keeps references to state that was allocated since it was read.
        swapper.swap_params_info[main.ds_id].release_memory()
        main.grad = None
        self._loaded, self._is_changed = None, False

    def _place(self, parameter: Any) -> Any:
        return self._optimizer.grad_position[self._optimizer.get_param_id(parameter)]
