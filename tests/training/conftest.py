"""A world of one rank, and recipes."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from pretrain.cpu.backend import CpuBackend
from pretrain.engine import groups
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST
from training.made_up_training import files_of_fake_engines, training  # noqa: F401  fixtures


@pytest.fixture
def make():
    """Make a recipe of the smallest one and overrides."""
    return lambda *overrides: make_recipe(SMALLEST, overrides)


@pytest.fixture
def alone():
    """The process group of a single process."""
    groups.join_world(CpuBackend(), 0, 1, timeout_minutes=1)
    yield
    groups.leave()
    assert not dist.is_initialized()
