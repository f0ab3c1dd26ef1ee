"""The oracle itself: the reference kernels in float64 against torch's own functions and against formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812

from pretrain.conformance import examples
from pretrain.plugins.requests import Mask
from pretrain.reference import plugin

DOUBLE = torch.float64
EXACT = {"rtol": 1e-11, "atol": 1e-12}


def build(request, number=0):
    answer = getattr(plugin, f"pretrain_{request.operation}")(request)
    return (answer if isinstance(answer, list) else [answer])[number].build({})


def normal(*shape):
    return torch.randn(shape, dtype=DOUBLE, requires_grad=True)


def assert_same_with_gradients(actual, expected, leaves):
    torch.testing.assert_close(actual, expected, **EXACT)
    grad = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(output, leaves, grad) for output in (actual, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 40),
    groups=st.integers(1, 3),
    shared=st.integers(1, 3),
    kind=st.sampled_from([0, 1]),
    divisor=st.sampled_from([1.0, 7.0]),
)
def test_attention_is_torchs(length, groups, shared, kind, divisor):
    request = examples.attention(DOUBLE, length=length, heads=groups * shared, groups=groups, size=6, divisor=divisor)
    q, k, v = normal(length, 2, groups * shared, 6), normal(length, 2, groups, 6), normal(length, 2, groups, 6)
    expected = F.scaled_dot_product_attention(
        *(x.permute(1, 2, 0, 3) for x in (q, k, v)), is_causal=True, enable_gqa=True
    )
    actual = build(request, kind)(q, k, v)
    assert_same_with_gradients(actual, expected.permute(2, 0, 1, 3).flatten(2), (q, k, v))


def test_attention_with_a_mask_is_torchs():
    mask = torch.rand(2, 1, 9, 9) < 0.5
    mask[..., 0] = False
    q, k, v = normal(9, 2, 4, 6), normal(9, 2, 4, 6), normal(9, 2, 4, 6)
    expected = F.scaled_dot_product_attention(*(x.permute(1, 2, 0, 3) for x in (q, k, v)), attn_mask=~mask)
    actual = build(examples.attention(DOUBLE, Mask.ARBITRARY, length=9, size=6))(q, k, v, mask)
    assert_same_with_gradients(actual, expected.permute(2, 0, 1, 3).flatten(2), (q, k, v))


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3), (1, 1)])
def test_the_causal_mask_ends_in_the_corner(queries, keys):
    weights = build(examples.softmax(DOUBLE, queries=queries, keys=keys))(normal(2, 4, queries, keys))
    for query in range(queries):
        seen = max(0, query + keys - queries + 1)
        assert weights[..., query, seen:].count_nonzero() == 0
        assert (weights[..., query, :seen] > 0).all()
        torch.testing.assert_close(weights[..., query, :].sum(-1), torch.full((2, 4), float(seen > 0), dtype=DOUBLE))


def test_a_mask_that_would_be_ignored_is_an_error():
    scores = normal(2, 4, 33, 33)
    with pytest.raises(ValueError, match="with a mask tensor"):
        build(examples.softmax(DOUBLE))(scores, torch.zeros(33, 33, dtype=torch.bool))
    with pytest.raises(ValueError, match="without a mask tensor"):
        build(examples.softmax(DOUBLE, Mask.ARBITRARY))(scores)


def test_triangle_declines_other_masks_with_the_reason():
    answers = plugin.pretrain_attention(examples.attention(mask=Mask.KEY_PADDING))
    assert answers[1].reason == "mask key_padding; only causal and documents"


@pytest.mark.parametrize("length", [1, 15, 16, 17, 50])
def test_triangle_computes_only_the_lower_blocks(length, monkeypatch):
    computed = []
    bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: computed.append(a.shape[1:]) or bmm(a, b))
    build(examples.attention(length=length, heads=1, size=4), 1)(*(torch.randn(length, 2, 1, 4) for _ in range(3)))
    ends = [min(start + 16, length) for start in range(0, length, 16)]
    assert computed == [(end - start, end) for start, end in zip(range(0, length, 16), ends, strict=True)]


def test_norms_are_torchs():
    x, weight, bias = normal(5, 2, 48), normal(48), normal(48)
    layer = build(examples.norm(DOUBLE))(x, weight, bias)
    assert_same_with_gradients(layer, F.layer_norm(x, (48,), weight, bias, 1e-5), (x, weight, bias))
    rms = build(examples.norm(DOUBLE, "RMSNorm"))(x, weight)
    assert_same_with_gradients(rms, F.rms_norm(x, (48,), weight, 1e-5), (x, weight))


def test_rotary_turns_pairs_by_their_angle():
    angles = torch.rand(7, 1, 1, 4)
    cos, sin = (torch.cat((table, table), dim=-1) for table in (angles.cos(), angles.sin()))
    x = normal(7, 2, 3, 16)
    actual = build(examples.rotary(DOUBLE, rotary_size=8))(x, cos, sin)
    pairs = torch.complex(x[..., :4], x[..., 4:8]) * torch.complex(cos[..., :4], sin[..., :4]).to(torch.complex128)
    expected = torch.cat((pairs.real, pairs.imag, x[..., 8:]), dim=-1)
    assert_same_with_gradients(actual, expected, (x,))


@settings(max_examples=20, deadline=None)
@given(vocab_size=st.integers(1, 30), padding=st.integers(0, 5), tokens=st.integers(1, 9))
def test_cross_entropy_is_torchs_without_the_padding(vocab_size, padding, tokens):
    logits = normal(tokens, 2, vocab_size + padding)
    target = torch.randint(vocab_size, (tokens, 2))
    kernel = build(examples.cross_entropy(DOUBLE, vocab_size=vocab_size, padded=vocab_size + padding))
    entries = logits[..., :vocab_size].flatten(0, 1)
    expected = F.cross_entropy(entries, target.flatten(), reduction="none").view(tokens, 2)
    assert_same_with_gradients(kernel(logits.clone(), target), expected, (logits,))


def test_the_loss_and_the_activations_stay_in_float64():
    x, bias = normal(3, 2, 64), normal(64)
    for kind, features in (("gelu", 64), ("gelu_tanh", 64), ("swiglu", 32)):
        y = build(examples.activation(DOUBLE, kind, features=features))(x, bias)
        assert (y.dtype, y.shape[-1]) == (DOUBLE, features)
    loss = build(examples.cross_entropy(DOUBLE))(x.clone(), torch.zeros(3, 2, dtype=torch.int64))
    assert loss.dtype == DOUBLE


def test_gelu_is_the_formula():
    x = normal(5, 1, 64)
    gelu = build(examples.activation(DOUBLE))(x)
    torch.testing.assert_close(gelu, x * (1 + torch.erf(x / 2**0.5)) / 2, **EXACT)
    tanh = build(examples.activation(DOUBLE, "gelu_tanh"))(x)
    inner = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
    torch.testing.assert_close(tanh, x * (1 + torch.tanh(inner)) / 2, **EXACT)


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_is_torchs(name, weight_decay):
    start = torch.randn(5, 3, dtype=DOUBLE)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    settings = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": weight_decay}
    adam = plugin.pretrain_optimizer(examples.optimizer(name)).build({}).adam
    optimizers = (
        adam([ours], **settings, adam_w_mode=name == "adamw"),
        (torch.optim.AdamW if name == "adamw" else torch.optim.Adam)([theirs], **settings),
    )
    for _ in range(5):
        ours.grad = torch.randn(5, 3, dtype=DOUBLE)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(ours, theirs, **EXACT)


def test_the_learning_rate_of_a_group_is_read_in_every_step():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = plugin.pretrain_optimizer(examples.optimizer()).build({}).adam([parameter], lr=1.0)
    optimizer.param_groups[0]["lr"] = 0.0
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(parameter, torch.ones(3))


def chosen_by_argsort(request, scores, bias):
    """Return the experts of each token by sorting in Python: the higher score first, of equal ones the lower index."""
    chosen = torch.zeros(scores.shape, dtype=torch.bool)
    for token, row in enumerate((scores if bias is None else scores + bias).tolist()):
        size = request.experts // (request.num_groups or 1)
        groups = [range(first, first + size) for first in range(0, request.experts, size)]
        worth = [sum(sorted((row[expert] for expert in group), reverse=True)[:2]) for group in groups]
        best = sorted(range(len(groups)), key=lambda group: -worth[group])[: request.group_topk]
        near = sorted(expert for group in best for expert in groups[group])
        chosen[token, sorted(near, key=lambda expert: -row[expert])[: request.topk]] = True
    return chosen


@pytest.mark.parametrize(
    "request_",
    [
        examples.router("softmax"),
        examples.router("softmax", pre_softmax=True, scaling_factor=2.0),
        examples.router("sigmoid", topk=1),
        examples.router("sigmoid", num_groups=4, group_topk=2, has_bias=True, scaling_factor=2.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("has_ties", [False, True])
def test_the_router_sorts_the_scores_of_each_token(request_, has_ties):
    logits = normal(40, 8)
    logits = logits.detach().abs().round().requires_grad_() if has_ties else logits
    bias = torch.arange(8.0).remainder(3) if request_.has_bias else None
    scores = logits.sigmoid() if request_.score_function == "sigmoid" else logits.softmax(-1)
    weights, chosen = build(request_)(logits, bias)
    assert torch.equal(chosen, chosen_by_argsort(request_, scores.detach(), bias))
    picked = torch.where(chosen, scores, torch.zeros((), dtype=DOUBLE))
    is_divided = not request_.pre_softmax and request_.topk > 1
    expected = request_.scaling_factor * (picked / picked.sum(-1, keepdim=True) if is_divided else picked)
    assert_same_with_gradients(weights, expected, [logits])


def test_the_permutation_is_an_index_of_tokens_and_a_sum_over_it():
    tokens, probs = normal(17, 6), normal(17, 5)
    routing_map = torch.rand(17, 5).argsort(-1) < 2
    experts, numbers = routing_map.t().nonzero(as_tuple=True)
    kernel = build(examples.moe_permute(experts=5, topk=2))
    rows, weights, order = kernel.permute(tokens, routing_map, probs)
    assert_same_with_gradients(rows, tokens[numbers], [tokens])
    assert_same_with_gradients(weights, probs[numbers, experts], [probs])
    leaf = normal(34, 6)
    assert_same_with_gradients(
        kernel.unpermute(leaf, order, 17), torch.zeros_like(tokens).index_add(0, numbers, leaf), [leaf]
    )


@pytest.mark.parametrize("counts", [(3, 0, 4, 1), (0, 0, 0, 8), (0, 0, 0, 0)])
def test_the_grouped_linear_is_a_loop_over_experts(counts):
    x, weight = normal(sum(counts), 6), normal(4, 5, 6)
    parts = [part @ matrix.t() for part, matrix in zip(x.split(counts), weight, strict=True)]
    actual = build(examples.grouped_linear(DOUBLE, experts=4))(x, weight, torch.tensor(counts))
    assert_same_with_gradients(actual, torch.cat(parts), [x, weight])


def test_experts_have_no_shape_that_depends_on_values():
    """As `pretrain plan` runs them: the counts of fake tensors are taken as equal."""
    with FakeTensorMode():
        logits, tokens = torch.empty(7, 8, requires_grad=True), torch.empty(7, 48, requires_grad=True)
        probs, routing_map = build(examples.router())(logits)
        kernel = build(examples.moe_permute())
        rows, weights, order = kernel.permute(tokens, routing_map, probs)
        counts = routing_map.sum(0)
        y = build(examples.grouped_linear(experts=8))(rows, torch.empty(8, 48, 48), counts) * weights.unsqueeze(-1)
        kernel.unpermute(y, order, 7).sum().backward()
    assert (rows.shape, tokens.grad.shape, logits.grad.shape) == ((21, 48), (7, 48), (7, 8))
