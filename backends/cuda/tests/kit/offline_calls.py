"""Operation -> calls of its Triton kernels, in the shapes and dtypes of real models; see `offline`."""

from __future__ import annotations

from functools import partial

import torch

from pretrain.testing import examples

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def leaf(*shape, dtype=BF16):
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def norm():
    for kind, dtype, weight_dtype, hidden in [
        ("LayerNorm", BF16, BF16, 768),
        ("LayerNorm", BF16, FP32, 12288),
        ("RMSNorm", FP16, FP16, 4096),
        ("RMSNorm", FP32, FP32, 1000),
    ]:
        request = examples.norm(dtype, kind, hidden=hidden, weight_dtype=weight_dtype)
        inputs = [leaf(3, 2, hidden, dtype=dtype), leaf(hidden, dtype=weight_dtype)]
        if kind == "LayerNorm":
            inputs.append(leaf(hidden, dtype=weight_dtype))
        yield "triton", request, partial(lambda kernel, inputs: kernel(*inputs), inputs=inputs)


def activation():
    for kind in ("gelu", "gelu_tanh", "swiglu"):
        for dtype, features, has_bias in [(BF16, 4096, True), (FP32, 1000, False)]:
            request = examples.activation(dtype, kind, features=features, has_bias=has_bias)
            width = features * 2 if kind == "swiglu" else features
            inputs = [leaf(3, 2, width, dtype=dtype), *([leaf(width, dtype=dtype)] if has_bias else [])]
            yield "triton", request, partial(lambda kernel, inputs: kernel(*inputs), inputs=inputs)


CALLS = {"activation": activation, "norm": norm}
