"""The optimizer of docs/writing-an-optimizer.md trains, resumes from its state, and is refused where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch

from engine import tiny
from pretrain.checkpoint import storage
from pretrain.engine.optimizers.choice import optimizer_of, state_bytes
from pretrain.errors import BackendError, RecipeError
from pretrain.recipe.sections.optimizer import OptimizerName

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-optimizer"
LION = ("optimizer.name=lion", "optimizer.lr=1e-3", "schedule.lr_warmup_iters=0", "optimizer.weight_decay=0")


@pytest.fixture
def installed(site):
    site.project(EXAMPLE)


@pytest.mark.usefixtures("installed")
def test_a_step_moves_every_weight_by_the_rate(tmp_path):
    recipe = tiny.tiny(*LION)
    assert state_bytes(recipe.optimizer) == 4
    with tiny.engine_of(recipe) as engine:
        weights = [weight.detach().clone() for weight in engine.models[0].parameters()]
        tiny.take_step(engine, 0)
        for before, after in zip(weights, engine.models[0].parameters(), strict=True):
            moved = (after.detach() - before).abs()
            torch.testing.assert_close(moved[moved > 0], torch.full_like(moved[moved > 0], 1e-3), rtol=1e-3, atol=1e-6)
        storage.save(engine, tmp_path, {"iteration": 1, "consumed_samples": 8})
        second = tiny.take_step(engine, 1).loss.item(), tiny.take_step(engine, 2).loss.item()
    with tiny.engine_of(recipe) as resumed:
        storage.load(resumed, tmp_path, weights_only=False)
        assert (tiny.take_step(resumed, 1).loss.item(), tiny.take_step(resumed, 2).loss.item()) == second


@pytest.mark.usefixtures("installed")
def test_its_options_reach_it():
    plain, other = (tiny.curve(*LION, *options) for options in ((), ("optimizer.options={beta1: 0.5}",)))
    assert plain[:2] == other[:2]  # the first update has the sign of the gradient, whatever the mean
    assert plain[3] != other[3]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.name=deepspeed", "lion needs engine.name: megatron"),
        ("optimizer.name=lio", "lio is neither of adam, adamw, muon nor installed; installed: lion"),
        ("parallel.use_distributed_optimizer=true", "adam and adamw alone"),
    ],
)
def test_what_cannot_be_is_refused(override, message):
    with pytest.raises(RecipeError, match=message):
        tiny.tiny(*LION, override)


@pytest.mark.usefixtures("installed")
def test_a_misspelt_option_is_refused():
    with pytest.raises(RecipeError, match=r"lion has no betta1\.\nAllowed: beta1, beta2"):
        optimizer_of(tiny.tiny(*LION, "optimizer.options={betta1: 0.5}").optimizer)


@pytest.mark.usefixtures("installed")
def test_a_name_that_two_distributions_register_is_refused(site):
    site.install("other-lion", "1.0", "pretrain.optimizers", lion="other_lion:Lion")
    with pytest.raises(RecipeError) as caught:
        tiny.tiny(*LION)
    assert "optimizer 'lion' is registered by other-lion 1.0 and pretrain-lion 0.1.0. Keep one: pip" in str(
        caught.value
    )


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_a_name_of_ours_that_a_distribution_registers_too_is_refused(site, name):
    site.install("other-names", "1.0", "pretrain.optimizers", **{name: "other_names:Other"})
    with pytest.raises(RecipeError) as caught:
        tiny.tiny(f"optimizer.name={name}")
    assert f"{name} is pretrain's own, but other-names 1.0 has one of that name too" in str(caught.value)
    assert "pip uninstall other-names, or have it registered under another name" in str(caught.value)
    other = next(each for each in get_args(OptimizerName) if each != name)
    assert tiny.tiny(f"optimizer.name={other}").optimizer.name == other


def test_options_of_an_optimizer_of_ours_have_no_effect():
    with pytest.raises(RecipeError, match=r"optimizer\.options.*no effect"):
        tiny.tiny("optimizer.options={beta1: 0.5}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("value = 3", ": odd_optimizer:value is no pretrain.engine.optimizers.optimizer.Optimizer"),
        ("1 / 0", " failed to import: ZeroDivision"),
    ],
)
def test_an_entry_point_that_is_none_is_named(site, source, message):
    target = site.module("odd_optimizer", source)
    site.install("odd", "1.0", "pretrain.optimizers", odd=f"{target}:value")
    with pytest.raises(BackendError, match=rf"optimizer 'odd' \(odd 1.0\){message}"):
        optimizer_of(tiny.tiny("optimizer.name=odd").optimizer)
