"""The checked part of an attention is what a kernel of fewer samples and heads computes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.plugins.requests import AttentionRequest, Mask, NormRequest, SoftmaxRequest
from pretrain.reference.attention import Attention
from pretrain.tools.align.recording.checked_part import CheckedPart

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


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 400), st.sampled_from([Mask.CAUSAL, Mask.ARBITRARY]))
def test_it_is_what_a_smaller_kernel_computes(groups, shared, most, mask):
    request = request_of(groups, shared, mask)
    part = CheckedPart.of(request, B, most)
    generator = torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(S, B, n, D, generator=generator, dtype=torch.float64) for n in (groups * shared, groups, groups)
    )
    given = {"query": query, "key": key, "value": value}
    if mask is Mask.ARBITRARY:
        given["mask"] = (torch.rand(B, 1, S, S, generator=generator) < 0.3) | torch.ones(S, S, dtype=torch.bool).triu(1)

    whole = Attention(request)(**given)
    small = Attention(part.of_part)(**{name: part.narrow(name, x) for name, x in given.items()})

    torch.testing.assert_close(part.narrow("output", whole), small)


@pytest.mark.parametrize(
    ("most", "samples", "groups"), [(10**9, 3, 4), (3 * 4 * 72, 3, 4), (2 * 4 * 72, 2, 4), (3 * 72, 1, 3), (1, 1, 1)]
)
def test_it_has_at_most_so_many_scores_and_at_least_one_group(most, samples, groups):
    part = CheckedPart.of(request_of(4, 2), B, most)

    assert (part.samples, part.groups) == (samples, groups)


def test_a_softmax_is_divided_by_samples_and_heads():
    request = SoftmaxRequest(device_type="cpu", dtype=torch.float32, heads=4, queries=S, keys=S, mask=Mask.ARBITRARY)
    part = CheckedPart.of(request, B, 2 * S * S)

    assert part.narrow("scores", torch.zeros(B, 4, S, S)).shape == (1, 2, S, S)
    assert part.narrow("mask", torch.zeros(B, 1, S, S)).shape == (1, 1, S, S)


def test_other_operations_are_checked_as_a_whole():
    request = NormRequest(
        device_type="cpu", dtype=torch.float32, kind="RMSNorm", hidden_size=D, epsilon=1e-5, weight_dtype=torch.float32
    )
    x = torch.zeros(S, B, D)

    assert CheckedPart.of(request, B, 1).narrow("x", x) is x
