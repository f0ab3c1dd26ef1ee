"""The command of one node of a hostfile: `python -m pretrain.launch.nodes.node_command PLACE SLOTS COMMAND...`.

COMMAND is `pretrain run ... --nnodes N --rdzv HOST:PORT`, to which the node adds --node-rank and --nproc. PLACE is the
node's number, or for srun, which numbers nodes in its own order, the hosts as `slurm=HOST,HOST,...`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.schedulers.slurm import node_name

if TYPE_CHECKING:
    from collections.abc import Mapping

BY_SLURM = "slurm="


def main() -> None:
    """Replace this process by the command."""
    _, place, slots, *words = sys.argv
    try:
        rank = node_rank(place, os.environ)
    except LaunchError as error:
        raise SystemExit(str(error)) from None
    words += ["--node-rank", str(rank), "--nproc", slots.split(",")[rank]]
    os.execv(words[0], words)  # noqa: S606  no shell is needed


def node_rank(place: str, environ: Mapping[str, str]) -> int:
    """Return this node's number.

    Raises:
        LaunchError: srun started a host that the hostfile does not name.
    """
    if not place.startswith(BY_SLURM):
        return int(place)
    names, name = place.removeprefix(BY_SLURM).split(","), node_name(environ)
    if name not in names:
        msg = f"srun started {name}; the hostfile has {', '.join(names)}.\nWrite the names that Slurm knows there."
        raise LaunchError(msg)
    return names.index(name)


if __name__ == "__main__":
    main()
