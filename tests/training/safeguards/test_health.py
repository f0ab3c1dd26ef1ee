"""Whose gradients were the first that were not finite."""

from __future__ import annotations

import math

import pytest
import torch

from engine import tiny
from engine.layouts import ZERO1
from pretrain.engine.protocol import Step
from pretrain.training.safeguards.health import BrokenSince, describe_first


def step(own, **options):
    own = None if own is None else torch.tensor(own)
    return Step(loss=torch.tensor(1.0), grad_norm=None, skipped=False, own_gradients=own, **options)


def words_after(*own):
    broken = BrokenSince(torch.device("cpu"))
    for iteration, value in enumerate(own, start=1):
        broken.end_step(iteration, step(value))
    return broken


@pytest.mark.parametrize(
    ("iterations", "words"),
    [
        ([0, 0], ""),
        ([17, 16, 17], "from iteration 16 on, first on rank 1 (b, 0)"),
        ([0, 16, 0], "from iteration 16 on, first on rank 1 (b, 0)"),
        ([16, 16, 17], "from iteration 16 on, first on rank 0 (a, 0), rank 1 (b, 0)"),
        ([16, 16], "from iteration 16 on, first on all ranks"),
        ([16], "from iteration 16 on, first on rank 0"),
        ([16] * 12 + [17] * 4, "from iteration 16 on, first on ranks 0-11"),
    ],
)
def test_those_that_were_first_are_named_with_their_host_and_device(iterations, words):
    assert describe_first(iterations, [f"{letter}, 0" for letter in "abcdefghijklmnop"]) == words


def test_a_rank_remembers_its_first_iteration_until_the_weights_go_back():
    with tiny.engine_world(tiny.load("cpu").backend):
        broken = words_after(1.0, None, math.nan, -math.inf, 1.0)
        assert broken.describe() == "from iteration 3 on, first on rank 0"
        broken.forget()
        assert broken.describe() == ""


def test_a_step_whose_update_was_withheld_has_broken_nothing():
    with tiny.engine_world(tiny.load("cpu").backend):
        broken = words_after(1.0)
        broken.end_step(2, step(math.nan, withheld=True))
        assert broken.describe() == ""


OVERLAPPED = (*ZERO1, "parallel.overlap_grad_reduce=true", "parallel.ddp_bucket_size=4000")


@pytest.mark.parametrize("overrides", [(), OVERLAPPED], ids=["at once", "bucket by bucket"])
def test_megatron_shows_a_gradient_of_any_weight_that_is_not_finite(overrides):
    with tiny.engine_of(tiny.tiny(*overrides)) as engine:
        weight = dict(engine.models[0].named_parameters())["decoder.layers.2.mlp.linear_fc1.bias"]
        assert torch.isfinite(tiny.take_step(engine, 0).own_gradients)
        hook = weight.register_hook(lambda gradient: gradient * math.inf)
        broken = tiny.take_step(engine, 1)
        hook.remove()
        assert not torch.isfinite(broken.own_gradients)
        assert math.isfinite(broken.loss)


@pytest.mark.parametrize("stage", [0, 2])
def test_deepspeed_shows_a_gradient_of_any_activation_that_is_not_finite(stage):
    with tiny.engine_of(tiny.tiny("engine.name=deepspeed", f"engine.zero.stage={stage}")) as engine:
        assert torch.isfinite(tiny.take_step(engine, 0).own_gradients)
        hook = engine.models[0].register_forward_hook(lambda model, inputs, loss: scaled(loss, math.inf))
        broken = tiny.take_step(engine, 1)
        hook.remove()
        assert not torch.isfinite(broken.own_gradients)
        assert math.isfinite(broken.loss)
        if broken.skipped:  # the weights are as before
            assert torch.isfinite(tiny.take_step(engine, 2).own_gradients)


def scaled(loss, factor):
    """Return the loss, whose gradient is scaled."""
    loss = loss.clone()
    loss.register_hook(lambda gradient: gradient * factor)
    return loss
