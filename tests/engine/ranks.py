"""Several ranks that train one case after the other: `python -m engine.ranks NAME FOLDER ...`, as one of WORLD_SIZE.

Of each table that is named, rank 0 writes FOLDER/NAME.json: for each case its curve.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pretrain.launch.world import free_port
from rank_programs import run_ranks


def run(name: str, world_size: int, folder: Path, program: str = "engine.ranks") -> dict[str, object]:
    """Start the ranks of a table of a module of layouts and return what rank 0 wrote."""
    return run_all({name: folder}, world_size, folder, program)[name]


def run_all(
    folders: dict[str, Path], world_size: int, logs: Path, program: str = "engine.ranks"
) -> dict[str, dict[str, object]]:
    """Start ranks once for several tables, each with its folder."""
    given = [word for name, folder in folders.items() for word in (name, folder)]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    run_ranks(
        program,
        *given,
        folder=logs,
        world_size=world_size,
        variables=lambda rank: {**world, "RANK": str(rank)},
        minutes=20 * len(folders),
    )
    return {name: json.loads((folder / f"{name}.json").read_text()) for name, folder in folders.items()}


def main() -> None:
    """Train all cases as one rank."""
    from pretrain.bridge import megatron
    from pretrain.cpu.backend import CpuBackend

    megatron.install(CpuBackend())
    import torch.distributed as dist

    from engine import context_layouts, expert_layouts, fp8_layouts, layouts, tiny
    from engine.optimizers import muon_layouts, rate_layouts, state_layouts
    from pretrain.engine import groups

    modules = (layouts, expert_layouts, context_layouts, fp8_layouts, muon_layouts, rate_layouts, state_layouts)
    tables = {table: cases for module in modules for table, cases in vars(module).items()}
    rank = int(os.environ["RANK"])
    groups.join_world(CpuBackend(), rank, int(os.environ["WORLD_SIZE"]), timeout_minutes=10)
    for name, folder in zip(sys.argv[1::2], map(Path, sys.argv[2::2]), strict=True):
        results = {}
        for case, of in tables[name].items():
            print(f"{name}: {case}", flush=True)  # seen where it fails
            results[case] = tiny.run(of, folder)
        if rank == 0:
            (folder / f"{name}.json").write_text(json.dumps(results))
    dist.barrier()
    groups.leave()


if __name__ == "__main__":
    main()
