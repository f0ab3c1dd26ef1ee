"""Interface of a device to the core."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from pretrain.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch
    from torch import Tensor

    from pretrain.plugins.collective_record import CalledCollective
    from pretrain.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Available:
    """The device, or what was asked for on it, can be used."""

    detail: str = ""
    """Shown by `pretrain backends` ("2 x NVIDIA H200, driver 570")."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The device, or what was asked for on it, cannot be used."""

    reason: str
    """What is missing ("torch 2.13.0+cpu is built without CUDA")."""
    remedy: str = ""
    """How to get it ("pip install torch --index-url ...")."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one device in bytes; None where the device cannot tell."""

    allocated: int | None
    """In use now."""
    peak: int | None
    """The most since the process began, or since the last call with `reset_peak`."""
    total: int | None
    """What the device has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Figures of a device from its datasheet, of which `pretrain plan` makes a step time; None where unknown.

    FLOP/s are those of `Backend.peak_flops`.
    """

    memory: int | None = None
    """Bytes of the device's own memory, as its maker counts them."""
    memory_bandwidth: float | None = None
    """Bytes/s between the device and its memory."""
    link_bandwidth: float | None = None
    """Bytes/s that one device sends to the others of its node, in one direction."""
    node_bandwidth: float | None = None
    """Bytes/s that one device sends to other nodes, in one direction, in the maker's own servers."""
    devices_per_node: int | None = None
    """Devices of a node in the maker's own servers."""
    context_memory: int | None = None
    """Bytes of the device's memory that a process takes before its first tensor: context, kernels, libraries."""
    group_memory: int | None = None
    """Bytes that the communication library takes for each process group of more than one rank."""
    dropout_bits: int = 8
    """Bits that torch's dropout on the device keeps of each element for the backward pass; by default those of
    torch.native_dropout's bool mask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Line of `pretrain doctor` about a device or its software."""

    subject: str
    """What was looked at: "driver", "clocks"."""
    verdict: Literal["ok", "look", "wrong"]
    """Either "ok"; "look": may be meant, or costs speed; "wrong": a training would fail, or compute something else."""
    text: str
    """What was found, with values and units."""
    remedy: str = ""
    """What to do; empty where nothing is to be done."""


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """Abilities of the communication between two pipeline stages."""

    batched: bool
    """`torch.distributed.batch_isend_irecv` keeps several messages to one peer apart. Where this is False (gloo), sends
    and receives are issued one by one: if a backend wrongly claims it, an interleaved pipeline silently computes wrong
    gradients."""
    overlapped: bool = False
    """Messages that are sent and received one by one, and waited for later, reach each peer in their order while the
    device computes. Where this is True the interleaved schedule does so by default (`parallel.overlap_p2p_comm`)."""
    stream_ordered: bool = True
    """Memory that is freed while a message is sent from it is not written again before the message has left, as where
    communication and computation are ordered by a device's streams. Where this is False (gloo) and messages overlap,
    stages keep their outputs: megatron-core frees them before it has waited."""


class Overflow(Protocol):
    """A sticky overflow flag, for devices whose fp16 saturates instead of giving inf (Ascend 910A)."""

    def clear(self) -> None:
        """Clear the flag; called before the backward pass of every step."""

    def read(self) -> Tensor:
        """Return a fp32 scalar on the device, non-zero after an overflow; called after the backward pass."""


class DeviceProfiler(Protocol):
    """The maker's own profiler of the device, such as Nsight Systems or msprof. Contract 1.4."""

    def start(self) -> str:
        """Begin to record on this rank; return a line for the user: what it records into, and what it needs."""

    def stop(self) -> None:
        """End the recording, and write what is to be written."""

    def range(self, name: str) -> AbstractContextManager[object]:
        """Return a block that the recording shows by this name, such as "layer 3/mlp"; blocks may be nested."""


class MemoryRecorder(Protocol):
    """A record of a device's allocations. Contract 1.4."""

    def start(self) -> None:
        """Begin to record."""

    def stop(self, snapshot: Path) -> None:
        """Write what was recorded into a file, and end the recording."""


