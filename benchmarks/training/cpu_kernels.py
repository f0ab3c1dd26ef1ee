"""Every kernel of the cpu backend, the reference's and a few rivals at the shape of GPT-2 124M.

    python -m benchmarks.training.cpu_kernels [--threads 2] [--rounds 40] [--keep]

Forward and backward, sequence 1024, micro batch 1, 12 heads of 64, hidden size 768, vocabulary 50257 of 50304 columns.
The kernels of one operation take turns; a sample is the mean over at least 50 ms. It counts as quiet when other
processes used less than a tenth of the cores meanwhile; rounds go on until every kernel has five quiet ones, or for
--rounds. The fastest quiet sample is quoted, or, where there was none, the fastest of all.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812

from benchmarks import machine
from pretrain.conformance import examples
from pretrain.cpu import plugin as cpu
from pretrain.plugins.offer import Offer
from pretrain.plugins.requests import Mask
from pretrain.reference import plugin as reference

SECONDS, ENOUGH = 0.05, 5
SEQUENCE, HEADS, SIZE, HIDDEN, ENTRIES, COLUMNS = 1024, 12, 64, 768, 50257, 50304


def requests(dtype):
    """One request for each row, with a label and the shapes of its inputs."""
    attention = replace(
        examples.attention(dtype, length=SEQUENCE, heads=HEADS, size=SIZE), micro_batch_size=1, block_size=512
    )
    heads = [(SEQUENCE, 1, HEADS, SIZE)] * 3
    hidden, bias, wide = (SEQUENCE, 1, HIDDEN), (HIDDEN,), (SEQUENCE, 1, 4 * HIDDEN)
    bias_dropout_add = examples.bias_dropout_add(dtype, hidden=HIDDEN)
    softmax = replace(examples.softmax(dtype, queries=SEQUENCE, keys=SEQUENCE), heads=HEADS)
    yield "attention, causal", attention, heads
    yield "attention, causal, dropout 0.1", replace(attention, dropout=0.1), heads
    yield "attention, arbitrary mask", replace(attention, mask=Mask.ARBITRARY), heads
    yield "softmax, causal", softmax, [(1, HEADS, SEQUENCE, SEQUENCE)]
    yield "norm, LayerNorm", examples.norm(dtype, hidden=HIDDEN), [hidden, bias, bias]
    yield "norm, RMSNorm", examples.norm(dtype, "RMSNorm", hidden=HIDDEN), [hidden, bias]
    yield "rotary", replace(examples.rotary(dtype, rotary_size=SIZE, length=SEQUENCE), heads=HEADS), heads[:1]
    yield "activation, gelu", examples.activation(dtype, features=4 * HIDDEN), [wide, wide[-1:]]
    yield "activation, gelu_tanh", examples.activation(dtype, "gelu_tanh", features=4 * HIDDEN), [wide, wide[-1:]]
    yield "bias_dropout_add", bias_dropout_add, [hidden, bias, hidden]
    yield "bias_dropout_add, dropout 0.1", replace(bias_dropout_add, dropout=0.1), [hidden, bias, hidden]
    yield "linear", examples.linear(dtype), [hidden, (4 * HIDDEN, HIDDEN), (4 * HIDDEN,)]
    yield "cross_entropy", examples.cross_entropy(dtype, vocab_size=ENTRIES, padded=COLUMNS), [(SEQUENCE, 1, COLUMNS)]


def rivals(label):
    """Return the rivals that are not offered."""
    if label.startswith("activation"):
        approximate = "tanh" if "tanh" in label else "none"
        compiled = torch.compile(lambda x, bias: F.gelu(x + bias, approximate=approximate))
        return {"torch.compile": compiled}
    if label == "cross_entropy":

        def torch_loss(logits, target, upcast):
            rows = logits.flatten(0, 1)[:, :ENTRIES]
            return F.cross_entropy(rows.float() if upcast else rows, target.flatten(), reduction="none")

        return {
            "F.cross_entropy": lambda logits, target: torch_loss(logits, target, False),
            "F.cross_entropy in fp32": lambda logits, target: torch_loss(logits, target, True),
        }
    return {}


def kernels(label, request):
    found = {}
    for plugin in (cpu, reference):
        answer = getattr(plugin, f"pretrain_{request.operation}", lambda _: None)(request)
        for offer in answer if isinstance(answer, list) else [answer]:
            if isinstance(offer, Offer):
                found[f"{plugin.__name__.split('.')[1]} {offer.name}"] = offer.build({})
    return found | rivals(label)


def arguments(label, request):
    if label == "cross_entropy":
        return [torch.randint(ENTRIES, (SEQUENCE, 1))]
    if request.operation == "rotary":
        angles = torch.rand(SEQUENCE, 1, 1, SIZE)
        return [angles.cos(), angles.sin()]
    if getattr(request, "mask", None) is Mask.ARBITRARY:
        return [torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1).view(1, 1, SEQUENCE, SEQUENCE)]
    return []


def calls(label, request, shapes):
    """Kernel -> a call of it forward and backward."""
    inputs = [torch.randn(shape).to(request.dtype).requires_grad_() for shape in shapes]
    more = arguments(label, request)

    def call(kernel):
        leaves = [x.detach().requires_grad_() for x in inputs]
        output = kernel(*leaves, *more)
        output.backward(torch.ones_like(output))

    return {name: (lambda kernel=kernel: call(kernel)) for name, kernel in kernels(label, request).items()}


def optimizer_calls():
    """Kernel -> a step over parameters of GPT-2's sizes, and the norm of their gradients."""
    shapes = [(ENTRIES + 47, HIDDEN), (SEQUENCE, HIDDEN)]
    shapes += [(3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (4 * HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN)] * 12
    found = {}
    for name, plugin in (("cpu fused", cpu), ("reference reference", reference)):
        offer = plugin.pretrain_optimizer(examples.optimizer())
        parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        found[name] = offer.build({}).adam(parameters, lr=1e-3).step
    norm, gradients = offer.build({}).gradient_norm, [parameter.grad for parameter in parameters]
    return {"optimizer, 124M parameters": found, "gradient norm, 124M entries": {"reference": lambda: norm(gradients)}}


def time_in_turns(functions, rounds):
    for function in functions.values():
        function()
    samples = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            samples[name].append(sample(function))
        if all(sum(is_quiet for _, is_quiet in found) >= ENOUGH for found in samples.values()):
            break
    return {name: summary(found) for name, found in samples.items()}


def sample(function):
    """Return milliseconds of one call, and whether the machine was quiet."""
    others, start, count = busy() - time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        function()
        count += 1
    wall = time.perf_counter() - start
    others = busy() - time.process_time() - others
    return wall / count * 1000, others < 0.1 * wall * os.cpu_count()


def busy():
    """CPU seconds that all processes of the machine have used."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def summary(samples):
    quiet = [wall for wall, is_quiet in samples if is_quiet]
    return {"ms": round(min(quiet or [wall for wall, _ in samples]), 2), "quiet": len(quiet), "samples": len(samples)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--default-allocator", action="store_true", help="give freed memory back to the system")
    parser.add_argument("--keep", action="store_true", help="write results/cpu_kernels[_default_allocator].json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.default_allocator:
        cpu.pretrain_backend().device(0)  # memory stays with the process, as in a run
    found = {}
    for label, functions in operations(arguments.only):
        found[label] = time_in_turns(functions, arguments.rounds)
        print(label, found[label], flush=True)
    if arguments.keep:
        name = "cpu_kernels_default_allocator" if arguments.default_allocator else "cpu_kernels"
        machine.keep(name, {**machine.describe(arguments.threads), "milliseconds": found})


def operations(only):
    for dtype in (torch.float32, torch.bfloat16):
        for label, request, shapes in requests(dtype):
            row = f"{label}, {str(dtype).removeprefix('torch.')}"
            if only in row:
                yield row, calls(label, request, shapes)
    if only in "optimizer":
        yield from optimizer_calls().items()


if __name__ == "__main__":
    main()
