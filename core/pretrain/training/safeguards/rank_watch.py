"""The watch over this rank's main thread, for the time of a training."""

from __future__ import annotations

import faulthandler
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pretrain.collectives import tree_of_world
from pretrain.report.hang.hang_watch import HangLimit, HangWatch, Watched
from pretrain.report.hang.position import Position, shared_memory
from pretrain.report.hang.rank_state import RankProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe

FOLDER = "hang"
_RECORDER, _OLDER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
_RECORDED = "2000"  # entries of torch's flight recorder; torch's own default since 2.13, before it was off


def record_collectives() -> None:
    """Switch torch's flight recorder on, unless the user has a setting; before the first process group."""
    if _OLDER not in os.environ:  # torch would take ours instead
        os.environ.setdefault(_RECORDER, _RECORDED)


@contextmanager
def rank_watch(recipe: Recipe, plugins: Plugins, world: World, run_dir: Path) -> Iterator[Position]:
    """Watch this rank for a block, which moves the position; all ranks enter it together. Reports go below hang/."""
    with shared_memory(world.place_file) as (memory, path):
        position = Position(memory)
        watched = _watched(recipe, plugins, world, run_dir, position, path)
        with _shown_aborts(), HangWatch(watched):
            yield position


def _watched(recipe: Recipe, plugins: Plugins, world: World, run_dir: Path, position: Position, path: str) -> Watched:
    """Return this rank with what it must know of the others; collective."""
    tree = tree_of_world()
    processes, start = tree.first_of((tree.gathered(RankProcess.own(world.rank, path)), _start()))
    return Watched(
        position=position,
        limit=HangLimit(
            given=recipe.logging.hang_after_seconds, timeout=60.0 * recipe.parallel.distributed_timeout_minutes
        ),
        rank=world.rank,
        layers=recipe.model.num_layers,
        processes={process.rank: process for process in processes or ()},
        folder=run_dir / FOLDER / start,
        recent=plugins.backend.recent_collectives,
        tell_launcher=world.tell_launcher,
    )


def _start() -> str:
    """Return a name of this start that no other start has: its folder says that this one hangs."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}-{time.monotonic_ns()}"


@contextmanager
def _shown_aborts() -> Iterator[None]:
    """Have Python's stacks shown when a library aborts, as gloo does where shapes differ."""
    if faulthandler.is_enabled():
        yield
        return
    with suppress(AttributeError, OSError, RuntimeError, ValueError):  # no standard error, or one without a file
        faulthandler.enable()
    try:
        yield
    finally:
        faulthandler.disable()
