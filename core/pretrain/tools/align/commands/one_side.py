"""Recording of one side by `pretrain align --record`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pretrain.cli.ranks import start_ranks
from pretrain.tools.align.commands.crashes import NOT_COMPARED

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.tools.align.side import Side


def record_side(side: Side, folder: Path, *, steps: int, positions: int) -> int:
    """Record a side into a folder; return the exit code.

    Args:
        side: what is trained.
        folder: absent or empty.
        steps: to take.
        positions: of each sequence that are kept at the most.
    """
    from pretrain.launch.nodes.nodes import Nodes  # noqa: PLC0415
    from pretrain.launch.placement import make_placement  # noqa: PLC0415
    from pretrain.launch.processes.failure import CRASH  # noqa: PLC0415
    from pretrain.tools.align.disk_space import require_space  # noqa: PLC0415  --help needs none of these
    from pretrain.tools.align.record_side import job_of, make_folder  # noqa: PLC0415
    from pretrain.tools.corpus.recipe_corpus import prepare_corpus  # noqa: PLC0415

    job = job_of(side, folder, steps=steps, positions=positions)
    nproc = side.nproc or side.load().model_parallel_size
    placement = make_placement(side.recipe, job.overrides, side.backend, nodes=Nodes(), nproc=nproc, world=None)
    prepare_corpus(placement.recipe)
    make_folder(folder)
    require_space(folder, [placement.recipe], steps, positions)
    code = start_ranks(placement, job, None)
    if code == 0:
        click.echo(f"recorded {steps} step{'s' * (steps > 1)}")
    return NOT_COMPARED if code == CRASH else code
