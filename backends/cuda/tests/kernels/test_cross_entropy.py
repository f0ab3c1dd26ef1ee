"""Cross entropy in Triton: the kit, two ranks included, cases beyond it, and declined requests."""

from __future__ import annotations

import pytest
import torch

from kit.pairs import one_on_a_commit
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, oracle, random
from pretrain.conformance.suite import TestCrossEntropy, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins.offer import Decline
from pretrain_cuda import cross_entropy

BACKEND = "kit.interpreted"


def build(**settings):
    return cross_entropy.answers(examples.cross_entropy(**settings)).build({})


@pytest.fixture
def small_blocks(monkeypatch):
    build()  # imports it
    monkeypatch.setattr("pretrain_cuda.kernels.triton.cross_entropy.BLOCK", 16)


SIZES = [(15, 15), (16, 17), (17, 64), (32, 48), (50, 51), (64, 64)]


@pytest.mark.parametrize(("vocab_size", "padded", "dtype"), one_on_a_commit(SIZES, examples.DTYPES), ids=str)
def test_rows_of_several_blocks(device, small_blocks, vocab_size, padded, dtype):
    """The last block cut off or padding only; the maximum in any of them, and the target too."""
    request = examples.cross_entropy(dtype, vocab_size=vocab_size, padded=padded)
    logits = random(vocab_size, 1, padded, dtype=dtype) * 3
    logits[torch.arange(vocab_size), 0, torch.arange(vocab_size).flip(0)] += 20
    logits[..., vocab_size:] = torch.nan  # padding may hold anything
    target = torch.arange(vocab_size).view(-1, 1)
    kernel, expected = build(dtype=dtype, vocab_size=vocab_size, padded=padded), oracle(request)
    results = assert_agrees(
        lambda logits: kernel(logits, target.to(device)),
        lambda logits: expected(logits, target),
        {"logits": logits},
        device,
        output_dtype=torch.float32,
    )
    assert not results["gradient of logits"][..., vocab_size:].count_nonzero()


def test_a_row_may_begin_with_minus_infinity(device, small_blocks):
    logits = torch.full((1, 1, 48), -torch.inf, device=device)
    logits[..., 20:22] = 1
    assert build(vocab_size=48, padded=48)(logits, torch.full((1, 1), 20, device=device)).item() == pytest.approx(
        torch.log(torch.tensor(2.0)).item()
    )


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract:RuntimeWarning")  # numpy of inf - inf
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("column", [0, 17, 47])
def test_values_that_are_not_finite_are_not_hidden(device, small_blocks, bad, column):
    """A loss that is not finite stops the training, or skips the step of fp16."""
    logits = torch.zeros(2, 1, 48, device=device)
    logits[1, 0, column] = bad
    loss = build(vocab_size=48, padded=48)(logits, torch.zeros(2, 1, dtype=torch.int64, device=device))
    assert loss.isfinite().flatten().tolist() == [True, False]


def test_the_gradient_is_where_the_logits_were(device):
    given = torch.randn(7, 2, 64, device=device).bfloat16().requires_grad_().clone()
    target = torch.zeros(7, 2, dtype=torch.int64, device=device)
    (grad,) = torch.autograd.grad(build(dtype=torch.bfloat16)(given, target).sum(), given)
    assert grad.data_ptr() == given.data_ptr()


def test_a_second_backward_through_overwritten_logits_is_an_error(device):
    logits = torch.randn(7, 2, 64, device=device, requires_grad=True)
    loss = build()(logits.clone(), torch.zeros(7, 2, dtype=torch.int64, device=device)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_without_a_gradient_the_logits_stay(device):
    logits = torch.randn(7, 2, 64, device=device)
    before = logits.clone()
    build()(logits, torch.zeros(7, 2, dtype=torch.int64, device=device))
    assert torch.equal(logits, before)


def test_the_target_may_be_a_view_and_there_may_be_no_tokens(device):
    logits, target = torch.randn(7, 2, 64, device=device), torch.arange(14, device=device).view(2, 7).t()
    torch.testing.assert_close(build()(logits, target), build()(logits, target.contiguous()), rtol=0, atol=0)
    assert build()(logits[:0], target[:0]).shape == (0, 2)


def test_declines_float64():
    declined = cross_entropy.answers(examples.cross_entropy(torch.float64))
    assert isinstance(declined, Decline)
    assert declined.reason == "dtype torch.float64; only float32, float16, bfloat16"
