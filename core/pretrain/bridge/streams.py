"""Streams and events for a device whose torch module has none."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


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
