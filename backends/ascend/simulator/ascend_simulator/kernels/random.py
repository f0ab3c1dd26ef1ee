"""Random masks from the NPU's generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

NUMBERS_A_CALL = 4


def draw() -> tuple[int, int]:
    """Return the generator's seed and offset, and advance the offset as torch_npu's kernels do."""
    generator = torch.npu.default_generators[torch.npu.current_device()]
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + NUMBERS_A_CALL)
    return seed, offset


def kept(shape: tuple[int, ...], probability: float, seed: int, offset: int) -> Tensor:
    """Return bool, each True with the probability; the same for the same seed and offset, also in the backward pass."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (offset + 1) * 0xC2B2AE3D27D4EB4F) % 2**63
    return torch.rand(shape, generator=torch.Generator().manual_seed(mixed)) < probability
