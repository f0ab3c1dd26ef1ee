"""Substitutes for names that torch's module of a device lacks; `pretrain.plugins.device_module` is the list."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pretrain.plugins.backend import Backend


class HostStream:
    """Stream of a synchronous device: all earlier work is done. Methods as torch.Stream's."""

    cuda_stream = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        return event or HostEvent()

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *_error: object) -> None: ...


class HostEvent:
    """Event of a synchronous device: always completed."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

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

    @cached_property
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

    @cached_property
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

    @cached_property
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
