"""Name -> calls of an operation's Triton kernels, in the shapes and dtypes of real models; see `offline`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from pretrain.conformance import examples
from pretrain.plugins.requests import Mask, RotaryRequest

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


def activation(order=1):
    """Yield every kind in bf16 or fp32, in turn; with `order` -1 each in the other one."""
    ways = [(BF16, 4096, True), (FP32, 1000, False)][::order]
    for index, kind in enumerate(("gelu", "gelu_tanh", "swiglu")):
        dtype, features, has_bias = ways[index % 2]
        request = examples.activation(dtype, kind, features=features, has_bias=has_bias)
        width = features * 2 if kind == "swiglu" else features
        inputs = [leaf(3, 2, width, dtype=dtype), *([leaf(width, dtype=dtype)] if has_bias else [])]
        yield "triton", request, partial(lambda kernel, inputs: kernel(*inputs), inputs=inputs)


def bias_dropout_add():
    for dtype, hidden, dropout, has_bias in [
        (BF16, 4096, 0.1, True),
        (BF16, 4096, 0.0, True),
        (FP32, 1000, 0.1, False),
    ]:
        request = examples.bias_dropout_add(dtype, hidden=hidden, dropout=dropout, has_bias=has_bias)
        x, residual = leaf(3, 2, hidden, dtype=dtype), leaf(3, 2, hidden, dtype=dtype)
        inputs = [x, leaf(hidden, dtype=dtype) if has_bias else None, residual]
        yield "triton", request, partial(lambda kernel, inputs: kernel(*inputs), inputs=inputs)


WHOLE, IN_FP16, RAGGED, IN_TURNS = (
    (BF16, 1024, 4, 0.0, 512),
    (FP16, 1100, 2, 0.1, 512),
    (FP32, 600, 4, 0.1, 512),
    (BF16, 4112, 4, 0.1, 4096),
)


def attention(strips):
    """The triangle: strips of whole and of ragged blocks, and one of rows that are gone through in turns."""
    for dtype, length, groups, dropout, block_size in strips:
        request = examples.attention(dtype, length=length, groups=groups, dropout=dropout)
        inputs = [leaf(length, 1, heads, 16, dtype=dtype) for heads in (4, groups, groups)]
        call = partial(lambda kernel, inputs: kernel(*inputs), inputs=inputs)
        yield "triangle_triton", replace(request, block_size=block_size), call


def rotary():
    for dtype, size, turned, is_view in [(BF16, 128, 128, True), (FP16, 96, 24, False), (FP32, 6, 2, False)]:
        request = RotaryRequest(
            device_type="cuda", dtype=dtype, heads=16, head_size=size, rotary_size=turned, seq_length=3
        )
        x = leaf(3, 2, 16, 3 * size, dtype=dtype)[..., :size] if is_view else leaf(3, 2, 16, size, dtype=dtype)
        table = torch.zeros(3, 1, 1, turned)
        yield "triton", request, partial(lambda kernel, x, table: kernel(x, table, table), x=x, table=table)


def cross_entropy():
    for dtype, vocab_size, padded in [(BF16, 50257, 50304), (FP32, 997, 1000), (FP16, 64, 64)]:
        request = examples.cross_entropy(dtype, vocab_size=vocab_size, padded=padded)
        inputs = leaf(3, 2, padded, dtype=dtype), torch.zeros(3, 2, dtype=torch.int64)
        yield "triton", request, partial(lambda kernel, inputs: kernel(*inputs), inputs=inputs)


def softmax():
    for dtype, mask, queries, keys, shape in [
        (BF16, Mask.CAUSAL, 1024, 1024, None),
        (FP16, Mask.ARBITRARY, 77, 1000, (1, 4, 77, 1000)),
        (FP32, Mask.KEY_PADDING, 2, 20000, (2, 1, 1, 20000)),
    ]:
        request = examples.softmax(dtype, mask, queries=queries, keys=keys)
        hidden = None if shape is None else torch.zeros(shape, dtype=torch.bool)
        scores = leaf(2, 4, queries, keys, dtype=dtype)
        yield (
            "triton",
            request,
            partial(lambda kernel, scores, hidden: kernel(scores, hidden), scores=scores, hidden=hidden),
        )


ALWAYS = {
    "norm": norm,
    "softmax": softmax,
}
"""Compiled by every `make test`."""

FULL = {
    "rotary": rotary,
    "cross_entropy": cross_entropy,
    "bias_dropout_add": bias_dropout_add,
    "activation": activation,
    "attention": partial(attention, [WHOLE, RAGGED, IN_TURNS]),
    "activation of the other types": partial(activation, order=-1),
    "attention in fp16": partial(attention, [IN_FP16]),
}
"""Further ones of `make test-all`."""

CALLS = ALWAYS | FULL
