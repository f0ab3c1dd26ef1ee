"""torch's attention: the kit on the kernels that torch has for a CPU, by the very call that picks those for a GPU.

Flash, cuDNN and efficient were not run on a GPU here; which one is allowed, and with what, is read off the call.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend

from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, forward_backward, oracle, random
from pretrain.conformance.example_calls import example_call, example_documents, mask_with_empty_rows
from pretrain.conformance.suite import TestAttention, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain_cuda.devices import Architecture
from pretrain_cuda.kernels import sdpa
from pretrain_cuda.kernels.sdpa import Sdpa

BACKEND = "kit.attentions:sdpa"

A100, H100, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB"
BF16 = torch.bfloat16
TENSORS = [Mask.KEY_PADDING, Mask.ARBITRARY]


def on(name, **asked):
    return replace(examples.attention(asked.pop("dtype", BF16), **asked), device_type="cuda", device_name=name)


def inputs(length=33, groups=4, dtype=torch.float32):
    numbers = {"query": 4, "key": groups, "value": groups}
    return {
        name: random(length, 2, number, 16, dtype=dtype, seed=seed)
        for seed, (name, number) in enumerate(numbers.items())
    }


@pytest.fixture
def allowed(monkeypatch):
    """Record which kernel a call allows, and let it run with one that is here."""
    found = []

    @contextmanager
    def record(kernel):
        found.append(kernel)
        with torch.nn.attention.sdpa_kernel(SDPBackend.MATH):
            yield

    monkeypatch.setattr("pretrain_cuda.kernels.sdpa.sdpa_kernel", record)
    return found


@pytest.mark.parametrize(
    ("make", "request_", "kernel"),
    [
        (sdpa.flash, on(A100, dropout=0.1), SDPBackend.FLASH_ATTENTION),
        (sdpa.cudnn, on(H100, groups=2), SDPBackend.CUDNN_ATTENTION),
        (sdpa.efficient, on(V100, dtype=torch.float32, groups=2, mask=Mask.ARBITRARY), SDPBackend.EFFICIENT_ATTENTION),
    ],
)
def test_one_kernel_is_allowed_and_no_other(allowed, make, request_, kernel):
    offer = make(request_)
    assert isinstance(offer, Offer)
    assert offer.kind == "flash"
    mask = torch.zeros(1, 1, 33, 33, dtype=torch.bool) if request_.mask is Mask.ARBITRARY else None
    offer.build({})(**inputs(groups=request_.query_groups, dtype=request_.dtype), mask=mask)
    assert allowed == [kernel]


@pytest.mark.parametrize("mask", [Mask.NONE, Mask.CAUSAL, *TENSORS])
def test_efficient_is_given_as_many_keys_as_queries_have_heads(allowed, mask):
    """And the gradients of those that are shared are added up."""
    request = examples.attention(mask=mask, groups=2)
    tensor = None if mask not in TENSORS else mask_with_empty_rows(mask, 2, 33, 33)[0]
    kernel, expected = Sdpa(request, SDPBackend.EFFICIENT_ATTENTION), oracle(request)
    assert_agrees(
        lambda **x: kernel(**x, mask=tensor),
        lambda **x: expected(**x, mask=tensor),
        inputs(groups=2),
        torch.device("cpu"),
    )
    assert not kernel.shares_keys


@pytest.mark.parametrize(("make", "window"), [(sdpa.flash, None), (sdpa.efficient, 9)])
def test_documents_are_calls_of_their_own(allowed, make, window):
    """Two samples with 5 documents each; the empty one of each is not called for."""
    request = on(A100, mask=Mask.DOCUMENTS, groups=2, window=window)
    kernel, mask = make(request).build({}), example_documents(2, 33, 33, [12])
    given = inputs(groups=2, dtype=BF16)
    assert_agrees(kernel, oracle(request), given, torch.device("cpu"), constants={"mask": mask}, floor=1.0)
    assert len(allowed) == sum(queries > 0 for queries in mask.queries) < len(mask.queries)


@pytest.mark.parametrize("least", [-torch.inf, -65504.0])
@pytest.mark.parametrize("mask", TENSORS)
def test_torchs_result_for_a_query_without_keys_is_ignored(monkeypatch, mask, least):
    """It is not asked: it has given nan, which goes through to all gradients, and the mean of the values."""

    def attend(query, key, value, *, attn_mask, scale, **_):
        scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~attn_mask, least)
        return torch.softmax(scores, dim=-1) @ value

    monkeypatch.setattr("pretrain_cuda.kernels.sdpa.F.scaled_dot_product_attention", attend)
    request = examples.attention(mask=mask)
    tensor, _ = mask_with_empty_rows(mask, 2, 33, 33)
    kernel, expected = Sdpa(request, SDPBackend.MATH), oracle(request)
    assert_agrees(
        lambda **x: kernel(**x, mask=tensor), lambda **x: expected(**x, mask=tensor), inputs(), torch.device("cpu")
    )


def test_the_scale_is_that_of_the_request():
    request = replace(examples.attention(), scale=0.7)
    assert_agrees(Sdpa(request, SDPBackend.MATH), oracle(request), inputs(), torch.device("cpu"))


def test_the_heads_of_one_projection_are_not_copied(monkeypatch):
    """The layout of Megatron: query, key and value of a head side by side."""
    projection = torch.randn(33, 2, 4, 3 * 16)
    parts = projection.split(16, dim=-1)
    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "pretrain_cuda.kernels.sdpa.F.scaled_dot_product_attention",
        lambda *args, **kwargs: seen.extend(x.data_ptr() for x in args) or attend(*args, **kwargs),
    )
    Sdpa(examples.attention(), SDPBackend.FLASH_ATTENTION)(*parts)
    assert seen == [x.data_ptr() for x in parts]


def test_another_kernel_refuses_more_keys_than_queries_under_a_causal_mask():
    """torch aligns the first query with the first key, the contract the last with the last."""
    given = example_call(examples.attention(length=3, keys=33), 3).inputs
    with pytest.raises(ValueError, match="3 queries and 33 keys under a causal mask; needs equally many"):
        Sdpa(examples.attention(), SDPBackend.EFFICIENT_ATTENTION)(**given)


@pytest.mark.parametrize(("size", "groups"), [(16, 4), (20, 2)])
def test_flashs_own_operator_takes_more_keys_than_queries(size, groups):
    """Shapes alone, forward and backward: it is there on a GPU. By itself torch aligns the first query with the first
    key.
    """
    asked = examples.attention(torch.bfloat16, length=3, keys=40, size=size, groups=groups)
    given = {name: x.to("meta").requires_grad_() for name, x in example_call(asked, 3).inputs.items()}
    context = Sdpa(asked, SDPBackend.FLASH_ATTENTION)(**given)
    assert context.shape == (3, 2, 4 * size)
    context.sum().backward()
    assert all(x.grad.shape == x.shape for x in given.values())


@pytest.mark.parametrize("mask", Mask)
def test_a_mask_that_was_not_asked_for_is_refused(mask):
    tensor = None if mask in TENSORS else torch.zeros(2, 1, 1, 33, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"built for the mask '{mask}' was called with"):
        Sdpa(examples.attention(mask=mask), SDPBackend.MATH)(**inputs(), mask=tensor)


def test_dropout_follows_the_seed_and_stops_outside_of_training(allowed):
    kernel = Sdpa(examples.attention(dropout=0.5), SDPBackend.FLASH_ATTENTION)
    results = []
    for seed, training in ((1, True), (1, True), (2, True), (2, False)):
        torch.manual_seed(seed)
        results.append(forward_backward(lambda **x: kernel(**x, training=training), inputs(), torch.clone)["output"])  # noqa: B023
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[1], results[2])
    assert_agrees(lambda **x: kernel(**x, training=False), oracle(examples.attention()), inputs(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("make", "asked", "reason"),
    [
        (sdpa.flash, on(A100, mask=Mask.ARBITRARY), "mask arbitrary; only none, causal and documents"),
        (sdpa.flash, on(A100, mask=Mask.KEY_PADDING), "mask key_padding; only none, causal and documents"),
        (sdpa.flash, on(A100, dtype=torch.float32), "dtype torch.float32; only fp16 and bf16"),
        (sdpa.flash, on(A100, size=264), "head size 264; at most 256"),
        (sdpa.flash, on(V100, dtype=torch.float16), "compute capability 7.0; only 8.0 and later"),
        (sdpa.flash, on("NVIDIA P100"), "the compute capability of 'NVIDIA P100' is not known"),
        (sdpa.flash, on(""), "there is no device here, and none was named"),
        (sdpa.cudnn, on(H100, mask=Mask.ARBITRARY), "mask arbitrary; only none and causal"),
        (sdpa.cudnn, on(H100, mask=Mask.DOCUMENTS), "mask documents; only none and causal"),
        (sdpa.cudnn, on(H100, keys=64), "64 keys for 33 queries; only as many"),
        (sdpa.cudnn, on(H100, dropout=0.1), "dropout 0.1; only multiples of 1/16"),
        (sdpa.cudnn, on(H100, size=192), "head size 192; at most 128"),
        (sdpa.cudnn, on(H100, size=20), "head size 20; only multiples of 8"),
        (sdpa.cudnn, on(H100, deterministic=True), "deterministic is asked for; its backward pass is not"),
        (sdpa.cudnn, on(H100, length=1), "sequence length 1; only longer ones"),
        (sdpa.cudnn, on(V100, dtype=torch.float16), "compute capability 7.0; only 8.0 and later"),
        (sdpa.efficient, on(A100, mask=Mask.DOCUMENTS, keys=64), "64 keys for 33 queries; only as many"),
        (sdpa.efficient, on(A100, size=20), "head size 20; only multiples of 8"),
        (sdpa.efficient, on(A100, size=18, dtype=torch.float32), "head size 18; only multiples of 4"),
        (sdpa.efficient, on(A100, dtype=torch.float64), "dtype torch.float64; only fp32, fp16 and bf16"),
        (sdpa.efficient, on(V100), "dtype torch.bfloat16 on compute capability 7.0; bf16 only on 8.0 and later"),
        (sdpa.efficient, on(""), "there is no device here, and none was named"),
    ],
)
@pytest.mark.usefixtures("no_device")
def test_a_decline_names_the_unsupported_value(make, asked, reason):
    declined = make(asked)
    assert isinstance(declined, Decline)
    assert declined.reason == reason
    assert declined.kind == "flash"


@pytest.mark.parametrize(
    ("size", "dropout", "capability", "declines"),
    [
        (192, 0.1, (8, 9), 0),
        (200, 0.0, (8, 9), 1),
        (256, 0.0, (12, 0), 0),
        (256, 0.1, (8, 6), 1),
        (256, 0.1, (8, 0), 0),
    ],
)
def test_large_heads_need_shared_memory_backward(monkeypatch, size, dropout, capability, declines):
    monkeypatch.setattr("pretrain_cuda.kernels.flash_limits.architecture_of", lambda _: Architecture(*capability))
    declined = sdpa.flash(on("some", size=size, dropout=dropout))
    assert isinstance(declined, Decline) is bool(declines)
    if declines:
        shown = ".".join(map(str, capability))
        assert declined.reason.startswith(f"head size {size} with dropout {dropout} on compute capability {shown}")


@pytest.mark.parametrize(("version", "declines"), [(91100, 0), (91200, 1), (91301, 1), (91400, 0), (None, 0)])
def test_cudnn_declines_dropout_in_the_versions_that_lack_it(monkeypatch, version, declines):
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: version)
    answer = sdpa.cudnn(on(H100, dropout=0.125))
    assert isinstance(answer, Decline) is bool(declines)
    if declines:
        assert answer.reason == f"dropout 0.125 with cuDNN {version}; not in 9.11 to 9.13"
    else:
        assert answer.provider == f"torch {torch.__version__}" + (f", cuDNN {version}" if version else "")
