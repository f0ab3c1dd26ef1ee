"""Triton's operands in fp8 against the reference's."""

from __future__ import annotations

import pytest
import torch

from pretrain.plugins.requests import QUANTIZATIONS
from pretrain.reference.quantization import quantize
from pretrain_cuda.kernels.stand_ins import scaled_mm as stand_ins
from pretrain_cuda.kernels.triton.quantize import quantize as triton_quantize

BF16 = torch.bfloat16
FINITE = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(BF16)
FINITE = FINITE[FINITE.isfinite()].view(-1, 255)
"""Every number that bf16 has, in rows of one exponent and in columns of all."""


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("kind", QUANTIZATIONS)
@pytest.mark.parametrize(
    "x", [FINITE[:, :200], FINITE.t(), torch.zeros(16, 48, dtype=BF16)], ids=["rows", "view", "zeros"]
)
def test_operands_are_the_reference_s(device, x, kind, is_gradient):
    """Bit by bit, along both dimensions, of any strides, and zeros beyond."""
    for dim in (0, 1):
        length = x.shape[dim] + 128
        elements, scale = triton_quantize(x.to(device), kind, dim, length, is_gradient=is_gradient)
        elements, scale = elements.cpu(), scale.cpu()
        expected = [each if dim else each.t() for each in quantize(x, kind, dim, is_gradient=is_gradient)]
        assert torch.equal(scale, expected[1])
        assert torch.equal(elements[:, : x.shape[dim]].view(torch.uint8), expected[0].contiguous().view(torch.uint8))
        assert not elements[:, x.shape[dim] :].float().any()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_its_stand_in_makes_tensors_of_the_same_sizes(device, kind, dim):
    x = FINITE[:100, :48].to(device)
    for one, other in zip(*(each(x, kind, dim, 128) for each in (triton_quantize, stand_ins.quantize)), strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
@pytest.mark.parametrize("wrong", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_makes_its_group_nan(device, kind, wrong):
    x = torch.ones(64, 256, dtype=BF16)
    x[5, 7] = wrong
    elements, scale = (each.cpu().float() for each in triton_quantize(x.to(device), kind, 1, 256))
    expected, scales = quantize(x, kind, 1)
    assert torch.equal(elements.isnan(), expected.float().isnan())
    assert torch.equal(scale.isnan(), scales.isnan())
