"""Three nodes of one rank each, which pass files on: `python -m checkpoint.peers_ranks FOLDER RANK`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pretrain.launch.world import free_port
from rank_programs import run_ranks

RANKS = 3


def run(folder):
    """Start the ranks and return what each saw."""
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    run_ranks(
        "checkpoint.peers_ranks", folder, "{rank}", folder=folder, world_size=RANKS,
        variables=lambda rank: {**world, "RANK": str(rank)},
    )  # fmt: skip
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def main():
    from pretrain.checkpoint.copies.peers import Peers
    from pretrain.cpu.backend import CpuBackend
    from pretrain.engine import groups
    from pretrain.errors import CheckpointError

    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    groups.join_world(CpuBackend(), rank, int(os.environ["WORLD_SIZE"]), timeout_minutes=10)
    peers = Peers(rank, RANKS, 1)
    own, kept, back = (folder / f"{rank}-{name}" for name in ("own", "kept", "back"))
    own.write_text("of rank " + str(rank) * (rank + 1))
    seen = {"owners": peers.owners, "passed on": [peers.pass_to_next(own, kept), kept.read_text()]}
    before_lacks = peers.number_of_before(int(rank == 1))
    problem = peers.pass_to_before(kept if before_lacks else None, back if rank == 1 else None)
    seen["back"] = [problem, back.read_text() if back.exists() else None]
    seen["numbers of next"] = sorted(peers.numbers_of_next([10 + rank, 20], 2))
    # All have 20 and 7; 30 one alone.
    seen["newest"] = [peers.newest_of_all({7, 20} | ({30} if rank == 2 else set())), peers.newest_of_all({rank})]
    try:
        Peers(rank, RANKS, 1 + rank % 2)
    except CheckpointError as error:
        seen["unequal"] = str(error)
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    groups.leave()


if __name__ == "__main__":
    main()
