"""Every launch of a Triton kernel as Triton's own binder takes it, for a device that is not here."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

if TYPE_CHECKING:
    from fake_gpu.stand_ins import Product

LIMITS = (2**31 - 1, 65535, 65535)
"""Blocks of a grid in x, y and z: CUDA C programming guide, "Technical specifications per compute capability"."""

MOST_WARPS = 32


class LaunchError(AssertionError):
    """A launch that a GPU would refuse, or in which a kernel would read out of bounds."""


class _AbsentDevice:
    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Launches:
    """Counts launches by kernel."""

    def __init__(self, product: Product, *, compiles: bool) -> None:
        """Replace Triton's launcher.

        Args:
            product: what is launched on.
            compiles: compile every kernel whose types or constants are new, as the first launch on a GPU would.
        """
        self.counts: Counter[str] = Counter()
        major, minor = product.capability
        triton.runtime.driver.set_active(_AbsentDevice(major * 10 + minor))
        launches, launch = self, JITFunction.run

        def run(self, *args, grid, warmup, **kwargs):
            launches.check(self, args, grid, kwargs)
            if compiles:
                launch(self, *args, grid=grid, warmup=True, **kwargs)

        JITFunction.run = run

    def take(self) -> dict[str, int]:
        """Return the counts since the last call."""
        counts, self.counts = dict(self.counts), Counter()
        return counts

    def check(self, kernel, args, grid, kwargs):
        """Bind the arguments, and look at them and at the grid."""
        name = f"{kernel.fn.__module__}.{kernel.fn.__name__}"
        bound = _bind(kernel, name, args, kwargs)
        for argument, value in bound.items():
            if isinstance(value, torch.Tensor) and value.device.type != "cuda":
                raise LaunchError(f"{name}: {argument} is on {value.device}")
        _check_grid(name, grid(bound) if callable(grid) else grid)
        _check_warps(name, kwargs.get("num_warps", 4))
        self.counts[name] += 1


def _bind(kernel, name, args, kwargs) -> dict[str, object]:
    """Return the arguments by name, as Triton's binder and its compiler's options take them."""
    _, _, _, backend, binder = kernel.device_caches[0]
    kwargs = kwargs | {"debug": False, "instrumentation_mode": ""}
    try:
        bound, specialization, options = binder(*args, **kwargs)
        _, signature, _, _ = kernel._pack_args(backend, kwargs, bound, specialization, options)
    except (TypeError, KeyError, AttributeError) as error:
        raise LaunchError(f"{name}: {error}") from error
    for argument, kind in signature.items():
        if kind == "constexpr" and isinstance(bound[argument], torch.Tensor):
            raise LaunchError(f"{name}: {argument} is a tensor, and declared a constant")
    return dict(bound)


def _check_grid(name, grid) -> None:
    if not 1 <= len(grid) <= 3 or not all(isinstance(size, int) for size in grid):
        raise LaunchError(f"{name}: the grid is {grid}")
    for size, limit, axis in zip(grid, LIMITS, "xyz", strict=False):
        if not 0 < size <= limit:
            raise LaunchError(f"{name}: grid {tuple(grid)}; {axis} is from 1 to {limit}")


def _check_warps(name, warps) -> None:
    if warps > MOST_WARPS or warps & (warps - 1):
        raise LaunchError(f"{name}: {warps} warps; a power of two up to {MOST_WARPS}")
