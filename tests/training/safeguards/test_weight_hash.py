"""Equal bits have equal hashes; one bit, one exchange of two values, or another shape of them has another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.training.safeguards import weight_hash
from pretrain.training.safeguards.replicas import WeightHash, multipliers

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = st.integers(min_value=1, max_value=40)


def weights(size, dtype, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def flipped(weight, element, bit):
    """Return a copy of a weight with one bit of one element the other way."""
    words = weight.clone().view(torch.int32 if weight.element_size() == 4 else torch.int16)
    mask = 1 << bit
    words[element] ^= mask if bit < 8 * weight.element_size() - 1 else -mask
    return words.view(weight.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_of_every_position_counts(dtype):
    weight = weights(9, dtype)
    bits = 8 * weight.element_size()
    hashes = [WeightHash().one(flipped(weight, element, bit)).item() for element in range(9) for bit in range(bits)]
    assert len({*hashes, WeightHash().one(weight).item()}) == 9 * bits + 1


@given(sizes=st.lists(SIZES, min_size=1, max_size=5), dtype=st.sampled_from(DTYPES), data=st.data())
def test_equal_weights_are_equal_and_one_bit_is_not_however_they_are_divided(sizes, dtype, data):
    bucket = data.draw(st.integers(min_value=1, max_value=64), label="bytes of a bucket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_hash, "BUCKET", bucket)
        ours = [weights(size, dtype, seed) for seed, size in enumerate(sizes)]
        theirs = [weight.clone() for weight in ours]
        assert torch.equal(WeightHash().buckets(ours), WeightHash().buckets(theirs))
        which = data.draw(st.integers(min_value=0, max_value=len(sizes) - 1), label="weight")
        element = data.draw(st.integers(min_value=0, max_value=sizes[which] - 1), label="element")
        bit = data.draw(st.integers(min_value=0, max_value=8 * dtype.itemsize - 1), label="bit")
        theirs[which] = flipped(theirs[which], element, bit)
        assert (WeightHash().buckets(ours) != WeightHash().buckets(theirs)).sum() == 1


def test_two_values_that_change_places_have_another_hash():
    weight = torch.tensor([1.0, 2.0, 3.0])
    assert WeightHash().one(weight) != WeightHash().one(weight[[1, 0, 2]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_buckets_of_one_weight_that_change_places_have_another_hash(dtype, monkeypatch):
    monkeypatch.setattr(weight_hash, "BUCKET", 16)
    first, other = torch.split(weights(32 // dtype.itemsize, dtype), 16 // dtype.itemsize)
    assert WeightHash().one(torch.cat((first, other))) != WeightHash().one(torch.cat((other, first)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bucket_is_measured_in_bytes(dtype, monkeypatch):
    monkeypatch.setattr(weight_hash, "BUCKET", 64)
    assert WeightHash().buckets([weights(64, dtype)]).shape == (dtype.itemsize,)


def test_zeros_and_negative_zeros_differ():
    assert WeightHash().one(torch.zeros(4)) != WeightHash().one(-torch.zeros(4))


def test_the_multipliers_are_odd_and_differ():
    numbers = multipliers(5000, torch.device("cpu"))
    assert (numbers % 2 != 0).all()
    assert len(numbers.unique()) == 5000


def test_views_of_a_flat_buffer_are_read_where_they_begin():
    flat = weights(64, torch.bfloat16)
    assert WeightHash().one(flat[3:40]) == WeightHash().one(flat[3:40].clone())


def test_weights_of_several_dtypes_have_buckets_of_their_own():
    mixed = [weights(3, torch.bfloat16), weights(3, torch.float32), weights(2, torch.float32)]
    assert WeightHash().buckets(mixed).shape == (2,)
