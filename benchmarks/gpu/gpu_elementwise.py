"""Norm, activation, bias-dropout-add, rotary and cross entropy on a GPU: their bytes a second over those of a copy.

    python -m benchmarks.gpu.gpu_elementwise [--rounds 10] [--only norm] [--keep]

bf16, at the shapes of GPT-2 345M with 16 sequences of 1024, and of a tensor-parallel eighth of GPT-3 175B with 4 of
2048. Every kernel that is offered, the reference's among them, and torch.compile of the reference's; each takes turns
with a copy of 512 MiB. A sample is the mean of ten calls and is divided by the copy's of the same round: forward, and
forward with backward. The calls are replayed as one CUDA graph, so that the device's time is measured and not the
host's: launching a norm and its backward pass takes 137 us of Python, their traffic 50 us. "measured" says where a call
could not be captured. Before each of them nothing is flushed, so that small tensors may come from the cache.

Only necessary bytes are counted: one read and one write of each tensor, by a kernel that keeps only its inputs between
the passes. Biases, weights and tables are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu import command
from benchmarks.gpu.device_time import timer
from benchmarks.timing import spread
from pretrain.conformance import examples
from pretrain.plugins.negotiation.choosing import ask
from pretrain.plugins.offer import Decline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.plugins.requests import Request

COPIED = 256 * 2**20
"""bf16 entries of the copy: more than a cache holds."""


@dataclass(frozen=True)
class Model:
    """Sizes of one rank."""

    sequence: int
    batch: int
    hidden: int
    features: int
    heads: int
    size: int
    vocab: int


MODELS = {
    "GPT-2 345M": Model(1024, 16, 1024, 4096, 16, 64, 50257),
    "GPT-3 175B, an eighth": Model(2048, 4, 12288, 6144, 12, 128, 50257),
}
TINY = {"tiny": Model(8, 2, 48, 96, 2, 16, 50)}


@dataclass(frozen=True)
class Row:
    """One request.

    Attributes:
        request: what is asked for, without the device.
        shapes: of the inputs that get a gradient.
        more: further inputs.
        forward: tensors of the first input's size that are moved.
        backward: the same.
    """

    request: Request
    shapes: list[tuple[int, ...]]
    forward: float
    backward: float
    more: Callable[[torch.device], list[torch.Tensor]] = lambda _: []


def rows(model: Model) -> Iterator[tuple[str, Row]]:
    """Return what is measured, by name."""
    dtype, tokens = torch.bfloat16, (model.sequence, model.batch)
    hidden, wide = (*tokens, model.hidden), (*tokens, model.features)
    padded = (model.vocab + 127) // 128 * 128
    layer_norm = examples.norm(dtype, hidden=model.hidden)
    yield "norm, LayerNorm", Row(layer_norm, [hidden, hidden[-1:], hidden[-1:]], 2, 3)
    yield "norm, RMSNorm", Row(replace(layer_norm, kind="RMSNorm"), [hidden, hidden[-1:]], 2, 3)
    for kind in ("gelu", "gelu_tanh"):
        request = examples.activation(dtype, kind, features=model.features)
        yield f"activation, {kind}", Row(request, [wide, wide[-1:]], 2, 3)
    swiglu, pair = examples.activation(dtype, "swiglu", features=model.features), (*tokens, 2 * model.features)
    yield "activation, swiglu", Row(swiglu, [pair, pair[-1:]], 1.5, 2.5)
    for dropout in (0.0, 0.1):
        request = examples.bias_dropout_add(dtype, hidden=model.hidden, dropout=dropout)
        moved = 2 if dropout else 0  # without it the gradients of both inputs are the one that came
        yield f"bias_dropout_add, dropout {dropout}", Row(request, [hidden, hidden[-1:], hidden], 3, moved)
    rotary = examples.rotary(dtype, rotary_size=model.size, length=model.sequence)
    request = replace(rotary, heads=model.heads, head_size=model.size)
    table = (model.sequence, 1, 1, model.size)
    yield (
        "rotary",
        Row(request, [(*tokens, model.heads, model.size)], 2, 2, lambda at: [torch.rand(table, device=at)] * 2),
    )
    request = examples.cross_entropy(dtype, vocab_size=model.vocab, padded=padded)
    target = lambda at: [torch.randint(model.vocab, tokens, device=at)]  # noqa: E731
    yield "cross_entropy", Row(request, [(*tokens, padded)], 1, 2, target)


def main() -> None:
    parser = command.parser("gpu_elementwise", __doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    plugins = command.plugins(tiny=arguments.tiny)
    device = plugins.backend.device(0)
    source = torch.zeros(2**12 if arguments.tiny else COPIED, dtype=torch.bfloat16, device=device)
    measured: dict[str, dict[str, object]] = {}
    for name, model in (TINY if arguments.tiny else MODELS).items():
        measured[name] = {}
        for label, row in rows(model):
            if arguments.only in label:
                kernels = {} if arguments.tiny else compiled(plugins, row)
                measured[name][label] = measure(plugins, row, kernels, source, arguments.rounds)
                print(name, label, measured[name][label], flush=True)
    command.report("gpu_elementwise", arguments, plugins, {"elementwise": measured})


def asked(plugins, row: Row):
    """Return what every plugin answers."""
    backend = plugins.backend
    return ask(plugins, replace(row.request, device_type=backend.device_type, device_name=backend.device_name()))


def compiled(plugins, row: Row):
    """Return torch.compile of the reference, which is asked last; it cannot compile what writes over its input."""
    if row.request.operation == "cross_entropy":
        return {}
    torch.compiler.reset()  # each row for itself: after eight shapes and kinds of one function it runs uncompiled
    return {"torch.compile": torch.compile(asked(plugins, row)[-1].answer.build({}), dynamic=False)}


def measure(plugins, row: Row, kernels, source, rounds: int) -> dict[str, object]:
    """Return each kernel's bytes a second over the copy's, and why the others are not offered."""
    found: dict[str, object] = {}
    for proposal in asked(plugins, row):
        name = f"{proposal.plugin.installed.name} {proposal.answer.name}"
        if isinstance(proposal.answer, Decline):
            found[name] = {"declined": proposal.answer.reason}
        else:
            kernels[name] = proposal.answer.build({})
    for name, kernel in kernels.items():
        found[name] = {
            way: compared(call, moved, source, rounds)
            for way, (call, moved) in calls(kernel, row, source.device).items()
        }
    return found


def calls(kernel, row: Row, device):
    """Return way -> a call, and the bytes that it must move."""
    inputs = [torch.randn(shape, device=device).to(row.request.dtype) for shape in row.shapes]
    more, unit = row.more(device), inputs[0].nbytes
    grad = torch.ones_like(kernel(*inputs, *more))

    def both():
        kernel(*(x.detach().requires_grad_() for x in inputs), *more).backward(grad)

    return {
        "forward": (lambda: kernel(*inputs, *more), row.forward * unit),
        "forward and backward": (both, (row.forward + row.backward) * unit),
    }


def compared(call, moved: float, source, rounds: int) -> dict[str, object]:
    """Return a call's times and its rate over the copy's, round by round."""
    copied = torch.empty_like(source)
    call()  # compiles what is compiled when it is first called
    copy_seconds, _ = timer(lambda: copied.copy_(source), source.device)
    call_seconds, how = timer(call, source.device)
    copy_seconds(), call_seconds()  # warm up
    pairs = [(copy_seconds(), call_seconds()) for _ in range(rounds)]
    ratios = [moved / seconds / (2 * source.nbytes / copy) for copy, seconds in pairs]
    return {
        "measured": how,
        "milliseconds": [round(1000 * seconds, 4) for _, seconds in pairs],
        "of_the_copy": spread(ratios),
    }


if __name__ == "__main__":
    main()
