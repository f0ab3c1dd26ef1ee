"""NVIDIA GPUs as a device."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from pretrain.errors import BackendError
from pretrain.plugins.backend import Available, Backend, Figures, NamedDevice, PointToPoint, Unavailable
from pretrain_cuda import collectives, devices, environment, software
from pretrain_cuda.devices import AMPERE, BLACKWELL
from pretrain_cuda.profiler import NsightSystems

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.plugins.backend import Remark
    from pretrain.plugins.collective_record import CalledCollective
    from pretrain.recipe import Recipe

_HALF, _FP8 = (torch.float16, torch.bfloat16), (torch.float8_e4m3fn, torch.float8_e5m2)

CONTEXT = 512 * 2**20
"""Bytes of a CUDA context with torch's kernels: an assumption, in the middle of what nvidia-smi shows for a process
that has made one tensor."""

BUFFERS = 2 * 32 * 4 * 2**20
"""Bytes that NCCL takes for a communicator, assumed: NCCL_BUFFSIZE, 4 MiB, on each of at most 32 channels
(NCCL_MAX_NCHANNELS), for rings and for trees."""


class CudaBackend(Backend):
    """The GPUs that torch sees in this process."""

    name = "cuda"
    device_type = "cuda"
    process_group = "nccl"
    exported_variables = ("NCCL",)
    effective_variables = environment.EFFECTIVE
    forkable = True  # imports call no driver; torch refuses CUDA in a fork of a process that has initialized it

    def availability(self) -> Available | Unavailable:
        """Return the number of GPUs, or what is missing: torch's CUDA build, the driver or the devices."""
        if torch.version.cuda is None:
            return Unavailable(
                f"torch {torch.__version__} is built without CUDA",
                "Install a build with CUDA: pytorch.org/get-started.",
            )
        count = torch.cuda.device_count()  # by NVML: no context is opened
        if count:
            return Available(_described(count))
        if not software.has_driver():
            return Unavailable(
                "there is no NVIDIA driver (libcuda.so.1)", "Install it, or start the container with --gpus all."
            )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return Unavailable(f"CUDA_VISIBLE_DEVICES is '{visible}', which shows no device", "Unset or correct it.")
        return Unavailable(
            f"the driver shows no device to torch {torch.__version__} (CUDA {torch.version.cuda})",
            "Check with nvidia-smi that it lists one, and that the driver supports this version of CUDA.",
        )

    def device_count(self) -> int:
        """Return the number of GPUs that are visible here."""
        return torch.cuda.device_count()

    def prepare(self, recipe: Recipe) -> Mapping[str, str]:
        """Let collectives start before the kernels queued behind them; make cuBLAS deterministic on request.

        The rest is in `environment`.

        With one hardware queue the all-reduce of an input gradient starts before the weight gradient that hides it;
        Megatron-LM (validate_args in training/arguments.py) requires that up to Hopper, and Blackwell does not need it.
        """
        variables = environment.variables(os.environ)
        if recipe.parallel.tensor_model_parallel_size > 1 and not _newer_than_hopper():
            variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        if recipe.train.deterministic_mode:
            variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS, "Results reproducibility"
        return variables

    def device(self, local_rank: int) -> torch.device:
        """Make this rank's GPU the current one."""
        count = torch.cuda.device_count()
        if local_rank >= count:
            msg = (
                f"rank {local_rank} of this node has no GPU: {count} are visible.\n"
                f"Start at most {count} ranks on a node (--nproc), or make more visible (CUDA_VISIBLE_DEVICES)."
            )
            raise BackendError(msg)
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)

    def supports(self, dtype: torch.dtype) -> bool:
        """Return whether matmuls of a dtype are fast: bf16 from Ampere on."""
        return _supports(dtype, devices.architecture_of(""))

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """Return the datasheet's dense FLOP/s, or None for a GPU that is not in the table."""
        return _peak(self.device_name(), dtype)

    def figures(self) -> Figures:
        """Return the datasheet's figures; nothing for a GPU that is not in the table."""
        device = devices.find(self.device_name())
        if device is None:
            return Figures()
        return Figures(
            memory=device.memory,
            memory_bandwidth=device.memory_bandwidth,
            link_bandwidth=device.link,
            node_bandwidth=device.server and device.server.network,
            devices_per_node=device.server and device.server.gpus,
            context_memory=CONTEXT,
            group_memory=BUFFERS,
        )

    def point_to_point(self) -> PointToPoint:
        """NCCL keeps messages to one peer in order, also while kernels run; not tested on GPUs."""
        return PointToPoint(batched=True, overlapped=True)

    def device_name(self) -> str:
        """Return the current GPU's name."""
        return torch.cuda.get_device_name()

    def named(self, device_name: str) -> Backend:
        """Return the backend as it would answer on the GPU of that name."""
        if devices.find(device_name) is None:
            known = ", ".join(device.name.replace("|", ", ") for device in devices.TABLE)
            msg = f"backend 'cuda' knows no device '{device_name}'.\nIt knows names that contain one of: {known}."
            raise BackendError(msg)
        return _Named(device_name)

    def health(self) -> Sequence[Remark]:
        """Judge the driver, the libraries with kernels, and the current GPU, or all where none is current."""
        uuid = str(torch.cuda.get_device_properties().uuid) if torch.cuda.is_initialized() else ""  # type: ignore[no-untyped-call]
        return tuple(software.health(torch.version.cuda, uuid))

    def recent_collectives(self) -> Sequence[CalledCollective]:
        """Return what torch's recorders know of NCCL and of gloo."""
        found = list(super().recent_collectives())
        with suppress(Exception):  # whatever fails there, the host's collectives are known
            found += collectives.of_nccl()
        return found

    def profiler(self, folder: Path) -> NsightSystems:  # noqa: ARG002  nsys writes where its command line says
        """Return ranges and start for Nsight Systems."""
        return NsightSystems()

    def describe(self) -> Mapping[str, str]:
        """Return name, driver, and the versions of CUDA, cuDNN and NCCL."""
        return {
            "device": self.device_name(),
            "compute_capability": str(devices.architecture_of("")),
            "driver": software.cards()[0].driver if software.cards() else "not known",
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),  # type: ignore[no-untyped-call]
        }


