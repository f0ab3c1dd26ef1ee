"""Kernels, or their stand-ins, on torch's fake tensors, as `pretrain plan` runs a step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.conformance import examples
from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.catalogue import CATALOGUE
from pretrain.conformance.example_calls import OPERATIONS, as_function, example_call, longer
from pretrain.conformance.footprint import BLOCK, differentiable, footprint, gradients, peak_bytes
from pretrain.plugins.offer import Offer
from pretrain.plugins.requests import AttentionRequest, BiasDropoutAddRequest, Mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.conformance.example_calls import ExampleCall
    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import OptimizerRequest, Request
    from pretrain.plugins.signatures import OptimizerKernels


BF16, FP32 = torch.bfloat16, torch.float32
TOKENS, MANY_TOKENS = 160, 2048
"""Tokens of a sequence where kernels are small, and where the device's allocator is asked."""

TOLERANCE, SLACK = 0.05, 64 * BLOCK
"""Difference of the peaks where the device's allocator tells the kernel's, relative and in bytes. Not seen on a GPU."""

CALLS = 5
"""Calls of which one must have the stand-in's peak."""

FIRST = (
    examples.attention(BF16, groups=2, length=65, size=16),
    examples.attention(FP32, Mask.ARBITRARY, dropout=0.5),
    examples.attention(BF16, length=65, window=20),
    examples.attention(BF16, Mask.DOCUMENTS, groups=2, length=65),
    examples.attention(BF16, length=32, keys=128),
    examples.softmax(BF16),
    examples.softmax(FP32, Mask.KEY_PADDING),
    examples.norm(BF16, "LayerNorm"),
    examples.norm(FP32, "RMSNorm"),
    examples.rotary(BF16, rotary_size=8),
    examples.activation(BF16, "swiglu"),
    examples.activation(FP32, "gelu", has_bias=False),
    examples.bias_dropout_add(BF16, dropout=0.5),
    examples.bias_dropout_add(FP32, has_bias=False),
    examples.cross_entropy(BF16),
    examples.cross_entropy(FP32),
    examples.linear(BF16),
    examples.linear(BF16, main_grad_dtype=FP32),
    examples.grouped_linear(BF16),
    examples.grouped_linear(BF16, is_gated=True, main_grad_dtype=FP32),
    examples.moe_permute(BF16),
    examples.router("softmax"),
    examples.router("sigmoid", num_groups=4, group_topk=2, has_bias=True),
)
"""Requests that are compared; of a kernel that declines one, the first of the kit's that it takes."""

CASES = [Case((first, *CATALOGUE[first.operation])) for first in FIRST]
ADAMS = [
    Case((examples.optimizer("adamw"), examples.optimizer("adam"))),
    Case(tuple(examples.optimizer(name, exp_avg_dtype=BF16, exp_avg_sq_dtype=BF16) for name in ("adamw", "adam"))),
]
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


