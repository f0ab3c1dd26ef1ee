"""Operation -> (what is asked, a call of its Triton kernels forward and backward), over all that they accept.

Shapes that give the same program stand once: a program depends on the block that a row's length is rounded up to.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import torch

from pretrain.conformance import examples
from pretrain.plugins.requests import QUANTIZATIONS, Mask
from pretrain_cuda.kernels.triton.activation import Activation
from pretrain_cuda.kernels.triton.bias_dropout_add import BiasDropoutAdd
from pretrain_cuda.kernels.triton.cross_entropy import CrossEntropy
from pretrain_cuda.kernels.triton.norm import Norm
from pretrain_cuda.kernels.triton.quantize import quantize
from pretrain_cuda.kernels.triton.rotary import rotate
from pretrain_cuda.kernels.triton.softmax import Softmax
from pretrain_cuda.kernels.triton.triangle_softmax import DropoutRate, softmax_, softmax_backward_
from pretrain_cuda.norm import LONGEST_ROW

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""fp16 is read, computed and written as bf16 is."""


def leaf(*shape, dtype):
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def both(kernel, *inputs):
    """Return a call forward and backward."""

    def call():
        output = kernel(*inputs)
        output.backward(torch.zeros_like(output))

    return call


def norm():
    for kind, (name, dtype), hidden in product(
        ("LayerNorm", "RMSNorm"), DTYPES.items(), (48, 768, 2048, 4096, 8192, 12288, LONGEST_ROW)
    ):
        weights = [leaf(hidden, dtype=dtype) for _ in range(2 if kind == "LayerNorm" else 1)]
        kernel = Norm(examples.norm(dtype, kind, hidden=hidden))
        yield f"{kind}, {name}, hidden {hidden}", both(kernel, leaf(64, 1, hidden, dtype=dtype), *weights)
    for hidden in (4096, 12288):
        request = examples.norm(torch.bfloat16, hidden=hidden, weight_dtype=torch.float32)
        weights = [leaf(hidden, dtype=torch.float32) for _ in range(2)]
        inputs = leaf(64, 1, hidden, dtype=torch.bfloat16), *weights
        yield f"LayerNorm, bf16 with fp32 weights, hidden {hidden}", both(Norm(request), *inputs)


def activation():
    for kind, (name, dtype), has_bias in product(("gelu", "gelu_tanh", "swiglu"), DTYPES.items(), (True, False)):
        request = examples.activation(dtype, kind, features=1024, has_bias=has_bias)
        width = 2048 if kind == "swiglu" else 1024
        inputs = [leaf(64, 1, width, dtype=dtype), *([leaf(width, dtype=dtype)] if has_bias else [])]
        yield f"{kind}, {name}, {'bias' if has_bias else 'no bias'}", both(Activation(request), *inputs)


def bias_dropout_add():
    for (name, dtype), dropout, has_bias in product(DTYPES.items(), (0.0, 0.1), (True, False)):
        request = examples.bias_dropout_add(dtype, hidden=1024, dropout=dropout, has_bias=has_bias)
        x, residual = leaf(64, 1, 1024, dtype=dtype), leaf(64, 1, 1024, dtype=dtype)
        bias = leaf(1024, dtype=dtype) if has_bias else None
        shown = f"{name}, dropout {dropout}, {'bias' if has_bias else 'no bias'}"
        yield shown, both(BiasDropoutAdd(request), x, bias, residual)


def rotary():
    for (name, dtype), (heads, size, turned) in product(
        DTYPES.items(), ((16, 64, 64), (12, 128, 128), (128, 128, 32), (64, 96, 24), (8, 256, 256))
    ):
        table = torch.zeros(4, 1, 1, turned)
        shown = f"{name}, {turned} of {size} in {heads} heads"
        yield shown, both(rotate, leaf(4, 2, heads, size, dtype=dtype), table, table)


def cross_entropy():
    for (name, dtype), (vocab, padded) in product(DTYPES.items(), ((50, 128), (50257, 50304), (256000, 256000))):
        request = examples.cross_entropy(dtype, vocab_size=vocab, padded=padded)
        inputs = leaf(4, 1, padded, dtype=dtype) * 1, torch.zeros(4, 1, dtype=torch.int64)
        yield f"{name}, {vocab} of {padded}", both(CrossEntropy(request), *inputs)


def softmax():
    masks = {Mask.NONE: None, Mask.CAUSAL: None, Mask.ARBITRARY: (1, 1, 16)}
    for (mask, shape), (name, dtype), keys in product(
        masks.items(), DTYPES.items(), (128, 512, 2048, 4096, 8192, 16384, 32768)
    ):
        kernel = Softmax(examples.softmax(dtype, mask, queries=16, keys=keys))
        hidden = None if shape is None else torch.zeros(*shape, keys, dtype=torch.bool)
        yield f"{mask}, {name}, {keys} keys", both(kernel, leaf(1, 2, 16, keys, dtype=dtype), hidden)


def attention():
    """The triangle's strips."""
    for (name, dtype), dropout, keys in product(
        DTYPES.items(), (None, DropoutRate(0.1)), (128, 512, 2048, 4096, 8192, 16384)
    ):

        def call(dtype=dtype, dropout=dropout, keys=keys):
            strip = torch.zeros(1, 16, keys, dtype=dtype)
            softmax_(strip, 16, 1.0, dropout, None if dropout is None else DropoutRate.seed(strip.device))
            softmax_backward_(strip, strip.clone(), 16, dropout)

        yield f"triangle, {name}, {'dropout' if dropout else 'no dropout'}, {keys} keys", call


def linear():
    """Operands in fp8."""
    for kind, is_gradient in (*((kind, False) for kind in QUANTIZATIONS), ("tensorwise", True)):
        for dim in (0, 1):
            x = torch.zeros(256, 512, dtype=torch.bfloat16)
            call = partial(quantize, x, kind, dim, x.shape[dim], is_gradient=is_gradient)
            yield f"{kind}, {'gradient, ' if is_gradient else ''}summed over {('rows', 'columns')[dim]}", call


CALLS = {
    "activation": activation,
    "attention": attention,
    "bias_dropout_add": bias_dropout_add,
    "cross_entropy": cross_entropy,
    "linear": linear,
    "norm": norm,
    "rotary": rotary,
    "softmax": softmax,
}
