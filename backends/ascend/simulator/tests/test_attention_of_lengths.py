"""npu_fusion_attention in the layout TND: samples of different lengths, one after the other in one dimension."""

import itertools

import pytest
import torch

FUSED = torch.ops.npu.npu_fusion_attention
HEADS, GROUPS, SIZE = 4, 2, 8
MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
BAND = {"pre_tockens": 2, "next_tockens": 0}
LENGTHS = {
    "as many keys": ([3, 1, 5], [3, 1, 5]),
    "more keys": ([2, 5, 4], [6, 5, 4]),  # of the documentation's example of sparse_mode 7, on its second card
    "no queries": ([2, 0, 5, 0], [3, 4, 5, 0]),
}


def tensors(npu, queries, keys):
    make = torch.Generator().manual_seed(6)
    shapes = (queries, HEADS), (keys, GROUPS), (keys, GROUPS)
    return [torch.randn(*shape, SIZE, generator=make).to(npu).requires_grad_() for shape in shapes]


def ends(lengths):
    return {
        name: list(itertools.accumulate(each))
        for name, each in zip(("actual_seq_qlen", "actual_seq_kvlen"), lengths, strict=True)
    }


@pytest.mark.parametrize("options", [{"sparse_mode": 2}, {"sparse_mode": 3}, {"sparse_mode": 4} | BAND], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_samples_of_different_lengths_are_those_alone(npu, lengths, options):
    options = options | {"atten_mask": MASK.to(npu), "scale": SIZE**-0.5}
    together = tensors(npu, *map(sum, lengths))
    context, largest, *_ = FUSED(*together, HEADS, "TND", **ends(lengths), **options)
    context.square().sum().backward()
    assert largest.shape == (sum(lengths[0]), HEADS, 8)
    parts = [x.detach().split(each) for x, each in zip(together, (*lengths, lengths[1]), strict=True)]
    grads = [x.grad.split(each) for x, each in zip(together, (*lengths, lengths[1]), strict=True)]
    contexts = context.split(lengths[0])
    for sample, found in enumerate(contexts):
        if not len(found):
            assert not any(grad[sample].count_nonzero() for grad in grads)
            continue
        alone = [part[sample][None].requires_grad_() for part in parts]
        expected = FUSED(*alone, HEADS, "BSND", **options)[0]
        expected.square().sum().backward()
        torch.testing.assert_close(found, expected[0])
        for grad, x in zip(grads, alone, strict=True):
            torch.testing.assert_close(grad[sample], x.grad[0])


def test_dropout_has_a_bit_for_each_query_and_key_of_a_sample(npu):
    query, key, _ = tensors(npu, 96, 128)
    value = torch.ones(128, GROUPS, SIZE, device=npu).requires_grad_()
    lengths = ([32, 64], [64, 64])
    context, *_, size = FUSED(query, key, value, HEADS, "TND", keep_prob=0.75, **ends(lengths))
    context.sum().backward()
    assert size == HEADS * (32 * 64 + 64 * 64)
    assert context.mean().item() == pytest.approx(1, abs=0.1)
    assert value.grad.sum().item() == pytest.approx(context.sum().item(), rel=1e-4)  # the same weights are kept


def called(npu, lengths, **options):
    given = {"atten_mask": MASK.to(npu), "sparse_mode": 3} | ends(lengths) | options
    return FUSED(*tensors(npu, *map(sum, lengths)), HEADS, "TND", **given)


FORBIDDEN = {
    "actual_seq_qlen None": lambda npu: called(npu, ([5], [5]), actual_seq_qlen=None),
    "actual_seq_qlen [0, 5, 6]": lambda npu: called(npu, ([5], [5]), actual_seq_qlen=[0, 5, 6]),
    "actual_seq_kvlen [4]; TND wants ends that rise to 5": lambda npu: called(npu, ([5], [5]), actual_seq_kvlen=[4]),
    "1 ends of queries and 2 of keys": lambda npu: called(npu, ([5], [2, 3])),
    "1025 samples in TND; at most 1024": lambda npu: called(npu, ([1] * 1025, [1] * 1025)),
    "a query that sees no key": lambda npu: called(npu, ([2, 3], [3, 2])),
    "queries without a key": lambda npu: called(npu, ([2, 3], [5, 0])),
    "a band of 1 keys in TND": lambda npu: called(npu, ([5], [5]), sparse_mode=4, pre_tockens=0, next_tockens=0),
    "of a band, which do not meet": lambda npu: FUSED(
        *(x[None] for x in tensors(npu, 5, 5)), HEADS, "BSND", atten_mask=MASK.to(npu), sparse_mode=4,
        pre_tockens=1, next_tockens=-2,
    ),
    "atten_mask (2048, 2048); TND wants the longest, (3, 4)": lambda npu: called(
        npu, ([2, 3], [4, 3]), sparse_mode=1
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", FORBIDDEN)
def test_forbidden_calls_are_refused_with_a_reason(npu, words):
    with pytest.raises(RuntimeError) as error:
        FORBIDDEN[words](npu)
    assert words in str(error.value)
