"""Open files of a rank: how many it needs, and the limit of this process, raised as far as the system allows."""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.launch.world import World

_OF_RANK, _OF_PEER = 1024, 12
"""Libraries, pipes of workers and the trees between the hosts, whatever the world (token files do not stay open); and
connections to each other rank: measured with 32 data-parallel ranks of the CPU, 2 for the world, 6 for the parallel
groups, 3 for their copies between hosts. A device's own library is assumed to need no more."""


def open_files_needed(world_size: int) -> int:
    """Return about how many open files a rank of so many needs."""
    return _OF_RANK + _OF_PEER * world_size


def raise_open_files(world: World) -> None:
    """Raise this process's soft limit to the hard one; one rank of a node warns where even that is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if is_below(soft, hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS has a hard limit that it does not grant
            hard = soft
    needed = open_files_needed(world.world_size)
    if is_below(hard, needed) and world.local_rank == 0:
        sys.stderr.write(
            f"warning: {hard} open files are allowed, and a rank of {world.world_size} needs about {needed}.\n"
            "Raise the hard limit in /etc/security/limits.conf, or by the container's --ulimit nofile.\n"
        )


def is_below(limit: int, number: int) -> bool:
    """Say whether a limit is below a number, or another limit; RLIM_INFINITY is below none."""
    return limit != resource.RLIM_INFINITY and (number == resource.RLIM_INFINITY or limit < number)
