"""Counts the work of a step: FLOPs and bytes of each operation, and messages between ranks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from pretrain.tools.plan.stage_plan import Message, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.tools.plan.trace.storages import StepPlace, StepPosition, Storages

RECOMPUTING = 2.5
"""Work of flash attention's backward pass, in that of its forward pass: five matmuls instead of two, since scores are
computed again (Dao 2023, arXiv:2307.08691, section 3.1)."""
_KINDS = {
    "allreduce_": "all-reduce",
    "allreduce_coalesced_": "all-reduce",
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "allgather_into_tensor_coalesced_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_": "reduce-scatter",
    "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "broadcast_": "broadcast",
    "alltoall_base_": "all-to-all",
    "send": "send",
    "recv_": "receive",
}
_DTYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
_ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}


class Work:
    """Operations and messages, counted by the part of the step."""

    def __init__(self, keys_of_a_query: float = 0.0) -> None:
        self._keys = keys_of_a_query
        self.operations: Counter[tuple[StepPlace, Operation]] = Counter()
        self.messages: Counter[tuple[StepPlace, Message]] = Counter()
        self.names: dict[str, str] = {}

    def add(self, place: StepPlace, function: Any, arguments: tuple[Any, ...], output: Any) -> None:
        """Count a call of torch's dispatcher."""
        if function.namespace == "c10d":
            self._communicate(place, function, arguments)
            return
        if function.is_view or function._opname in _ALLOCATES:  # noqa: SLF001
            return
        read, made = list(tensors_in(arguments)), list(tensors_in((output,)))
        tensors = [*read, *made]
        if not tensors or (not function._schema.is_mutable and _only_views(read, made)):  # noqa: SLF001
            return
        moved = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
        count = _flop_counter(function)
        if count is None:
            self.operations[place, Operation(0.0, moved)] += 1
        else:
            flops = float(count(*arguments, out_val=output))
            self.operations[place, Operation(flops, moved, _DTYPES.get(tensors[0].dtype, ""))] += 1

    def add_stand_in(
        self, place: StepPlace, operation: str, read: Iterable[Any], written: Iterable[Any], *, is_backward: bool
    ) -> None:
        """Count a pass of a kernel's stand-in, which reads and writes its tensors once."""
        inputs = list(tensors_in(tuple(read)))
        tensors = {id(tensor): tensor for tensor in (*inputs, *tensors_in(tuple(written)))}.values()
        moved = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
        flops = _flops(operation, inputs, self._keys, is_backward=is_backward)
        dtype = _DTYPES.get(inputs[0].dtype, "") if flops and inputs else ""
        self.operations[place, Operation(flops, moved, dtype)] += 1

    def _communicate(self, place: StepPlace, function: Any, arguments: tuple[Any, ...]) -> None:
        kind = _KINDS.get(function._opname)  # noqa: SLF001  the name without its overload
        group = next((found for each in arguments if (found := _group(each)) is not None), None)
        if kind is None or group is None or group.size() < 2:
            return
        # The whole tensor may be a list of parts: those of all ranks, or those that are sent together.
        moved = max(sum(tensor.numel() * tensor.itemsize for tensor in tensors_in((each,))) for each in arguments)
        # async_op is the only flag of these operators; True is its default, and torch leaves out defaults at the end.
        overlaps = kind not in {"send", "receive"} and not any(each is False for each in arguments)
        message = Message(kind, self.names.get(group.group_name, "world"), group.size(), moved, overlaps)
        self.messages[place, message] += 1


