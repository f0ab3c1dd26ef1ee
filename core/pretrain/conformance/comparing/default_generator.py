"""The device's default generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from pretrain.conformance.subject import Subject


def generator_of(subject: Subject) -> Any:
    """Return the module with get_rng_state, set_rng_state and manual_seed of the device; fail where it lacks one."""
    device_type = subject.plugins.backend.device_type
    if device_type == "cpu":
        return torch  # torch.cpu has none
    module = torch.get_device_module(device_type)
    missing = [name for name in ("get_rng_state", "set_rng_state", "manual_seed") if not hasattr(module, name)]
    if missing:
        pytest.fail(f"torch.{device_type} has no {', '.join(missing)}")
    return module
