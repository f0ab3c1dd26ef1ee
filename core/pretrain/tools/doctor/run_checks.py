"""The checks that a run makes before its first iteration, made without starting it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pretrain.checkpoint.checksums import Share, are_there, damage_in_share
from pretrain.checkpoint.starting_checkpoint import starting_directory
from pretrain.errors import PretrainError
from pretrain.launch.start_checks import CHECKS
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.guard import failed, found_by, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pretrain.launch.start_checks import Start
    from pretrain.launch.world import World

_MOST = 4 << 30
"""Bytes of a checkpoint that a rank reads: some seconds of most disks."""


def examine_start(start: Start, world: World, doing: Callable[[str], None]) -> list[Finding]:
    """Return the findings of `CHECKS` on rank 0, and on every rank those of its share of the checkpoint's files.

    Args:
        start: the run that would start.
        world: this rank's place.
        doing: told what is checked next.
    """
    found: list[Finding] = []
    for check in CHECKS if world.rank == 0 else ():
        doing(check.name)
        found += found_by(check.name, partial(check.look, start))
    if world.rank == 0 and not found:
        names = ", ".join(check.name for check in CHECKS)
        found.append(Finding(check="start", verdict=Verdict.OK, text=f"a run's own checks find nothing: {names}"))
    doing("files of the checkpoint")
    return found + guarded("checkpoint", partial(_content, start, world))


def _content(start: Start, world: World) -> Iterator[Finding]:
    """Compare the files of the checkpoint that the run starts from with their checksums."""
    directory = None
    with suppress(PretrainError):  # rank 0 has said so
        directory = starting_directory(start.recipe, start.run_dir, resume=start.goes_on)
    if directory is None or not are_there(directory):
        return
    size = _size(directory)
    if size > _MOST * world.world_size:
        text = f"{directory}: {size / 1e9:,.0f} GB, too much to be read here"
        remedy = f"`pretrain checkpoint verify {directory}` reads it; a run does at its start."
        yield Finding(check="checkpoint", verdict=Verdict.LOOK, text=text, remedy=remedy)
    elif problem := damage_in_share(directory, Share(world.rank, world.world_size)):
        yield failed("checkpoint", PretrainError(f"{problem}\nStart from another checkpoint."))
    else:
        yield Finding(check="checkpoint", verdict=Verdict.OK, text=f"{directory} is as it was written")


def _size(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in directory.iterdir() if entry.is_file())
