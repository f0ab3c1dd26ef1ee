"""npu_fusion_attention: layouts, modes, shared heads and dropout against float64, and masks that would be misread."""

import pytest
import torch

FUSED = torch.ops.npu.npu_fusion_attention
QUERIES, KEYS, BATCH, HEADS, GROUPS, SIZE = 5, 7, 2, 4, 2, 8
SCALE = SIZE**-0.5
ORDERS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}


def compressed(rows=2048, diagonal=1):
    return torch.ones(rows, rows, dtype=torch.bool).triu(diagonal)


WHOLE = torch.rand(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(5)) < 0.4
WHOLE[..., 0] = False
MODES = {
    "none": ({}, torch.zeros(QUERIES, KEYS, dtype=torch.bool)),
    "0 whole": ({"sparse_mode": 0, "atten_mask": WHOLE}, WHOLE),
    "0 causal": (
        {"sparse_mode": 0, "next_tockens": 0, "atten_mask": torch.ones(QUERIES, KEYS).triu(1).bool()},
        torch.ones(QUERIES, KEYS).triu(1).bool(),
    ),
    "1": ({"sparse_mode": 1, "atten_mask": WHOLE}, WHOLE),
    "2": ({"sparse_mode": 2, "atten_mask": compressed()}, torch.ones(QUERIES, KEYS).triu(1).bool()),
    "3": ({"sparse_mode": 3, "atten_mask": compressed()}, torch.ones(QUERIES, KEYS).triu(1 + KEYS - QUERIES).bool()),
    "4": (
        {"sparse_mode": 4, "atten_mask": compressed(), "pre_tockens": 2, "next_tockens": 0},
        torch.ones(QUERIES, KEYS).triu(1 + KEYS - QUERIES).bool() | ~torch.ones(QUERIES, KEYS).triu(0).bool(),
    ),
}


def qkv(dtype=torch.float32):
    """Return query, key and value in BNSD."""
    make = torch.Generator().manual_seed(4)
    shapes = (BATCH, HEADS, QUERIES, SIZE), (BATCH, GROUPS, KEYS, SIZE), (BATCH, GROUPS, KEYS, SIZE)
    return [torch.randn(shape, generator=make).to(dtype).requires_grad_() for shape in shapes]


def arranged(x, layout):
    x = x.permute(ORDERS[layout])
    return x.flatten(2) if layout in {"BSH", "SBH"} else x


def expected(query, key, value, masked):
    key, value = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (key, value))
    weights = (query @ key.mT * SCALE).masked_fill(masked, float("-inf")).softmax(-1)
    return weights @ value


def on(npu, options):
    return {name: value.to(npu) if isinstance(value, torch.Tensor) else value for name, value in options.items()}


def simulated(npu, tensors, layout, options):
    query, key, value = (arranged(x.to(npu), layout) for x in tensors)
    return FUSED(query, key, value, HEADS, layout, scale=SCALE, **on(npu, options))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ORDERS)
