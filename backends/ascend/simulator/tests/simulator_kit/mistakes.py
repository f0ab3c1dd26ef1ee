"""A pytest plugin that injects a fault into each kernel: `-p simulator_kit.mistakes`."""

import torch
import torch_npu  # noqa: F401  loads the simulator
from torch.nn import functional as F  # noqa: N812

from ascend_simulator.kernels import rotary, softmax
from ascend_simulator.kernels.attention import score
from ascend_simulator.kernels.registration import kernel


def swapped_swiglu(x, dim=-1):
    first, second = x.chunk(2, dim)
    return first * F.silu(second)


def without_epsilon(x, gamma, epsilon=1e-6):
    rstd = x.float().square().mean(-1, keepdim=True).rsqrt()
    return (x * rstd * gamma).to(x.dtype), rstd


def other_gelu(x, *, approximate="none"):
    return F.gelu(x, approximate="tanh" if approximate == "none" else "none")


def without_mask(x, mask, scale=1, fixed_triu_mask=False):
    return softmax.forward(x, torch.zeros_like(mask), scale)


def backwards_turn(x, r1, r2, rotary_mode="half", rotate=None):
    return rotary.forward(x, r1, -r2, rotary_mode)


def unscaled(query, key, bias, masked, settings, right=score.score):
    return right(query, key * 0.9, bias, masked, settings)


kernel("npu::npu_swiglu")(swapped_swiglu)
kernel("npu::npu_rms_norm")(without_epsilon)
kernel("npu::npu_gelu")(other_gelu)
kernel("npu::npu_scaled_masked_softmax")(without_mask)
kernel("npu::npu_rotary_mul")(backwards_turn)
score.score = unscaled
