"""NVIDIA's training GPUs: architecture, dense matrix FLOP/s, memory and links, from NVIDIA's datasheets.

Peaks are those without sparsity at boost clock, for tensor cores with fp32 accumulation; NVIDIA prints the double for
"with sparsity". A name that is not here has no peak, so MFU is not reported rather than guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from pretrain.plugins.offer import Absent

TERA, GIGA, GIB = 1e12, 1e9, 2**30
GIGABIT = GIGA / 8
"""Bytes; networks are named by bits."""


class Architecture(NamedTuple):
    """CUDA's compute capability, such as 9.0 of Hopper."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


VOLTA = Architecture(7, 0)
AMPERE = Architecture(8, 0)
ADA = Architecture(8, 9)
HOPPER = Architecture(9, 0)
BLACKWELL = Architecture(10, 0)


class Server(NamedTuple):
    """A server: GPUs, and bytes/s that each of them has to the network in one direction."""

    gpus: int
    network: float


@dataclass(frozen=True, slots=True)
class Device:
    """Figures of one GPU model, from its datasheet; None where its variants differ, or NVIDIA gives none.

    Attributes:
        name: pattern of the name as the driver gives it.
        architecture: compute capability.
        half: dense FLOP/s in fp16 and bf16.
        single: dense FLOP/s in fp32 outside of tensor cores: torch multiplies fp32 without TF32 by default.
        multiprocessors: how many there are.
        memory: bytes. NVIDIA's GB of memory are GiB: nvidia-smi shows 81559 MiB of an H100 with 80 GB.
        memory_bandwidth: bytes/s.
        link: bytes/s to the other GPUs of the server, half of NVLink's datasheet figure, which adds both directions;
            of cards for a PCIe slot that of PCIe, since their NVLink bridge joins two or four.
        server: NVIDIA's own server with this GPU.
    """

    name: str
    architecture: Architecture
    half: float | None
    single: float | None
    multiprocessors: int | None = None
    memory: int | None = None
    memory_bandwidth: float | None = None
    link: float | None = None
    server: Server | None = None

    @property
    def fp8(self) -> float | None:
        """Dense FLOP/s in fp8: twice those in half precision, in every datasheet since NVIDIA's GPUs multiply in it."""
        return None if self.half is None or self.architecture < ADA else 2 * self.half


# Datasheets of DGX-1 and DGX-2 (EDR InfiniBand, 4 ports for 8 GPUs and 8 for 16), DGX A100 (a 200 Gb/s port each), and
# of DGX H100, H200, B200 and GB200 (400 Gb/s each). The 72 GPUs of a GB200 NVL72 share one NVLink.
_DGX_1, _DGX_2 = Server(8, 4 * 100 * GIGABIT / 8), Server(16, 8 * 100 * GIGABIT / 16)
_DGX_A100, _DGX, _NVL72 = Server(8, 200 * GIGABIT), Server(8, 400 * GIGABIT), Server(72, 400 * GIGABIT)
_PCIE_3, _PCIE_4, _PCIE_5 = 16 * GIGA, 32 * GIGA, 64 * GIGA

