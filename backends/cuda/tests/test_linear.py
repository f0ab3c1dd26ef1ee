"""Gradient accumulation fusion by apex's extension. The real one was not run: one with its signatures stands in."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import LinearRequest
from pretrain.reference.accumulation import accumulation_for, add_matmul, rounded
from pretrain_cuda import linear


def request(dtype=torch.bfloat16, main=torch.float32):
    return LinearRequest(device_type="cuda", dtype=dtype, main_grad_dtype=main)


@pytest.fixture
def extension(monkeypatch):
    """apex csrc/megatron/fused_weight_gradient_dense.cpp: (input [rows, in], gradient [rows, out], main gradient)."""
    module = ModuleType(linear.EXTENSION)
    calls = []

    def product(name):
        def accumulate(x, grad, main_grad):
            assert x.is_contiguous()
            assert grad.is_contiguous()
            calls.append(name)
            main_grad += (grad.double().t() @ x.double()).to(main_grad.dtype)

        return accumulate

    module.wgrad_gemm_accum_fp32, module.wgrad_gemm_accum_fp16 = product("fp32"), product("fp16")
    monkeypatch.setitem(sys.modules, linear.EXTENSION, module)
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda name: name == linear.EXTENSION)
    return calls


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(main=None), "no gradient accumulation fusion is asked for"),
        (request(torch.float64), "dtype torch.float64 into torch.float32; only fp16, bf16 and fp32 into fp32 or"),
        (request(torch.float16, torch.bfloat16), "dtype torch.float16 into torch.bfloat16; only fp16, bf16 and fp32"),
        (request(), "fused_weight_gradient_mlp_cuda is not installed; apex brings it when it is built with --cuda_ext"),
    ],
)
def test_a_decline_names_the_unsupported_value(asked, reason):
    answer = linear.answers(asked)[-1]
    assert isinstance(answer, Decline)
    assert answer.reason.startswith(reason)


@pytest.mark.parametrize(
    ("dtype", "main", "used"),
    [
        (torch.bfloat16, torch.float32, "fp32"),
        (torch.float32, torch.float32, "fp32"),
        (torch.float16, torch.float16, "fp16"),
        (torch.bfloat16, torch.bfloat16, "fp16"),
    ],
)
def test_the_gradient_is_added_to_the_main_gradient(extension, dtype, main, used):
    answer = linear.answers(request(dtype, main))[-1]
    assert isinstance(answer, Offer)
    kernel = answer.build({})
    weight = torch.nn.Parameter(torch.randn(6, 5, dtype=dtype))
    weight.main_grad, weight.grad_added_to_main_grad = torch.ones(6, 5, dtype=main), False
    x = torch.randn(7, 2, 5, dtype=dtype, requires_grad=True)
    kernel(x, weight).sum().backward()
    assert extension == [used]
    assert weight.grad_added_to_main_grad
    expected = 1 + x.detach().double().flatten(0, 1).sum(0).expand(6, 5)
    torch.testing.assert_close(weight.main_grad.double(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(x.grad.double(), weight.detach().double().sum(0).expand(7, 2, 5), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_without_apex_a_gpu_keeps_the_matmul_in_fp32(device, dtype):
    """To 1e-5 of the largest entry, which a rounded matmul misses by far. Not tested on a GPU yet."""
    if device.type != "cuda":
        pytest.skip("the operations of torch that it needs are CUDA's alone; tests/reference has stand-ins")
    assert accumulation_for(device, torch.float32, dtype) is not rounded
    generator = torch.Generator().manual_seed(1)
    grad, x = (torch.randn(512, size, generator=generator).to(dtype) for size in (384, 256))
    total = torch.randn(384, 256, generator=generator)
    expected = total.double() + grad.double().t() @ x.double()
    found = total.to(device)
    add_matmul(found, grad.to(device).t(), x.to(device))
    assert (found.cpu().double() - expected).abs().max() < 1e-5 * expected.abs().max()
