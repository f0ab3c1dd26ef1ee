"""Stand-ins on torch's fake tensors: no torch_npu, and the sizes of the kernels on an NPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_kit.traces import forward, offers, trace, trace_stand_in
from pretrain.conformance import examples
from pretrain.conformance.example_calls import example_documents
from pretrain.plugins.requests import Mask
from pretrain_ascend.kernels.attention_masks import COMPRESSED

HALF = torch.bfloat16
WITHOUT_OPERATORS = {"query_first", "hccl"}
"""Plain torch, or nothing that a model calls."""


@pytest.fixture(autouse=True)
def no_torch_npu(monkeypatch):
    """Make its import an error."""
    monkeypatch.setitem(sys.modules, "torch_npu", None)


def attention(name, *, s=64, b=2, n=4, g=None, d=16, mask=Mask.CAUSAL, dropout=0.0, dtype=HALF):
    """Return the offer of a name, and query, key and value."""
    asked = {"length": s, "batch": b, "heads": n, "groups": g, "size": d, "block": 32, "dropout": dropout}
    offer = offers(examples.attention(dtype, mask, **asked))[name]
    return offer, [torch.zeros(s, b, heads, d, dtype=dtype) for heads in (n, g or n, g or n)]


class Allocations(TorchDispatchMode):
    """Shapes and dtypes of the tensors that are allocated meanwhile."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func._schema.name in {"aten::empty", "aten::empty_like", "aten::new_empty"}:
            self.made.append((tuple(result.shape), result.dtype))
        return result


def backward(name, **asked):
    """Return what is allocated by the backward pass of an attention."""
    offer, tensors = attention(name, **asked)
    with FakeTensorMode():
        output, *_ = forward(offer.fake({}), [torch.empty(x.shape, dtype=x.dtype) for x in tensors])
        grad = torch.empty_like(output)
        with Allocations() as allocations:
            output.backward(grad)
    return allocations.made


@pytest.mark.parametrize(
    "request_",
    [
        *(examples.attention(HALF, length=64, dropout=dropout) for dropout in (0.0, 0.1)),
        examples.softmax(HALF, queries=64, keys=64),
        *(examples.norm(HALF, kind) for kind in ("LayerNorm", "RMSNorm")),
        *(examples.activation(HALF, kind) for kind in ("gelu", "swiglu")),
        examples.rotary(HALF),
        examples.cross_entropy(HALF),
        examples.optimizer(),
    ],
    ids=lambda request: request.operation,
)
@pytest.mark.parametrize("chip", ["Ascend910B3", "Ascend910A"])
def test_every_kernel_with_an_operator_has_a_stand_in_that_is_made_without_torch_npu(request_, chip):
    for name, offer in offers(request_, chip).items():
        assert (offer.fake is None) is (name in WITHOUT_OPERATORS), name
        assert offer.fake is None or offer.fake({}) is not None


@settings(max_examples=10, deadline=None)
@given(s=st.integers(1, 40), b=st.integers(1, 3), n=st.sampled_from([2, 4]), d=st.sampled_from([8, 16]))
def test_fusion_attention_keeps_inputs_context_two_statistics_and_the_one_mask(s, b, n, d):
    for groups in (None, 2):
        found = trace_stand_in(*attention("fusion_attention", s=s, b=b, n=n, g=groups, d=d))
        context, statistic, mask = s * b * n * d * 2, b * n * s * 8 * 4, COMPRESSED**2
        assert found.kept == tuple(sorted((context, statistic, statistic, mask)))
        assert found.inputs == (True, True, True)


def test_documents_keep_the_same_but_for_the_order_of_the_tokens():
    """Statistics are [t, n, 8]; the tokens of several samples are copied into the one dimension."""
    offer, tensors = attention("fusion_attention", mask=Mask.DOCUMENTS, dropout=0.1)
    kernel = offer.fake({})
    documents = example_documents(2, 64, 64)
    bound = replace(offer, fake=lambda _: partial(kernel, mask=documents))
    found = trace_stand_in(bound, tensors)
    size = 64 * 2 * 4 * 16 * 2
    assert found.kept == tuple(sorted((*[size] * 4, *[64 * 2 * 4 * 8 * 4] * 2, COMPRESSED**2)))
    assert found.output == ((64, 2, 64), HALF)


