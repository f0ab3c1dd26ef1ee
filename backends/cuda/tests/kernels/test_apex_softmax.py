"""Softmax by apex's extensions. The real ones were not run: fake modules follow their sources.

Sources: apex csrc/megatron at commit 6424da3b, the files scaled_*softmax* and generic_scaled_masked_softmax*.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, forward_backward, oracle, random
from pretrain.conformance.example_calls import example_mask, mask_with_empty_rows
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain_cuda import softmax
from pretrain_cuda.kernels import apex_softmax_limits
from pretrain_cuda.kernels.apex_softmax import Softmax

BF16, FP16 = torch.bfloat16, torch.float16
SMALL = 0.125
"""A scale by which no fp16 score comes near -10000."""


def rows_per_block(keys):
    """get_batch_per_block of scaled_masked_softmax.h."""
    power = 1
    while power < keys:
        power *= 2
    return 128 // min(power, 32) * (2 if power <= 128 else 1)


def check_rows(scores, most, rows):
    assert scores.is_contiguous()
    assert scores.dtype in (BF16, FP16)
    keys = scores.shape[-1]
    assert keys <= most, "TORCH_INTERNAL_ASSERT"
    assert rows % rows_per_block(keys) == 0, "TORCH_INTERNAL_ASSERT"
    assert keys <= 64 or keys % 4 == 0, "not asserted: rows would be read across their ends"


def scaled(scores, scale):
    """The dispatch functions take the scale as input_t."""
    return scores.float() * torch.tensor(scale).to(scores.dtype).float()


def gradient(grad, weights, scale):
    assert grad.is_contiguous()
    assert weights.is_contiguous()
    g, w = grad.float(), weights.float()
    return (scale * (g * w - w * (g * w).sum(-1, keepdim=True))).to(grad.dtype)


class Causal(ModuleType):
    def forward(self, scores, scale):
        assert scores.dim() == 3
        check_rows(scores, 16384, scores.shape[0])
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        return scaled(scores, scale).masked_fill(hidden, -torch.inf).softmax(-1).to(scores.dtype)

    def backward(self, grad, weights, scale):
        check_rows(grad, 16384, grad.shape[0])
        return grad.copy_(gradient(grad, weights, scale))


class Plain(ModuleType):
    def forward(self, scores, scale):
        assert scores.dim() == 4
        check_rows(scores, 16384, scores.shape[2])
        return scaled(scores, scale).softmax(-1).to(scores.dtype)

    def backward(self, grad, weights, scale):
        check_rows(grad, 4096, grad.shape[2])
        return grad.copy_(gradient(grad, weights, scale))


class Masked(ModuleType):
    lowest = -10000.0

    def check(self, scores):
        check_rows(scores, 4096, scores.shape[2])

    def forward(self, scores, mask, scale):
        batch, _, queries, keys = scores.shape
        self.check(scores)
        assert mask.is_contiguous()
        assert mask.shape in ((batch, 1, queries, keys), (1, 1, queries, keys))
        x = torch.where(mask.view(torch.uint8) == 1, -10000.0, scaled(scores, scale))
        is_empty = x.amax(-1, keepdim=True).clamp(min=-10000.0) <= self.lowest
        return x.softmax(-1).masked_fill(is_empty, 0).to(scores.dtype)

    def backward(self, grad, weights, scale):
        self.check(grad)
        return gradient(grad, weights, scale)


class Generic(Masked):
    lowest = -9999.9

    def check(self, scores):
        assert scores.is_contiguous()
        assert scores.shape[-1] + 4 * -(-scores.shape[-1] // 128) <= 48 * 1024 // 4


MODULES = {
    "scaled_upper_triang_masked_softmax_cuda": Causal,
    "scaled_softmax_cuda": Plain,
    "scaled_masked_softmax_cuda": Masked,
    "generic_scaled_masked_softmax_cuda": Generic,
}


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, name, module(name))
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda name: name in MODULES)
    monkeypatch.setattr("pretrain.plugins.installed.provider", lambda distribution: f"{distribution} 0.1")


def answer(name, request):
    return next(answer for answer in softmax.answers(request) if answer.name == name)


def build(name, request):
    offer = answer(name, request)
    assert isinstance(offer, Offer), offer.reason
    assert offer.provider == "apex 0.1"
    return offer.build({})


def compare(kernel, request, mask=None, **how):
    scores = {"scores": random(2, request.heads, request.queries, request.keys, dtype=request.dtype) * 8}
    expected = oracle(request)
    assert_agrees(
        lambda scores: kernel(scores, mask),
        lambda scores: expected(scores, mask),
        scores,
        torch.device("cpu"),
        **how,
    )


def asked(dtype=BF16, mask=Mask.CAUSAL, length=32, heads=8, scale=1.0):
    return replace(examples.softmax(dtype, mask, queries=length, keys=length, scale=scale), heads=heads)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("length", [32, 64, 132])
@pytest.mark.parametrize("mask", [Mask.CAUSAL, Mask.NONE], ids=str)
@pytest.mark.parametrize("is_strided", [False, True])
def test_causal_and_whole_rows_agree_with_float64(mask, length, dtype, is_strided):
    request = asked(dtype, mask, length, scale=3.0)
    compare(build("apex", request), request, is_strided=is_strided)


@pytest.mark.parametrize("name", ["apex", "apex_generic"])
@pytest.mark.parametrize("mask", [Mask.KEY_PADDING, Mask.ARBITRARY], ids=str)
@pytest.mark.parametrize("is_strided", [False, True])
def test_masks_agree_with_float64(name, mask, is_strided):
    request = asked(FP16, mask, scale=SMALL)
    compare(build(name, request), request, example_mask(mask, 2, 32, 32), is_strided=is_strided)


SHAPES = [(32,), (32, 32), (1, 1, 32, 32), (2, 8, 32, 32), (1, 8, 1, 32), (8, 32, 1)]


@pytest.mark.parametrize("name", ["apex", "apex_generic"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mask_may_be_broadcast_in_every_dimension(name, shape):
    """Heads with different masks become micro batches of their own: the kernels have one mask for all heads."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.4
    request = asked(FP16, Mask.ARBITRARY, scale=SMALL)
    compare(build(name, request), request, mask, floor=0.1)


