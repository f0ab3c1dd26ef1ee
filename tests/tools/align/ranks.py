"""Recordings of a world of several ranks in turn: `python -m tools.align.ranks FOLDER`, as one of WORLD_SIZE.

FOLDER/cases.json has the overrides of each by its name.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pretrain.launch.world import free_port
from rank_programs import run_ranks


def record_on_ranks(folder: Path, world_size: int, cases: dict[str, tuple[str, ...]], steps: int = 1) -> None:
    """Record cases into folders of their names below `folder`."""
    (folder / "cases.json").write_text(json.dumps(cases))
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    run_ranks(
        "tools.align.ranks",
        folder,
        steps,
        folder=folder,
        world_size=world_size,
        variables=lambda rank: {**world, "RANK": str(rank)},
    )


def main() -> None:
    """Record all cases as one rank."""
    from pretrain.bridge import megatron
    from pretrain.cpu.backend import CpuBackend

    megatron.install(CpuBackend())
    import torch.distributed as dist

    from pretrain.engine import groups
    from tools.align.recorded import record

    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    groups.join_world(CpuBackend(), rank, int(os.environ["WORLD_SIZE"]), timeout_minutes=10)
    for name, overrides in json.loads((folder / "cases.json").read_text()).items():
        record(folder / name, *overrides, steps=int(sys.argv[2]))
        dist.barrier()
    groups.leave()


if __name__ == "__main__":
    main()