class TestFake:
    """`Offer.fake`, or for plain torch the kernel itself, on fake tensors against the kernel on the device."""

    operations = (*OPERATIONS, "optimizer")

    @run_with(CASES)
    def test_keeps_what_the_kernel_keeps(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """Shapes and dtypes of output and gradients, and the bytes that are kept for the backward pass."""
        _require_own_dropout(subject, kernel, asked)
        call = example_call(asked, TOKENS)
        real = footprint(as_function(asked.operation, subject.build(kernel, asked)), _on_device(call, subject))
        with FakeTensorMode():
            fake = footprint(_stand_in(subject, kernel, asked), call.placed(_empty))
        difference = real.difference(fake)
        assert not difference, f"{kernel} and its stand-in differ (kernel on {subject.device}):\n{difference}"

    @run_with(CASES)
    def test_allocates_what_the_kernel_allocates(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """The peak of forward and backward pass: workspaces too, where torch or the device's allocator tells them.

        Plain torch is compared on a CPU alone: what its operators allocate in passing is another device's own matter.
        """
        if subject.device.type != "cpu" and not _declares(subject, kernel, asked):
            pytest.skip("plain torch without a stand-in is compared on the CPU alone")
        counted = _counts_allocations(subject)
        larger = longer(asked, MANY_TOKENS) if counted else asked
        asked = larger if subject.takes(kernel, larger) else asked
        call = example_call(asked, MANY_TOKENS if counted else TOKENS)
        with FakeTensorMode():
            stand_in, given = _stand_in(subject, kernel, asked), call.placed(_empty)
            peak_bytes(stand_in, given)  # as on the device, the first call makes what is kept for all others
            fake = peak_bytes(stand_in, given)
        built, placed = as_function(asked.operation, subject.build(kernel, asked)), _on_device(call, subject)
        if counted:
            # On a busy machine a tensor may be freed late, and the peak is higher: some call is as it should be.
            peaks = [_peak_of_device(subject, built, placed)]
            while len(peaks) < CALLS and not _is_near(peaks[-1], fake):
                peaks.append(_peak_of_device(subject, built, placed))
            assert _is_near(peaks[-1], fake), f"{kernel}: peaks {peaks}, its stand-in's {fake}"
        else:
            peak_bytes(built, placed)  # the first call may try what the device can do
            real = peak_bytes(built, placed)
            assert real == fake, f"{kernel}: peak {real}, its stand-in's {fake}"

    @run_with(ADAMS)
    def test_optimizer(self, subject: Subject, kernel: Kernel, asked: OptimizerRequest) -> None:
        """Names, shapes and dtypes of an optimizer's state after a step, and the gradient norm."""
        real = _state(subject.build(kernel, asked), subject.device)
        with FakeTensorMode():
            fake = _state(_stand_in(subject, kernel, asked), torch.device("cpu"))
        assert real == fake


def _stand_in(subject: Subject, kernel: Kernel, asked: Request) -> Any:
    answer = subject.answer(kernel, asked)
    assert isinstance(answer, Offer)
    return as_function(asked.operation, (answer.fake or answer.build)({}))


def _require_own_dropout(subject: Subject, kernel: Kernel, asked: Request) -> None:
    """Skip torch's dropout, which keeps another mask on a CPU than on other devices: the plan stands in for it."""
    drops = isinstance(asked, AttentionRequest | BiasDropoutAddRequest) and asked.dropout > 0
    if drops and subject.device.type != "cpu" and not _declares(subject, kernel, asked):
        pytest.skip("plain torch's dropout keeps another mask here than on the CPU")


def _declares(subject: Subject, kernel: Kernel, asked: Request) -> bool:
    """Return whether a kernel has a stand-in of its own."""
    answer = subject.answer(kernel, asked)
    return isinstance(answer, Offer) and answer.fake is not None


def _on_device(call: ExampleCall, subject: Subject) -> ExampleCall:
    return call.placed(lambda x: x.to(subject.device))


def _empty(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


def _counts_allocations(subject: Subject) -> bool:
    """Return whether the backend tells what is allocated, and not what the process takes, as of a CPU."""
    return subject.device.type != "cpu" and subject.plugins.backend.memory().allocated is not None


def _is_near(real: int, fake: int) -> bool:
    return abs(real - fake) <= TOLERANCE * real + SLACK


def _peak_of_device(subject: Subject, kernel: Callable[..., Tensor], call: ExampleCall) -> int:
    """Return the same as the device's allocator tells it, in a second call: the first makes lasting workspaces."""
    memory = subject.plugins.backend.memory
    for _ in range(2):
        given = differentiable(call)
        memory(reset_peak=True)
        before = memory().allocated or 0
        grads = gradients(kernel(**given, **call.constants), given)
        peak = memory().peak or 0
        del grads, given
        time.sleep(0.01)  # autograd's thread frees what a backward pass in Python has kept, once it may run Python
    return peak - before


def _state(kernels: OptimizerKernels, device: torch.device) -> Any:
    """Return what an optimizer keeps for a parameter after a step, and what its norm returns."""
    parameter = torch.nn.Parameter(torch.ones(33, 17, device=device))
    parameter.grad = torch.ones_like(parameter)
    adam: Any = kernels.adam
    stepping = adam([parameter], **SETTINGS)
    norm = kernels.gradient_norm([parameter.grad])
    stepping.step()
    kept = {name: (tuple(x.shape), x.dtype) for name, x in stepping.state[parameter].items()}
    return kept, (tuple(norm.shape), norm.dtype), tuple(kernels.gradient_norm([]).shape)
