"""Compiles the Triton kernels of an operation for a GPU that is not here, and launches nothing.

What the interpreter takes and the compiler does not (a global, a loop whose types change) is found so without a device.

    python -m kit.offline 80 norm softmax

prints, as JSON, for each operation every kernel that was compiled for compute capability 8.0 and the bytes of its
shared memory.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from kit.offline_calls import CALLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


@contextmanager
def compiling(capability: int, note: Callable[[str, object], None]) -> Iterator[None]:
    """Compile what is launched, and call `note` with its name and what came of it."""
    triton.runtime.driver.set_active(AbsentDevice(capability))
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        note(self.fn.__name__, kernel)
        return kernel

    JITFunction.run = compile_only
    try:
        yield
    finally:
        JITFunction.run = run


def compile_calls(capability: int, calls: str) -> dict[str, int]:
    """Call Triton kernels of an operation, forward and backward, on tensors whose values mean nothing."""
    compiled: dict[str, int] = {}

    def note(name, kernel):
        compiled[name] = max(kernel.metadata.shared, compiled.get(name, 0))

    with compiling(capability, note):
        for name, request, call in CALLS[calls]():
            answers = import_module(f"pretrain_cuda.{request.operation}").answers(request)
            answers = answers if isinstance(answers, list) else [answers]
            (offer,) = [answer for answer in answers if answer.name == name]
            output = call(offer.build({}))
            output.backward(torch.zeros_like(output))
    return compiled


def resources(kernel) -> dict[str, int]:
    """Return registers and bytes of local memory of a thread, and the threads of a program."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        command = [program, "--dump-resource-usage", cubin.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack, local = (int(re.search(rf"{what}:(\d+)", usage)[1]) for what in ("REG", "STACK", "LOCAL"))
    return {"registers": registers, "stack": stack + local, "threads": 32 * kernel.metadata.num_warps}


if __name__ == "__main__":
    _, capability, *named = sys.argv
    print(json.dumps({calls: compile_calls(int(capability), calls) for calls in named}))