class _MemoryHistory:
    """`MemoryRecorder` of a device whose torch module has these functions of its `memory`."""

    def __init__(self, record: Callable[..., None], dump: Callable[[str], None]) -> None:
        self._record, self._dump = record, dump

    def start(self) -> None:
        self._record()

    def stop(self, snapshot: Path) -> None:
        try:
            self._dump(str(snapshot))
        finally:
            self._record(enabled=None)


class Backend(ABC):
    """One device plugin. Construction touches no device; nothing happens at import.

    The smallest backend sets three attributes and writes `availability` and `device`; `pretrain.cpu` is one.
    """

    name: ClassVar[str]
    """The value of `--backend`."""
    device_type: ClassVar[str]
    """torch's name of the device: "cpu", "cuda", "npu"."""
    process_group: ClassVar[str]
    """torch.distributed's backend: "gloo", "nccl", "hccl"."""
    exported_variables: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the environment variables that `--hostfile` sets on all hosts: those of the device's libraries."""
    own_variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables that belong to one host (its address); `--hostfile` does not export them to the others."""
    effective_variables: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Environment variables of the device's libraries that change a training or its speed -> their effect, in a few
    words. `pretrain doctor` shows those that are set. Contract 1.1."""

    forkable: ClassVar[bool] = False
    """A process that has imported the plugin, and opened no device, can be forked, and the fork opens the device. Where
    this is True, ranks are forked from one process that has made their imports; where it is False, each makes them
    itself, as where the imports start a thread or open a device. Contract 1.4."""

    @abstractmethod
    def availability(self) -> Available | Unavailable:
        """Tell whether the device can be used in this process; if not, why, and what to do. Never raises.

        It must not open a device context: the launcher calls it too, in a process that uses no device.
        """

    @abstractmethod
    def device(self, local_rank: int) -> torch.device:
        """Make the device of this rank the current one and return it. Called once per process, after `prepare`."""

    def device_count(self) -> int | None:
        """Return the number of devices visible here, or None where processes are not bound to devices (cpu)."""
        return None

    def prepare(self, recipe: Recipe) -> Mapping[str, str]:
        """Return the environment variables that must be set before the device context exists.

        The core sets those that the user has not set. Called once per process, before `device`.
        """
        return {}

    def supports(self, dtype: torch.dtype) -> bool:
        """Tell whether matmuls of the dtype run on the device. Called after `device`."""
        return True

    def supports_reduction(self, dtype: torch.dtype) -> bool:
        """Tell whether all-reduce and reduce-scatter can sum tensors of the dtype. HCCL refuses float64."""
        return True

    def compilation(self) -> Available | Unavailable:
        """Tell whether torch.compile generates kernels for the device, which `kernels.compile: layer` needs.

        By default: whether torch's inductor has a code generator for the device type.
        """
        import torch  # noqa: PLC0415  the class must be importable without torch
        from torch._inductor.codegen import common  # noqa: PLC0415  takes a second

        common.init_backend_registration()
        if common.get_scheduling_for_device(self.device_type) is None:
            reason = f"the inductor of torch {torch.__version__} generates no kernels for '{self.device_type}'"
            return Unavailable(reason)
        return Available()

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """Return dense FLOP/s of matmuls from the datasheet; None: the datasheet, or the device, has none of the dtype.

        That of `precision.dtype` is the denominator of MFU, also of a training in fp8. That of torch.float8_e4m3fn, of
        fp8 operands and any output, is the speed at which `pretrain plan` counts matmuls in fp8.
        """
        return None

    def figures(self) -> Figures:
        """Return the datasheet's figures of the device; for one that is not there, ask `named`. Contract 1.1."""
        return Figures()

    def memory(self, *, reset_peak: bool = False) -> Memory:
        """Return the memory of the current device. With `reset_peak` reset the peak afterwards.

        By default: the statistics of torch's module of the device, None where it has none.
        """
        import torch  # noqa: PLC0415  the class must be importable without torch

        module = torch.get_device_module(self.device_type)
        names = ("memory_allocated", "max_memory_allocated", "mem_get_info")
        allocated, peak, free_total = (getattr(module, name, lambda: None)() for name in names)
        if reset_peak and hasattr(module, "reset_peak_memory_stats"):
            module.reset_peak_memory_stats()
        return Memory(allocated, peak, free_total and free_total[1])

    def pinned_memory(self) -> bool:
        """Tell whether the device copies faster from page-locked memory; if so, batches are read into it.

        By default: True for torch's current accelerator, for which `Tensor.pin_memory` locks memory. Called after
        `device`. A device without an allocator of page-locked memory returns False.
        """
        import torch  # noqa: PLC0415  the class must be importable without torch

        accelerator = torch.accelerator.current_accelerator()
        return accelerator is not None and accelerator.type == self.device_type

    def overflow(self) -> Overflow | None:
        """Return the device's sticky overflow flag, or None where fp16 overflows to inf."""
        return None

    def point_to_point(self) -> PointToPoint:
        """Return the abilities of pipeline communication, by which the schedule is chosen."""
        return PointToPoint(batched=True)

    def device_name(self) -> str:
        """Return the product name of the current device ("NVIDIA H200"). Called after `device`."""
        return self.describe().get("device", "")

    def named(self, device_name: str) -> Backend:
        """Return this backend for a device of that name, which need not be present.

        `pretrain explain --device` and `pretrain plan --device` read availability, name, dtypes and figures from it.

        Raises:
            BackendError: the backend knows no devices by name, or not this one.
        """
        msg = f"backend '{self.name}' knows no devices by name.\nLeave out --device to ask about the device here."
        raise BackendError(msg)

    def health(self) -> Sequence[Remark]:
        """Judge the vendor's software and the current device: versions that belong together, clocks, errors of memory.

        `pretrain doctor` shows it, on every rank. Called without a usable device too, and then before `device`; what
        cannot be asked is left out. Takes a few seconds at most. Contract 1.1.
        """
        return ()

    def recent_collectives(self) -> Sequence[CalledCollective]:
        """Return the collectives that this process has called lately, in any order, and which of them have not ended.

        The report of a run that hangs names by them who waits in what. Called in a thread of its own while the main
        thread may hang in a collective: it must not wait for the device, nor call a collective. Returns () where the
        library records nothing. By default: what torch's flight recorder knows, of gloo. Contract 1.2.
        """
        from pretrain.plugins.collective_record import of_flight_recorder  # noqa: PLC0415  only for a report

        return of_flight_recorder()

    def profiler(self, folder: Path) -> DeviceProfiler | None:
        """Return the maker's profiler, for `profile.use_pytorch_profiler: false`; None if there is none.

        What it writes by itself goes into `folder`, which all ranks share. Contract 1.4.
        """
        return None

    def memory_recorder(self) -> MemoryRecorder | None:
        """Return what records the device's allocations, for `profile.memory`; None where nothing can.

        By default: the memory history of torch's module of the device, if it has one. Contract 1.4.
        """
        import torch  # noqa: PLC0415  the class must be importable without torch

        memory = getattr(torch.get_device_module(self.device_type), "memory", None)
        record, dump = (getattr(memory, name, None) for name in ("_record_memory_history", "_dump_snapshot"))
        return None if record is None or dump is None else _MemoryHistory(record, dump)

    def describe(self) -> Mapping[str, str]:
        """Return entries of a run's environment.json: driver, library versions, and "device", its name."""
        return {}


class NamedDevice:
    """Base class before a backend; answers for a device by its name alone.

    Example:
        class _Named(NamedDevice, AcmeBackend):
            def supports(self, dtype): return dtype in DTYPES_OF[self.device_name()]
    """

    def __init__(self, device_name: str) -> None:
        self._device_name = device_name

    def availability(self) -> Available:
        """Return Available: the device was named, and not searched for."""
        return Available(f"{self._device_name}, given by name and not looked for")

    def device_name(self) -> str:
        """Return the name as it was given."""
        return self._device_name
