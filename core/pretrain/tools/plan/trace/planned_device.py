"""The device of a plan: answers of the planned backend, on fake tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.backend import Available, Backend, Memory

if TYPE_CHECKING:
    from pretrain.plugins.backend import PointToPoint

APART = torch.device("cpu", 1)
"""Place of fake tensors that are on a device with memory of its own; those on the host are on "cpu".

torch's autograd runs backward passes of fake tensors only on device types that it was built for. Fake tensors of two
CPUs are kept apart like those of host and device: mixing them is an error, and moving one is a copy.
"""


class PlannedDevice(Backend):
    """A second CPU with the abilities of the backend that is planned for."""

    name = "plan"
    device_type = "cpu"
    process_group = "fake"

    def __init__(self, backend: Backend) -> None:
        """Take the backend, as `Backend.named` gave it, whose device need not be there."""
        self._backend = backend

    def availability(self) -> Available:
        """Return Available."""
        return Available()

    def device(self, local_rank: int) -> torch.device:  # noqa: ARG002  every rank is planned by itself
        """Return the place of fake tensors; the host's, if the device is the host."""
        return torch.device("cpu") if self._backend.device_type == "cpu" else APART

    def supports(self, dtype: torch.dtype) -> bool:
        """Return the backend's answer."""
        return self._backend.supports(dtype)

    def supports_reduction(self, dtype: torch.dtype) -> bool:
        """Return the backend's answer."""
        return self._backend.supports_reduction(dtype)

    def point_to_point(self) -> PointToPoint:
        """Return the backend's answer."""
        return self._backend.point_to_point()

    def memory(self, *, reset_peak: bool = False) -> Memory:  # noqa: ARG002  nothing is measured
        """Return the datasheet's memory: with too little DeepSpeed goes another way. What is in use is not counted."""
        return Memory(None, None, self._backend.figures().memory)

    def pinned_memory(self) -> bool:
        """Return False: fake tensors are in no memory, locked or not."""
        return False
