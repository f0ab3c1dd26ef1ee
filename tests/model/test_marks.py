"""Marks in the model: a step moves the position through its layers and back, and computes the same bits."""

from __future__ import annotations

import pytest

from engine import tiny
from engine.layouts import NEOX
from pretrain.model.marks import mark
from pretrain.report.hang.position import BACKWARD, EMBEDDING, FORWARD, OUTPUT, Position


class Path(Position):
    """A position that remembers where it was."""

    __slots__ = ("places",)

    def __init__(self):
        super().__init__()
        self.places = []

    def move(self, layer, part, direction, micro_batch):
        super().move(layer, part, direction, micro_batch)
        if not self.places or self.places[-1] != (micro_batch, direction, layer or part):
            self.places.append((micro_batch, direction, layer or part))


def places(*overrides):
    """Return where two steps were, and their losses and norms."""
    position = Path()
    recipe = tiny.tiny(*overrides)
    with tiny.engine_of(recipe) as engine:
        mark(engine.models, position)
        curve = []
        for iteration in (0, 1):
            with position.step(iteration + 1):
                step = tiny.take_step(engine, iteration)
            curve.append((step.loss.item(), step.grad_norm.item()))
    return position.places, curve, recipe.model.num_layers


def expected(micro_batch, layers):
    forward = [EMBEDDING, *range(1, layers + 1), OUTPUT, ""]
    return [(micro_batch, FORWARD, place) for place in forward] + [
        (micro_batch, BACKWARD, place) for place in (OUTPUT, *range(layers, 0, -1), EMBEDDING)
    ]


@pytest.mark.parametrize("overrides", [(), pytest.param(NEOX, marks=pytest.mark.full)], ids=["GPT-2", "NeoX"])
def test_a_step_goes_forward_and_back_through_every_layer(overrides):
    found, _, layers = places(*overrides)
    count = len(found) // 2
    assert found[:count] == found[count:], "micro-batches are counted from 1 in every step"
    assert found[: len(expected(1, layers))] == expected(1, layers)


def test_layers_that_are_computed_again_count_as_backward():
    found, _, layers = places("recompute.granularity=full")
    first = [place for micro_batch, direction, place in found if (micro_batch, direction) == (1, BACKWARD)]
    half = first[: len(first) // 2]
    assert half == [OUTPUT, *range(layers, 0, -1), EMBEDDING]


@pytest.mark.parametrize(
    "overrides", [pytest.param((), marks=pytest.mark.full), ("recompute.granularity=full",)], ids=["kept", "recomputed"]
)
def test_they_change_no_bit(overrides):
    _, marked, _ = places(*overrides)
    with tiny.engine_of(tiny.tiny(*overrides)) as engine:
        steps = [tiny.take_step(engine, iteration) for iteration in (0, 1)]
        assert marked == [(step.loss.item(), step.grad_norm.item()) for step in steps]