class _Named(NamedDevice, CudaBackend):
    """A GPU that need not be present: answers that its name alone decides."""

    def supports(self, dtype: torch.dtype) -> bool:
        return _supports(dtype, devices.architecture_of(self.device_name()))

    def figures(self) -> Figures:
        full = devices.short_for(self.device_name())
        if full:
            many = len(full) > 1
            fits = "fits several devices with different memory or speed" if many else "is not a device's full name"
            msg = f"'{self.device_name()}' {fits}.\nName {'one of them' if many else 'it'} in full: {', '.join(full)}."
            raise BackendError(msg)
        return super().figures()


def _described(count: int) -> str:
    """Return number and name of the GPUs; no name for mixed ones, since nvidia-smi lists all of the machine."""
    cards = software.cards()
    names = {card.name for card in cards}
    if len(names) != 1:
        return f"{count} GPUs"
    return f"{count} x {cards[0].name}, driver {cards[0].driver}"


def _newer_than_hopper() -> bool:
    found = [devices.find(card.name) for card in software.cards()]
    return bool(found) and all(device is not None and device.architecture >= BLACKWELL for device in found)


def _supports(dtype: torch.dtype, architecture: devices.Architecture | None) -> bool:
    if dtype == torch.bfloat16:
        return architecture is not None and architecture >= AMPERE
    return dtype in (torch.float16, torch.float32, torch.float64)


def _peak(device_name: str, dtype: torch.dtype) -> float | None:
    device = devices.find(device_name)
    if device is None or (dtype == torch.bfloat16 and device.architecture < AMPERE):
        return None
    if dtype in _HALF:
        return device.half
    if dtype in _FP8:
        return device.fp8
    return device.single if dtype == torch.float32 else None
