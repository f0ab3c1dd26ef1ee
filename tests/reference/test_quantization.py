"""FP8 operands: scales, elements and groups, against Python's own numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.plugins.requests import QUANTIZATIONS
from pretrain.reference.quantization import GROUPS, quantize, quantized, scales

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
POSITIVE = st.floats(2.0**-117, 3.4028234663852886e38, width=32)


@given(POSITIVE)
def test_a_scale_is_the_least_power_of_two_under_which_the_largest_entry_fits(amax):
    for dtype, most in ((E4M3, 448), (E5M2, 57344)):
        scale = scales(torch.tensor([amax]), dtype).item()
        assert math.frexp(scale)[0] == 0.5  # a power of two
        assert amax / scale <= most
        assert amax / (scale / 2) > most or scale == 2.0**-126


@pytest.mark.parametrize(("amax", "scale"), [(0.0, 2.0**-126), (1e-45, 2.0**-126), (448, 1.0), (448.0001, 2.0)])
def test_scales_of_zeros_and_at_the_edge(amax, scale):
    assert scales(torch.tensor([amax]), E4M3).item() == scale


def numbers(rows=6, columns=300):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, columns, generator=generator) * torch.randn(rows, 1, generator=generator).mul(9).exp()


@pytest.mark.parametrize("kind", QUANTIZATIONS)
@pytest.mark.parametrize("dim", [0, 1])
def test_elements_times_scales_are_exact_in_bf16_and_the_same_from_every_dtype(kind, dim):
    x = numbers().to(torch.bfloat16)
    rounded = quantized(x, kind, dim)
    assert torch.equal(rounded.double(), quantized(x.double(), kind, dim))
    assert torch.equal(rounded.float(), quantized(x.float(), kind, dim))
    elements, scale = quantize(x.float(), kind, dim)
    assert scale.log2().frac().eq(0).all()
    assert elements.float().abs().max() <= 448


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_a_group_has_the_scale_of_its_own_largest_entry(kind):
    size = GROUPS.get(kind, 300)
    x = torch.ones(2, 300)
    x[1, 5] = 448 * 2.0**9
    rounded = quantized(x * 1.0625, kind, 1)
    _, scale = quantize(x, kind, 1)
    assert scale.shape == {"tensorwise": (1, 1), "rowwise": (2, 1)}.get(kind, (2, -(-300 // size)))
    coarse = rounded == 2  # the least element times 2^10; with a scale of its own 1.0625 is 1
    shared = torch.zeros(2, 300, dtype=torch.bool)
    shared[1, :size] = True
    shared[1, 5] = False
    if kind == "tensorwise":
        shared[0] = True
    assert torch.equal(coarse, shared)
    columns = quantized(x.t().contiguous() * 1.0625, kind, 0)
    assert torch.equal(columns.t(), rounded)


def test_gradients_have_more_exponent_only_under_tensorwise():
    x = numbers()
    assert {kind: quantize(x, kind, 1, is_gradient=True)[0].dtype for kind in QUANTIZATIONS} == {
        "tensorwise": E5M2,
        "rowwise": E4M3,
        "block": E4M3,
        "mxfp8": E4M3,
    }


@pytest.mark.parametrize("kind", QUANTIZATIONS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_makes_its_group_nan(kind, value):
    x = numbers()
    x[3, 40] = value
    rounded = quantized(x, kind, 1)
    assert rounded[3, 32:64].isnan().all()
    assert rounded[3, 128:].isfinite().all() == (kind in GROUPS)
    assert rounded[2].isfinite().all() == (kind != "tensorwise")


def test_no_rows_have_no_operand():
    assert quantized(torch.empty(0, 32), "tensorwise", 0).shape == (0, 32)
