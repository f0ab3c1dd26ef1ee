"""A training of Megatron-LM goes on with its optimizer, where megatron-core has stored every state by its weight."""

from __future__ import annotations

import argparse

import pytest
from megatron.core import dist_checkpointing, parallel_state

from engine import tiny
from engine.layouts import BF16, FP16, STAGE, ZERO1
from engine.optimizers.rate_layouts import APART
from engine.optimizers.state_layouts import BF16_STATE
from pretrain.errors import CheckpointError
from pretrain.tools.convert.formats.megatron_settings import schedule_of
from pretrain.tools.convert.registry import read_weights
from pretrain.tools.convert.trainer_calls import load

SMALL = ("model.num_layers=2",)
CASES = {
    "fp32": ((), (), 0),
    "fp16 with a loss scale": (FP16, FP16, 0),
    "bf16, distributed optimizer": ((*BF16, *ZERO1), BF16, 1e-3),
    "state in bf16": (BF16_STATE, BF16_STATE, 0),
    "bf16, into DeepSpeed": (BF16, (*BF16, *STAGE[2]), 1e-3),
}
"""Overrides there, here, and relative tolerance of the second norm: another optimizer sums the first in another order,
by which weights in bf16 may round to the next number."""


def save_as_megatron(engine, folder, kind="fully_reshardable", **arguments):
    """Save as save_checkpoint and generate_state_dict in megatron/training/checkpointing.py do for torch_dist."""
    metadata = {
        "distrib_optim_sharding_type": kind,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
    (chunk,), optimizer = engine.state._chunks, engine.state._optimizer
    model = chunk.sharded_state_dict(metadata=metadata)
    recipe = engine.recipe.model
    state = {
        "args": argparse.Namespace(
            num_layers=recipe.num_layers, hidden_size=recipe.hidden_size, num_attention_heads=4,
            max_position_embeddings=32, bias_gelu_fusion=False, consumed_train_samples=24,
            **arguments,
        ),
        "iteration": 3,
        "checkpoint_version": 3.0,
        "model": model,
        "optimizer": optimizer.sharded_state_dict(model, is_loading=False, metadata=metadata),
        "opt_param_scheduler": engine.schedule.state_dict(),
    }  # fmt: skip
    (folder / "iter_0000003").mkdir()
    dist_checkpointing.save(state, str(folder / "iter_0000003"))
    (folder / "latest_checkpointed_iteration.txt").write_text("3")


ON_A_COMMIT = {"state in bf16", "fp16 with a loss scale", "bf16, distributed optimizer"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name not in ON_A_COMMIT)) for name in CASES]
)
def test_it_goes_on_as_if_it_had_never_stopped(tmp_path, name):
    before, after, tolerance = CASES[name]
    with tiny.engine_of(tiny.tiny(*SMALL, *before)) as engine:
        tiny.train(engine, 0, 3)
        save_as_megatron(engine, tmp_path)
        expected = tiny.train(engine, 3, 5)
    with tiny.engine_of(tiny.tiny(*SMALL, *after)) as engine:
        loaded = load(engine, tmp_path, finetune=False)
        losses = tiny.train(engine, 3, 5)
    assert loaded.progress == {"iteration": 3, "consumed_samples": 24, "skipped_iterations": 0}
    assert loaded.notices == [
        "Megatron-LM, sharded: weights and optimizer; random generators are seeded from train.seed"
    ]
    (first, first_norm), (second, second_norm) = losses
    assert (first, first_norm) == pytest.approx(expected[0], rel=min(tolerance, 1e-6), abs=0)
    assert second == pytest.approx(expected[1][0], rel=min(tolerance, 1e-5), abs=0)  # after an update by the moments
    assert second_norm == pytest.approx(expected[1][1], rel=tolerance, abs=0)


@pytest.mark.full
def test_flat_buckets_are_left_out_and_that_is_said(tmp_path):
    with tiny.engine_of(tiny.tiny(*SMALL, *ZERO1)) as engine:
        tiny.train(engine, 0, 3)
        save_as_megatron(engine, tmp_path, kind="dp_reshardable")
        assert read_weights(tmp_path, {}).optimizer is None
        assert load(engine, tmp_path, finetune=False).notices == [
            "Megatron-LM, sharded: weights alone; the optimizer starts without state"
        ]


