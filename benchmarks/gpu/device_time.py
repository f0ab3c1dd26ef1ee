"""Time of a call on the device, without the host's part: small kernels end before the next is launched.

Passes are captured as one graph, whose replay costs the host as much as one launch. Where the device has no graphs, or
the call cannot be captured, the passes are launched one by one, and the result says so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

PASSES = 10
WARM_UP = 3


def timer(call: Callable[[], object], device: torch.device) -> tuple[Callable[[], float], str]:
    """Return a function that measures the seconds of one pass, and "graph" or the reason for single launches."""
    replay, how = captured(call, device)

    def passes() -> None:
        for _ in range(PASSES):
            call()

    run = replay or passes

    def seconds() -> float:
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        return (time.perf_counter() - start) / PASSES

    return seconds, how


def captured(call: Callable[[], object], device: torch.device) -> tuple[Callable[[], None] | None, str]:
    """Return the replay of the passes as a graph and "graph"; or None, and why not."""
    module = torch.get_device_module(device)
    if not hasattr(module, "CUDAGraph"):
        return None, f"launched one by one: {device.type} has no graphs"
    side, current = module.Stream(), module.current_stream()
    side.wait_stream(current)
    with module.stream(side):  # what is allocated or compiled by the first calls must not be captured
        for _ in range(WARM_UP):
            call()
    current.wait_stream(side)
    graph = module.CUDAGraph()
    try:
        with module.graph(graph):
            for _ in range(PASSES):
                call()
    except RuntimeError as error:
        return None, f"launched one by one: {str(error).splitlines()[0]}"
    return graph.replay, "graph"


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
