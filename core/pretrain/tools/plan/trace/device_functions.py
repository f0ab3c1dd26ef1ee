"""Functions of torch whose fake tensors would be those of a CPU: `dropout`, which keeps more there, and `tensor`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias
from torch.overrides import TorchFunctionMode

from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from torch import Tensor

_SHORTEST = 16
"""Bytes to a multiple of which a mask of bits is rounded: that of CANN's dropout, 128 bits."""


class DeviceFunctions(TorchFunctionMode):
    """A mode for a device with memory of its own."""

    def __init__(self, device: torch.device, dropout_bits: int) -> None:
        """Make it.

        Args:
            device: of the plan.
            dropout_bits: as `Figures.dropout_bits`.
        """
        super().__init__()
        self._device = device
        self._dropout = stand_in(partial(_dropped, dropout_bits))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, or what takes its place."""
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
