"""Mixin for the result of `Backend.named`: a device that is known by its name and need not be present."""

from __future__ import annotations

from pretrain.plugins.backend import Available


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
        return Available(f"{self._device_name}, named and not searched for")

    def device_name(self) -> str:
        """Return the name as it was given."""
        return self._device_name