def test_context_and_gradients_are_those_in_float64(npu, layout, mode):
    options, masked = MODES[mode]
    given, exact = qkv(), qkv(torch.float64)
    context = simulated(npu, given, layout, options)[0]
    wanted = arranged(expected(*exact, masked), layout)
    torch.testing.assert_close(context.cpu().double(), wanted, rtol=1e-5, atol=1e-6)
    context.square().sum().backward()
    wanted.square().sum().backward()
    for one, other in zip(given, exact, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_come_back_in_sixteen_bits(npu, dtype):
    options, masked = MODES["2"]
    context = simulated(npu, qkv(dtype), "BNSD", options)[0]
    assert context.dtype is dtype
    exact = expected(*(x.detach().double() for x in qkv(dtype)), masked)
    torch.testing.assert_close(context.cpu().double(), exact, rtol=2e-2, atol=2e-2)


def test_the_statistics_are_the_largest_score_and_the_sum(npu):
    _, largest, total, *_ = simulated(npu, qkv(), "SBH", {})
    query, key, _ = qkv()
    scores = query @ key.repeat_interleave(HEADS // GROUPS, 1).mT * SCALE
    assert largest.shape == total.shape == (BATCH, HEADS, QUERIES, 8)
    torch.testing.assert_close(largest[..., 3].cpu(), scores.amax(-1))
    torch.testing.assert_close(total[..., 3].cpu(), (scores - scores.amax(-1, keepdim=True)).exp().sum(-1))


def test_dropout_follows_the_generator_and_its_mask_is_the_backward_pass_s(npu):
    query, key, value = (torch.randn(1, 1, 64, 64, device=npu) for _ in range(3))
    value = torch.eye(64, device=npu)[None, None].requires_grad_()
    state = torch.npu.get_rng_state()
    weights, *_, seed, offset, size = FUSED(query, key, value, 1, "BNSD", keep_prob=0.75)
    weights.sum().backward()
    torch.testing.assert_close(value.grad[0, 0].sum(1), 64 * weights[0, 0].sum(0))  # the same weights are kept
    assert size == 64 * 64
    assert (weights == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert weights.sum(-1).mean().item() == pytest.approx(1, abs=0.05)
    again = FUSED(query, key, value, 1, "BNSD", keep_prob=0.75)
    assert (again[4], again[5]) != (seed, offset)
    assert not torch.equal(again[0], weights)
    torch.npu.set_rng_state(state)
    assert torch.equal(FUSED(query, key, value, 1, "BNSD", keep_prob=0.75)[0], weights)


def test_a_row_that_sees_no_key_is_zero_only_where_that_is_asked_for(npu):
    mask = torch.zeros(QUERIES, KEYS, dtype=torch.bool)
    mask[2] = True
    context = {
        precise: simulated(npu, qkv(), "BNSD", {"sparse_mode": 1, "atten_mask": mask, "inner_precise": precise})[0]
        for precise in (0, 2)
    }
    assert context[2][:, :, 2].abs().sum() == 0
    assert context[0][:, :, 2].abs().sum() > 0
    assert torch.equal(context[0][:, :, 3], context[2][:, :, 3])


@pytest.mark.parametrize("is_causal", [True, False])
def test_torch_s_own_attention_ends_in_it(npu, is_causal):
    tensors = [x.to(npu) for x in qkv()]
    context = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=is_causal, enable_gqa=True)
    assert "NpuFusionAttention" in str(context.grad_fn)
    exact = expected(*qkv(torch.float64), MODES["2" if is_causal else "none"][1])
    torch.testing.assert_close(context.cpu().double(), exact, rtol=1e-5, atol=1e-6)


STALE = {
    "a causal mask of another length, once stored": {"sparse_mode": 1, "atten_mask": compressed(6)},
    "that mask where a compressed one belongs": {"sparse_mode": 2, "atten_mask": compressed(QUERIES)},
    "a compressed mask with another diagonal": {"sparse_mode": 2, "atten_mask": compressed(diagonal=0)},
    "a compressed mask upside down": {"sparse_mode": 3, "atten_mask": ~compressed()},
    "a compressed mask where a whole one belongs": {"sparse_mode": 0, "atten_mask": compressed()},
    "no mask where the mode wants one": {"sparse_mode": 2},
    "next_tockens that contradict the mask": {"sparse_mode": 0, "atten_mask": WHOLE, "next_tockens": 0},
    "a mask of numbers": {"sparse_mode": 1, "atten_mask": WHOLE.float()},
}


@pytest.mark.parametrize("what", STALE)
def test_a_mask_that_a_device_would_misread_is_an_error(npu, what):
    with pytest.raises(RuntimeError, match="npu_fusion_attention"):
        simulated(npu, qkv(), "BNSD", STALE[what])


def test_statistics_of_another_forward_pass_are_an_error(npu):
    query, key, value = (x.detach().to(npu) for x in qkv())
    context, largest, total, *_ = FUSED(query, key, value, HEADS, "BNSD", scale=SCALE)
    gradient = torch.ops.npu.npu_fusion_attention_grad
    saved = {"softmax_max": largest, "softmax_sum": total}
    gradient(query, key, value, context, HEADS, "BNSD", scale_value=SCALE, **saved)
    with pytest.raises(RuntimeError, match="another forward pass"):
        gradient(query, key, value, context, HEADS, "BNSD", scale_value=2 * SCALE, **saved)


FORBIDDEN = {
    "head_num 3": lambda q, k, v: FUSED(q, k, v, 3, "BNSD"),
    "input_layout 'SBND'": lambda q, k, v: FUSED(q, k, v, HEADS, "SBND"),
    "key torch.float16": lambda q, k, v: FUSED(q, k.half(), v, HEADS, "BNSD"),
    "query is torch.int32": lambda q, k, v: FUSED(q.int(), k.int(), v.int(), HEADS, "BNSD"),
    "keep_prob 0": lambda q, k, v: FUSED(q, k, v, HEADS, "BNSD", keep_prob=0.0),
    "keep_prob 1.5": lambda q, k, v: FUSED(q, k, v, HEADS, "BNSD", keep_prob=1.5),
    "and 3 of keys": lambda q, k, v: FUSED(q, *2 * [q[:, :3]], HEADS, "BNSD"),
    "at most 768": lambda q, k, v: FUSED(*3 * [q.repeat(1, 1, 1, 97)], HEADS, "BNSD"),
    "at most 256": lambda q, k, v: FUSED(*3 * [q.repeat(1, 65, 1, 1)], 260, "BNSD"),
}


@pytest.mark.parametrize("words", FORBIDDEN)
def test_forbidden_calls_are_refused_with_a_reason(npu, words):
    with pytest.raises(RuntimeError) as error:
        FORBIDDEN[words](*(x.detach().to(npu) for x in qkv()))
    assert words in str(error.value)
