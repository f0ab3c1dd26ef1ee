"""DeepSpeed's accelerator for a plan, whose fake tensors are on a second CPU. Import this after deepspeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepspeed.runtime.zero import partitioned_param_coordinator

from pretrain.bridge.deepspeed.accelerator import DeviceAccelerator

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def trust_other_ranks() -> None:
    """Leave out a check of ZeRO-3, which reads what all ranks have gathered; in a plan they are equal.

    `assert_ints_same_as_other_ranks` in PartitionedParameterCoordinator.reset_step.
    """
    partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda _ints: None


class PlannedAccelerator(DeviceAccelerator):
    """The device of `Backend.device`: "cpu:1"; the host is "cpu"."""

    def device(self, device_index: int | str | None = None) -> torch.device:  # noqa: ARG002  there is one
        """Return the device."""
        return self.backend.device(0)

    def current_device(self) -> int:
        """Return the index of the device."""
        return self.backend.device(0).index or 0

    def on_accelerator(self, tensor: Tensor) -> bool:
        """Return whether a tensor is on the device, not on the host."""
        return tensor.device == self.backend.device(0)
