"""Column-parallel linear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pretrain.testing import examples
from pretrain.testing.comparison import assert_agrees, assert_repeats, random
from pretrain.testing.examples import DTYPES
from pretrain.testing.ranks import Ranks
from pretrain.testing.subject import oracle
from pretrain.testing.tolerance import assert_near

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.testing.subject import Kernel, Subject


class TestLinear:
    """A `LinearFn`."""

    operations = ("linear",)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
    @pytest.mark.parametrize("tokens", [(1, 1), (7, 2), (33, 3)], ids=str)
    def test_agrees_with_float64(
        self, subject: Subject, kernel: Kernel, tokens: tuple[int, int], has_bias: bool, dtype: torch.dtype
    ) -> None:
        """Forward and backward on one rank: input, weight and bias."""
        request = examples.linear(dtype)
        kernels = subject.build(kernel, request), oracle(request)
        assert_agrees(*kernels, _inputs(tokens, dtype, has_bias), subject.device, is_strided=tokens[0] == 33)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("is_fp32", [True, False], ids=["into fp32", "into the same dtype"])
    def test_adds_to_main_grad(self, subject: Subject, kernel: Kernel, is_fp32: bool, dtype: torch.dtype) -> None:
        """Two micro-batches add up in `main_grad`, once each; the data-parallel hook is told so."""
        main_dtype = torch.float32 if is_fp32 else dtype
        built = subject.build(kernel, examples.linear(dtype, main_grad_dtype=main_dtype))
        inputs = {name: x.to(subject.device) for name, x in _inputs((7, 2), dtype, True).items()}
        weight: Any = torch.nn.Parameter(inputs.pop("weight"))
        weight.main_grad = torch.ones_like(weight, dtype=main_dtype)
        for _ in range(2):
            _backward_as_data_parallel_does(built, weight, inputs)
        rows = inputs["x"].cpu().double().flatten(0, 1).sum(0)
        expected = 1 + 2 * rows.expand(weight.shape)
        assert_near(weight.main_grad, expected, dtype, "main_grad after two micro-batches")

    def test_returns_the_gradient_of_a_shared_weight(self, subject: Subject, kernel: Kernel) -> None:
        """A weight that is also the embedding (`zero_out_wgrad`) gets each of its two gradients once."""
        built = subject.build(kernel, examples.linear(main_grad_dtype=torch.float32))
        weight: Any = torch.nn.Parameter(random(6, 5, dtype=torch.float32).to(subject.device))
        weight.main_grad = torch.zeros_like(weight)
        weight.zero_out_wgrad = True
        tokens = torch.arange(6, device=subject.device).view(6, 1)
        _backward_as_data_parallel_does(built, weight, {}, lambda: torch.nn.functional.embedding(tokens, weight))
        doubled = weight.detach().cpu().double()
        expected = doubled.sum(0).expand(6, 5) + doubled.sum(0)
        assert_near(weight.main_grad, expected, torch.float32, "main_grad of a shared weight")

    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel) -> None:
        """The same bits on every call."""
        built = subject.build(kernel, examples.linear())
        assert_repeats(built, _inputs((33, 3), torch.float32, True), subject.device)

    @pytest.mark.parametrize("way", ["all_reduce", "sequence_parallel"])
    def test_two_ranks(self, subject: Subject, kernel: Kernel, way: str) -> None:
        """The input's gradient is summed over ranks; nothing is read before its communication was waited for."""
        Ranks.of(subject).require(f"linear {way}", kernel)


def _inputs(tokens: tuple[int, int], dtype: torch.dtype, has_bias: bool) -> dict[str, Tensor]:
    inputs = {"x": random(*tokens, 24, dtype=dtype), "weight": random(40, 24, dtype=dtype, seed=1)}
    return inputs | ({"bias": random(40, dtype=dtype, seed=2)} if has_bias else {})


def _backward_as_data_parallel_does(
    linear: Any, weight: Any, inputs: dict[str, Tensor], make_input: Any = None
) -> None:
    """megatron-core 0.16.1, distributed/distributed_data_parallel.py 430-445."""
    weight.grad_added_to_main_grad = False
    x = make_input() if make_input else inputs["x"].clone().requires_grad_()
    linear(x, weight, inputs.get("bias")).sum().backward()
    if weight.grad is not None and (not weight.grad_added_to_main_grad or getattr(weight, "zero_out_wgrad", False)):
        weight.main_grad.add_(weight.grad)
    weight.grad = None
