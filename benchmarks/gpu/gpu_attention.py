"""Every attention kernel that a GPU has, forward and backward: the triangle against the square, and flash attention.

    python -m benchmarks.gpu.gpu_attention [--rounds 10] [--keep]

Causal, bf16, 16 heads of 64, 16384 tokens: 8 sequences of 2048, 2 of 8192; with and without dropout. The kernels take
turns; a sample is the mean of ten passes in a row. "softmax" is the reference's square with the softmax kernel that a
run on this GPU gets. Of n x n blocks the triangle computes (n + 1) / 2n: its time over that of the square, round by
round, stands beside that number.

Memory is what one pass adds at its peak. TFLOP/s count the unmasked part of seven matmuls, as the
FlashAttention papers do: two forward, and five backward, of which one computes the scores again.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from benchmarks.gpu import command
from benchmarks.gpu.device_time import synchronize
from benchmarks.timing import spread
from pretrain.conformance import examples
from pretrain.plugins.negotiation.choosing import ask
from pretrain.plugins.offer import Decline, Offer

PASSES = 10
BLOCK = 512
SHAPES = {2048: 8, 8192: 2}
TINY = {64: 2, 128: 1}
"""Sequence length -> micro batch."""


def main() -> None:
    parser = command.parser("gpu_attention", __doc__)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    plugins = command.plugins(tiny=arguments.tiny)
    device = plugins.backend.device(0)
    measured = {}
    for length, micro_batch_size in (TINY if arguments.tiny else SHAPES).items():
        for dropout in (0.0, 0.1):
            request = request_of(plugins, length, micro_batch_size, dropout, block=16 if arguments.tiny else BLOCK)
            row = f"sequence {length}, dropout {dropout}"
            measured[row] = measure(plugins, request, device, arguments.rounds)
            print(row, measured[row], flush=True)
    command.report("gpu_attention", arguments, plugins, {"attention": measured})


def request_of(plugins, length: int, micro_batch_size: int, dropout: float, block: int):
    """Return the request."""
    return replace(
        examples.attention(torch.bfloat16, length=length, heads=16, size=64, dropout=dropout),
        device_type=plugins.backend.device_type,
        device_name=plugins.backend.device_name(),
        micro_batch_size=micro_batch_size,
        block_size=block,
    )


def kernels(plugins, request):
    """Return kernel -> (callable, provider) of all that are offered, and kernel -> reason of those that decline."""
    softmax = next(p.answer for p in ask(plugins, request.softmax()) if isinstance(p.answer, Offer))
    built, offered, declined = {"softmax": softmax.build({})}, {}, {}
    for proposal in ask(plugins, request):
        name = f"{proposal.answer.name} ({proposal.answer.kind})"
        if isinstance(proposal.answer, Decline):
            declined[name] = proposal.answer.reason
        else:
            offered[name] = proposal.answer.build(built), proposal.provider
    return offered, declined


def measure(plugins, request, device, rounds: int) -> dict[str, object]:
    """Return milliseconds, TFLOP/s and memory of every kernel, and the triangles' times over the square's."""
    offered, declined = kernels(plugins, request)
    calls = {name: passes(kernel, request, device) for name, (kernel, _) in offered.items()}
    memory = {name: added_memory(plugins.backend, call) for name, call in calls.items()}  # warms up too
    seconds = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(sample(call, device))
    found = {
        name: {
            "provider": offered[name][1],
            "milliseconds": [round(1000 * value, 4) for value in values],
            "tflops": round(flops(request) / statistics.median(values) / 1e12, 2),
            "memory_bytes": memory[name],
        }
        for name, values in seconds.items()
    }
    return {"kernels": found, "declined": declined, **shares(request, seconds)}


def shares(request, seconds: dict[str, list[float]]) -> dict[str, object]:
    """Return each triangle's time over the square's, and the share of the blocks that it computes."""
    blocks = -(-request.seq_length // request.block_size)
    square = next(values for name, values in seconds.items() if name.endswith("(softmax)"))
    found: dict[str, object] = {"share of the blocks": (blocks + 1) / (2 * blocks)}
    for name, values in seconds.items():
        if name.endswith("(triangle)"):
            ratios = [ours / theirs for ours, theirs in zip(values, square, strict=True)]
            found[f"time of {name} over the square's"] = spread(ratios)
    return found


def passes(kernel, request, device):
    """Return a call of so many passes forward and backward."""
    sizes = (request.seq_length, request.micro_batch_size, request.heads, request.head_size)
    leaves = [torch.randn(sizes, device=device, dtype=request.dtype).requires_grad_() for _ in range(3)]
    grad = torch.randn(*sizes[:2], request.heads * request.head_size, device=device, dtype=request.dtype)

    def run(count: int = PASSES) -> None:
        for _ in range(count):
            torch.autograd.grad(kernel(*leaves), leaves, grad)

    return run


def added_memory(backend, call) -> int | None:
    """Return the bytes that a pass adds at its peak; None if the device does not report them."""
    call(1)
    before = backend.memory(reset_peak=True)
    call(1)
    after = backend.memory()
    return None if after.peak is None or before.allocated is None else after.peak - before.allocated


def sample(call, device) -> float:
    """Return the seconds of one pass."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return (time.perf_counter() - start) / PASSES


def flops(request) -> float:
    """Return the FLOPs of two matmuls forward and five backward over the weights on and below the diagonal.

    Dao, FlashAttention-2, arXiv 2307.08691, section 4.1: 4 s^2 d h forward, 2.5 times that backward, half of it causal.
    """
    weights = request.micro_batch_size * request.heads * request.seq_length * (request.seq_length + 1) / 2
    return 7 * 2 * weights * request.head_size


if __name__ == "__main__":
    main()
