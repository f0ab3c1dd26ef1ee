"""Two ranks that save beside their steps: `python -m checkpoint.saving_ranks FOLDER RANK LAYOUTS`.

Each writes FOLDER/RANK.json: for each layout what it saw.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

from engine.layouts import BF16, OVERLAP_BOTH, PP, STAGE, TP, ZERO1
from pretrain.launch.world import free_port
from rank_programs import run_ranks

SMALL = ("model.num_layers=2", "model.hidden_dropout=0.1")
LAYOUTS = {
    "PP": PP,
    "ZeRO-1 of megatron-core, overlapped": (*ZERO1, *OVERLAP_BOTH),
}
LAYOUTS_FULL = {
    "stage 3": STAGE[3],
    "TP, bf16": (*BF16, *TP),
    "stage 0": STAGE[0],
    "stage 1": STAGE[1],
    "stage 2, bf16": (*BF16, *STAGE[2]),
}


def run(folder, layouts="LAYOUTS"):
    """Start both ranks and return what each saw of these layouts."""
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    run_ranks(
        "checkpoint.saving_ranks", folder, "{rank}", layouts, folder=folder, world_size=2,
        variables=lambda rank: {**world, "RANK": str(rank)},
    )  # fmt: skip
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def main():
    from pretrain.bridge import megatron
    from pretrain.cpu.backend import CpuBackend

    megatron.install(CpuBackend())
    import torch.distributed as dist

    from pretrain.engine import groups

    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    groups.join_world(CpuBackend(), rank, int(os.environ["WORLD_SIZE"]), timeout_minutes=10)
    seen = {name: saved_and_resumed(overrides, folder / name) for name, overrides in globals()[sys.argv[3]].items()}
    seen |= {"full disk": on_a_full_disk(folder / "full"), "error": with_an_error_of_one(folder / "error")}
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    groups.leave()


def saved_and_resumed(overrides, folder):
    """Save at once and beside two steps; return which files differ, and the losses of steps after it and resumed."""
    import torch.distributed as dist

    from checkpoint.comparison import differing
    from engine import tiny
    from pretrain.checkpoint import storage

    with tiny.engine_of(tiny.tiny(*SMALL, *overrides)) as engine:
        saves, told = background(folder)
        tiny.train(engine, 0, 3)
        tiny.save(engine, folder / "at once", 3)
        saves.start(3, snapshots(engine, 3))
        beside = [tiny.train(engine, 3, 4), saves.poll(), tiny.train(engine, 4, 5), saves.poll()][::2]
        saves.wait()
        beside.append(tiny.train(engine, 5, 6))
        dist.barrier()
        later = folder / "checkpoints" / "iter_0000003"
        files = differing(folder / "at once", later)
        storage.load(engine, later, weights_only=False)
        resumed = [tiny.train(engine, iteration, iteration + 1) for iteration in range(3, 6)]
        return {"differing": files, "beside": beside, "resumed": resumed, "told": len(told)}


def on_a_full_disk(folder):
    """Save twice, the second time without room for rank 1; return the error, the steps until then, and what is left."""
    import pytest
    import torch.distributed as dist

    from checkpoint import full_disk
    from engine import tiny
    from pretrain.checkpoint import checksums
    from pretrain.checkpoint.folder import CheckpointFolder
    from pretrain.errors import CheckpointError

    with tiny.engine_of(tiny.tiny(*SMALL, *ZERO1)) as engine, pytest.MonkeyPatch.context() as patch:
        saves, _ = background(folder)
        saves.start(1, snapshots(engine, 1))
        saves.wait()
        if dist.get_rank() == 1:
            full_disk.fill(patch, after=10_000)
        saves.start(2, snapshots(engine, 2))
        problem = None
        for iteration in range(1000):
            tiny.train(engine, iteration, iteration + 1)
            try:
                saves.poll()
            except CheckpointError as error:
                problem = str(error)
                break
        patch.undo()
        left = CheckpointFolder(folder / "checkpoints")
        dist.barrier()
        intact = checksums.damage_in_share(left.directory(1)) is None
        return {"problem": problem, "at": iteration, "left": [left.latest(), left.iterations(), intact]}


def with_an_error_of_one(folder):
    """Save; rank 1 ends the run at once, while rank 0 waits for it in a collective; return the latest of rank 1."""
    import torch.distributed as dist

    from engine import tiny
    from pretrain.checkpoint.folder import CheckpointFolder

    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        saves, told = background(folder)
        saves.start(1, snapshots(engine, 1))
        latest = None
        if dist.get_rank() == 1:
            saves.finish()
            latest = CheckpointFolder(folder / "checkpoints").latest()
        dist.barrier()
        saves.finish()
        return {"latest": latest, "told": len(told)}


def background(folder):
    import torch.distributed as dist

    from pretrain.checkpoint.background import BackgroundSaves
    from pretrain.checkpoint.folder import CheckpointFolder

    told = []
    folder = CheckpointFolder(folder / "checkpoints")
    return BackgroundSaves(folder, is_main=dist.get_rank() == 0, notify=told.append, timeout_minutes=1), told


def snapshots(engine, iteration):
    from pretrain.checkpoint.snapshot import Snapshot

    progress = {"iteration": iteration, "consumed_samples": 8 * iteration, "skipped_iterations": 0}
    return partial(Snapshot.take, engine, progress=progress, copies=True)


if __name__ == "__main__":
    main()
