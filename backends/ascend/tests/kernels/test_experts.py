"""Kernels of experts, over operators with the documented semantics and torch_npu's schemas."""

from __future__ import annotations

import pytest
import torch

from ascend_kit import operators
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, oracle
from pretrain.conformance.example_calls import as_function, example_call, grouped_call, uneven_counts
from pretrain_ascend.kernels.grouped_matmul import grouped_linear
from pretrain_ascend.kernels.moe_token_permute import permutation

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    monkeypatch.setattr("pretrain_ascend.kernels.operators.call", operators.call)
    operators.calls.clear()
    return operators.calls


@pytest.mark.parametrize("counts", [uneven_counts(35, 5), [0, 0, 0, 0, 1], [0] * 5])
@pytest.mark.parametrize("is_second", [False, True])
def test_the_grouped_matmul_is_a_linear_of_experts_with_both_gradients(counts, is_second, calls):
    asked = examples.grouped_linear(is_gated=True)
    call = grouped_call(asked, counts, is_second=is_second)
    assert_agrees(grouped_linear, oracle(asked), call.inputs, CPU, constants=call.constants, is_strided=is_second)
    assert [given["group_type"] for _, given in calls] == ([0, 0, 2] if sum(counts) else [])


def test_a_permutation_takes_the_operators_order(monkeypatch):
    """Whichever tokens it puts first within an expert, the weights are those of its rows."""

    def last_token_first(name, *arguments, **options):
        if name == "npu_moe_token_permute":
            tokens, indices = arguments
            order = (indices.flatten() * 1000 - torch.arange(indices.numel())).argsort()
            return tokens[order // indices.shape[1]], order.argsort().int()
        return operators.call(name, *arguments, **options)

    asked = examples.moe_permute()
    call = example_call(asked, 17)
    for operator in (operators.call, last_token_first):
        monkeypatch.setattr("pretrain_ascend.kernels.operators.call", operator)
        kernels = (as_function("moe_permute", kernel) for kernel in (permutation(asked), oracle(asked)))
        assert_agrees(*kernels, call.inputs, CPU, constants=call.constants)
