"""Huawei's training chips: the family of a name, and the FLOP/s of each.

Names are those that torch.npu.get_device_name gives, compared whole. "Ascend910B" is a chip of the first generation;
those of the second one are called 910B1 to 910B4. From torch_npu/csrc/core/npu/NpuVariables.cpp.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import IntEnum, StrEnum

TERA = 1e12


class Family(IntEnum):
    """Generations of the chip, in their order: later ones have the kernels of the earlier ones."""

    FIRST = 1
    A2 = 2
    A3 = 3
    A5 = 5

    def __str__(self) -> str:
        return {Family.FIRST: "910A", Family.A2: "A2", Family.A3: "A3", Family.A5: "950"}[self]


class Source(StrEnum):
    """Source of a figure."""

    VENDOR = "Huawei's own figure"
    SECONDARY = "quoted by others; no datasheet was seen"


@dataclass(frozen=True, slots=True)
class Peak:
    """Dense FLOP/s of fp16 and bf16 matmuls, and the source of the figure."""

    half: float
    source: Source


@dataclass(frozen=True, slots=True)
class Device:
    """One chip, or one die where torch_npu shows each die as a device (A3).

    Attributes:
        name: as torch_npu gives it.
        family: its generation.
        peak: None where nothing is known.
    """

    name: str
    family: Family
    peak: Peak | None = None


TABLE = (
    Device("Ascend910PremiumA", Family.FIRST),
    Device("Ascend910ProA", Family.FIRST),
    Device("Ascend910A", Family.FIRST, Peak(256 * TERA, Source.VENDOR)),
    Device("Ascend910ProB", Family.FIRST),
    Device("Ascend910B", Family.FIRST),
    Device("Ascend910B1", Family.A2),
    Device("Ascend910B2", Family.A2, Peak(376 * TERA, Source.SECONDARY)),
    Device("Ascend910B2C", Family.A2),
    Device("Ascend910B3", Family.A2, Peak(313 * TERA, Source.SECONDARY)),
    Device("Ascend910B4", Family.A2, Peak(280 * TERA, Source.SECONDARY)),
    Device("Ascend910B4-1", Family.A2),
    *(Device(f"Ascend910_{number}", Family.A3) for number in (9391, 9392, 9381, 9382, 9372, 9362, 9363)),
)
"""Chips by name. No peak where quoted figures differ (910B1, A3). A2's bf16 is as fast as its fp16."""

NEWEST = "Ascend950"
"""Prefix of the names of a family with many members."""


def find(name: str) -> Device | None:
    """Return the chip of that name, or None."""
    listed = next((device for device in TABLE if device.name == name), None)
    return Device(name, Family.A5) if listed is None and name.startswith(NEWEST) else listed


def family_of(name: str) -> Family | None:
    """Return the family of the device that a request names; "": the device here. None: not known."""
    device = find(name or here())
    return None if device is None else device.family


def multiplies_fp32(family: Family) -> bool:
    """Return whether fp32 matmuls are computed in fp32: from A2 on.

    Before, the cube unit has fp16 alone: torch_npu's SetPrecisionMode (LazyInitAclops.cpp) has compiled operators cast
    to it there ("allow_fp32_to_fp16"), and so do aclnnMm and its siblings, says their documentation of cubeMathType.
    """
    return family >= Family.A2


def here() -> str:
    """Return the name of this process's device, "" where torch_npu is not loaded or shows none."""
    if "torch_npu" not in sys.modules:
        return ""
    import torch  # noqa: PLC0415  the table is read without it

    module = torch.get_device_module("npu")
    return str(module.get_device_name()) if module.is_available() else ""
