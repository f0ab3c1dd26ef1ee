"""Kernels that drop nothing, too much, or other entries on the way back are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pretrain.tools.doctor.trials import dropout_fault
from tools.doctor.tried import CPU, reference, trial_of

HIDDEN, ATTENTION = "model.hidden_dropout=0.1", "model.attention_dropout=0.1"
OPERATIONS = {"bias_dropout_add": HIDDEN, "attention": ATTENTION}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1234)


def fault(operation, kernel_of, *overrides):
    """Return the fault of the kernel that is made of the request."""
    request, trial = trial_of(operation, OPERATIONS[operation], *overrides)
    return dropout_fault(trial, kernel_of(request), CPU, request)


def at(rate):
    return lambda request: reference(replace(request, dropout=rate))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("operation", "overrides"),
    [
        ("bias_dropout_add", ()),
        ("bias_dropout_add", ("model.add_bias_linear=false",)),
        ("attention", ()),
        ("attention", ("model.seq_length=256",)),
        ("attention", ("data.reset_attention_mask=true",)),
        ("attention", ("model.window_size=9", "model.seq_length=256")),
    ],
)
def test_the_reference_is_right(operation, overrides, dtype):
    assert fault(operation, reference, f"precision.dtype={dtype}", *overrides) == ""


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.3, 0.5])
def test_small_and_large_rates_of_a_right_attention(rate):
    assert fault("attention", reference, f"model.attention_dropout={rate}") == ""


def test_a_kernel_without_dropout_is_not_asked():
    request, trial = trial_of("attention", ATTENTION)
    assert dropout_fault(trial, None, CPU, replace(request, dropout=0.0)) == ""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_not_finite(operation):
    def infinite(request):
        return lambda **given: reference(request)(**given) / 0

    assert fault(operation, infinite) == "not finite with dropout 0.1"


def test_an_addition_at_another_rate():
    assert fault("bias_dropout_add", at(0.3)).endswith("of the entries are dropped, not 0.1")
    assert fault("bias_dropout_add", at(0.0)) == "0.0000 of the entries are dropped, not 0.1"


class DroppedAnew(torch.autograd.Function):
    """Dropout whose backward pass draws other entries."""

    @staticmethod
    def forward(ctx, x):
        return torch.nn.functional.dropout(x, 0.1)

    @staticmethod
    def backward(ctx, grad):
        return torch.nn.functional.dropout(grad, 0.1)


def test_an_addition_that_drops_other_entries_on_the_way_back():
    def anew(request):
        return lambda x, bias, residual, training: DroppedAnew.apply(x + bias) + residual

    assert fault("bias_dropout_add", anew) == "output and gradient are dropped at different entries"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_kernel_that_drops_the_same_entries_again(operation):
    def frozen(request):
        def kernel(**given):
            torch.manual_seed(5)
            return reference(request)(**given)

        return kernel

    assert fault(operation, frozen) == "two calls drop the same entries"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_attention_that_drops_nothing(dtype):
    found = fault("attention", at(0.0), f"precision.dtype={dtype}", "model.seq_length=128")
    assert found.startswith("the weights' variance is 0.00 times that of dropout 0.1")


def test_an_attention_that_drops_nothing_where_rounding_hides_the_rate():
    settings = "model.attention_dropout=0.01", "precision.dtype=bf16", "train.micro_batch_size=8"
    found = fault("attention", at(0.0), *settings)
    assert found == "two calls drop the same entries"


def test_an_attention_at_another_rate():
    found = fault("attention", at(0.3), "model.seq_length=128")
    assert found.startswith("the weights' variance is 3.")


def test_an_attention_that_does_not_scale_what_is_left():
    def unscaled(request):
        return lambda **given: reference(request)(**given) * 0.5

    found = fault("attention", unscaled)
    assert found.startswith("with dropout 0.1 the weights sum to 0.")
