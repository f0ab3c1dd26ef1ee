"""Every optimizer of a recipe trains on each engine or is refused, and resumes from the state that it declares."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from engine import tiny
from pretrain.checkpoint import storage
from pretrain.checkpoint.sharded_format import MAIN, read_index
from pretrain.engine.optimizers.choice import optimizer_of, state_bytes
from pretrain.errors import CheckpointError, RecipeError
from pretrain.recipe.sections.optimizer import OptimizerName, OptimizerSection
from pretrain.tools.align.comparing.adam_update import RecordedAdam

NAMES = get_args(OptimizerName)
ENGINES = {"megatron": ("precision.dtype=fp32",), "deepspeed": ("engine={name: deepspeed, zero: {stage: 1}}",)}


def loss_of(engine, iteration):
    return tiny.take_step(engine, iteration).loss.item()


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(name, engine, marks=[pytest.mark.full] * (number % len(ENGINES) != place % len(ENGINES)))
        for number, name in enumerate(NAMES)
        for place, engine in enumerate(ENGINES)
    ],
)
def test_it_goes_on_from_the_state_it_declares(tmp_path, name, engine):
    recipe = recipe_or_refusal(f"optimizer.name={name}", *ENGINES[engine])
    if isinstance(recipe, RecipeError):
        assert f"optimizer.name: {name}" in str(recipe)
        return
    with tiny.engine_of(recipe) as trained:
        first = loss_of(trained, 0)
        storage.save(trained, tmp_path, {"iteration": 1, "consumed_samples": 8})
        second = loss_of(trained, 1)
    assert second != first
    assert states_in(tmp_path) == set(optimizer_of(recipe.optimizer).states)
    with tiny.engine_of(recipe) as resumed:
        storage.load(resumed, tmp_path, weights_only=False)
        assert loss_of(resumed, 1) == second


def recipe_or_refusal(*overrides):
    try:
        return tiny.tiny(*overrides)
    except RecipeError as refusal:
        return refusal


def states_in(folder):
    keys = [key.split(".") for key in read_index(folder).state_dict_metadata if key.startswith("optimizer.state.")]
    return {key[2] for key in keys} - {MAIN}


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_a_layers_matrices_is_fp32(name):
    section = OptimizerSection(name=name, lr=1.0)
    assert state_bytes(section) == torch.float32.itemsize * (1 if name == "muon" else 2)


def test_the_state_of_another_optimizer_is_refused(tmp_path):
    with tiny.engine_of(tiny.tiny()) as trained:
        loss_of(trained, 0)
        storage.save(trained, tmp_path, {"iteration": 1, "consumed_samples": 8})
        trained.state.optimizer_states = ("momentum",)
        with pytest.raises(CheckpointError) as caught:
            storage.load(trained, tmp_path, weights_only=False)
        assert str(caught.value) == (
            f"{tmp_path} has the state of another optimizer (exp_avg, exp_avg_sq); "
            "optimizer.name: adamw has momentum.\n"
            "Name the optimizer of the checkpoint, or set checkpoint.finetune: true to take its weights alone."
        )
        storage.load(trained, tmp_path, weights_only=True)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "muon"])  # which align refuses
def test_align_knows_its_weight_decay(name):
    adam = RecordedAdam(optimizer={"name": name}, learning_rate=1.0, step=1, taken=1)
    assert adam.is_decay_in_gradient == (name == "adam")