def test_flash_attention_keeps_less_than_the_softmax():
    long = {"s": 2048, "b": 1}
    kept = {name: sum(trace_stand_in(*attention(name, **long)).kept) for name in ("fusion_attention", "query_first")}
    weights = 2048 * 2048 * 4
    assert kept["fusion_attention"] < 5 * 2**20
    assert kept["query_first"] > 6 * weights


def test_the_mask_of_2048_by_2048_is_one_for_all_layers_of_a_plan():
    offer, tensors = attention("fusion_attention")
    masks = []
    for _ in range(2):
        with FakeTensorMode():
            like = [torch.empty(x.shape, dtype=x.dtype) for x in tensors]
            for _ in range(2):
                _, stored, _ = forward(offer.fake({}), like)
                masks += [address for address, storage in stored.items() if storage.nbytes() == COMPRESSED**2]
    assert masks[0] == masks[1] != masks[2] == masks[3]


def test_torch_s_attention_makes_the_mask_anew_in_every_call():
    offer, tensors = attention("sdpa")
    with FakeTensorMode():
        kernel, like = offer.fake({}), [torch.empty(x.shape, dtype=x.dtype) for x in tensors]
        first, second = (forward(kernel, like)[1] for _ in range(2))
        assert not first.keys() & second.keys()


def test_masks_of_blocks_are_shared_by_the_layers_and_not_with_real_tensors():
    offer, tensors = attention("triangle_fused")
    with FakeTensorMode():
        kernel, like = offer.fake({}), [torch.empty(x.shape, dtype=x.dtype) for x in tensors]
        calls = [forward(kernel, like)[1] for _ in range(2)]
        sizes = [calls[0][address].nbytes() for address in set(calls[0]) & set(calls[1])]
    assert sorted(sizes)[:2] == [32 * 32, 32 * 64]
    assert trace_stand_in(offer, tensors).kept


@pytest.mark.parametrize("name", ["fusion_attention", "sdpa"])
def test_attention_s_backward_pass_sums_in_fp32_and_makes_the_dropout_mask_again(name):
    """One bit for each weight, in multiples of 128 bits; dq, dk and dv in fp32 before they are rounded."""
    made = backward(name, s=33, dropout=0.1)
    numbers = [prod(shape) for shape, dtype in made if dtype is torch.float32]
    assert numbers == [33 * 2 * 4 * 16] * 3
    (mask,) = (prod(shape) for shape, dtype in made if dtype is torch.uint8 and prod(shape))
    assert mask == -(-2 * 4 * 33 * 33 // 128) * 16


def test_statistics_of_layer_norm_are_fp32():
    (offer,) = offers(examples.norm(HALF, hidden=48)).values()
    x, weight = torch.zeros(5, 2, 48, dtype=HALF), torch.zeros(48, dtype=HALF)
    found = trace_stand_in(offer, [x, weight, weight])
    assert found.kept == (5 * 2 * 4, 5 * 2 * 4)
    assert found.gradients == (((5, 2, 48), HALF), ((48,), HALF), ((48,), HALF))


def test_the_loss_keeps_the_log_probabilities_of_the_vocabulary_without_its_padding():
    (offer,) = offers(examples.cross_entropy(HALF, vocab_size=50, padded=64, length=7, micro_batch=2)).values()
    found = trace_stand_in(offer, [torch.zeros(7, 2, 64, dtype=HALF), torch.zeros(7, 2, dtype=torch.int64)])
    assert found.output == ((7, 2), torch.float32)
    assert found.kept == (14 * 4, 14 * 50 * 4)
    assert found.gradients == (((7, 2, 64), HALF),)


def test_a_trace_sees_a_tensor_that_is_kept_too_much():
    """The comparison on a simulated NPU (simulated/test_stand_ins.py) rests on it."""
    weight = torch.ones(8)
    alone, more = (trace(lambda x, extra=extra: (x * extra).sum(), [torch.ones(8)]) for extra in (2.0, weight))
    assert alone.kept == ()
    assert more.kept == (32,)
