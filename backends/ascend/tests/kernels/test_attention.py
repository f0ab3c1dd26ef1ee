"""Attention: order, limits, and what the conformance kit's small shapes do not reach. Operators are stand-ins."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ascend_kit import operators
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, oracle, random
from pretrain.conformance.example_calls import example_mask, mask_with_empty_rows
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain_ascend import attention
from pretrain_ascend.kernels import attention_masks, sdpa
from pretrain_ascend.kernels.fusion_attention import FusionAttention

A2, A3, FIRST, A5 = "Ascend910B3", "Ascend910_9391", "Ascend910A", "Ascend950DT"
FUSED = ["fusion_attention", "sdpa"]


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    """The calls that were made."""
    monkeypatch.setattr("pretrain_ascend.kernels.operators.call", operators.call)
    operators.calls.clear()
    return operators.calls


def on(name, dtype=torch.float16, *, block=32, **asked):
    request = examples.attention(dtype, **{"length": 64} | asked)
    return replace(request, device_type="npu", device_name=name, block_size=block)


def offered(request):
    return [answer.name for answer in attention.answers(request) if isinstance(answer, Offer)]


def reason(request, name):
    answer = next(answer for answer in attention.answers(request) if answer.name == name)
    assert isinstance(answer, Decline)
    return answer.reason


def inputs(request):
    numbers = {"query": request.heads, "key": request.query_groups, "value": request.query_groups}
    sizes = (request.seq_length, request.micro_batch_size)
    return {
        name: random(*sizes, number, request.head_size, dtype=request.dtype, seed=seed)
        for seed, (name, number) in enumerate(numbers.items())
    }


@pytest.mark.parametrize("name", [A2, A3, A5])
def test_from_a2_on_fusion_attention_comes_first(name):
    assert offered(on(name)) == [*FUSED, "triangle_fused", "query_first"]
    assert offered(on(name, dropout=0.1)) == [*FUSED, "triangle_fused", "query_first"]
    assert offered(on(name, torch.bfloat16, mask=Mask.ARBITRARY)) == [*FUSED, "query_first"]
    assert offered(on(name, mask=Mask.DOCUMENTS)) == ["fusion_attention", "triangle_fused", "query_first"]
    assert offered(on(name, keys=256, window=9)) == ["fusion_attention", "triangle_fused", "query_first"]


def test_the_first_generation_computes_the_triangle():
    assert offered(on(FIRST)) == ["triangle_fused", "query_first"]
    assert offered(on(FIRST, mask=Mask.ARBITRARY)) == ["query_first"]
    assert offered(on(FIRST, mask=Mask.DOCUMENTS, keys=256)) == ["triangle_fused", "query_first"]
    assert reason(on(FIRST), "fusion_attention") == "chip family 910A; only A2 and later"
    assert reason(on(FIRST, torch.bfloat16), "triangle_fused").startswith("dtype bfloat16 on chip family 910A; only")


@pytest.mark.parametrize("name", ["triangle_fused", "query_first"])
def test_the_first_generation_has_no_fp32_matmuls(name):
    assert reason(on(FIRST, torch.float32), name) == (
        "dtype float32 on chip family 910A, which multiplies it in float16; only float16"
    )


@pytest.mark.parametrize(
    ("request_", "name", "expected"),
    [
        (on(A2, size=776), "fusion_attention", "head size 776; at most 768"),
        (on(A2, size=520), "sdpa", "head size 520; at most 512"),
        (on(A2, torch.float32, size=18), "sdpa", "head size 18 in float32; only multiples of 4"),
        (on(A2, heads=257), "fusion_attention", "257 heads; at most 256"),
        (on(A2, dropout=1.0), "fusion_attention", "dropout 1.0; only from 0 to below 1"),
        (on(A2, torch.float64), "sdpa", "dtype float64; only float32, float16, bfloat16"),
        (on(A2, mask=Mask.KEY_PADDING), "triangle_fused", "mask key_padding; only causal and documents"),
        (on(A2, window=9), "sdpa", "window 9; torch's attention has none"),
        (on(A2, keys=65), "sdpa", "65 keys for 64 queries; only as many"),
        (on(A2, mask=Mask.DOCUMENTS), "sdpa", "mask documents; torch's attention has none"),
        (
            on(A2, mask=Mask.DOCUMENTS, keys=2**19 + 1),
            "fusion_attention",
            "1048578 keys with mask documents; at most 1048576",
        ),
        (
            on(A2, mask=Mask.DOCUMENTS, window=1),
            "fusion_attention",
            "window 1 with mask documents; only from 2, by a check of CANN's backward pass",
        ),
        (on(A2, block=48), "triangle_fused", "48 queries, 48 keys; only multiples of 32 from 32 to 4096"),
        (on(A2, length=40, block=64), "triangle_fused", "40 queries, 40 keys; only multiples of 32 from 32 to 4096"),
        (on("Ascend310P3"), "sdpa", "the chip family of 'Ascend310P3' is not known; only chips of known families"),
        (on(""), "sdpa", "there is no device here, and none was named; only chips of known families"),
    ],
)
def test_a_decline_names_the_unsupported_value(request_, name, expected):
    assert reason(request_, name) == expected


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("length", [32, 64, 96, 80])
@pytest.mark.parametrize("divisor", [1.0, 4.0])
def test_triangle_agrees_with_float64(stand_ins, length, groups, divisor):
    """Blocks of 32 in the fused softmax; the last one of 16 rows, which it does not take, in plain torch."""
    request = on(FIRST, length=length, groups=groups, divisor=divisor)
    kernel = next(answer for answer in attention.answers(request) if answer.name == "triangle_fused").build({})
    assert_agrees(kernel, oracle(replace(request, score_divisor=1.0)), inputs(request), torch.device("cpu"))
    assert {name for name, _ in stand_ins} == {"npu_scaled_masked_softmax"}
    assert len(stand_ins) == length // 32
    assert {given["scale"] for _, given in stand_ins} == {divisor}


def test_the_triangle_keeps_one_tensor_of_weights_and_its_masks(stand_ins, monkeypatch):
    """Every query of a block sees a key, so nothing is filled in afterwards; the masks of a shape are made once."""
    monkeypatch.setattr(torch.Tensor, "masked_fill", lambda *_: pytest.fail("a fill over all weights"))
    monkeypatch.setattr(operators, "npu_scaled_masked_softmax", lambda x, **_: x)
    kernel = next(answer for answer in attention.answers(on(FIRST)) if answer.name == "triangle_fused").build({})
    kernel(**inputs(on(FIRST)))
    made = [given["mask"] for _, given in stand_ins]
    kernel(**inputs(on(FIRST)))
    again = [given["mask"] for _, given in stand_ins][len(made) :]
    assert [mask.data_ptr() for mask in again] == [mask.data_ptr() for mask in made]


def test_fusion_attention_is_causal_by_one_compressed_mask(stand_ins):
    request = on(A2, torch.float32, length=70)
    assert_agrees(FusionAttention(request), oracle(request), inputs(request), torch.device("cpu"))
    ((_, given),) = stand_ins
    assert (given["sparse_mode"], given["keep_prob"]) == (2, 1.0)
    assert given["atten_mask"] is attention_masks.compressed_causal(torch.empty(0))


def test_fusion_attention_has_a_window_by_the_keys_before_a_querys_own(stand_ins):
    request = on(A2, torch.float32, length=70, window=9)
    assert_agrees(FusionAttention(request), oracle(request), inputs(request), torch.device("cpu"))
    ((_, given),) = stand_ins
    assert (given["sparse_mode"], given["pre_tockens"], given["next_tockens"]) == (4, 8, 0)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("batch", [1, 2])
def test_masks_for_heads_and_samples(heads, batch):
    """A mask of each head has one for each sample too, as the operator wants it; rows that see nothing give zeros."""
    request = on(A2, torch.float32, mask=Mask.ARBITRARY, length=33)
    mask, _ = mask_with_empty_rows(Mask.ARBITRARY, batch, 33, 33)
    mask = mask.repeat(1, heads, 1, 1)
    mask[:, -1, -1] = False
    kernel, expected = FusionAttention(request), oracle(request)
    results = assert_agrees(
        lambda **x: kernel(**x, mask=mask), lambda **x: expected(**x, mask=mask), inputs(request), torch.device("cpu")
    )
    assert not results["output"][0].count_nonzero()


def test_a_mask_without_dimensions_for_heads_and_samples_fits():
    mask = example_mask(Mask.ARBITRARY, 1, 5, 7)[0, 0]
    assert attention_masks.expanded(mask, 2, 4, 5, 7).shape == (1, 1, 5, 7)


def test_dropout_is_left_out_of_the_call_outside_training(stand_ins):
    request = on(A2, torch.float32, dropout=0.25)
    FusionAttention(request)(**inputs(request), training=True)
    FusionAttention(request)(**inputs(request), training=False)
    assert [given["keep_prob"] for _, given in stand_ins] == [0.75, 1.0]


@pytest.mark.parametrize("mask", [Mask.CAUSAL, Mask.NONE])
def test_a_mask_that_was_not_asked_for_is_an_error(mask):
    request = on(A2, mask=mask)
    with pytest.raises(ValueError, match="called with a mask tensor"):
        FusionAttention(request)(**inputs(request), mask=torch.zeros(64, 64, dtype=torch.bool))


@pytest.mark.parametrize(
    ("window", "mode"), [(None, {"sparse_mode": 3}), (9, {"sparse_mode": 4, "pre_tockens": 8, "next_tockens": 0})]
)
def test_with_more_keys_the_modes_begin_at_the_lower_right_corner(stand_ins, window, mode):
    request = on(A2, keys=256, window=window)
    given = inputs(on(A2, length=100))
    FusionAttention(request)(given["query"][:64], given["key"], given["value"])
    assert [{name: given[name] for name in mode} for _, given in stand_ins] == [mode]


def test_more_keys_than_were_asked_for_are_an_error():
    """The compressed mask would be aligned to the first key, the contract aligns the last ones."""
    given = inputs(on(A2))
    with pytest.raises(ValueError, match="8 queries and 64 keys under a causal mask; needs equally many, or `keys`"):
        FusionAttention(on(A2))(given["query"][:8], given["key"], given["value"])
    with pytest.raises(ValueError, match="64 queries, 8 keys; needs as many or more"):
        FusionAttention(on(A2, keys=64))(given["query"], given["key"][:8], given["value"][:8])


def test_sdpa_gives_one_row_of_the_mask_to_each_query(monkeypatch):
    """torch_npu 2.9.0 hands [b, 1, 1, s] on to CANN's kernel, which refuses it."""
    given = []
    monkeypatch.setattr(
        sdpa.F, "scaled_dot_product_attention", lambda q, *_, attn_mask, **__: given.append(attn_mask) or q
    )
    request = on(A2, mask=Mask.KEY_PADDING)
    query, key, value = inputs(request).values()
    mask = torch.zeros(query.shape[1], 1, 1, key.shape[0], dtype=torch.bool)
    mask[0, ..., -3:] = True
    sdpa.Sdpa(request)(query, key, value, mask)
    (keep,) = given
    assert keep.shape == (query.shape[1], 1, query.shape[0], key.shape[0])
    assert torch.equal(keep, ~mask.expand_as(keep))
