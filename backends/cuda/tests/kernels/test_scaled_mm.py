"""The linear in fp8. torch's scaled_mm of a GPU was not run: one that checks its arguments as that does stands in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812

from kit import fake_scaled_mm
from kit.interpreted import Interpreted
from pretrain.conformance.comparison import random
from pretrain.conformance.suite import TestQuantization, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins import CONTRACT, hookimpl
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import QUANTIZATIONS, LinearRequest
from pretrain.plugins.stand_in import observing, within
from pretrain.reference.linear import Linear
from pretrain.reference.quantization import quantize, quantized
from pretrain.tools.plan.trace.storages import StepPosition, Storages
from pretrain.tools.plan.trace.work import Follower, Work
from pretrain_cuda import linear
from pretrain_cuda.kernels.scaled_mm import Operand, ScaledMatmuls, multiply, swizzled

BF16, FP32 = torch.bfloat16, torch.float32
A100, H100, B200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200"
BACKEND = "kernels.test_scaled_mm:Here"
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton's kernels are not interpreted here; the kit has the real scaled_mm"
)
ROWS, IN, OUT = (40, 3), 256, 128
"""120 rows are no multiple of 16, 32 or 128."""


class Here:
    """The kernel on the CPU, without its conditions on the device."""

    CONTRACT = CONTRACT

    @staticmethod
    @hookimpl
    def pretrain_backend():
        return Interpreted()

    @staticmethod
    @hookimpl
    def pretrain_linear(request):
        if not request.quantization or request.dtype is not BF16:
            return Decline(name="scaled_mm", reason="only quantized, in bf16")
        return Offer(name="scaled_mm", build=lambda _: Linear(request, ScaledMatmuls(request)))


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    monkeypatch.setattr(F, "scaled_mm", fake_scaled_mm.scaled_mm)
    fake_scaled_mm.CALLS.clear()
    return fake_scaled_mm.CALLS


def request(kind, **given):
    return LinearRequest(device_type="cuda", device_name=H100, dtype=BF16, quantization=kind, **given)


def trained(kernel, asked, seed=0):
    """Return output and gradients of two micro-batches; those of the weight in `main_grad` where it is asked for."""
    weight = torch.nn.Parameter(random(OUT, IN, dtype=BF16, seed=seed))
    bias = torch.nn.Parameter(random(OUT, dtype=BF16, seed=seed + 1))
    if asked.main_grad_dtype is not None:
        weight.main_grad, weight.grad_added_to_main_grad = torch.ones(OUT, IN, dtype=asked.main_grad_dtype), False
    x = random(*ROWS, IN, dtype=BF16, seed=seed + 2).requires_grad_()
    for _ in range(2):
        y = kernel(x, weight, bias)
        y.backward(random(*ROWS, OUT, dtype=BF16, seed=seed + 3))
    return y, x.grad, bias.grad, weight.grad if asked.main_grad_dtype is None else weight.main_grad


@pytest.mark.parametrize("main", [None, FP32, BF16])
@pytest.mark.parametrize("wgrad", [True, False])
@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_it_agrees_with_the_reference(kind, wgrad, main):
    """Output, bias and gradients, also in the main gradient, for rows that do not fill their groups."""
    asked = request(kind, quantized_wgrad=wgrad, main_grad_dtype=main)
    found, expected = (trained(kernel, asked) for kernel in (Linear(asked, ScaledMatmuls(asked)), Linear(asked)))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * other.detach().abs().max().item())


@pytest.mark.parametrize(
    ("kind", "device", "cuda", "dtype"),
    [
        ("tensorwise", H100, "12.8", FP32),
        ("tensorwise", B200, "13.0", FP32),
        ("rowwise", H100, "12.9", FP32),
        ("rowwise", H100, "12.8", BF16),
        ("rowwise", B200, "13.0", BF16),
        ("block", H100, "12.9", FP32),
        ("mxfp8", B200, "13.0", BF16),
    ],
)
def test_a_main_gradient_is_added_unrounded_where_torch_has_that_output(monkeypatch, calls, kind, device, cuda, dtype):
    monkeypatch.setattr("torch.version.cuda", cuda)
    asked = replace(request(kind, main_grad_dtype=FP32), device_name=device)
    trained(Linear(asked, ScaledMatmuls(asked)), asked)
    assert [output for _, _, _, output, *_ in calls[:3]] == [BF16, BF16, dtype]


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_three_matmuls_are_in_fp8(calls, kind):
    """Gradients of "tensorwise" are E5M2; the sums are over in, out and the rows, which zeros fill up."""
    trained(Linear(request(kind), ScaledMatmuls(request(kind))), request(kind))
    gradients = torch.float8_e5m2 if kind == "tensorwise" else torch.float8_e4m3fn
    assert [of_a for _, of_a, *_ in calls[:3]] == [torch.float8_e4m3fn, gradients, gradients]
    assert [shapes for *_, shapes, _ in calls[:3]] == [(120, IN), (120, OUT), (OUT, 128)]
    assert [shapes for *_, shapes in calls[:3]] == [(IN, OUT), (OUT, IN), (128, IN)]


def test_views_of_any_strides_are_operands():
    asked = request("rowwise")
    kernels = Linear(asked, ScaledMatmuls(asked)), Linear(asked)
    results = []
    for kernel in kernels:
        x = random(IN, *ROWS, dtype=BF16).movedim(0, -1).requires_grad_()
        y = kernel(x, random(IN, OUT, dtype=BF16, seed=1).t())
        y.sum().backward()  # an expanded gradient
        results.append((y, x.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("kind", "reads"), [("tensorwise", 2), ("rowwise", 2), ("block", 1), ("mxfp8", 1)])
def test_a_plan_counts_three_matmuls_in_fp8_and_what_rounding_reads_and_writes(monkeypatch, kind, reads):
    monkeypatch.setattr(F, "scaled_mm", fake_scaled_mm.ON_FAKE_TENSORS)
    position, work = StepPosition(), Work()
    position.begin_step(1)
    follower = Follower(position, Storages(torch.device("cpu")), work)
    asked = replace(request(kind), device_name=B200 if kind == "mxfp8" else H100)
    with FakeTensorMode(), follower, observing(follower):
        x, weight = (torch.empty(*shape, dtype=BF16, requires_grad=True) for shape in ((256, 1, 512), (128, 512)))
        kernel = within("linear", linear.answers(asked)[0].fake({}))
        y = kernel(x, weight)
        y.backward(torch.empty_like(y))
    counts = [(operation, count) for (_, operation), count in work.operations.items()]
    assert sum(count for operation, count in counts if operation.dtype == "fp8") == 3
    assert all(operation.dtype == "fp8" for operation, _ in counts if operation.flops)
    moved = sum(operation.moved * count for operation, count in counts if not operation.flops)
    entries = 2 * (256 * 512 + 128 * 512 + 256 * 128)  # each of x, weight and gradient is an operand twice
    assert moved == pytest.approx((2 * reads + 1) * entries, rel=0.2)  # and the scales


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("kind", "is_gradient"), [("tensorwise", False), ("tensorwise", True), ("rowwise", False)])
def test_torch_s_own_on_the_cpu_gives_the_reference_s_product(monkeypatch, kind, is_gradient, dim):
    """So that the stand-in and the specification are both torch's meaning of a scale. It has no other kinds there."""
    monkeypatch.setattr(F, "scaled_mm", fake_scaled_mm.ON_FAKE_TENSORS)
    x, other = (random(64, 96, dtype=BF16, seed=seed) * random(64, 1, dtype=BF16, seed=seed).exp() for seed in (0, 1))
    matmuls = ScaledMatmuls(request(kind))
    a, b = matmuls.operand(x, dim, is_gradient=is_gradient), matmuls.operand(other, dim)
    rounded = quantized(x, kind, dim, is_gradient=is_gradient).double(), quantized(other, kind, dim).double()
    expected = rounded[0] @ rounded[1].t() if dim == 1 else rounded[0].t() @ rounded[1]
    found = multiply(a, b, kind, FP32).double()
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize(("outer", "groups"), [(128, 4), (300, 9), (7, 1)])
def test_scales_of_mxfp8_are_in_tiles(outer, groups):
    """Of 128 x 4 that are whole, each scale where cuBLAS's documentation has it."""
    scale = torch.exp2(torch.randint(-120, 120, (outer, groups), generator=torch.Generator().manual_seed(1)).float())
    found = swizzled(scale)
    assert found.numel() == -(-outer // 128) * 128 * -(-groups // 4) * 4
    assert torch.equal(fake_scaled_mm.in_order(found, outer, groups), scale.double())


def test_a_scale_of_nan_stays_one():
    assert swizzled(torch.full((128, 4), torch.nan)).float().isnan().all()


class ByTheOtherDimension(ScaledMatmuls):
    def operand(self, x, dim, *, is_gradient=False):
        elements, scale = quantize(x, self.kind, 1 - dim, is_gradient=is_gradient)
        return Operand((elements if dim else elements.t()).contiguous(), scale.flatten().unsqueeze(1))


class NotTransposed(ScaledMatmuls):
    def operand(self, x, dim, *, is_gradient=False):
        elements, scale = quantize(x, self.kind, dim, is_gradient=is_gradient)
        return Operand(elements.contiguous(), scale.flatten().unsqueeze(1))


class ByColumns(ScaledMatmuls):
    def operand(self, x, dim, *, is_gradient=False):
        right = super().operand(x, dim, is_gradient=is_gradient)
        return Operand(right.elements.t().contiguous().t(), right.scale)


class ScalesByRow(ScaledMatmuls):
    def operand(self, x, dim, *, is_gradient=False):
        right = super().operand(x, dim, is_gradient=is_gradient)
        return Operand(right.elements, right.scale.contiguous())


class TilesByRow(ScaledMatmuls):
    def operand(self, x, dim, *, is_gradient=False):
        right = super().operand(x, dim, is_gradient=is_gradient)
        return Operand(right.elements, right.scale.view(-1, 32, 4, 4).transpose(1, 2).flatten())


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("rowwise", ByTheOtherDimension),
        ("rowwise", NotTransposed),
        ("rowwise", ByColumns),
        ("block", ScalesByRow),
        ("mxfp8", TilesByRow),
    ],
)
def test_the_kit_finds_wrong_operands(monkeypatch, subject, kind, wrong):  # noqa: F811
    """Scales of the other dimension, a missing transposition, and each arrangement of scales that is not torch's."""
    asked = replace(request(kind, shapes=((256, 256),)), device_type="cpu", device_name="")
    kernel = subject.kernels([asked])[0]
    TestQuantization().test_operands(subject, kernel, asked)
    monkeypatch.setattr("kernels.test_scaled_mm.ScaledMatmuls", wrong)
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        TestQuantization().test_operands(subject, kernel, asked)


