"""Column-parallel linear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.comparison import assert_agrees, assert_repeats, oracle, random
from pretrain.conformance.example_calls import Sizes, example_call
from pretrain.conformance.examples import DTYPES, linear
from pretrain.conformance.tensor_error import assert_near
from pretrain.conformance.two_ranks import RankPair

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import LinearRequest


TOKENS = [(1, 1), (7, 2), (33, 3)]
BOTH = (False, True)


class TestLinear:
    """A `LinearFn`."""

    operations = ("linear",)

    @run_with(linear(dtype) for dtype in DTYPES)
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: LinearRequest) -> None:
        """Forward and backward on one rank: input, weight and bias; few tokens and many, contiguous and not."""
        kernels = subject.build(kernel, asked), oracle(asked)
        for tokens, batch in TOKENS:
            for has_bias in (True, False):
                call = example_call(asked, Sizes(tokens=tokens, batch=batch, has_bias=has_bias))
                assert_agrees(*kernels, call.inputs, subject.device, is_strided=tokens == 33)

    @run_with(linear(dtype, main_grad_dtype=main) for dtype in DTYPES for main in dict.fromkeys((torch.float32, dtype)))
    def test_adds_to_main_grad(self, subject: Subject, kernel: Kernel, asked: LinearRequest) -> None:
        """Two micro-batches add up in `main_grad`, once each; the data-parallel hook is notified."""
        built = subject.build(kernel, asked)
        inputs = {name: x.to(subject.device) for name, x in example_call(asked, 7).inputs.items()}
        weight: Any = torch.nn.Parameter(inputs.pop("weight"))
        weight.main_grad = torch.ones_like(weight, dtype=asked.main_grad_dtype)
        for _ in range(2):
            _backward_as_data_parallel_does(built, weight, inputs)
        rows = inputs["x"].cpu().double().flatten(0, 1).sum(0)
        expected = 1 + 2 * rows.expand(weight.shape)
        assert_near(weight.main_grad, expected, asked.dtype, "main_grad after two micro-batches")

    @run_with(linear(dtype, main_grad_dtype=torch.float32) for dtype in DTYPES)
    def test_returns_the_gradient_of_a_shared_weight(
        self, subject: Subject, kernel: Kernel, asked: LinearRequest
    ) -> None:
        """A weight that is also the embedding (`zero_out_wgrad`) gets each of its two gradients once."""
        built = subject.build(kernel, asked)
        weight: Any = torch.nn.Parameter(random(6, 5, dtype=asked.dtype).to(subject.device))
        weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
        weight.zero_out_wgrad = True
        tokens = torch.arange(6, device=subject.device).view(6, 1)
        _backward_as_data_parallel_does(built, weight, {}, lambda: torch.nn.functional.embedding(tokens, weight))
        doubled = weight.detach().cpu().double()
        expected = doubled.sum(0).expand(6, 5) + doubled.sum(0)
        assert_near(weight.main_grad, expected, asked.dtype, "main_grad of a shared weight")

    @run_with(
        Case(tuple(linear(dtype, main_grad_dtype=main, deterministic=True) for main in (None, torch.float32)))
        for dtype in DTYPES
    )
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: LinearRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        kernels = subject.build(kernel, asked), oracle(asked)
        assert_repeats(*kernels, example_call(asked, Sizes(tokens=33, batch=3)).inputs, subject.device)

    @run_with(
        Case(tuple(linear(dtype, tensor_parallel_size=2, sequence_parallel=sp) for dtype in DTYPES)) for sp in BOTH
    )
    def test_two_ranks(self, subject: Subject, kernel: Kernel, asked: LinearRequest) -> None:
        """The input's gradient is summed over ranks; nothing is read before its communication was waited for."""
        way = "sequence_parallel" if asked.sequence_parallel else "all_reduce"
        RankPair.of(subject).require(f"linear {way}", kernel)


def _backward_as_data_parallel_does(
    kernel: Any, weight: Any, inputs: dict[str, Tensor], make_input: Any = None
) -> None:
    """Run backward as DistributedDataParallel._make_backward_post_hook of megatron-core 0.16.1 does."""
    weight.grad_added_to_main_grad = False
    x = make_input() if make_input else inputs["x"].clone().requires_grad_()
    kernel(x, weight, inputs.get("bias")).sum().backward()
    if weight.grad is not None and (not weight.grad_added_to_main_grad or getattr(weight, "zero_out_wgrad", False)):
        weight.main_grad.add_(weight.grad)
    weight.grad = None
