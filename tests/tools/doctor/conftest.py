from __future__ import annotations

import pytest

from plugins.fake_site import site
from pretrain.launch.world import World
from pretrain.recipe import make_recipe
from pretrain.tools.doctor import device_speed
from pretrain.tools.doctor.examination import OwnChecks
from recipe.smallest import SMALLEST

__all__ = ["examined", "quick", "site", "world_of"]


def world_of(rank=0, ranks=1, nodes=1):
    """A rank's place, its ranks spread evenly over nodes."""
    return World(
        rank=rank,
        world_size=ranks,
        local_rank=rank % (ranks // nodes),
        local_world_size=ranks // nodes,
        node_rank=rank // (ranks // nodes),
        master_addr="127.0.0.1",
        master_port=1,
    )


@pytest.fixture
def quick(monkeypatch):
    """Measure matmuls for a thousandth of a second."""
    monkeypatch.setattr(device_speed, "MEASURED", 1e-3)


@pytest.fixture
def examined(quick):
    """Run the checks of one rank for the smallest recipe, and return them."""

    def examine(*overrides, backend="cpu", world=None, doing=lambda _: None):
        recipe = make_recipe(SMALLEST, overrides)
        own = OwnChecks(recipe, backend, world or world_of(), doing)
        own.run()
        return own

    return examine
