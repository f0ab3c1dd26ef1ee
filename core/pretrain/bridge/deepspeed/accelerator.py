"""Adapt a backend to DeepSpeed's accelerator interface. Import this after deepspeed."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
from deepspeed.ops.op_builder import cpu as host_ops
from deepspeed.runtime.zero import partitioned_param_coordinator

from pretrain.bridge.megatron.names import DeviceNames
from pretrain.plugins.backend import Available

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor

    from pretrain.plugins.backend import Backend


_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_HOST_OPS = frozenset({"AsyncIOBuilder", "CPUAdamBuilder", "CPUAdagradBuilder", "CPULionBuilder", "PinMemoryBuilder"})


def make_accelerator(backend: Backend, own: type[Any] | None, *, planned: bool = False) -> BackendAccelerator:
    """Return the accelerator of a backend; `own` is DeepSpeed's class for the device, None where it has none."""
    if planned:
        return PlannedAccelerator(backend)
    if own is None:
        return DeviceAccelerator(backend)
    kind: type[BackendAccelerator] = type(own.__name__, (BackendAccelerator, own), {"__module__": __name__})
    return kind(backend)


class BackendAccelerator:
    """Answers of the backend, which override those of DeepSpeed's class for the device type."""

    get_op_builder: Callable[[str], Any]

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.sets_local_rank = False

    def communication_backend_name(self) -> str:
        return self.backend.process_group

    def device_count(self) -> int:
        return self.backend.device_count() or 1  # CPU_Accelerator.device_count starts numactl

    def is_available(self) -> bool:
        return isinstance(self.backend.availability(), Available)

    def supported_dtypes(self) -> list[torch.dtype]:
        return [dtype for dtype in _DTYPES if self.backend.supports(dtype)]

    def is_bf16_supported(self) -> bool:
        return self.backend.supports(torch.bfloat16)

    def is_fp16_supported(self) -> bool:
        return self.backend.supports(torch.float16)

    def is_fp64_supported(self) -> bool:
        # Decides on the accumulation dtype of gradient norms (get_norm_dtype in runtime/zero/utils.py), which ZeRO-3
        # reduces over ranks (DeepSpeedZeroOptimizer_Stage3.get_grad_norm_direct).
        own = bool(super().is_fp64_supported())  # type: ignore[misc]  # of DeepSpeed's class
        return own and self.backend.supports(torch.float64) and self.backend.supports_reduction(torch.float64)

    def create_op_builder(self, class_name: str) -> Any:
        # build_shm_op in comm/torch.py compiles the CPU's shared-memory collective at every start, after trying the
        # compiler on every operation.
        builder = None if class_name == "ShareMemCommBuilder" else self.get_op_builder(class_name)
        return builder and builder()


def _of_names(name: str) -> Any:
    def call(self: DeviceAccelerator, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.names, name)(*args, **kwargs)

    return call


def _always(value: Any) -> Any:
    return lambda _self, *_args, **_kwargs: value


def _tensor_of(dtype: torch.dtype) -> property:
    return property(lambda self: functools.partial(torch.tensor, dtype=dtype, device=self.device_name()))


