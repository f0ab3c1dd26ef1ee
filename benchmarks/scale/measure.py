"""One measurement in a process of its own: `python -m benchmarks.scale.measure launchers|ranks RANKS [ACT...]`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.scale.crowd import Crowd

FEW, MOST = 8, 63  # players of a process; more where there would be too many processes
FEW_PROCESSES = 64


def measure(kind: str, ranks: int, *acts: str) -> dict[str, dict[str, object]]:
    """Return what each act of all launchers or ranks costs; what it needs is imported before the processes fork."""
    from benchmarks.scale.launchers import RANKS, Launcher
    from pretrain.launch.world import free_port

    player, number = Launcher, -(-ranks // RANKS)
    if kind == "ranks":
        from benchmarks.scale.ranks import Rank

        player, number = Rank, ranks
    each = FEW if number <= FEW * FEW_PROCESSES else MOST
    with tempfile.TemporaryDirectory() as tempfile.tempdir, Crowd(player, number, free_port(), each) as crowd:
        crowd.act("__str__")  # they are made
        return {name: crowd.act(name) for name in acts or player.ACTS}


if __name__ == "__main__":
    Path("/proc/self/oom_score_adj").write_text("1000")  # where memory is short, end this rather than another's work
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])))
