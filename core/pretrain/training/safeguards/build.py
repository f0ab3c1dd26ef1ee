"""The safeguards that a recipe asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.engine import groups
from pretrain.training.reporting.stragglers import LocalClock
from pretrain.training.safeguards.health import BrokenSince
from pretrain.training.safeguards.replicas import ReplicaCheck
from pretrain.training.safeguards.spike_watch import HostCopies, SpikeWatch

if TYPE_CHECKING:
    import torch

    from pretrain.engine.protocol import Engine
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.training.loop import Training
    from pretrain.training.progress import Progress
    from pretrain.training.saving import Saving


def spike_watch(recipe: Recipe, device: torch.device, progress: Progress, *, pin_memory: bool) -> SpikeWatch | None:
    """Return the watch of the losses that follow those of `progress`; None, and these forgotten, if it is off."""
    spike = recipe.train.loss_spike
    if spike.threshold is None:
        progress.losses.clear()
        return None
    return SpikeWatch(
        spike.threshold,
        HostCopies(device, pin_memory=pin_memory),
        progress.losses,
        judges_nan=recipe.precision.dtype != "fp16",
        is_early=spike.action == "skip",
    )


def broken_since(recipe: Recipe, device: torch.device) -> BrokenSince | None:
    """Return what knows the ranks that make values that are not finite; None in fp16, which recovers from them."""
    return None if recipe.precision.dtype == "fp16" else BrokenSince(device)


def replica_check(training: Training, saving: Saving | None) -> ReplicaCheck | None:
    """Return the comparison of replicas; None if it is off, or if there is one replica alone."""
    recipe, logger, every = training.recipe, training.meter.logger, training.recipe.train.check_replicas_interval
    if every is None:
        return None
    if training.length.layout.data_parallel_size == 1:
        logger.note("train.check_replicas_interval: there is one replica, and nothing to compare it with")
        return None
    if recipe.engine.name == "megatron" and recipe.parallel.overlap_param_gather:
        logger.note(
            "train.check_replicas_interval: with parallel.overlap_param_gather the weights are gathered once more "
            "right before they are compared, so that faults of that gather alone are found"
        )
    return ReplicaCheck(training, groups.data_parallel_group(), every, saving)


def local_clock(recipe: Recipe, engine: Engine, layout: Layout, device: torch.device) -> LocalClock | None:
    """Return a clock on this rank's attention; None where no slowest rank is named."""
    if layout.world_size == 1 or not recipe.logging.log_straggler:
        return None
    clock = LocalClock(device)
    if recipe.kernels.compile == "none":  # a compiled layer has no attention of its own
        clock.attach(engine.models)
    return clock