@pytest.mark.parametrize("name", ["apex", "apex_generic"])
@pytest.mark.parametrize("kind", [Mask.KEY_PADDING, Mask.ARBITRARY], ids=str)
def test_masked_keys_get_zero_even_beside_the_lowest_scores(name, kind):
    """The largest scale that is let through, and scores that are all the lowest of fp16."""
    scale = 0.1510009765625
    mask, _ = mask_with_empty_rows(kind, 2, 32, 32)
    kernel = build(name, asked(FP16, kind, scale=scale))
    scores = {"scores": torch.full((2, 8, 32, 32), torch.finfo(FP16).min, dtype=FP16)}
    results = forward_backward(lambda scores: kernel(scores, mask), scores, lambda x: x)
    for result in results.values():
        assert not result[mask.expand(result.shape)].count_nonzero()
    assert results["output"].sum(-1)[~mask.all(-1).expand(2, 8, 32)].min() > 0.99
    above = answer(name, asked(FP16, kind, scale=0.151123046875))
    assert isinstance(above, Decline)


def test_masks_with_scores_near_the_masked_score_give_wrong_weights():
    """A row that lies below -10000 is lost with the empty ones; one just above it gives weight to what is masked."""
    request = asked(FP16, Mask.ARBITRARY)
    kernel = Softmax(request, "scaled_masked_softmax_cuda")
    scores = torch.full((1, 8, 32, 32), -20000.0, dtype=FP16)
    scores[:, :, 1] = -9992
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[:, 16:] = True
    weights, right = kernel(scores, mask), oracle(request)(scores.double(), mask)
    assert (weights[..., 0, :].any(), right[..., 0, :].sum().item()) == (torch.tensor(False), 8)
    assert weights[..., 1, 16:].any()


@pytest.mark.parametrize("mask", Mask, ids=str)
def test_the_gradient_that_is_given_stays(mask):
    """It may be shared: autograd passes one tensor to both terms of a sum."""
    kernel = build("apex", asked(FP16, mask, scale=SMALL))
    scores, other = (random(2, 8, 32, 32, dtype=FP16, seed=seed).requires_grad_() for seed in (1, 2))
    grad = random(2, 8, 32, 32, dtype=FP16, seed=3)
    (kernel(scores, example_mask(mask, 2, 32, 32)) + other).backward(grad)
    assert torch.equal(other.grad, random(2, 8, 32, 32, dtype=FP16, seed=3))