def _only_views(read: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    """Return whether every output is a view of an input, such as that of `_unsafe_view`, whose schema hides it."""
    known = {tensor.untyped_storage()._cdata for tensor in read}  # noqa: SLF001  a storage's address
    return bool(made) and all(tensor.untyped_storage()._cdata in known for tensor in made)  # noqa: SLF001


def _flop_counter(function: Any) -> Any:
    """Return torch's formula for an operation's FLOPs, or that of its form that is not in place.

    torch 2.13 has none for what torch.nn.functional.scaled_mm calls.
    """
    if function._opname == "_scaled_mm_v2":  # noqa: SLF001
        return _scaled_mm_flops
    count = flop_registry.get(function.overloadpacket)
    if count is None and function.namespace == "aten" and function._opname.endswith("mm_"):  # noqa: SLF001
        count = flop_registry.get(getattr(torch.ops.aten, function._opname.removesuffix("_")))  # noqa: SLF001
    return count


def _scaled_mm_flops(a: torch.Tensor, b: torch.Tensor, *_: Any, out_val: torch.Tensor) -> int:
    del out_val
    return 2 * a.numel() * b.shape[1]


def _flops(operation: str, inputs: list[torch.Tensor], keys: float, *, is_backward: bool) -> float:
    """Return the FLOPs of a kernel that multiplies matrices, by its first inputs; 0 for all others."""
    if operation == "attention" and len(inputs) > 2 and inputs[0].dim() == 4:
        forward = 4.0 * inputs[0].numel() * keys  # queries times keys, weights times values
        return forward * (RECOMPUTING if is_backward else 1.0)
    if operation == "grouped_linear" and len(inputs) > 1:  # rows and weights, which are kept too
        forward = 2.0 * inputs[0].shape[0] * inputs[1][0].numel()
        return forward * (2.0 if is_backward else 1.0)
    # the weight gradient that apex's kernel accumulates, also of a linear with a role
    if operation.partition("@")[0] == "linear" and len(inputs) > 1:
        rows, columns = inputs[0].flatten(0, -2), inputs[1].flatten(0, -2)
        return 2.0 * rows.shape[0] * rows.shape[1] * columns.shape[1]
    return 0.0


def _group(argument: Any) -> Any:
    if type(argument).__name__ != "ScriptObject":
        return None
    try:
        return dist.ProcessGroup.unbox(argument)
    except RuntimeError:  # an operator of a reduction
        return None


def tensors_in(arguments: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors of an argument or an output: itself, or those of lists and tuples."""
    if isinstance(arguments, torch.Tensor):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for argument in arguments:
            yield from tensors_in(argument)


_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001  torch's name of `Tensor.item`
_DEVICE = torch.ops.prim.device.default
_COPY = torch.ops.aten._to_copy.default  # noqa: SLF001  torch's name of `Tensor.to`


class Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every operation of a step; entered after FakeTensorMode."""

    # Where the program reads a value of a fake tensor, it is zero: no overflow, nothing to count. torch knows the
    # values of tensors that are made of numbers.

    def __init__(self, position: StepPosition, storages: Storages, work: Work) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._position, self._storages, self._work = position, storages, work
        self._begin = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation on fake tensors; follow what it allocates and costs."""
        if func is _READ and isinstance(args[0], FakeTensor) and args[0].constant is None:
            return _zero(args[0].dtype)
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # half of all calls, and slow ones
        output = func(*args, **(kwargs or {}))
        if func is _COPY and (device := (kwargs or {}).get("device")) not in {None, output.device}:
            # torch copies known values on the host.
            output = torch.empty(output.shape, dtype=output.dtype, device=device)
        place = self._position.here()
        for tensor in tensors_in(output):
            self._storages.see(tensor, place)
        if place.step:
            self._work.add(place, func, args, output)
        return output

    def begin(self) -> None:
        """Record the beginning of a stand-in's pass: `pretrain.plugins.stand_in.Observer`."""
        self._begin = len(self._storages.blocks)

    def end(self, operation: str, read: Iterable[Any], written: Iterable[Any], *, is_backward: bool) -> None:
        """Record the end of a stand-in's pass: what it allocated and freed again was workspace."""
        self._storages.mark_workspace(self._begin)
        place = self._position.here()
        if place.step:
            self._work.add_stand_in(place, operation, read, written, is_backward=is_backward)


def _zero(dtype: torch.dtype) -> float | bool:
    if dtype is torch.bool:
        return False
    return 0.0 if dtype.is_floating_point else 0
