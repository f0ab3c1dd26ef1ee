"""NVIDIA's training GPUs: architecture and dense matrix FLOP/s, from NVIDIA's datasheets.

Peaks are those without sparsity at boost clock, for tensor cores with fp32 accumulation; NVIDIA prints the double for
"with sparsity". A name that is not here has no peak, so MFU is not reported rather than guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

TERA = 1e12


class Architecture(NamedTuple):
    """CUDA's compute capability, such as 9.0 of Hopper."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


AMPERE = Architecture(8, 0)
HOPPER = Architecture(9, 0)
BLACKWELL = Architecture(10, 0)


@dataclass(frozen=True, slots=True)
class Device:
    """Figures of one GPU model, from its datasheet.

    Attributes:
        name: pattern of the name as the driver gives it.
        architecture: compute capability.
        half: dense FLOP/s in fp16 and bf16; None where the model's variants differ.
        single: dense FLOP/s in fp32 outside of tensor cores: torch multiplies fp32 without TF32 by default.
    """

    name: str
    architecture: Architecture
    half: float | None
    single: float | None


TABLE = (
    Device(r"V100-SXM", Architecture(7, 0), 125 * TERA, 15.7 * TERA),
    Device(r"V100-PCIE", Architecture(7, 0), 112 * TERA, 14 * TERA),
    Device(r"A100", AMPERE, 312 * TERA, 19.5 * TERA),
    Device(r"A800", AMPERE, 312 * TERA, 19.5 * TERA),
    Device(r"H100 PCIe", HOPPER, 756 * TERA, 51 * TERA),
    Device(r"H100 NVL", HOPPER, 835 * TERA, 60 * TERA),
    Device(r"H100|H800|GH200", HOPPER, 989.4 * TERA, 67 * TERA),
    Device(r"H200 NVL", HOPPER, 835 * TERA, 60 * TERA),
    Device(r"H200", HOPPER, 989.4 * TERA, 67 * TERA),
    # Per GPU of NVIDIA's GB200 NVL72, 360 PFLOPS with sparsity for 72 of them; of its HGX B200, 36 for 8.
    Device(r"GB200", BLACKWELL, 2500 * TERA, 80 * TERA),
    Device(r"B200", BLACKWELL, 2250 * TERA, 75 * TERA),
)


def find(name: str) -> Device | None:
    """Return the GPU model of that name, or None."""
    return next((device for device in TABLE if re.search(rf"\b(?:{device.name})", name)), None)


def architecture_of(name: str) -> Architecture | None:
    """Return the architecture of the device that a request names; "": the device here. None: not known."""
    here = _here()
    if here is not None and name in {"", here[0]}:
        return here[1]
    device = find(name)
    return None if device is None else device.architecture


def _here() -> tuple[str, Architecture] | None:
    import torch  # noqa: PLC0415  the table is read without it

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name(), Architecture(*torch.cuda.get_device_capability())
