"""Huawei's training chips: the family of a name, and the figures of each.

Names are those that torch.npu.get_device_name gives, compared whole. "Ascend910B" is a chip of the first generation;
those of the second one are called 910B1 to 910B4. From torch_npu/csrc/core/npu/NpuVariables.cpp.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import IntEnum

from pretrain.plugins.backend import Figures

TERA = 1e12
GIB = 2**30


class Family(IntEnum):
    """Generations of the chip, in their order: later ones have the kernels of the earlier ones."""

    FIRST = 1
    A2 = 2
    A3 = 3
    A5 = 5

    def __str__(self) -> str:
        return {Family.FIRST: "910A", Family.A2: "A2", Family.A3: "A3", Family.A5: "950"}[self]


@dataclass(frozen=True, slots=True)
class Device:
    """One chip, or one die where torch_npu shows each die as a device (A3).

    Attributes:
        name: as torch_npu gives it.
        family: its generation.
        peak: dense FLOP/s of fp16 matmuls, and of bf16 where the family has it; None where nothing is known.
        figures: of memory and connections; None in it where nothing is known.
    """

    name: str
    family: Family
    peak: float | None = None
    figures: Figures = field(default_factory=Figures)


# HCCL takes two buffers of HCCL_BUFFSIZE, 200 MB, for each communicator (CANN, environment variables). torch_npu's
# dropout keeps a bit of each element (op-plugin, _npu_dropout). A context's memory is not known.
_RUNTIME: dict[str, int] = {"group_memory": 2 * 200 * 2**20, "dropout_bits": 1}

# Four stacks of HBM, 1.2 TB/s, links of 240 Gb/s, ports of 100 Gb/s: Huawei's talk at Hot Chips 31 (Liao et al. 2019).
# One link and one port are counted: HCCS joins four of a node's eight chips, so that a ring over all of them passes
# PCIe, which is no faster; and a server wires one port of each chip.
_FIRST = Figures(
    memory=32 * GIB,
    memory_bandwidth=1.2 * TERA,
    link_bandwidth=30e9,
    node_bandwidth=12.5e9,
    devices_per_node=8,
    **_RUNTIME,
)

# HBM and HCCS: Huawei's performance model of serving (its hardware table, "Ascend_910b2" and "Ascend_910b3"): 1.6 TB/s,
# 196 GB/s in a node, which are 7 links of a full mesh at 28 GB/s. 8 NPUs with 64 GB in a node, RoCE at 200 Gb/s for
# each: Pangu Ultra (Yin et al. 2025, arXiv 2504.07866).
_A2 = Figures(
    memory=64 * GIB,
    memory_bandwidth=1.6 * TERA,
    link_bandwidth=196e9,
    node_bandwidth=25e9,
    devices_per_node=8,
    **_RUNTIME,
)

# The same table: 32 GB at 0.8 TB/s. It is sold in servers for inference, whose links differ.
_B4 = Figures(memory=32 * GIB, memory_bandwidth=0.8 * TERA, devices_per_node=8, **_RUNTIME)

# A die, half of a package: Zuo et al. 2025 on CloudMatrix384 (arXiv 2506.12708), with 128 GB, 3.2 TB/s, 392 GB/s to the
# node and RDMA at 400 Gb/s for each package, eight of which are in a node.
_A3 = Figures(
    memory=64 * GIB,
    memory_bandwidth=1.6 * TERA,
    link_bandwidth=196e9,
    node_bandwidth=25e9,
    devices_per_node=16,
    **_RUNTIME,
)

TABLE = (
    Device("Ascend910PremiumA", Family.FIRST),
    Device("Ascend910ProA", Family.FIRST),
    Device("Ascend910A", Family.FIRST, 256 * TERA, _FIRST),
    Device("Ascend910ProB", Family.FIRST),
    Device("Ascend910B", Family.FIRST),
    Device("Ascend910B1", Family.A2, 400 * TERA, _A2),
    Device("Ascend910B2", Family.A2, 376 * TERA, _A2),
    Device("Ascend910B2C", Family.A2),
    Device("Ascend910B3", Family.A2, 313 * TERA, _A2),
    Device("Ascend910B4", Family.A2, 280 * TERA, _B4),
    Device("Ascend910B4-1", Family.A2, 280 * TERA, Figures(memory=64 * GIB, devices_per_node=8, **_RUNTIME)),
    *(Device(f"Ascend910_{number}", Family.A3, figures=_A3) for number in (9391, 9381, 9372, 9363)),
    Device("Ascend910_9392", Family.A3, 400 * TERA, _A3),
    Device("Ascend910_9382", Family.A3, 376 * TERA, _A3),
    Device("Ascend910_9362", Family.A3, 280 * TERA, _A3),
)
"""Chips by name.

Peaks from A2 on are those in the names that Huawei's MindStudio gives servers by chip and memory (Ascend.SPECIFICATIONS
in its collection of a machine's state: "Atlas800T-A2-64G-313T" for 910B3); of A3 half, since a package has two dies.
Huawei's performance model of serving counts 6 % less for 910B2 and B3: the cores' own rate at 1.8 GHz.
"""

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
