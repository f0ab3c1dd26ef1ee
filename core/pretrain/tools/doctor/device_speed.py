"""Measures free memory and matmuls of this rank's device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from pretrain.tools.doctor.finding import Finding
from pretrain.tools.doctor.host import GIB, free_host_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from pretrain.plugins.backend import Backend

TERA = 1e12
ENOUGH_FREE = 0.9
"""Part of a device's memory that is free where nothing else uses it: context and libraries take less than a tenth."""
ENOUGH_SPEED = 0.5  # part of the datasheet's FLOP/s below which a large matmul is conspicuous
MEASURED = 0.2  # seconds of measurement: a matmul that takes less is repeated, and larger ones are tried
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
    """Yield the finding about the device's free memory."""
    free, total = free_memory(device)
    text = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if hasattr(torch.get_device_module(device), "mem_get_info") and free < ENOUGH_FREE * total:
        yield Finding.look("device memory", text, "Another process uses the device: end it, or use another device.")
    else:
        yield Finding.ok("device memory", text)


class MatmulSpeed:
    """FLOP/s of a device's square matmuls in one dtype: measured once, and used to choose the sizes of trials."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype, self.rows = dtype, SMALLEST
        while True:
            a, b = (_filled(self.rows, device, dtype, seed) for seed in (0, 1))
            first = a @ b  # libraries are loaded, and choose an algorithm
            seconds, second = timed_matmul(a, b, device, MEASURED)
            if seconds >= MEASURED or self.rows >= LARGEST:
                break
            self.rows *= 2
        self.flops = 2 * self.rows**3 / seconds
        self.repeats = bool(torch.equal(first, second))
        self.is_finite = bool(second.isfinite().all())


def _filled(rows: int, device: torch.device, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(SMALLEST, SMALLEST, generator=generator).to(device, dtype)
    return block.repeat(rows // SMALLEST, rows // SMALLEST)


def timed_matmul(a: Tensor, b: Tensor, device: torch.device, seconds: float) -> tuple[float, Tensor]:
    """Repeat a matmul for some seconds; return the seconds of the fastest one, and its result."""
    fastest, total = float("inf"), 0.0
    while total < seconds:
        synchronize(device)
        started = time.perf_counter()
        product = a @ b
        synchronize(device)
        taken = max(time.perf_counter() - started, 1e-6)
        fastest, total = min(fastest, taken), total + taken
    return fastest, product


def usual_flops(speed: MatmulSpeed, device: torch.device) -> float:
    """Return the FLOP/s that kernels can reach: those of fp32 where the dtype's own matmuls are slow (emulated)."""
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
    if peak is not None:
        text += f"; datasheet {peak / TERA:.4g}"
    if peak is not None and speed.flops < ENOUGH_SPEED * peak:
        remedy = "Check for other processes on the device, and its clocks and temperature."
        yield Finding.look("matmul", f"{text}, {speed.flops / peak:.0%} of it", remedy)
    else:
        yield Finding.ok("matmul", text)
    remedy = "Memory or compute units may be faulty: run the vendor's diagnostics, or use another device."
    if not speed.is_finite:
        yield Finding.wrong("matmul", "a matmul of finite matrices gave inf or nan", remedy)
    elif not speed.repeats:
        yield Finding.look("matmul", "a repeated matmul gave other bits", remedy)
