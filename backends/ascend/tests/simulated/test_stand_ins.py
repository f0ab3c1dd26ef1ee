"""Stand-ins keep, return and differentiate as the kernels do on an NPU, where torch_npu's own autograd keeps tensors.

The simulator has no workspaces: those of the stand-ins were compared with nothing.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial

import pytest
import torch

from ascend_kit.traces import described, forward, offers, trace, trace_stand_in
from pretrain.conformance import examples
from pretrain.conformance.example_calls import example_documents
from pretrain.plugins.backend import Unavailable
from pretrain.plugins.requests import Mask
from pretrain_ascend.backend import AscendBackend

answer = AscendBackend().availability()
pytestmark = pytest.mark.skipif(isinstance(answer, Unavailable), reason=f"no NPU: {getattr(answer, 'reason', '')}")

HALF = torch.bfloat16
S, B, N, D = 64, 2, 4, 16
LOGITS = torch.zeros(S, B, 64, dtype=HALF)


def heads():
    return torch.zeros(S, B, N, D, dtype=HALF)


def features(size, dtype=HALF):
    return torch.zeros(size, dtype=dtype)


def sequence(size):
    return torch.zeros(S, B, size, dtype=HALF)


def attention(mask=Mask.CAUSAL, **asked):
    return examples.attention(HALF, mask, length=S, batch=B, heads=N, size=D, block=32, **asked)


QKV, FACTORS = [heads()] * 3, [torch.zeros(S, 1, 1, D)] * 2
TARGET = torch.zeros(S, B, dtype=torch.int64)
CASES = {
    "causal": (attention(), QKV),
    "no mask": (attention(Mask.NONE), QKV),
    "dropout": (attention(dropout=0.1), QKV),
    "documents": (attention(Mask.DOCUMENTS), QKV),
    "layer norm": (examples.norm(HALF, hidden=64), [sequence(64), features(64), features(64)]),
    "fp32 weights": (
        examples.norm(HALF, "RMSNorm", hidden=64, weight_dtype=torch.float32),
        [sequence(64), features(64, torch.float32)],
    ),
    "rotary": (examples.rotary(HALF, length=S, size=D), [heads(), *FACTORS]),
    "gelu": (examples.activation(HALF, features=64), [sequence(64), features(64)]),
    "padded vocabulary": (examples.cross_entropy(HALF, length=S, micro_batch=B), [LOGITS, TARGET]),
    "whole vocabulary": (examples.cross_entropy(HALF, vocab_size=64, length=S, micro_batch=B), [LOGITS, TARGET]),
}
"""Other than those of the conformance kit's TestFake."""

WITHOUT_DROPOUT = ("triangle_fused", "query_first")
"""Their dropout is torch's own, whose mask a plan has to make as an NPU does: see the last test."""


def bound(offer, case):
    """Return the offer of a kernel that is given documents, where the case has them."""
    if case != "documents":
        return offer
    build, stand_in = offer.build, offer.fake or offer.build
    mask = example_documents(B, S, S)
    return replace(
        offer,
        build=lambda built: partial(build(built), mask=mask),
        fake=lambda built: partial(stand_in(built), mask=mask),
    )


PAIRS = [
    pytest.param(bound(offer, case), tensors, id=f"{case} {name}")
    for case, (request, tensors) in CASES.items()
    for name, offer in offers(request).items()
    if case != "dropout" or name not in WITHOUT_DROPOUT
]


@pytest.mark.parametrize(("offer", "tensors"), PAIRS)
def test_a_stand_in_keeps_what_the_kernel_keeps(offer, tensors):
    on_the_npu = trace(offer.build({}), [tensor.npu() for tensor in tensors])
    assert trace_stand_in(offer, tensors) == on_the_npu
    assert on_the_npu.kept or any(on_the_npu.inputs)


def allocated(size):
    """Return what NPUCachingAllocator.cpp takes for a tensor: 32 bytes more, in multiples of 512."""
    return -(-(size + 32) // 512) * 512 if size else 0


@pytest.mark.parametrize("case", ["no mask", "layer norm", "gelu", "padded vocabulary"])
def test_the_allocator_counts_what_is_kept(case):
    """Neither more nor less: a whole step can be compared with it."""
    request, tensors = CASES[case]
    offer = next(iter(offers(request).values()))
    given = [tensor.npu() for tensor in tensors]
    gc.collect()  # what other tests have left must not be freed between the two readings
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    output, stored, leaves = forward(offer.build({}), given)
    stored[output.untyped_storage()._cdata] = output.untyped_storage()
    own = {leaf.untyped_storage()._cdata for leaf in leaves}
    new = sum(allocated(storage.nbytes()) for address, storage in stored.items() if address not in own)
    assert torch.npu.memory_allocated() - before == new
    assert torch.npu.max_memory_allocated() - before >= new


def test_torch_s_dropout_keeps_one_bit_an_element():
    """In multiples of 128 bits (DropoutKernelNpuOpApi.cpp), not a byte as on CUDA."""
    x = torch.ones(1000, dtype=HALF, device="npu", requires_grad=True)
    output, stored, _ = forward(lambda x: torch.nn.functional.dropout(x, 0.1), [x])
    assert [storage.nbytes() for storage in stored.values()] == [128]
    assert described(output) == ((1000,), HALF)
