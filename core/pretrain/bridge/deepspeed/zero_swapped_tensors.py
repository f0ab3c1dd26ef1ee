"""Access parts of weights and sub-groups of the optimizer's state that ZeRO-3 of DeepSpeed 0.19 keeps in files.

DeepSpeed reads them only when it needs them. Between two steps a tensor that is in a file is empty, or its memory holds
another tensor. Tensors of less than 1 MiB (MIN_AIO_BYTES in runtime/swap_tensor/utils.py) stay in memory, and are
handled here likewise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

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

    DeepSpeed would update such a copy and not the file
    (DeepSpeedZeroOptimizer_Stage3._partitioned_params_swap_out), from which the weight is read the next time.
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