TABLE = (
    Device(r"V100-SXM2-16GB", VOLTA, 125 * TERA, 15.7 * TERA, 80, 16 * GIB, 900 * GIGA, 150 * GIGA, _DGX_1),
    Device(r"V100-SXM2-32GB", VOLTA, 125 * TERA, 15.7 * TERA, 80, 32 * GIB, 900 * GIGA, 150 * GIGA, _DGX_1),
    Device(r"V100-SXM3-32GB", VOLTA, 125 * TERA, 15.7 * TERA, 80, 32 * GIB, 900 * GIGA, 150 * GIGA, _DGX_2),
    Device(r"V100-SXM", VOLTA, 125 * TERA, 15.7 * TERA, 80),
    Device(r"V100-PCIE-16GB", VOLTA, 112 * TERA, 14 * TERA, 80, 16 * GIB, 900 * GIGA, _PCIE_3),
    Device(r"V100-PCIE-32GB", VOLTA, 112 * TERA, 14 * TERA, 80, 32 * GIB, 900 * GIGA, _PCIE_3),
    Device(r"V100-PCIE", VOLTA, 112 * TERA, 14 * TERA, 80),
    Device(r"A100-SXM4-40GB", AMPERE, 312 * TERA, 19.5 * TERA, 108, 40 * GIB, 1555 * GIGA, 300 * GIGA, _DGX_A100),
    Device(r"A100-SXM4-80GB", AMPERE, 312 * TERA, 19.5 * TERA, 108, 80 * GIB, 2039 * GIGA, 300 * GIGA, _DGX_A100),
    Device(r"A100-PCIE-40GB", AMPERE, 312 * TERA, 19.5 * TERA, 108, 40 * GIB, 1555 * GIGA, _PCIE_4),
    Device(r"A100 80GB PCIe", AMPERE, 312 * TERA, 19.5 * TERA, 108, 80 * GIB, 1935 * GIGA, _PCIE_4),
    Device(r"A100", AMPERE, 312 * TERA, 19.5 * TERA),
    Device(r"A800-SXM4-80GB", AMPERE, 312 * TERA, 19.5 * TERA, 108, 80 * GIB, 2039 * GIGA, 200 * GIGA),
    Device(r"A800 80GB PCIe", AMPERE, 312 * TERA, 19.5 * TERA, 108, 80 * GIB, 1935 * GIGA, _PCIE_4),
    Device(r"A800", AMPERE, 312 * TERA, 19.5 * TERA),
    Device(r"H100 PCIe", HOPPER, 756 * TERA, 51 * TERA, 114, 80 * GIB, 2000 * GIGA, _PCIE_5),
    Device(r"H100 NVL", HOPPER, 835 * TERA, 60 * TERA, 132, 94 * GIB, 3900 * GIGA, _PCIE_5),
    Device(r"H100 80GB HBM3", HOPPER, 989.4 * TERA, 67 * TERA, 132, 80 * GIB, 3350 * GIGA, 450 * GIGA, _DGX),
    Device(r"H800 PCIe", HOPPER, 756 * TERA, 51 * TERA, 114, 80 * GIB, 2000 * GIGA, _PCIE_5),
    Device(r"H800", HOPPER, 989.4 * TERA, 67 * TERA, 132, 80 * GIB, 3350 * GIGA, 200 * GIGA),
    Device(r"GH200 480GB", HOPPER, 989.4 * TERA, 67 * TERA, 132, 96 * GIB, 4000 * GIGA),
    Device(r"GH200 144G HBM3e", HOPPER, 989.4 * TERA, 67 * TERA, 132, 144 * GIB, 4900 * GIGA),
    Device(r"H100|GH200", HOPPER, 989.4 * TERA, 67 * TERA),
    Device(r"H200 NVL", HOPPER, 835 * TERA, 60 * TERA, 132, 141 * GIB, 4800 * GIGA, _PCIE_5),
    Device(r"H200", HOPPER, 989.4 * TERA, 67 * TERA, 132, 141 * GIB, 4800 * GIGA, 450 * GIGA, _DGX),
    # Per GPU of NVIDIA's GB200 NVL72, 360 PFLOPS with sparsity for 72 of them; of its HGX B200, 36 for 8.
    Device(r"GB200", BLACKWELL, 2500 * TERA, 80 * TERA, 148, 186 * GIB, 8000 * GIGA, 900 * GIGA, _NVL72),
    Device(r"B200", BLACKWELL, 2250 * TERA, 75 * TERA, 148, 180 * GIB, 8000 * GIGA, 900 * GIGA, _DGX),
)


def find(name: str) -> Device | None:
    """Return the GPU model of that name, or None."""
    return next((device for device in TABLE if re.search(rf"\b(?:{device.name})", name)), None)


def short_for(name: str) -> list[str]:
    """Return the names of the GPU models that a short name ("A100") may mean; none of a name with figures."""
    device = find(name)
    if device is None or device.memory is not None:
        return []
    short = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    return [each.name for each in TABLE if each.name.startswith(short) and each.memory is not None]


def architecture_of(name: str) -> Architecture | None:
    """Return the architecture of the device that a request names; "": the device here. None: not known."""
    here = _here()
    if here is not None and name in {"", here[0]}:
        return here[1]
    device = find(name)
    return None if device is None else device.architecture


def architecture_not_known(name: str) -> Absent:
    """Return the reason of a kernel that needs to know the architecture of a request's device, and does not."""
    where = f"'{name}'" if name else "a device that was not named"
    return Absent(f"the compute capability of {where} is not known")


def multiprocessors_of(name: str) -> int:
    """Return the number of multiprocessors of the device that a request names; "": the device here. 0: not known."""
    device = find(name)
    if device is not None and device.multiprocessors is not None:
        return device.multiprocessors
    here = _here()
    if here is None or name not in {"", here[0]}:
        return 0
    import torch  # noqa: PLC0415  the table is read without it

    return int(torch.cuda.get_device_properties().multi_processor_count)


def _here() -> tuple[str, Architecture] | None:
    import torch  # noqa: PLC0415  the table is read without it

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name(), Architecture(*torch.cuda.get_device_capability())
