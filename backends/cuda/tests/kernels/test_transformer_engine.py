"""Transformer Engine's attention. The real one was not run: a module with its signature stands in."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from kit import fake_transformer_engine
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, oracle, random
from pretrain.conformance.suite import TestAttention, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain_cuda import attention
from pretrain_cuda.kernels import transformer_engine

BACKEND = "kit.attentions:transformer_engine_attention"

A100, H100, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB"


def on(name, dtype=torch.bfloat16, **asked):
    return replace(examples.attention(dtype, **asked), device_type="cuda", device_name=name)


@pytest.fixture(autouse=True)
def module(monkeypatch):
    """A stand-in for transformer_engine.pytorch in every test here, the kit's too."""
    monkeypatch.setitem(sys.modules, transformer_engine.MODULE, fake_transformer_engine)
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda name: name == transformer_engine.MODULE)
    monkeypatch.setattr("pretrain.plugins.installed.provider", lambda name: f"{name} 2.9")


def test_it_names_the_library_that_does_the_work():
    answer = transformer_engine.answer(on(A100))
    assert isinstance(answer, Offer)
    assert (answer.name, answer.kind, answer.provider) == ("transformer_engine", "flash", "transformer_engine 2.9")


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "called"),
    [
        (Mask.CAUSAL, 33, 33, "causal"),
        (Mask.CAUSAL, 5, 33, "causal_bottom_right"),
        (Mask.NONE, 33, 33, "no_mask"),
        (Mask.NONE, 5, 33, "no_mask"),
    ],
)
def test_it_gets_the_alignment_of_the_mask(mask, queries, keys, called):
    request = on(A100, mask=mask, groups=2)
    kernel = transformer_engine.answer(request).build({})
    inputs = {
        name: random(length, 2, heads, 16, dtype=torch.bfloat16, seed=seed)
        for seed, (name, length, heads) in enumerate([("query", queries, 4), ("key", keys, 2), ("value", keys, 2)])
    }
    assert_agrees(kernel, oracle(request), inputs, torch.device("cpu"))
    assert kernel.module.calls == [called]


def test_outside_training_it_does_not_drop():
    kernel = transformer_engine.answer(on(A100, dropout=0.5)).build({})
    x = random(33, 2, 4, 16, dtype=torch.bfloat16)
    first, second = (kernel(x, x, x, training=False) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, kernel(x, x, x))


def test_it_adds_no_state_to_checkpoints():
    """Its module would add `_extra_state` to a checkpoint, which other backends do not know."""
    assert not isinstance(transformer_engine.answer(on(A100)).build({}), torch.nn.Module)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (on(A100, mask=Mask.ARBITRARY), "mask arbitrary; only none and causal"),
        (on(A100, mask=Mask.DOCUMENTS), "mask documents; only none and causal"),
        (on(A100, keys=64), "64 keys for 33 queries; only as many"),
        (on(A100, torch.float32), "dtype torch.float32; only fp16 and bf16"),
        (on(V100), "compute capability 7.0; only 8.0 and later"),
        (on(A100, size=136), "head size 136; at most 128"),
        (on(A100, size=20), "head size 20; only multiples of 8"),
        (
            replace(on(A100), deterministic=True),
            "deterministic; asked for that, it may use none of its fused kernels",
        ),
    ],
)
def test_it_declines_what_it_may_compute_with_stored_weights(request_, reason):
    answer = transformer_engine.answer(request_)
    assert isinstance(answer, Decline)
    assert answer.reason == reason


def test_the_reason_of_a_missing_library_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda _: False)
    assert transformer_engine.answer(on(A100)).reason == (
        "transformer_engine.pytorch is not installed: pip install --no-build-isolation transformer_engine[pytorch]"
    )


@pytest.mark.parametrize("name", [A100, H100])
def test_it_comes_after_those_that_are_one_kernel(name):
    names = [answer.name for answer in attention.answers(on(name))]
    assert names[-3:] == ["transformer_engine", "sdpa_efficient", "triangle_triton"]
