"""Names of torch.cuda in megatron-core, and their meaning on another device: its own, or a substitute.

`pretrain.plugins.device_module` lists what torch's module of a device may lack.
"""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pretrain.plugins.backend import Backend


def _nothing(*_args: Any, **_kwargs: Any) -> None: ...


class HostStream:
    """Stream of a synchronous device: all earlier work is done. Methods as torch.Stream's."""

    cuda_stream = 0
    wait_stream = wait_event = synchronize = __exit__ = _nothing

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        return event or HostEvent()

    def __enter__(self) -> HostStream:
        return self


class HostEvent:
    """Event of a synchronous device: always completed."""

    record = wait = synchronize = _nothing

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def query(self) -> bool:
        return True


class TorchStreams:
    """torch's generic streams, available if the device's guard (c10::impl::DeviceGuardImplInterface) makes them."""

    def __init__(self, device_type: str) -> None:
        self._type = device_type

    @property
    def are_supported(self) -> bool:
        """True if the guard makes a stream; read it when the device is the current one."""
        try:
            self.Stream()
        except (RuntimeError, NotImplementedError):
            return False
        return True

    def Stream(self, device: Any = None, **options: Any) -> torch.Stream:
        place = torch.device(self._type) if device is None else torch.device(device)
        return torch.Stream(device=place, **options)

    def Event(self, **options: Any) -> torch.Event:
        return torch.Event(device=torch.device(self._type), **options)

    def current_stream(self, device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(device)

    @staticmethod
    def stream(stream: Any) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if stream is None else stream


class Generators:
    """Substitute for `torch.cuda.default_generators`, indexed by a device, a number or None."""

    def __init__(self, default: Callable[[], Any]) -> None:
        self._default = default

    def __getitem__(self, index: object) -> Any:
        return self._default()


class DefaultGenerator:
    """Default generator of a device whose module gives access only to its state."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def get_state(self) -> torch.Tensor:
        state: torch.Tensor = self._module.get_rng_state(self._module.current_device())
        return state

    def set_state(self, state: torch.Tensor) -> None:
        self._module.set_rng_state(state, self._module.current_device())

    def manual_seed(self, seed: int) -> None:
        self._module.manual_seed(seed)


def tensor_class(device_type: str, dtype: torch.dtype) -> type:
    """Return a class whose instances are the device's tensors of a dtype: `torch.cuda.HalfTensor`."""

    class OfDevice(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor) and value.dtype == dtype and value.device.type == device_type

    return OfDevice("Tensor", (), {})


class Substitutes:
    """Substitutes by name; used only for names that the device's module lacks."""

    def __init__(self, backend: Backend, module: ModuleType) -> None:
        self._backend = backend
        self._module = module
        kind = backend.device_type
        self.FloatTensor = tensor_class(kind, torch.float32)
        self.HalfTensor = tensor_class(kind, torch.float16)
        self.BFloat16Tensor = tensor_class(kind, torch.bfloat16)

    @functools.cached_property
    def _streams(self) -> TorchStreams | None:
        """Torch's generic streams, or None for a synchronous device."""
        streams = TorchStreams(self._backend.device_type)
        return streams if streams.are_supported else None

    @property
    def has_streams(self) -> bool:
        return hasattr(self._module, "Stream") or self._streams is not None

    @property
    def Stream(self) -> Any:
        return self._streams.Stream if self._streams else HostStream

    @property
    def Event(self) -> Any:
        return self._streams.Event if self._streams else HostEvent

    @property
    def current_stream(self) -> Any:
        return self._streams.current_stream if self._streams else HostStream

    @functools.cached_property
    def default_stream(self) -> Any:
        first = getattr(self._module, "current_stream", self.current_stream)()
        return lambda device=None: first  # noqa: ARG005  the signature of torch.cuda's

    @property
    def stream(self) -> Any:
        return TorchStreams.stream

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before = self._module.current_device()
        self._module.set_device(before if device is None else device)
        try:
            yield
        finally:
            self._module.set_device(before)

    @staticmethod
    def synchronize(device: Any = None) -> None:
        torch.accelerator.synchronize(device)

    @functools.cached_property
    def default_generators(self) -> Generators:
        return Generators(lambda: DefaultGenerator(self._module))

    @staticmethod
    def empty_cache() -> None: ...

    @staticmethod
    def is_current_stream_capturing() -> bool:
        return False

    def memory_allocated(self, _device: Any = None) -> int:
        return self._backend.memory().allocated or 0

    def max_memory_allocated(self, _device: Any = None) -> int:
        return self._backend.memory().peak or 0

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, _device: Any = None) -> None:
        self._backend.memory(reset_peak=True)