@pytest.mark.parametrize("name", ["apex", "apex_generic"])
def test_a_mask_of_another_kind_is_refused(name):
    with pytest.raises(ValueError, match="built for the mask 'key_padding' was called without a mask tensor"):
        build(name, asked(FP16, Mask.KEY_PADDING, scale=SMALL))(torch.zeros(2, 8, 32, 32, dtype=FP16))


def test_more_scores_than_32_bits_count_are_an_error():
    kernel = build("apex_generic", asked(FP16, Mask.KEY_PADDING, 8192, scale=SMALL))
    scores = torch.zeros(1, dtype=FP16).expand(4, 8, 8192, 8192)
    with pytest.raises(ValueError, match="2147483648 scores; fewer than 2\\^31"):
        kernel(scores, torch.zeros(4, 1, 1, 8192, dtype=torch.bool))


ROW = " is not installed; apex (github.com/NVIDIA/apex) brings it when it is built with --cuda_ext"
LOST = "mask arbitrary: what is masked gets the score -10000, and no weight only where others are above -9896; "


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asked(torch.float32), "dtype torch.float32; only float16, bfloat16"),
        (
            asked(BF16, scale=0.3),
            "scale 0.3; the forward pass would round it to 0.30078125 (torch.bfloat16), the backward pass would not",
        ),
        (asked(length=16388), "16388 keys; at most 16384"),
        (asked(mask=Mask.NONE, length=4100), "4100 keys; at most 4096"),
        (asked(length=70), "70 keys; above 64 only multiples of 4: a row is read by fours"),
        (asked(length=1024, heads=6), "6 heads; with 1024 keys only multiples of 4, whatever the micro batch"),
        (asked(length=128, heads=12), "12 heads; with 128 keys only multiples of 8, whatever the micro batch"),
        (replace(asked(), queries=16), "16 queries, 32 keys; needs equally many"),
        (asked(mask=Mask.NONE, length=260, heads=3), ""),
        (replace(asked(mask=Mask.NONE, length=256), queries=30), "30 queries; with 256 keys only multiples of 4"),
        (replace(asked(mask=Mask.NONE, length=20), queries=12), "12 queries; with 20 keys only multiples of 8"),
        (asked(FP16, Mask.ARBITRARY), f"{LOST}torch.float16 times 1.0 goes down to -6.55e+04"),
        (asked(BF16, Mask.ARBITRARY, scale=2**-20), f"{LOST}torch.bfloat16 times {2**-20} goes down to -3.233e+32"),
    ],
)
def test_unsupported_requests_are_declined_with_the_rule(request_, reason):
    given = answer("apex", request_)
    assert getattr(given, "reason", "") == reason


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asked(), "mask causal; only key_padding and arbitrary"),
        (asked(FP16, Mask.KEY_PADDING, 11913), "11913 keys; at most 11912 fit into its shared memory"),
        (
            asked(FP16, Mask.KEY_PADDING, 8192, heads=32, scale=SMALL),
            "2147483648 scores of one sample; fewer than 2^31, because its offsets have 32 bits",
        ),
        (asked(FP16, Mask.ARBITRARY), f"{LOST}torch.float16 times 1.0 goes down to -6.55e+04"),
        (asked(FP16, Mask.ARBITRARY, 33, heads=3, scale=SMALL), ""),
    ],
)
def test_the_generic_one_declines_by_its_own_rules(request_, reason):
    given = answer("apex_generic", request_)
    assert getattr(given, "reason", "") == reason


@pytest.mark.parametrize("mask", Mask, ids=str)
def test_the_module_that_is_missing_is_named(monkeypatch, mask):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda name: False)
    request = asked(FP16, mask, scale=SMALL)
    assert answer("apex", request).reason == apex_softmax_limits.MODULES[mask] + ROW
    if mask in (Mask.KEY_PADDING, Mask.ARBITRARY):
        assert answer("apex_generic", request).reason == "generic_scaled_masked_softmax_cuda" + ROW


@pytest.mark.parametrize("keys", [1, 2, 3, 16, 31, 32, 33, 128, 129, 2048, 16384])
def test_rows_of_a_block(keys):
    assert apex_softmax_limits.rows_per_block(keys) == rows_per_block(keys)
