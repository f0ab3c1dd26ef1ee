"""Every softmax kernel that a GPU has: its bytes a second over those of a copy, forward and backward.

    python -m benchmarks.gpu.gpu_softmax [--rounds 10] [--keep]

[n, 2048, 2048] and [n, 8192, 8192] in bf16, 512 MiB of scores: more than a cache holds. A copy of the scores and the
kernels take turns; a sample is the mean of ten passes in a row, and is divided by the copy's of the same round. Beside
the offered kernels runs torch.softmax, where nothing is masked.

Only necessary bytes are counted: forward the scores are read and the weights written, backward the weights and their
gradient are read and another is written. Of causal rows only what they see is read, but everything is written. A mask's
own bytes are not counted.
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
from pretrain.plugins.offer import Decline
from pretrain.plugins.requests import Mask

PASSES = 10
SHAPES = {2048: 64, 8192: 4}
TINY = {64: 2, 128: 1}
"""Queries and keys -> heads."""
MASKS = (Mask.NONE, Mask.CAUSAL, Mask.KEY_PADDING)
WAYS = {"forward": 1, "backward": 2}
"""Of a kernel -> tensors that are read; one is written."""


def main() -> None:
    parser = command.parser("gpu_softmax", __doc__)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    plugins = command.plugins(tiny=arguments.tiny)
    device = plugins.backend.device(0)
    measured = {}
    for length, heads in (TINY if arguments.tiny else SHAPES).items():
        for mask in MASKS:
            request = request_of(plugins, length, heads, mask)
            row = f"{heads} heads of {length} x {length}, mask {mask}"
            measured[row] = measure(plugins, request, device, arguments.rounds)
            print(row, measured[row], flush=True)
    command.report("gpu_softmax", arguments, plugins, {"softmax": measured})


def request_of(plugins, length: int, heads: int, mask: Mask):
    """Return the request."""
    return replace(
        examples.softmax(torch.bfloat16, mask, queries=length, keys=length),
        device_type=plugins.backend.device_type,
        device_name=plugins.backend.device_name(),
        heads=heads,
    )


def kernels(plugins, request):
    """Return kernel -> (callable, provider) of offers and the rival, and kernel -> reason of the others."""
    offered, declined = {}, {}
    if request.mask is Mask.NONE:
        offered["torch.softmax"] = lambda scores, _: torch.softmax(scores, dim=-1), f"torch {torch.__version__}"
    for proposal in ask(plugins, request):
        if isinstance(proposal.answer, Decline):
            declined[proposal.answer.name] = proposal.answer.reason
        else:
            offered[proposal.answer.name] = proposal.answer.build({}), proposal.provider
    return offered, declined


def measure(plugins, request, device, rounds: int) -> dict[str, object]:
    """Return the copy's bytes a second, and each kernel's, and their ratio round by round."""
    offered, declined = kernels(plugins, request)
    scores = torch.randn(1, request.heads, request.queries, request.keys, device=device).to(request.dtype)
    copied, copies = torch.empty_like(scores), []
    found: dict[str, dict[str, object]] = {}
    for name, (kernel, provider) in offered.items():
        found[name] = {"provider": provider}
        for way, call in calls(kernel, request, scores).items():
            call()  # warms up, and compiles what is compiled when it is first called
            pairs = [(sample(lambda: copied.copy_(scores), device), sample(call, device)) for _ in range(rounds)]
            found[name][way] = rates(request, scores, WAYS[way], pairs)
            copies += [copy for copy, _ in pairs]
    return {
        "copy_bytes_per_second": round(2 * scores.nbytes / statistics.median(copies)),
        "kernels": found,
        "declined": declined,
    }


def calls(kernel, request, scores):
    """Return a call of the kernel for each way; backward goes through one graph again and again."""
    masked = torch.zeros(1, 1, 1, request.keys, dtype=torch.bool, device=scores.device)
    masked[..., -request.keys // 8 :] = True
    mask = masked if request.mask is Mask.KEY_PADDING else None
    leaf = scores.detach().requires_grad_()
    weights, grad = kernel(leaf, mask), torch.randn_like(scores)
    return {
        "forward": lambda: kernel(scores, mask),
        "backward": lambda: torch.autograd.grad(weights, leaf, grad, retain_graph=True),
    }


def rates(request, scores, read: int, pairs) -> dict[str, object]:
    """Return a kernel's rate in all rounds; `pairs` are seconds of the copy and of the kernel."""
    share = (request.keys + 1) / (2 * request.keys) if request.mask is Mask.CAUSAL else 1.0
    moved = scores.nbytes * (1 + read * share)
    ratios = [moved / seconds / (2 * scores.nbytes / copy) for copy, seconds in pairs]
    return {
        "milliseconds": [round(1000 * seconds, 4) for _, seconds in pairs],
        "bytes_per_second": round(moved / statistics.median(seconds for _, seconds in pairs)),
        "of_the_copy": spread(ratios),
    }


def sample(call, device) -> float:
    """Return the seconds of one pass."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(PASSES):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / PASSES


if __name__ == "__main__":
    main()
