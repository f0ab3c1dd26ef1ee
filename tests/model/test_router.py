"""The choice of experts and the balancing losses agree with the functions of megatron-core that any layout may use."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from megatron.core.transformer.moe import moe_utils

from engine import tiny
from engine.expert_layouts import DEEPSEEK, MIXTRAL
from pretrain.model.router import Router
from pretrain.reference.experts import Router as Choice

ONE_RANK = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
MODELS = {
    "softmax": MIXTRAL,
    "softmax first": (*MIXTRAL, "model.moe_router_pre_softmax=true"),
    "sigmoid": (*MIXTRAL, "model.moe_router_score_function=sigmoid"),
    "groups and bias": (
        *DEEPSEEK,
        "model.moe_router_topk=4",
    ),  # its best 2 score a group there too
}


@pytest.fixture(params=MODELS)
def model(request):
    return tiny.tiny(*MODELS[request.param]).model


@pytest.fixture
def logits():
    return torch.randn(64, 8, generator=torch.Generator().manual_seed(3))


def test_experts_and_weights_are_megatron_cores(model, logits):
    bias = torch.linspace(-0.2, 0.2, 8) if model.moe_router_enable_expert_bias else None
    request = SimpleNamespace(
        topk=model.moe_router_topk,
        score_function=model.moe_router_score_function,
        pre_softmax=model.moe_router_pre_softmax,
        num_groups=model.moe_router_num_groups,
        group_topk=model.moe_router_group_topk,
        scaling_factor=model.moe_router_topk_scaling_factor,
    )
    weights, chosen = Choice(request)(logits, bias)
    expected, routed = moe_utils.topk_routing_with_score_function(
        logits,
        model.moe_router_topk,
        use_pre_softmax=model.moe_router_pre_softmax,
        num_groups=model.moe_router_num_groups,
        group_topk=model.moe_router_group_topk,
        scaling_factor=model.moe_router_topk_scaling_factor,
        score_function=model.moe_router_score_function,
        expert_bias=bias,
    )
    assert torch.equal(chosen, routed.bool())
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("policy", ["probs", "position"])
@pytest.mark.parametrize("factor", [0.3, 1.0, 9.0])
def test_tokens_within_the_capacity_are_megatron_cores(logits, policy, factor):
    model = tiny.tiny(*MIXTRAL, f"model.moe_expert_capacity_factor={factor}").model
    model = model.model_copy(update={"moe_token_drop_policy": policy})
    weights, chosen = moe_utils.topk_routing_with_score_function(logits, 2)
    _, expected = moe_utils.apply_router_token_dropping(weights, chosen, 2, factor, drop_policy=policy)
    kept = Router._within_capacity(SimpleNamespace(model=model, group=ONE_RANK), weights, chosen)
    assert kept.sum() == expected.sum()
    if policy == "probs" or factor > 1:  # there the tokens of one expert are equal, and topk takes any
        assert torch.equal(kept, expected)


@pytest.mark.parametrize("kind", ["aux_loss", "seq_aux_loss"])
def test_the_balancing_loss_is_megatron_cores(model, logits, kind):
    samples = 4
    routed, scores = moe_utils.compute_routing_scores_for_aux_loss(
        logits, model.moe_router_topk, model.moe_router_score_function
    )
    sequences = samples if kind == "seq_aux_loss" else 1
    expected = sum(
        moe_utils.switch_load_balancing_loss_func(
            of_one, counted.sum(dim=0), len(of_one), model.moe_router_topk, 8, moe_aux_loss_coeff=0.5
        )
        for of_one, counted in zip(
            (scores.view(-1, sequences, 8).unbind(1)), routed.view(-1, sequences, 8).unbind(1), strict=True
        )
    )
    changed = model.model_copy(update={"moe_router_load_balancing_type": kind, "moe_aux_loss_coeff": 0.5})
    router = SimpleNamespace(model=changed, group=ONE_RANK)
    loss = Router._load_balancing(router, logits, samples)
    torch.testing.assert_close(loss, expected / sequences)
