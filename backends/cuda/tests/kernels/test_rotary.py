"""Rotary position embedding in Triton: the kit, cases beyond it, and declined requests."""

from __future__ import annotations

import pytest
import torch

from kit.pairs import one_on_a_commit
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, oracle, random
from pretrain.conformance.example_calls import rotations
from pretrain.conformance.suite import TestRotary, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins.offer import Decline
from pretrain_cuda import rotary

BACKEND = "kit.interpreted"
COSTLY = False  # 2112 tokens take the interpreter a minute; test_conformance.py has them on a GPU


def compare(device, x, cos, sin, of=lambda x: x):
    """Forward and backward on a part of x, with float64."""
    rotate, expected = rotary.answers(examples.rotary()).build({}), oracle(examples.rotary())
    assert_agrees(
        lambda x: rotate(of(x), cos.to(device), sin.to(device)), lambda x: expected(of(x), cos, sin), {"x": x}, device
    )


SIZES = [(1, 12, 12), (5, 13, 6), (9, 7, 2), (8, 16, 10)]


@pytest.mark.parametrize(
    ("heads", "size", "turned", "dtype"), one_on_a_commit(SIZES, [torch.float32, torch.bfloat16]), ids=str
)
def test_any_number_of_heads_and_any_size(device, monkeypatch, heads, size, turned, dtype):
    """Four heads or fewer at a time, the last ones cut off; halves and rests that are no powers of two."""
    rotary.answers(examples.rotary()).build({})
    monkeypatch.setattr("pretrain_cuda.kernels.triton.rotary.TILE", 16)
    compare(device, random(3, 2, heads, size, dtype=dtype), *rotations(3, turned))


@pytest.mark.full
@pytest.mark.parametrize("part", [0, 1, 2])
def test_queries_and_keys_may_be_views_of_one_projection(device, part):
    """The views are not copied; the rest of the projection gets no gradient."""
    projection = random(5, 2, 4, 3 * 16, dtype=torch.float32)
    compare(device, projection, *rotations(5, 8), of=lambda x: x.split(16, dim=-1)[part])


def test_the_gradient_is_the_transpose_where_the_halves_of_cos_and_sin_differ(device):
    """No model has this; the inverse rotation by the opposite angle would be wrong then."""
    cos, sin = (random(5, 1, 1, 8, dtype=torch.float32, seed=seed) for seed in (1, 2))
    compare(device, random(5, 2, 4, 16, dtype=torch.float32), cos, sin)


def test_tables_may_be_views(device):
    tables = torch.stack([table.squeeze() for table in rotations(5, 8)], dim=-1).view(5, 1, 1, 8, 2)
    compare(device, random(5, 2, 4, 16, dtype=torch.float32), *tables.unbind(-1))


def test_no_tokens_give_no_tokens(device):
    rotate = rotary.answers(examples.rotary()).build({})
    tables = (table.to(device) for table in rotations(3, 8))
    assert rotate(torch.zeros(3, 0, 4, 16, device=device), *tables).shape == (3, 0, 4, 16)


def test_declines_float64():
    declined = rotary.answers(examples.rotary(torch.float64))
    assert isinstance(declined, Decline)
    assert declined.reason == "dtype torch.float64; only float32, float16, bfloat16"
