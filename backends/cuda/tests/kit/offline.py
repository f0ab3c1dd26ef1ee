"""Compiles the Triton kernels of an operation for a GPU that is not here, and launches nothing.

What the interpreter takes and the compiler does not (a global, a loop whose types change) is found so without a device.

    python -m kit.offline 80 norm softmax

prints, as JSON, for each operation every kernel that was compiled for compute capability 8.0 and the bytes of its
shared memory.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from kit.offline_calls import CALLS


class AbsentDevice:
    """Stands for triton's driver of a GPU."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.target.arch  # by which a kernel finds what it has compiled: another for each capability

    def get_current_stream(self, device):
        return 0


def compile_operation(capability: int, operation: str) -> dict[str, int]:
    """Call every Triton kernel of an operation, forward and backward, on tensors whose values mean nothing."""
    triton.runtime.driver.set_active(AbsentDevice(capability))
    compiled, run = {}, JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled[self.fn.__name__] = max(kernel.metadata.shared, compiled.get(self.fn.__name__, 0))
        return kernel

    JITFunction.run = compile_only
    try:
        for name, request, call in CALLS[operation]():
            answers = import_module(f"pretrain_cuda.{operation}").answers(request)
            answers = answers if isinstance(answers, list) else [answers]
            (offer,) = [answer for answer in answers if answer.name == name]
            output = call(offer.build({}))
            output.backward(torch.zeros_like(output))
    finally:
        JITFunction.run = run
    return compiled


if __name__ == "__main__":
    _, capability, *operations = sys.argv
    print(json.dumps({operation: compile_operation(int(capability), operation) for operation in operations}))
