"""The device of a plan: a second CPU with the planned backend's abilities."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias
from torch.overrides import TorchFunctionMode

from pretrain.plugins.backend import Available, Backend, Memory
from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.backend import PointToPoint

APART = torch.device("cpu", 1)
"""Place of fake tensors that are on a device with memory of its own; those on the host are on "cpu".

torch's autograd runs backward passes of fake tensors only on device types that it was built for. Fake tensors of two
CPUs are kept apart like those of host and device: mixing them is an error, and moving one is a copy.
"""


class PlannedDevice(Backend):
    """A second CPU with the abilities of the backend that is planned for (`Backend.named`)."""

    name = "plan"
    device_type = "cpu"
    process_group = "fake"

    def __init__(self, backend: Backend) -> None:
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
        """Return the datasheet's memory: DeepSpeed behaves differently if there is little."""
        return Memory(None, None, self._backend.figures().memory)

    def pinned_memory(self) -> bool:
        """Return False: fake tensors are in no memory, locked or not."""
        return False


_SHORTEST = 16  # A mask of bits is rounded up to a multiple of so many bytes: CANN's dropout uses 128 bits


class DeviceFunctions(TorchFunctionMode):
    """Replaces torch functions whose fake tensors differ on a CPU: `dropout`, which keeps more there, and `tensor`."""

    def __init__(self, device: torch.device, dropout_bits: int) -> None:
        super().__init__()
        self._device = device
        self._dropout = stand_in(partial(_dropped, dropout_bits))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function or its replacement."""
        options = kwargs or {}
        if func is F.dropout and _drops(*args, **options):
            return self._dropout(args[0])
        output = func(*args, **options)
        # It makes the tensor on the host, and between two CPUs it copies none.
        if func is torch.tensor and options.get("device") in {self._device, str(self._device)}:
            return output.to(self._device)
        return output


def _drops(_input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    return training and p > 0 and not inplace


def _dropped(bits: int, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    size = x.numel() * bits // 8
    mask = torch.empty(-(-size // _SHORTEST) * _SHORTEST, dtype=torch.uint8, device=x.device)
    return torch.empty_like(x), [mask]
