"""Errors of single calls, and what the dtype explains of them."""

import pytest
import torch

from pretrain.conformance.tensor_error import TensorError

EXACT = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).double()


def is_explained(actual, dtype, made=None):
    error, explained = TensorError.of(actual, EXACT).judged(dtype, made)
    return error <= explained


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_explained(dtype):
    assert is_explained(EXACT.to(dtype), dtype)
    assert TensorError.of(EXACT.to(dtype), EXACT).is_small(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_percent_too_much_is_not_even_where_no_entry_is_far_off(dtype):
    assert not is_explained((1.01 * EXACT).to(dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "slice_", [(..., 2, slice(None)), -1, (slice(None), 3), (..., 5)], ids=["head", "position", "sample", "feature"]
)
def test_one_percent_too_much_in_one_slice_is_not(slice_, dtype):
    exact = torch.randn(32, 8, 4, 16, generator=torch.Generator().manual_seed(1)).double()
    wrong = exact.clone()
    wrong[slice_] *= 1.01

    assert judged(exact.to(dtype), exact, dtype)
    assert not judged(wrong.to(dtype), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_wrong_token_is_seen_beside_one_that_is_a_thousand_times_larger(dtype):
    exact = torch.randn(64, 8, 32, generator=torch.Generator().manual_seed(1)).double()
    exact[0] *= 1000
    wrong = exact.clone()
    wrong[17, 3] = torch.randn(32, generator=torch.Generator().manual_seed(2))

    assert judged(exact.to(dtype), exact, dtype)
    assert not judged(wrong.to(dtype), exact, dtype)


def test_rounding_of_a_few_massive_entries_is_explained():
    exact = torch.randn(64, 8, 32, generator=torch.Generator().manual_seed(1)).double()
    exact[:, :, 7] *= 1000
    exact[0, :, 7] *= 100

    assert judged(exact.bfloat16(), exact, torch.bfloat16)


def judged(actual, exact, dtype):
    error, explained = TensorError.of(actual, exact).judged(dtype, None)
    return error <= explained


def test_one_wrong_entry_is_not_though_the_whole_tensor_is_near():
    one = EXACT.clone()
    one[3, 5] += 2e-4

    assert TensorError.of(one, EXACT).whole < 1e-5
    assert not is_explained(one, torch.float32)


def test_what_the_reference_kernel_makes_explains_four_times_as_much():
    made = TensorError.of(1.005 * EXACT, EXACT)

    assert is_explained(1.019 * EXACT, torch.bfloat16, made)
    assert not is_explained(1.021 * EXACT, torch.bfloat16, made)


@pytest.mark.parametrize("actual", [None, EXACT[:3], EXACT / 0])
def test_a_missing_gradient_another_shape_and_an_infinite_number_are_not(actual):
    assert not is_explained(actual, torch.bfloat16)
