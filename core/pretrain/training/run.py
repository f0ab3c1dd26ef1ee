"""The composition root: from a recipe and a backend's name to a finished run, on one rank."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.launch.world import World
    from pretrain.recipe import Recipe


def train(recipe: Recipe, *, backend_name: str, run_dir: Path, resume: bool, world: World) -> None:
    """Train as one rank of `world`; called once per process.

    Raises:
        PretrainError: a user error, before the first step where possible.
    """
    from pretrain.bridge import megatron  # noqa: PLC0415  nothing here is imported before it is needed
    from pretrain.plugins.host.manager import load  # noqa: PLC0415
    from pretrain.plugins.host.members import environment, require_module  # noqa: PLC0415
    from pretrain.plugins.host.readiness import require_device  # noqa: PLC0415

    started = time.time()
    plugins = load(backend_name)
    for name, value in environment(plugins, recipe).items():
        os.environ.setdefault(name, value)
    require_device(plugins)
    require_module(plugins)
    megatron.install(plugins.backend)
    from pretrain.training.assembly import assemble  # noqa: PLC0415  imports megatron.core: after the bridge
    from pretrain.training.determinism import deterministic  # noqa: PLC0415
    from pretrain.training.reporting.run_files import finish  # noqa: PLC0415

    with (
        deterministic(is_wanted=recipe.train.deterministic_mode),
        assemble(recipe, plugins, run_dir, world, resume=resume, started=started) as training,
    ):
        reason = training.run()
        if world.rank == 0:
            finish(training.meter.logger, run_dir, reason, training.progress.iteration)
