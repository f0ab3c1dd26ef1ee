"""A learning rate of their own for embedding and output layer: `optimizer.decoupled_lr`, on every engine."""

from __future__ import annotations

import pytest
import torch

from engine import tiny
from engine.comparison import check
from engine.layouts import SHALLOW, STAGE, ZERO1
from engine.optimizers.rate_layouts import APART, MUON, RATE_TWO_RANKS, UNTIED
from pretrain.checkpoint import storage
from pretrain.checkpoint.saved_schedule import continue_schedule
from pretrain.errors import CheckpointError, RecipeError

ENGINES = {
    "megatron": (),
    "distributed optimizer": ZERO1,
    "muon": MUON,
    **{f"ZeRO {stage}": STAGE[stage] for stage in range(4)},
}
EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
STILL = ("optimizer.weight_decay=0", "schedule.lr_warmup_iters=0", "schedule.lr_decay_style=constant")


def recipe_of(*overrides):
    return tiny.tiny(*SHALLOW, *overrides)


def moved(*overrides):
    """The largest change of each weight in the first step, in which Adam moves by the learning rate."""
    with tiny.engine_of(recipe_of(*STILL, *overrides)) as engine:
        named = dict(engine.models[0].named_parameters())
        before = {name: weight.detach().clone() for name, weight in named.items()}
        tiny.take_step(engine, 0)
        return {name: (weight.detach() - before[name]).abs().max().item() for name, weight in named.items()}


@pytest.mark.parametrize("engine", [name for name in ENGINES if name not in {"ZeRO 3", "muon"}])
def test_embedding_and_output_layer_move_by_their_own_rate(engine):
    found = moved(*UNTIED, *ENGINES[engine], "optimizer.lr=1e-3", "optimizer.decoupled_lr=4e-3")
    for name, change in found.items():
        assert change == pytest.approx(4e-3 if name in {EMBEDDING, OUTPUT} else 1e-3, rel=1e-2), name


def test_with_muon_too():
    found = moved(*UNTIED, *MUON, "optimizer.lr=1e-3", "optimizer.decoupled_lr=4e-3")
    assert found[EMBEDDING] == pytest.approx(4e-3, rel=1e-2)
    assert found[OUTPUT] == pytest.approx(4e-3, rel=1e-2)
    assert found["decoder.final_layernorm.weight"] == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=[pytest.mark.full] * (name in {"ZeRO 0", "ZeRO 2"})) for name in ENGINES]
)
def test_the_reported_rate_is_that_of_the_others_and_a_resumed_training_has_the_same_bits(engine, tmp_path):
    recipe = recipe_of(*APART, *ENGINES[engine])
    with tiny.engine_of(recipe_of(*ENGINES[engine], "schedule.lr_decay_iters=6")) as plain:
        rates = [(plain.learning_rate, tiny.take_step(plain, number))[0] for number in range(6)]
    with tiny.engine_of(recipe) as engine:
        for number in range(3):
            assert engine.learning_rate == rates[number]
            tiny.take_step(engine, number)
        storage.save(engine, tmp_path, {"iteration": 3, "consumed_samples": 24})
        expected = tiny.train(engine, 3, 6)
    with tiny.engine_of(recipe) as engine:
        storage.load(engine, tmp_path, weights_only=False)
        assert engine.learning_rate == rates[3]
        assert tiny.train(engine, 3, 6) == expected


def test_no_rate_is_reported_where_all_weights_have_their_own_and_0_where_there_are_none(monkeypatch):
    with tiny.engine_of(recipe_of(*APART)) as engine:
        for group in engine.optimizer.param_groups:
            group["default_config"] = False
        with pytest.raises(RuntimeError, match=r"no parameter group has the learning rate of optimizer\.lr"):
            _ = engine.learning_rate
        monkeypatch.setattr(type(engine.optimizer), "param_groups", [])
        assert engine.learning_rate == 0


TABLE = "RATE_TWO_RANKS"


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("name", RATE_TWO_RANKS)
def test_two_ranks_train_as_one(name, two_ranks):
    check(two_ranks[name], RATE_TWO_RANKS[name])


