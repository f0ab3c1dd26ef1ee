"""Experts in a training: their biases, their load, and resuming."""

from __future__ import annotations

import pytest
import torch

from engine import tiny
from engine.expert_layouts import BY_SEQUENCE, DEEPSEEK, MIXTRAL
from engine.layouts import BF16, RECOMPUTE

RATE = ("model.moe_router_bias_update_rate=0.25", "model.num_layers=2")


def biases(engine):
    """Return the biases of all layers with experts, [layers, experts]."""
    return torch.stack([buffer for name, buffer in engine.models[0].named_buffers() if name.endswith("expert_bias")])


@pytest.mark.parametrize("how", [(), BF16, RECOMPUTE], ids=["fp32", "bf16", "recomputed"])
def test_a_step_moves_each_bias_once_against_the_load(how):
    with tiny.engine_of(tiny.tiny(*DEEPSEEK, *RATE, *how)) as engine:
        step = tiny.take_step(engine, 0)
        moved = biases(engine)
    assert moved.dtype == torch.float32
    assert set(moved.abs().unique().tolist()) <= {0.0, 0.25}
    assert moved.min() < 0 < moved.max()
    most, least = step.metrics["moe_most_loaded"], step.metrics["moe_least_loaded"]
    assert most.isnan().tolist() == [True, False]  # the first layer is dense
    assert 0 <= least[1] < 1 < most[1] <= 8 / 3  # an expert has at most every token, and the mean 3 of 8


def test_a_step_that_is_withheld_moves_no_bias_and_its_load_is_forgotten():
    def tokens():
        return iter(tiny.micro_batches(engine.recipe, 0))

    with tiny.engine_of(tiny.tiny(*DEEPSEEK, *RATE)) as engine:
        held = engine.train_step(tokens(), 4, keep_update=lambda _loss: False)
        assert held.withheld
        assert not biases(engine).any()
        taken = engine.train_step(tokens(), 4)
    assert torch.equal(held.metrics["moe_most_loaded"][1:], taken.metrics["moe_most_loaded"][1:])


def test_tokens_beyond_the_capacity_are_dropped_in_training_and_counted():
    limited = (*MIXTRAL, "model.num_layers=2", "model.moe_expert_capacity_factor=0.5")
    with tiny.engine_of(tiny.tiny(*MIXTRAL, "model.num_layers=2")) as engine:
        without = tiny.held_out_loss(engine)
    with tiny.engine_of(tiny.tiny(*limited)) as engine:
        assert tiny.held_out_loss(engine) == without
        first, again = (tiny.take_step(engine, 0).metrics["moe_dropped"] for _ in range(2))
    assert ((first >= 0.5) & (first < 1)).all()  # experts compute half the mean at most, and some have fewer tokens
    assert first.tolist() == pytest.approx(again.tolist(), abs=0.1)  # not added up


def test_an_evaluation_counts_no_load():
    with tiny.engine_of(tiny.tiny(*DEEPSEEK, *RATE)) as engine:
        tiny.held_out_loss(engine)
        before = tiny.take_step(engine, 0).metrics
    with tiny.engine_of(tiny.tiny(*DEEPSEEK, *RATE)) as engine:
        alone = tiny.take_step(engine, 0).metrics
    assert torch.equal(before["moe_most_loaded"][1:], alone["moe_most_loaded"][1:])


def test_losses_of_the_router_are_those_of_the_last_step_alone():
    with tiny.engine_of(tiny.tiny(*BY_SEQUENCE, "optimizer.lr=1e-9", "schedule.min_lr=0")) as engine:
        first, second = (tiny.take_step(engine, 0).metrics for _ in range(2))
    for name in ("moe_load_balancing_loss", "moe_z_loss"):
        assert first[name][1:].tolist() == pytest.approx(second[name][1:].tolist(), rel=1e-3)  # biases move
    assert (first["moe_load_balancing_loss"][1:] >= 0.1).all()  # 0.1 where the load is even


@pytest.mark.parametrize("how", [(), pytest.param(BF16, marks=pytest.mark.full)], ids=["fp32", "bf16"])
def test_a_run_resumes_bit_for_bit(tmp_path, how):
    recipe = tiny.tiny(*BY_SEQUENCE, *how, "model.num_layers=2")
    with tiny.engine_of(recipe) as engine:
        tiny.train(engine, 0, 2)
        tiny.save(engine, tmp_path / "saved", 2)
        expected = tiny.train(engine, 2, 4), biases(engine)
    with tiny.engine_of(recipe) as engine:
        tiny.storage.load(engine, tmp_path / "saved", weights_only=False)
        assert tiny.train(engine, 2, 4) == expected[0]
        assert torch.equal(biases(engine), expected[1])


def test_a_dense_model_measures_no_load():
    with tiny.engine_of(tiny.tiny("model.num_layers=2")) as engine:
        metrics = tiny.take_step(engine, 0).metrics
    assert {name: value for name, value in metrics.items() if name.startswith("moe_")} == {
        "moe_load_balancing_loss": None,
        "moe_z_loss": None,
        "moe_most_loaded": None,
        "moe_least_loaded": None,
        "moe_dropped": None,
    }


def test_initial_weights_differ_from_expert_to_expert():
    with tiny.engine_of(tiny.tiny(*MIXTRAL, "model.num_layers=2")) as engine:
        for name, weight in engine.models[0].named_parameters():
            if ".experts." in name:
                assert not any(torch.equal(one, weight[0]) for one in weight[1:])
                assert weight.std().item() == pytest.approx(0.02 if "fc1" in name else 0.01, rel=0.05)
