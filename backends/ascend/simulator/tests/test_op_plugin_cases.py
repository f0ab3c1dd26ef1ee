"""Cases of op-plugin's own tests, held against the simulator's kernels.

Facts and cases alone, of test_custom_ops and test_base_ops at commit 517f2e7d: inputs' shapes (the large ones made
smaller where nothing depends on them), ranges and dtypes, and the definition that its expected values follow, written
again in float64. Its cases of attention are in test_attention.py's form, that of the float status in
test_first_generation.py. Its tolerance for fp32 is 1e-4, for fp16 and bf16 1e-3 (torch_npu.testing.testcase).
"""

import pytest
import torch

NPU = torch.ops.npu
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 2**-7}


def drawn(shape, dtype, low=0.0, high=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)


def near(found, expected, dtype):
    found, expected = found.detach().cpu().double(), expected.double()
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("mixed", [False, True])
def test_rms_norm(npu, mixed):
    """test_npu_rms_norm.py: 12288 features from 0 to 100, also fp16 with weights in fp32; rstd is returned too."""
    x = drawn((16, 12288), torch.float16 if mixed else torch.float32, high=100.0)
    gamma = drawn((12288,), torch.float32, high=100.0, seed=1)
    rstd = (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    found, found_rstd = NPU.npu_rms_norm(x.to(npu), gamma.to(npu))
    near(found, x.double() * rstd * gamma.double(), x.dtype)
    near(found_rstd, rstd, torch.float32)


def test_rms_norm_backward(npu):
    """test_npu_rms_norm_backward.py: 10 x 128, everything from 0 to 100."""
    x, gamma, grad = (
        drawn(shape, torch.float32, high=100.0, seed=n) for n, shape in enumerate([(10, 128), 128, (10, 128)])
    )
    given = [tensor.to(npu).requires_grad_() for tensor in (x, gamma)]
    NPU.npu_rms_norm(*given)[0].backward(grad.to(npu))
    x, gamma, grad = x.double(), gamma.double(), grad.double()
    rstd = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    inner = (grad * gamma * x).sum(-1, keepdim=True) * rstd**3 / 128
    near(given[0].grad, grad * gamma * rstd - x * inner, torch.float32)
    near(given[1].grad, (grad * x * rstd).sum(0), torch.float32)


ROTARY = {
    "half": [
        [(2, 64, 5, 128), (1, 64, 1, 128)],
        [(64, 2, 5, 128), (64, 1, 1, 128)],
        [(32, 4, 32, 64), (32, 4, 1, 64)],
        [(1, 128, 894), (1, 1, 894)],
    ],
    "interleave": [
        [(2, 24, 5, 128), (1, 1, 5, 128)],
        [(8, 4, 4, 256), (1, 1, 4, 256)],
        [(4, 8, 8, 512), (1, 1, 8, 512)],
    ],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("mode", "shapes"), [(mode, shapes) for mode in ROTARY for shapes in ROTARY[mode]])
def test_rotary_mul(npu, mode, shapes, dtype):
    """test_npu_rotary_mul.py and its backward: BNSD, SBND and others, r1 and r2 broadcast and from 0 to 1."""
    given = [drawn(shape, dtype, seed=n) for n, shape in enumerate([shapes[0], shapes[1], shapes[1]])]
    x, r1, r2 = (tensor.double() for tensor in given)
    if mode == "half":
        turned = torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    near(NPU.npu_rotary_mul(*(tensor.to(npu) for tensor in given), mode), x * r1 + turned * r2, dtype)


def test_rotary_mul_knows_two_modes(npu):
    """Its own error: "The rotary_mode of npu_rotary_mul should be half or interleave"."""
    x, r = torch.rand(2, 2, 5, 128, device=npu), torch.rand(1, 2, 1, 128, device=npu)
    with pytest.raises(RuntimeError, match="rotary_mode"):
        NPU.npu_rotary_mul(x, r, r, "quarter")


def test_swiglu(npu):
    """test_npu_swi_glu.py: bf16 of 2 x 3904 features from 0 to 1, computed in fp32."""
    x = drawn((32, 1, 2 * 3904), torch.bfloat16)
    first, second = x.double().chunk(2, -1)
    near(NPU.npu_swiglu(x.to(npu), -1), first * first.sigmoid() * second, torch.bfloat16)


def test_gelu(npu):
    """test_npu_gelu.py: 100 x 400 in fp16, by tanh."""
    x = drawn((100, 400), torch.float16)
    wide = x.double()
    inner = (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)
    near(NPU.npu_gelu(x.to(npu), approximate="tanh"), 0.5 * wide * (1 + inner.tanh()), torch.float16)


MASKED = [
    [(16, 6, 128, 128), (16, 6, 128, 128)],
    [(4, 6, 128, 512), (4, 1, 128, 512)],
    [(2, 6, 512, 512), (2, 1, 512, 512)],
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shapes", MASKED, ids=str)
def test_scaled_masked_softmax(npu, shapes, dtype):
    """test_scaled_masked_softmax.py: scores from -5 to 5, half of them masked, a scale from -1 to 1. Skipped there."""
    x, grad = (drawn(shapes[0], dtype, -5.0, 5.0, seed) for seed in (0, 1))
    mask = drawn(shapes[1], torch.float32, -1.0, 1.0, seed=2) > 0
    wide = x.double().requires_grad_()
    expected = (wide * -0.7).masked_fill(mask, -10000.0).softmax(-1)
    expected.backward(grad.double())
    given = x.to(npu).requires_grad_()
    found = NPU.npu_scaled_masked_softmax(given, mask.to(npu), -0.7, False)
    found.backward(grad.to(npu))
    near(found, expected.detach(), dtype)
    near(given.grad, wide.grad, dtype)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cross_entropy_loss(npu, dtype, reduction):
    """test_npu_cross_entropy_loss.py: row n has target n; log probabilities are returned too. Skipped there."""
    x = torch.randn((64, 8080), generator=torch.Generator().manual_seed(0)).to(dtype)
    logs = x.double() - x.double().logsumexp(-1, keepdim=True)
    losses = -logs[torch.arange(64), torch.arange(64)]
    expected = losses if reduction == "none" else getattr(losses, reduction)()[None]
    found, probabilities, *_ = NPU.npu_cross_entropy_loss(x.to(npu), torch.arange(64, device=npu), reduction=reduction)
    allowed = {torch.float32: 2**-10, torch.float16: 2**-7, torch.bfloat16: 2**-6}[dtype]  # its own
    torch.testing.assert_close(found.cpu().double(), expected, rtol=allowed, atol=allowed)
    torch.testing.assert_close(probabilities.cpu().double(), logs, rtol=allowed, atol=allowed)
