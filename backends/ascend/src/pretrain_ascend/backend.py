"""Ascend NPUs as a device."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from pretrain.errors import BackendError
from pretrain.plugins.backend import Available, Backend, Figures, NamedDevice, PointToPoint, Unavailable
from pretrain_ascend import collectives, devices, environment, software
from pretrain_ascend.devices import Family
from pretrain_ascend.environment import VISIBLE
from pretrain_ascend.kernels.float_status import FloatStatus
from pretrain_ascend.profiler import Msprof

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.plugins.backend import Overflow, Remark
    from pretrain.plugins.collective_record import CalledCollective
    from pretrain.recipe import Recipe

PEAK = "PRETRAIN_ASCEND_PEAK_TFLOPS"
"""Dense TFLOP/s in fp16 and bf16 as the user gives them; they come before the table."""

_HALF = (torch.float16, torch.bfloat16)


class AscendBackend(Backend):
    """The NPUs that torch_npu sees in this process."""

    name = "ascend"
    device_type = "npu"
    process_group = "hccl"
    exported_variables = environment.EXPORTED
    own_variables = environment.OWN
    effective_variables = environment.EFFECTIVE
    forkable = False  # whether a fork of a process that has imported torch_npu can open an NPU was not tried

    def availability(self) -> Available | Unavailable:
        """Return the number of NPUs, or what is missing: torch_npu, CANN or the devices."""
        lack = software.missing()
        if lack is not None:
            return Unavailable(*lack)
        count = self.device_count()
        if count:
            cann = software.cann()
            detail = f"{count} NPUs, {software.provider()}, CANN {cann or 'of an unknown version'}"
            warning = software.unpaired(cann, software.version())
            return Available(f"{detail}\nwarning: {warning}" if warning else detail)
        visible = os.environ.get(VISIBLE)
        if visible is not None:
            return Unavailable(f"{VISIBLE} is '{visible}', which shows no device", "Unset or correct it.")
        return Unavailable(
            f"the driver shows no NPU to {software.provider()}", "Check with npu-smi info that it lists one."
        )

    def device_count(self) -> int:
        """Return the number of NPUs that are visible here."""
        return int(_npu().device_count())

    def prepare(self, recipe: Recipe) -> Mapping[str, str]:
        """Return timeouts of HCCL, settings of memory and dispatch, and deterministic ones on request."""
        return environment.variables(recipe, os.environ)

    def device(self, local_rank: int) -> torch.device:
        """Make this rank's NPU the current one; tensors keep torch's own layout on it."""
        count = self.device_count()
        if local_rank >= count:
            msg = (
                f"rank {local_rank} of this node has no NPU: {count} are visible.\n"
                f"Start at most {count} ranks on a node (--nproc), or make more visible ({VISIBLE})."
            )
            raise BackendError(msg)
        _npu().config.allow_internal_format = False  # older releases store weights in a private layout
        _npu().set_device(local_rank)
        return torch.device("npu", local_rank)

    def supports(self, dtype: torch.dtype) -> bool:
        """Return whether there are matmuls of a dtype: bf16 and fp32 from A2 on, fp64 nowhere."""
        return _supports(dtype, devices.family_of(""))

    def supports_reduction(self, dtype: torch.dtype) -> bool:
        """Return False for float64, which HCCL refuses."""
        return dtype != torch.float64

    def compilation(self) -> Unavailable:
        """Return that there is none: torch_npu's inductor and triton-ascend were not tried."""
        return Unavailable(
            "torch's inductor generates no kernels for an NPU; torch_npu's needs triton-ascend, not tried yet"
        )

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """Return Huawei's own figure, or the one that the user gives; None where nothing is known."""
        if dtype not in _HALF:
            return None
        device = devices.find(self.device_name())
        if dtype == torch.bfloat16 and (device is None or device.family is Family.FIRST):
            return None
        given = os.environ.get(PEAK)
        if given is not None:
            return _teraflops(given)
        return None if device is None else device.peak

    def figures(self) -> Figures:
        """Return what Huawei has published of the chip; empty for one that is not known."""
        device = devices.find(self.device_name())
        return Figures() if device is None else device.figures

    def point_to_point(self) -> PointToPoint:
        """Batches from A2 on: torch_npu documents batch_isend_irecv for A2 and A3 alone."""
        family = devices.family_of(self.device_name())
        return PointToPoint(batched=family is not None and family >= Family.A2)

    def overflow(self) -> Overflow | None:
        """Return the float status where fp16 saturates: on the 910A family always, else in saturation mode."""
        return None if _npu().utils.is_support_inf_nan() else FloatStatus()

    def device_name(self) -> str:
        """Return the current NPU's name."""
        return str(_npu().get_device_name())

    def named(self, device_name: str) -> Backend:
        """Return the backend as it would answer on the chip of that name."""
        if devices.find(device_name) is None:
            known = ", ".join(device.name for device in devices.TABLE)
            msg = f"backend 'ascend' knows no device '{device_name}'.\nIt knows {known}, {devices.NEWEST}..."
            raise BackendError(msg)
        return _Named(device_name)

    def health(self) -> Sequence[Remark]:
        """Judge torch_npu and CANN, and the NPUs by npu-smi."""
        return tuple(software.health(some_are_hidden=VISIBLE in os.environ))

    def recent_collectives(self) -> Sequence[CalledCollective]:
        """Return what torch_npu's recorder knows of HCCL, and torch's of gloo."""
        found = list(super().recent_collectives())
        with suppress(Exception):  # whatever fails there, the host's collectives are known
            found += collectives.of_hccl()
        return found

    def profiler(self, folder: Path) -> Msprof:
        """Return torch_npu's profiler, which writes into the folder."""
        return Msprof(folder)

    def describe(self) -> Mapping[str, str]:
        """Return name, family, versions, and Huawei's figure of the peak."""
        device = devices.find(self.device_name())
        described = {
            "device": self.device_name(),
            "family": "not known" if device is None else str(device.family),
            "torch_npu": software.version(),
            "cann": software.cann() or "not known",
            "overflow": "inf and nan" if self.overflow() is None else "saturation",
        }
        if device is not None and device.peak is not None:
            described["peak_tflops_fp16"] = f"{device.peak / devices.TERA:.0f}"
        return described


class _Named(NamedDevice, AscendBackend):
    """An NPU that need not be present: answers that its name alone decides."""

    def supports(self, dtype: torch.dtype) -> bool:
        return _supports(dtype, devices.family_of(self.device_name()))


def _npu() -> Any:
    return import_module("torch_npu").npu  # the first use of torch_npu where torch's autoload is off


def _supports(dtype: torch.dtype, family: Family | None) -> bool:
    if dtype == torch.bfloat16:
        return family is not None and family >= Family.A2
    if dtype == torch.float32:
        return family is None or devices.multiplies_fp32(family)
    return dtype == torch.float16


def _teraflops(given: str) -> float:
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        msg = (
            f"{PEAK} is '{given}'; it must be a number above 0.\n"
            "Unset it if the peak is not known: MFU is left out then."
        )
        raise BackendError(msg)
    return value * devices.TERA
