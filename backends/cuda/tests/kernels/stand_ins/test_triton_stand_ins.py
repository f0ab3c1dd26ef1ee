"""Stand-ins of Triton's kernels against the kernels: what they keep, and what they allocate in passing."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.conformance import examples
from pretrain.conformance.example_calls import example_call
from pretrain.conformance.footprint import Allocations, footprint
from pretrain.plugins.requests import Mask
from pretrain_cuda import activation, attention, bias_dropout_add, cross_entropy, norm, rotary, softmax
from pretrain_cuda.kernels.stand_ins import tiles

BF16, FP32 = torch.bfloat16, torch.float32
TOKENS = 160
"""Of two samples: more than one program of every backward pass."""


def only(answers, name):
    listed = answers if isinstance(answers, list) else [answers]
    return next(offer for offer in listed if offer.name == name)


OFFERS = {
    "swiglu": (activation.answers, examples.activation(BF16, "swiglu")),
    "gelu without bias": (activation.answers, examples.activation(FP32, "gelu", has_bias=False)),
    "dropout": (bias_dropout_add.answers, examples.bias_dropout_add(BF16, dropout=0.5)),
    "no dropout": (bias_dropout_add.answers, examples.bias_dropout_add(FP32)),
    "cross entropy": (cross_entropy.answers, examples.cross_entropy(BF16, length=20)),
    "layer norm": (norm.answers, examples.norm(BF16)),
    "RMS norm, fp32 weights": (norm.answers, examples.norm(BF16, "RMSNorm", weight_dtype=FP32)),
    "rotary": (rotary.answers, examples.rotary(BF16, rotary_size=8, length=5)),
    "causal softmax": (softmax.answers, examples.softmax(BF16)),
    "masked softmax": (softmax.answers, examples.softmax(FP32, Mask.KEY_PADDING, queries=5, keys=8)),
}


def measured(kernel, call):
    """Return what a call keeps, and its peak: in one call, since the interpreter is slow."""
    with Allocations() as allocations:
        found = footprint(kernel, call)
    return found, allocations.peak


def assert_same(offer, call):
    real, peak = measured(offer.build({}), call)
    with FakeTensorMode():
        fake, fake_peak = measured(offer.fake({}), call.placed(lambda x: torch.empty(x.shape, dtype=x.dtype)))
    assert real.difference(fake) == ""
    assert fake_peak == peak


@pytest.mark.parametrize(("answers", "asked"), OFFERS.values(), ids=OFFERS)
def test_keeps_and_allocates_what_the_kernel_does(device, answers, asked):
    assert_same(only(answers(asked), "triton"), example_call(asked, TOKENS).placed(lambda x: x.to(device)))


@pytest.fixture
def collected(monkeypatch):
    """Triton's interpreter keeps tensors in cycles of references, which are collected after every strip."""
    from pretrain_cuda.kernels.triton import triangle_softmax

    def collecting(function):
        def call(*arguments):
            result = function(*arguments)
            gc.collect()
            return result

        return call

    for name in ("softmax_", "softmax_backward_"):
        monkeypatch.setattr(triangle_softmax, name, collecting(getattr(triangle_softmax, name)))
    gc.freeze()  # what there was before is not searched
    yield
    gc.unfreeze()


@pytest.mark.full
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize(
    "asked",
    [
        examples.attention(BF16, groups=2, dropout=0.5),
        examples.attention(FP32),
        examples.attention(BF16, Mask.DOCUMENTS, keys=64),
    ],
)
def test_the_triangle_keeps_and_allocates_what_the_kernel_does(device, asked):
    call = example_call(asked, TOKENS).placed(lambda x: x.to(device))
    assert_same(only(attention.answers(asked), "triangle_triton"), call)


@pytest.mark.full
def test_long_rows_have_fewer_partial_sums(device, monkeypatch):
    offer = only(norm.answers(examples.norm(BF16)), "triton")
    offer.build({})
    monkeypatch.setattr("pretrain_cuda.kernels.triton.norm.LONGEST", 32)
    monkeypatch.setattr("pretrain_cuda.kernels.stand_ins.tiles.NORM_LONGEST", 32)
    assert_same(offer, example_call(examples.norm(BF16), 20).placed(lambda x: x.to(device)))


def test_the_tiles_are_those_of_the_kernels():
    from pretrain_cuda.kernels.triton import activation, bias_dropout_add, norm, norm_long

    assert (tiles.NORM_PROGRAMS, tiles.NORM_LONGEST, tiles.NORM_TILE) == (norm.PROGRAMS, norm.LONGEST, norm.TILE)
    assert (tiles.NORM_LONG_ROWS, tiles.NORM_LONG_CHUNKS) == (norm_long.TILE_ROWS, norm_long.CHUNKS)
    assert activation.TILE_ROWS * activation.STEPS == tiles.ACTIVATION_ROWS
    assert 4 * bias_dropout_add.QUARTER * bias_dropout_add.STEPS == tiles.DROPOUT_ROWS