class DeviceAccelerator(BackendAccelerator, DeepSpeedAccelerator):  # type: ignore[misc]  # untyped
    """Any device, from torch's module for it and the backend; methods as in DeepSpeedAccelerator."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.names = DeviceNames(backend)
        self._name = backend.device_type
        self._compile_backend = "inductor"

    # Device
    def is_synchronized_device(self) -> bool:
        return not self.names.has_streams

    use_host_timers = resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    def device_name(self, device_index: int | str | None = None) -> str:
        return str(self.device(device_index))

    def device(self, device_index: int | str | None = None) -> torch.device:
        kind = self.backend.device_type
        return torch.device(kind) if device_index is None or kind == "cpu" else torch.device(kind, int(device_index))

    def current_device(self) -> int:
        return 0 if self.backend.device_type == "cpu" else self.names.current_device()  # type: ignore[return-value]

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    set_device = _of_names("set_device")
    synchronize = _of_names("synchronize")
    empty_cache = _of_names("empty_cache")

    # Generators
    random = _always(torch.random)
    set_rng_state = _of_names("set_rng_state")
    get_rng_state = _of_names("get_rng_state")
    manual_seed = manual_seed_all = _of_names("manual_seed")

    def default_generator(self, device_index: int) -> torch.Generator:
        generator: torch.Generator = self.names.default_generators[device_index]
        return generator

    def initial_seed(self) -> int:
        return self.default_generator(self.current_device()).initial_seed()

    # Streams
    Stream = property(lambda self: self.names.Stream)
    Event = property(lambda self: self.names.Event)
    stream = _of_names("stream")
    current_stream = _of_names("current_stream")
    default_stream = _of_names("default_stream")

    # Memory
    def memory_allocated(self, device_index: int | None = None) -> int:
        return self.backend.memory().allocated or 0

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self.backend.memory().peak or 0

    memory_cached = memory_reserved = memory_allocated
    max_memory_cached = max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        self.backend.memory(reset_peak=True)

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        memory = self.backend.memory()
        return {"allocated_bytes.all.current": memory.allocated or 0, "allocated_bytes.all.peak": memory.peak or 0}

    def total_memory(self, device_index: int | None = None) -> int:
        return self.backend.memory().total or 0

    def available_memory(self, device_index: int | None = None) -> int:
        return self.total_memory() - self.memory_allocated()

    def _torch_pin_memory(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self.backend.pinned_memory() else tensor

    def _torch_empty_pinned(self, tensor: Tensor, shape: Any) -> Tensor:
        return tensor.new_empty(shape, pin_memory=self.backend.pinned_memory())

    # Profiler ranges and captured graphs: not needed by DeepSpeed's training
    range_push = range_pop = create_graph = replay_graph = _always(None)
    is_triton_supported = _always(False)

    def lazy_call(self, callback: Any) -> Any:
        return callback()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    # Tensors
    BFloat16Tensor = _tensor_of(torch.bfloat16)
    ByteTensor = _tensor_of(torch.uint8)
    DoubleTensor = _tensor_of(torch.float64)
    FloatTensor = _tensor_of(torch.float32)
    HalfTensor = _tensor_of(torch.float16)
    IntTensor = _tensor_of(torch.int32)
    LongTensor = _tensor_of(torch.int64)

    def on_accelerator(self, tensor: Tensor) -> bool:
        return tensor.device.type == self.backend.device_type

    # Compiled operations: those of the host serve every device; they are compiled at first use
    op_builder_dir = _always(host_ops.__name__)

    def get_op_builder(self, class_name: str) -> Any:
        return getattr(host_ops, class_name if class_name in _HOST_OPS else "NotImplementedBuilder")

    def build_extension(self) -> Any:
        from torch.utils.cpp_extension import BuildExtension  # noqa: PLC0415  needed only to compile

        return BuildExtension

    # The launcher's variables and torch.compile's backend
    def export_envs(self) -> list[str]:
        return []

    visible_devices_envs = export_envs
    set_visible_devices_envs = _always(None)

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        self._compile_backend = backend


def trust_other_ranks() -> None:
    """Leave out ZeRO-3's comparison of what ranks have gathered (PartitionedParameterCoordinator.reset_step)."""
    partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda _ints: None


class PlannedAccelerator(DeviceAccelerator):
    """The device of `Backend.device`: "cpu:1"; the host is "cpu"."""

    def device(self, device_index: int | str | None = None) -> torch.device:
        return self.backend.device(0)

    def current_device(self) -> int:
        return self.backend.device(0).index or 0

    def on_accelerator(self, tensor: Tensor) -> bool:
        return tensor.device == self.backend.device(0)