@pytest.mark.parametrize(
    ("changed", "cuda", "reason"),
    [
        ({"quantization": ""}, "13.0", "no quantization; only tensorwise, rowwise, block, mxfp8"),
        ({"dtype": FP32}, "13.0", "dtype torch.float32; only bf16"),
        ({"shapes": ((128, 256), (128, 200))}, "13.0", "a weight of 128 x 200; only multiples of 16"),
        ({"quantization": "block", "shapes": ((192, 128),)}, "13.0", "a weight of 192 x 128; only multiples of 128"),
        ({"device_name": A100}, "13.0", "compute capability 8.0; only 8.9 and later multiply in fp8"),
        ({"device_name": "Card"}, "13.0", "the compute capability of 'Card' is not known"),
        ({"quantization": "mxfp8"}, "13.0", "quantization mxfp8 on compute capability 9.0; only on 10.x"),
        (
            {"quantization": "block", "device_name": B200},
            "13.0",
            "quantization block on compute capability 10.0; only on 9.x",
        ),
        ({"quantization": "block"}, "12.8", "quantization block with CUDA 12.8; only from 12.9 on"),
        (
            {"quantization": "mxfp8", "device_name": B200},
            "12.6",
            "quantization mxfp8 with CUDA 12.6; only from 12.8 on",
        ),
    ],
)
@pytest.mark.usefixtures("no_device")
def test_a_decline_names_the_unsupported_value(monkeypatch, changed, cuda, reason):
    monkeypatch.setattr("torch.version.cuda", cuda)
    asked = request("rowwise", shapes=((128, 256),))
    offers = linear.answers(asked)
    assert [type(each) for each in offers] == [Offer, Decline]
    answer = linear.answers(replace(asked, **changed))[0]
    assert isinstance(answer, Decline)
    assert answer.reason == reason


@pytest.mark.usefixtures("no_device")
def test_a_torch_without_the_function_declines(monkeypatch):
    monkeypatch.delattr(F, "scaled_mm")
    assert "has no torch.nn.functional.scaled_mm; 2.10 has" in linear.answers(request("rowwise"))[0].reason
