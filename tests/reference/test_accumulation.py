"""A weight gradient is added to its fp32 sum without a rounding in between, where the device can.

torch's operations for that are CUDA's alone. Here a CPU is given them, by their names and signatures and computed with
fp32 copies, so that the very calls and the question whether a device has them are seen; CUDA's own were not run.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.plugins.requests import LinearRequest
from pretrain.reference import accumulation
from pretrain.reference.accumulation import accumulation_for, add_matmul, fused_add, rounded, separate_add
from pretrain.reference.linear import Linear

CPU = torch.device("cpu")
HALF = [torch.bfloat16, torch.float16]


def addmm_out(total, a, b, out_dtype, *, beta=1, alpha=1, out):
    assert out_dtype is out.dtype is total.dtype
    return out.copy_(beta * total + alpha * (a.to(out_dtype) @ b.to(out_dtype)))


def addmm_out_that_forgets(total, a, b, out_dtype, *, beta=1, alpha=1, out):
    """What one does that writes its output before it has read the sum, which is the same."""
    return out.zero_().addmm_(a.to(out_dtype), b.to(out_dtype))


def addmm_out_that_refuses(total, a, b, out_dtype, *, beta=1, alpha=1, out):
    """Before torch 2.11."""
    raise RuntimeError("self and mat2 must have the same dtype, but got Float and BFloat16")


def mm(a, b, out_dtype):
    return a.to(out_dtype) @ b.to(out_dtype)


def mm_that_rounds(a, b, out_dtype):
    return (a @ b).to(out_dtype)


@pytest.fixture
def operations():
    """Give the CPU operations of ATen, and take them back afterwards."""
    library = torch.library.Library("aten", "IMPL")

    def give(**functions):
        for name, function in functions.items():
            library.impl(name.replace("_dtype", ".dtype"), function, "CPU")

    accumulation_for.cache_clear()
    yield give
    library._destroy()
    accumulation_for.cache_clear()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("there", "way"),
    [
        ({}, rounded),
        ({"mm_dtype": mm}, separate_add),
        ({"mm_dtype": mm, "addmm_dtype_out": addmm_out}, fused_add),
        ({"mm_dtype": mm, "addmm_dtype_out": addmm_out_that_refuses}, separate_add),
        ({"mm_dtype": mm, "addmm_dtype_out": addmm_out_that_forgets}, separate_add),
        ({"mm_dtype": mm_that_rounds}, rounded),
    ],
)
def test_a_device_is_probed_for_exact_methods(operations, there, way, dtype):
    operations(**there)
    assert accumulation_for(CPU, torch.float32, dtype) is way


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("there", [{"mm_dtype": mm}, {"addmm_dtype_out": addmm_out}], ids=["mm", "addmm"])
def test_main_grad_is_the_sum_of_unrounded_matmuls(operations, there, dtype):
    """To 1e-6 of the largest entry, four micro-batches of 96 rows; rounded to bf16 it would be off by 1e-3."""
    operations(**there)
    linear = Linear(LinearRequest(device_type="cpu", dtype=dtype, main_grad_dtype=torch.float32))
    generator = torch.Generator().manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(40, 24, generator=generator).to(dtype))
    weight.main_grad, weight.grad_added_to_main_grad = torch.randn(40, 24, generator=generator), False
    expected = weight.main_grad.double()
    for _ in range(4):
        x, grad = (torch.randn(96, 1, size, generator=generator).to(dtype) for size in (24, 40))
        linear(x, weight).backward(grad)
        expected += torch.einsum("sbo,sbi->oi", grad.double(), x.double())
    assert weight.grad_added_to_main_grad
    error = (weight.main_grad.double() - expected).abs().max() / expected.abs().max()
    assert error < 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)], ids=str)
def test_elsewhere_each_matmul_is_rounded_once(dtype, tolerance):
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(40, 96, generator=generator).to(dtype), torch.randn(96, 24, generator=generator).to(dtype)
    total = torch.zeros(40, 24)
    add_matmul(total, a, b)
    expected = a.double() @ b.double()
    assert (total.double() - expected).abs().max() < tolerance * expected.abs().max()


def test_fake_tensors_choose_no_way_for_the_device_they_stand_for():
    accumulation_for.cache_clear()
    with FakeTensorMode():
        add_matmul(torch.zeros(2, 2), torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(3, 2, dtype=torch.bfloat16))
    assert accumulation_for.cache_info().currsize == 0


def test_equal_dtypes_need_no_probe(monkeypatch):
    monkeypatch.setattr(accumulation, "accumulation_for", lambda *_: pytest.fail("asked"))
    total = torch.ones(2, 2, dtype=torch.bfloat16)
    add_matmul(total, torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(3, 2, dtype=torch.bfloat16))
    assert total.tolist() == [[4, 4], [4, 4]]
