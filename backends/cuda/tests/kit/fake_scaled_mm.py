"""torch's scaled_mm of a GPU, computed on the CPU with the operands' values; it checks its arguments as a GPU's does.

Layouts and scales are checked by torch itself, by tensors of a GPU without values. What it leaves to the kernel is
checked here: aten/src/ATen/native/cuda/ScaledBlas.cpp, and RowwiseScaledMM.cu beside it.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812

ON_FAKE_TENSORS = getattr(F, "scaled_mm", None)
"""torch's own, before any test has put this one in its place."""

CALLS = []
"""Recipe, dtypes of both operands and of the output, and the shapes [m, k] and [k, n], of every call."""

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu


def scaled_mm(
    mat_a,
    mat_b,
    scale_a,
    scale_recipe_a,
    scale_b,
    scale_recipe_b,
    swizzle_a=None,
    swizzle_b=None,
    bias=None,
    output_dtype=torch.bfloat16,
    contraction_dim=(),
    use_fast_accum=False,
):
    assert (bias, contraction_dim, use_fast_accum) == (None, (), False)
    assert scale_recipe_a is scale_recipe_b
    recipe = scale_recipe_a
    with FakeTensorMode():
        a, b, of_a, of_b = (_on_gpu(x) for x in (mat_a, mat_b, scale_a, scale_b))
        ON_FAKE_TENSORS(a, b, of_a, recipe, of_b, recipe, swizzle_a, swizzle_b, output_dtype=output_dtype)
    assert mat_a.dtype in (E4M3, E5M2), "operands in fp8"
    assert mat_b.dtype is E4M3, "two matrices in E5M2 are not multiplied, nor rows by one in E5M2"
    assert mat_a.dtype is E4M3 or recipe is F.ScalingType.TensorWise
    assert mat_a.is_contiguous()
    assert mat_b.t().is_contiguous()
    if recipe is F.ScalingType.RowWise:
        assert (scale_a.shape, scale_b.shape) == ((mat_a.shape[0], 1), (1, mat_b.shape[1]))
        assert scale_a.is_contiguous()
        assert scale_b.is_contiguous()
    if recipe is F.ScalingType.BlockWise1x32:
        assert scale_a.is_contiguous()
        assert scale_b.is_contiguous()
    assert output_dtype in (torch.bfloat16, torch.float32)
    CALLS.append((recipe, mat_a.dtype, mat_b.dtype, output_dtype, tuple(mat_a.shape), tuple(mat_b.shape)))
    of_b = scale_b.t() if recipe is F.ScalingType.RowWise else scale_b
    return (_values(mat_a, scale_a, recipe) @ _values(mat_b.t(), of_b, recipe).t()).to(output_dtype)


def _on_gpu(x):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")


def _values(elements, scale, recipe):
    """Return the matrix [outer, summed] in float64 that elements and scales are."""
    outer, summed = elements.shape
    if recipe is F.ScalingType.BlockWise1x32:
        scale = in_order(scale, outer, -(-summed // 32)).repeat_interleave(32, 1)[:, :summed]
    elif recipe is F.ScalingType.BlockWise1x128:
        scale = scale.repeat_interleave(128, 1)[:, :summed]
    return elements.double() * scale.double()


def in_order(scale, outer, groups):
    """Return scales [outer, groups] out of their tiles: cuBLAS documentation, "1D Block Scaling Factors Layout"."""
    assert scale.dtype is E8M0
    o, g = torch.meshgrid(torch.arange(outer), torch.arange(groups), indexing="ij")
    tile = (o // 128) * -(-groups // 4) + g // 4
    return scale.double()[tile * 512 + (o % 32) * 16 + (o % 128 // 32) * 4 + g % 4]