class DeviceNames:
    """Replacement of `torch.cuda` in translated modules: the device's own names, or substitutes."""

    def __init__(self, backend: Backend) -> None:
        """Collect the names; touches no device."""
        self.type = self.device_type = backend.device_type
        self._module = torch.get_device_module(self.type)
        self.is_available = _false  # megatron-core's check for CUDA, never for "the device"
        self.device_count = lambda: backend.device_count() or 1
        self._lazy_call = lambda function, **_kwargs: function()
        self._lazy_init = _nothing
        self.amp = SimpleNamespace(  # decorators of custom autograd functions
            custom_fwd=functools.partial(torch.amp.custom_fwd, device_type=self.type),
            custom_bwd=functools.partial(torch.amp.custom_bwd, device_type=self.type),
        )
        self.compile = as_is  # fused kernels are negotiated; torch.compile's imports take two seconds
        self.nvtx = SimpleNamespace(range_push=_nothing, range_pop=_nothing)  # ranges for NVIDIA's profiler
        self.random = self  # torch.cuda.random.get_rng_state
        self.OutOfMemoryError = torch.OutOfMemoryError  # whatever the device
        self.CUDAGraph = getattr(self._module, "CUDAGraph", object)  # never captured
        if self.type == "cpu":
            self._fill_in_host()
            return
        self._substitutes = Substitutes(backend, self._module)
        if hasattr(self._module, "default_generators"):
            self.default_generators = Generators(lambda: self._module.default_generators[self._module.current_device()])

    @property
    def has_streams(self) -> bool:
        """True if the device is asynchronous; otherwise every call has completed when it returns."""
        return self.type != "cpu" and self._substitutes.has_streams

    def _fill_in_host(self) -> None:
        self.current_device = functools.partial(torch.device, "cpu")  # an index would mean the accelerator's
        self.set_device = _nothing
        self.synchronize = _nothing
        self.empty_cache = _nothing
        self.Stream = HostStream
        self.Event = HostEvent
        self.current_stream = HostStream
        self.default_stream = HostStream
        self.stream = contextlib.nullcontext
        self.device = contextlib.nullcontext
        self.manual_seed = torch.manual_seed
        self.get_rng_state = lambda device=None: torch.get_rng_state()  # noqa: ARG005  torch.cuda's signatures
        self.set_rng_state = lambda state, device=None: torch.set_rng_state(state)  # noqa: ARG005
        self.default_generators = Generators(lambda: torch.default_generator)
        self.is_current_stream_capturing = _false
        self.FloatTensor = torch.FloatTensor
        self.HalfTensor = torch.HalfTensor
        self.BFloat16Tensor = torch.BFloat16Tensor
        self.memory_allocated = self.max_memory_allocated = self.memory_reserved = _zero

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of torch's module of the device (torch.npu, torch.xpu, ...), or its substitute."""
        if name.startswith("__"):
            raise AttributeError(name)  # while an object is copied or unpickled, before it has `_module`
        for source in (self._module, self.__dict__.get("_substitutes")):
            if hasattr(source, name):
                return getattr(source, name)
        msg = f"megatron-core uses torch.cuda.{name}, which neither torch.{self.type} nor the bridge has"
        raise AttributeError(msg)

    def type_name(self, name: str) -> str:
        """Return the result of `tensor.type()` on the device for the CUDA tensor class of that name."""
        return f"torch.{name}" if self.type == "cpu" else f"torch.{self.type}.{name}"

    def move(self, thing: Any, device: Any = None, **kwargs: Any) -> Any:
        """Return the tensor or module on the device: `thing.cuda(...)`."""
        return thing.to(self.current_device() if device is None else device, **kwargs)

    def holds(self, tensor: Any) -> bool:
        """Return whether the tensor is on the device: `tensor.is_cuda`."""
        return bool(tensor.device.type == self.type)


class PlannedNames(DeviceNames):
    """Names for a plan, whose device is a second CPU, so that fake tensors on it differ from those on the host."""

    def __init__(self, backend: Backend) -> None:
        """Collect the names."""
        super().__init__(backend)
        self._device = backend.device(0)
        self.type = str(self._device)  # where megatron-core writes device="cuda"
        self.current_device = functools.partial(backend.device, 0)

    def type_name(self, name: str) -> str:
        """Return what `tensor.type()` gives for a CPU's tensors."""
        return f"torch.{name}"

    def holds(self, tensor: Any) -> bool:
        """Return whether the tensor is on the device, not on the host."""
        return bool(tensor.device == self._device)


def as_is(function: Any = None, **_kwargs: object) -> Any:
    """Return the function, in place of torch.compile, which is also called with options alone."""
    return as_is if function is None else function


def _false(*_args: object) -> bool:
    return False


def _zero(*_args: object) -> int:
    return 0
