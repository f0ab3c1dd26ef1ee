"""The compared part of an attention is what a kernel of fewer samples, heads and queries computes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from pretrain.conformance.compared_part import AttentionPart, evenly, octaves, runs, spread
from pretrain.plugins.requests import AttentionRequest, Mask, SoftmaxRequest
from pretrain.reference.attention import Attention

S, B, D = 6, 3, 4


def request_of(groups, shared, mask=Mask.CAUSAL):
    return AttentionRequest(
        device_type="cpu",
        dtype=torch.float64,
        heads=groups * shared,
        query_groups=groups,
        head_size=D,
        seq_length=S,
        micro_batch_size=B,
        mask=mask,
        scale=0.5,
    )


@given(
    some.integers(1, 3), some.integers(1, 3), some.integers(1, 400), some.sampled_from([Mask.CAUSAL, Mask.ARBITRARY])
)
def test_it_is_what_a_smaller_kernel_computes(groups, shared, most, mask):
    request = request_of(groups, shared, mask)
    part = AttentionPart.of(request, B, most, all_queries=True)
    generator = torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(S, B, n, D, generator=generator, dtype=torch.float64) for n in (groups * shared, groups, groups)
    )
    given = {"query": query, "key": key, "value": value}
    if mask is Mask.ARBITRARY:
        given["mask"] = (torch.rand(B, 1, S, S, generator=generator) < 0.3) | torch.ones(S, S, dtype=torch.bool).triu(1)

    whole = Attention(request)(**given)
    small = Attention(part.request_of_part)(**{name: part.narrow(name, x) for name, x in given.items()})

    torch.testing.assert_close(part.narrow("output", whole), small)


@pytest.mark.parametrize(
    ("most", "samples", "groups"), [(10**9, 3, 4), (3 * 4 * 72, 3, 4), (2 * 4 * 72, 2, 4), (3 * 72, 1, 3), (1, 1, 1)]
)
def test_it_has_at_most_so_many_scores_and_at_least_one_group(most, samples, groups):
    part = AttentionPart.of(request_of(4, 2), B, most, all_queries=True)

    assert (len(part.samples), len(part.groups)) == (samples, groups)


def test_a_softmax_is_divided_by_samples_and_heads():
    request = SoftmaxRequest(device_type="cpu", dtype=torch.float32, heads=4, queries=S, keys=S, mask=Mask.ARBITRARY)
    part = AttentionPart.of(request, B, 2 * S * S, all_queries=True)

    assert part.narrow("scores", torch.zeros(B, 4, S, S)).shape == (1, 2, S, S)
    assert part.narrow("mask", torch.zeros(B, 1, S, S)).shape == (1, 1, S, S)


@given(some.integers(1, 5000), some.integers(1, 200))
def test_positions_are_evenly_spread_with_the_first_and_the_last(length, most):
    positions = evenly(length, most)

    assert len(positions) == min(length, most)
    assert len(set(positions.tolist())) == len(positions)
    assert positions[0] == 0
    assert most == 1 or positions[-1] == length - 1
    assert torch.equal(positions, positions.sort().values)


@given(some.integers(1, 200))
def test_first_middle_and_last_are_even_and_odd(count):
    found = spread(count).tolist()
    assert {found[0], found[-1]} == {0, count - 1}
    assert len(found) == min(count, 3)
    assert {each % 2 for each in found} == {each % 2 for each in range(count)}


@given(some.integers(1, 500), some.integers(0, 600))
def test_queries_are_from_everywhere_and_about_as_many_as_there_is_room_for(count, room):
    found = runs(count, room).tolist()
    assert found == sorted(set(found))
    assert len(found) <= max(room, 3)
    if len(found) < count:
        assert found[0] == 1
        assert found[-1] == count - 1
        assert any(count // 3 <= each <= 2 * count // 3 for each in found)


def test_entries_of_like_size_are_those_of_like_many_keys():
    positions = torch.tensor([1, 2, 15, 16, 31, 32, 40, 999])
    assert [positions[places].tolist() for places in octaves(positions)] == [[1, 2, 15], [16, 31], [32, 40], [999]]
