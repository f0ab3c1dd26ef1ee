"""One measurement in a process of its own: `python -m benchmarks.scale.measure RANKS`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pretrain.collectives
from benchmarks.scale.crowd import Crowd
from benchmarks.scale.launchers import RANKS, Launcher
from benchmarks.scale.ranks import Rank
from pretrain.launch.world import free_port

FEW, MOST = 8, 32  # players of a process; more where there would be too many processes
FEW_PROCESSES = 128
MOST_OF_ONE_GROUP = 256
"""Ranks of which one group of the world is made, where there is no tree: 512 took more than 24 GB of memory."""
MOST_THREADS = 1024
"""Ranks that make groups and a hang report, a thread each: 4,096 were not ready after ten minutes on two cores."""


def measure(ranks: int) -> dict[str, dict[str, object]]:
    """Return what each act costs, of the launchers of so many ranks and then of the ranks."""
    # Everything is imported here, before the processes fork.
    acts = Rank.ACTS
    if not hasattr(pretrain.collectives, "Tree") and ranks > MOST_OF_ONE_GROUP:
        acts = ("start", "hang_report")
    if ranks > MOST_THREADS:
        acts = ("start",)
    found = {}
    for player, number, chosen in (
        (Launcher, -(-ranks // RANKS), Launcher.ACTS),
        (Rank, ranks, acts),
    ):
        each = FEW if number <= FEW * FEW_PROCESSES else MOST
        with tempfile.TemporaryDirectory() as tempfile.tempdir, Crowd(player, number, free_port(), each) as crowd:
            crowd.act("__str__")  # they are made
            for name in chosen:
                found[f"{player.__name__.lower()}s: {name}"] = crowd.act(name)
                print(f"{ranks} {player.__name__.lower()}s: {name}", file=sys.stderr, flush=True)
        tempfile.tempdir = None
    return found


if __name__ == "__main__":
    Path("/proc/self/oom_score_adj").write_text("1000")  # where memory is short, end this rather than another's work
    print(json.dumps(measure(int(sys.argv[1]))))
