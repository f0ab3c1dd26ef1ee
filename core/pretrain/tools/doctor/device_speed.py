"""Measures free memory and matmuls of this rank's device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.host_limits import free_host_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from pretrain.plugins.backend import Backend

GIB, TERA = 2**30, 1e12

ENOUGH_FREE = 0.9
"""Part of a device's memory that is free where nothing else uses it: context and libraries take less than a tenth."""

ENOUGH_SPEED = 0.5
"""Part of the datasheet's FLOP/s below which a large matmul is conspicuous."""

MEASURED = 0.2
"""Seconds of measurement: a matmul that takes less is repeated, and larger ones are tried."""

SMALLEST, LARGEST = 256, 8192
"""Rows of the matrices: doubled until a matmul takes `MEASURED` seconds; three of 16-bit numbers are 384 MiB then."""


def free_memory(device: torch.device) -> tuple[int, int]:
    """Return free and total bytes of the device, or of the host where the device has no memory of its own."""
    module = torch.get_device_module(device)
    if hasattr(module, "mem_get_info"):
        free, total = module.mem_get_info()
        return int(free), int(total)
    return free_host_memory()


def examine_memory(device: torch.device) -> Iterator[Finding]:
    """Yield the free memory of the device."""
    free, total = free_memory(device)
    text = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    has_own = hasattr(torch.get_device_module(device), "mem_get_info")
    if has_own and free < ENOUGH_FREE * total:
        remedy = "Another process uses the device: end it, or take another device."
        yield Finding(check="device memory", verdict=Verdict.LOOK, text=text, remedy=remedy)
    else:
        yield Finding(check="device memory", verdict=Verdict.OK, text=text)


class MatmulSpeed:
    """Speed of a device's matmuls in one dtype: measured once, and used to choose the sizes of trials.

    Attributes:
        flops: FLOP/s that were reached.
        rows: of the square matrices.
        repeats: whether two matmuls of the same matrices had the same bits.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        """Measure, for about a second."""
        self.dtype, self.rows = dtype, SMALLEST
        while True:
            a, b = (_filled(self.rows, device, dtype, seed) for seed in (0, 1))
            first = a @ b  # libraries are loaded, and choose an algorithm
            seconds, second = _timed(a, b, device)
            if seconds >= MEASURED or self.rows >= LARGEST:
                break
            self.rows *= 2
        self.flops = 2 * self.rows**3 / seconds
        self.repeats = bool(torch.equal(first, second))
        self.is_finite = bool(second.isfinite().all())


def _filled(rows: int, device: torch.device, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(SMALLEST, SMALLEST, generator=generator).to(device, dtype)
    times = rows // SMALLEST
    return block.repeat(times, times)


def _timed(a: Tensor, b: Tensor, device: torch.device) -> tuple[float, Tensor]:
    """Return the shortest time of some matmuls, and the product."""
    times: list[float] = []
    while sum(times) < MEASURED:
        synchronize(device)
        started = time.perf_counter()
        product = a @ b
        synchronize(device)
        times.append(max(time.perf_counter() - started, 1e-6))
    return min(times), product


def usual_flops(speed: MatmulSpeed, device: torch.device) -> float:
    """Return the FLOP/s that kernels can reach: those of fp32 where the dtype's own matmuls are slow.

    A device without matmuls of a dtype emulates them, and its kernels compute in fp32 instead.
    """
    if speed.dtype == torch.float32 or speed.flops > TERA:
        return speed.flops
    return max(speed.flops, MatmulSpeed(device, torch.float32).flops)


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    getattr(torch.get_device_module(device), "synchronize", torch.accelerator.synchronize)()


def examine_speed(speed: MatmulSpeed, backend: Backend) -> Iterator[Finding]:
    """Yield the speed against the datasheet's, and whether matmuls repeat."""
    name, peak = str(speed.dtype).removeprefix("torch."), backend.peak_flops(speed.dtype)
    text = f"{speed.flops / TERA:.3g} TFLOP/s in {name}, matrices of {speed.rows} rows"
    verdict, remedy = Verdict.OK, ""
    if peak is not None:
        text += f"; datasheet {peak / TERA:.4g}"
        if speed.flops < ENOUGH_SPEED * peak:
            verdict = Verdict.LOOK
            text += f", {speed.flops / peak:.0%} of it"
            remedy = "Look for other processes on the device, and at its clocks and temperature."
    yield Finding(check="matmul", verdict=verdict, text=text, remedy=remedy)
    if not speed.is_finite or not speed.repeats:
        fault = "have other bits when repeated" if speed.is_finite else "are not finite"
        yield Finding(
            check="matmul",
            verdict=Verdict.LOOK if speed.is_finite else Verdict.WRONG,
            text=f"matmuls of the same finite matrices {fault}",
            remedy="Memory or compute units may be faulty: let the vendor's diagnosis run, or take another device.",
        )