OTHER = ("optimizer.decoupled_lr=4e-3",)
NONE = ("optimizer.decoupled_lr=null", "schedule.decoupled_min_lr=null")
OVERRIDE, USE = (f"schedule.{side}_opt_param_scheduler=true" for side in ("override", "use_checkpoint"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with tiny.engine_of(recipe_of(*APART)) as engine:
        tiny.take_step(engine, 0)
        storage.save(engine, folder, {"iteration": 1, "consumed_samples": 8})
    return folder


@pytest.mark.parametrize("overrides", [OTHER, NONE, (*NONE, USE)])
def test_another_rate_than_the_checkpoints_is_refused(overrides, saved):
    refused = pytest.raises(CheckpointError, match=r"optimizer.decoupled_lr (0.004|None) \(checkpoint: 0.005\)")
    with tiny.engine_of(recipe_of(*APART, *overrides)) as engine, refused:
        storage.load(engine, saved, weights_only=False)


RATES = {"decoupled_lr": 5e-3, "decoupled_min_lr": 1e-4}


@pytest.mark.parametrize(
    ("overrides", "told", "pair"),
    [
        (OTHER, RATES, r"0.004 \(checkpoint: 0.005\)"),
        (NONE, RATES, r"None \(checkpoint: 0.005\)"),
        ((), {}, r"0.005 \(checkpoint: None\)"),
    ],
    ids=["another", "none here", "none there"],
)
def test_another_rate_than_another_program_tells_is_refused(overrides, told, pair):
    refused = pytest.raises(CheckpointError, match=rf"optimizer.decoupled_lr {pair}")
    with tiny.engine_of(recipe_of(*APART, *overrides)) as engine, refused:
        continue_schedule(engine.schedule, {"max_lr": 1e-3, **told}, 8, engine.recipe)


def test_the_same_rates_are_taken_and_where_no_schedule_is_told_the_recipes():
    with tiny.engine_of(recipe_of(*APART)) as engine:
        for told in ({"max_lr": 1e-3, **RATES}, {}):
            assert continue_schedule(engine.schedule, told, 8, engine.recipe) == []


@pytest.mark.parametrize(("side", "wins"), [(OVERRIDE, 4e-3), (USE, 5e-3)])
def test_a_side_can_be_chosen(side, wins, saved):
    with tiny.engine_of(recipe_of(*APART, *OTHER, side)) as engine:
        notices = storage.load(engine, saved, weights_only=False).notices
        assert any("optimizer.decoupled_lr" in notice for notice in notices)
        apart = [group["max_lr"] for group in engine.optimizer.param_groups if group["is_decoupled_lr"]]
        others = {group["max_lr"] for group in engine.optimizer.param_groups if not group["is_decoupled_lr"]}
        assert (apart, others) == ([wins], {1e-3})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("schedule.decoupled_min_lr=1e-4",), "decoupled_min_lr.*no effect.*optimizer.decoupled_lr"),
        (
            ("optimizer.decoupled_lr=1e-4", "schedule.decoupled_min_lr=2e-4"),
            "0.0002 is more than optimizer.decoupled_lr",
        ),
        (("optimizer.decoupled_lr=1e-4", "schedule.min_lr=2e-4"), r"0.0002 \(schedule.min_lr, if not given\) is more"),
        (("optimizer.decoupled_lr=0",), "decoupled_lr"),
    ],
)
def test_what_cannot_be_is_refused(overrides, message):
    with pytest.raises(RecipeError, match=message):
        tiny.tiny(*overrides)


def test_a_loaded_distributed_optimizer_keeps_the_groups_apart(tmp_path):
    """It finds groups again by some of their entries, of which the rate is none."""
    recipe = recipe_of(*APART, *UNTIED, *ZERO1)
    with tiny.engine_of(recipe) as engine:
        tiny.take_step(engine, 0)
        storage.save(engine, tmp_path, {"iteration": 1, "consumed_samples": 8})
    with tiny.engine_of(recipe) as engine:
        storage.load(engine, tmp_path, weights_only=False)
        sizes = {group["is_decoupled_lr"]: 0 for group in engine.optimizer.param_groups}
        for group in engine.optimizer.param_groups:
            sizes[group["is_decoupled_lr"]] += sum(torch.numel(weight) for weight in group["params"])
        named = dict(engine.models[0].named_parameters())
        assert sizes[True] == named[EMBEDDING].numel() + named[OUTPUT].numel()
