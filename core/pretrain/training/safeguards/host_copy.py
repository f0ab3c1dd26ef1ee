"""Copies of numbers from the device to the host that no step waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

_PLACES = 4
"""Copies that can be on their way at a time."""


class HostCopies:
    """Fp32 scalars on their way to the host: a copy and an event behind it, in page-locked memory if there is any."""

    def __init__(self, device: torch.device, *, pin_memory: bool) -> None:
        self._device = device
        self._places = torch.zeros(_PLACES, pin_memory=pin_memory and device.type != "cpu")
        self._next = 0

    def start(self, value: Tensor) -> HostCopy:
        """Begin to copy a scalar; the host goes on."""
        if self._device.type == "cpu":
            return HostCopy(value.detach(), None)
        module = torch.get_device_module(self._device)
        if not hasattr(module, "Event"):
            return HostCopy(value.detach().cpu(), None)
        place = self._places[self._next]
        self._next = (self._next + 1) % _PLACES
        place.copy_(value.detach(), non_blocking=True)
        event = module.Event()
        event.record()
        return HostCopy(place, event)


class HostCopy:
    """One scalar on its way."""

    def __init__(self, place: Tensor, event: Any | None) -> None:
        self._place, self._event = place, event

    def value(self) -> float:
        """Return the number, and wait until it is there; work that was given to the device later is not waited for."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._place.item())