@pytest.mark.full
def test_an_optimizer_of_another_precision_is_left_out(tmp_path):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        tiny.train(engine, 0, 3)
        save_as_megatron(engine, tmp_path)
    with tiny.engine_of(tiny.tiny(*SMALL, *BF16)) as engine:
        assert "weights alone" in load(engine, tmp_path, finetune=False).notices[0]


@pytest.mark.full
def test_another_schedule_is_an_error_that_shows_both_and_names_the_keys_that_choose(tmp_path):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        tiny.train(engine, 0, 3)
        save_as_megatron(engine, tmp_path)
    with tiny.engine_of(tiny.tiny(*SMALL, "optimizer.lr=2e-3")) as engine:
        with pytest.raises(CheckpointError, match=r"optimizer\.lr 0\.002 \(checkpoint: 0\.001\)") as error:
            load(engine, tmp_path, finetune=False)
        assert "schedule.override_opt_param_scheduler: true" in str(error.value)
        assert "schedule.use_checkpoint_opt_param_scheduler: true" in str(error.value)
        assert load(engine, tmp_path, finetune=True).progress["iteration"] == 0
    chosen = tiny.tiny(*SMALL, "optimizer.lr=2e-3", "schedule.use_checkpoint_opt_param_scheduler=true")
    with tiny.engine_of(chosen) as engine:
        notices = load(engine, tmp_path, finetune=False).notices
        assert "optimizer.lr: using the checkpoint's 0.001, not the recipe's 0.002" in notices


IN_GROUP, IN_ARGUMENTS = "in its group", "in the arguments"


@pytest.fixture(scope="module", params=[IN_GROUP, IN_ARGUMENTS])
def with_rates(request, tmp_path_factory):
    """A checkpoint with rates of embedding and output layer; megatron-core 0.16 does not mark the group itself."""
    folder, arguments = tmp_path_factory.mktemp("rates"), {}
    with tiny.engine_of(tiny.tiny(*SMALL, *APART)) as engine:
        tiny.train(engine, 0, 3)
        if request.param == IN_ARGUMENTS:
            arguments = {"decoupled_lr": 5e-3, "decoupled_min_lr": 1e-4}
            for group in engine.optimizer.param_groups:
                group["is_decoupled_lr"] = False
        save_as_megatron(engine, folder, **arguments)
    return folder


@pytest.mark.parametrize(
    ("overrides", "ours"), [(APART[2:], "None"), ((*APART, "optimizer.decoupled_lr=4e-3"), r"0\.004")]
)
def test_another_rate_of_the_embedding_is_an_error(with_rates, overrides, ours):
    message = rf"optimizer\.decoupled_lr {ours} \(checkpoint: 0\.005\)"
    with tiny.engine_of(tiny.tiny(*SMALL, *overrides)) as engine, pytest.raises(CheckpointError, match=message):
        load(engine, with_rates, finetune=False)


def test_the_same_rates_of_the_embedding_go_on(with_rates):
    with tiny.engine_of(tiny.tiny(*SMALL, *APART)) as engine:
        assert len(load(engine, with_rates, finetune=False).notices) == 1


def test_a_rate_of_the_embedding_that_the_checkpoint_does_not_have_is_an_error(tmp_path):
    with tiny.engine_of(tiny.tiny(*SMALL, *APART[2:])) as engine:
        tiny.train(engine, 0, 3)
        save_as_megatron(engine, tmp_path, decoupled_lr=None, decoupled_min_lr=None)
    message = r"optimizer\.decoupled_lr 0\.005 \(checkpoint: None\)"
    with tiny.engine_of(tiny.tiny(*SMALL, *APART)) as engine, pytest.raises(CheckpointError, match=message):
        load(engine, tmp_path, finetune=False)


def test_the_lowest_rate_of_the_embedding_is_that_of_all_where_the_arguments_have_none():
    saved = {"max_lr": 1e-3, "min_lr": 1e-5}
    args = argparse.Namespace(decoupled_lr=5e-3, decoupled_min_lr=None)
    told = schedule_of({"args": args, "opt_param_scheduler": saved})
    assert told == {**saved, "decoupled_lr": 5e-3, "decoupled_min_lr": 1e-5}


def test_rates_of_the_embedding_are_still_there_after_convert():
    saved = {"max_lr": 1e-3, "min_lr": 1e-5, "decoupled_lr": 5e-3, "decoupled_min_lr": 1e-4}
    assert schedule_of({"opt_param_scheduler": saved}) == saved
