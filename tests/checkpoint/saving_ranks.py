"""Two ranks that save beside their steps: `python -m checkpoint.saving_ranks FOLDER RANK LAYOUTS`.

Each writes FOLDER/RANK.json: for each layout what it saw.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

from engine.expert_layouts import EP, MIXTRAL
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
    "experts of both ranks": (*MIXTRAL, *EP),
    "experts, ZeRO-1": (*MIXTRAL, *ZERO1),
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
        copied = from_copies(engine, folder, beside)
        return {"differing": files, "beside": beside, "resumed": resumed, "told": len(told), "copied": copied}


def from_copies(engine, folder, losses):
    """Copy iterations 3 and 4 as two nodes of one rank; return what is found of them later, and whether losses equal.

    `losses` are those of the steps after iteration 3, which the engine continues from.
    """
    import shutil

    import torch.distributed as dist

    from pretrain.checkpoint import storage
    from pretrain.checkpoint.copies.node_copies import NodeCopies
    from pretrain.checkpoint.copies.peers import Peers

    (folder / ".run_id").write_text("a run")
    checkpoint = engine.recipe.checkpoint.model_copy(update={"local_dir": str(folder / "copies")})
    recipe, rank = engine.recipe.model_copy(update={"checkpoint": checkpoint}), dist.get_rank()
    copies = NodeCopies(recipe, folder, Peers(rank, 2, 1), engine.vocab_size)
    storage.load(engine, folder / "checkpoints" / "iter_0000003", weights_only=False)
    problems = []
    for iteration in (3, 4):
        progress = {"iteration": iteration, "consumed_samples": 8 * iteration, "skipped_iterations": 0}
        problems.append(copies.save(engine, progress, 2))
        tiny_train(engine, iteration)

    def again(latest):
        dist.barrier()
        taken = copies.load(engine, latest)
        if taken is None:
            return None
        iteration = taken[1].progress["iteration"]
        return [iteration, tiny_train(engine, iteration) == losses[iteration - 3]]

    seen = {"problems": problems, "whole": again(2)}
    if rank == 1:
        for of_a_rank in (folder / "copies").glob("*/rank-*-at-1"):
            shutil.rmtree(of_a_rank)
    seen |= {"node 1 lost": again(2)}
    if rank == 0:
        damage(next((folder / "copies").glob("*/rank-0-at-0/0000004/state.pt")))
    seen |= {"damaged": again(2), "told": copies.notices[:], "held after": held(folder, rank)}
    storage.load(engine, folder / "checkpoints" / "iter_0000003", weights_only=False)
    tiny_train(engine, 3)
    copies.save(engine, {"iteration": 4, "consumed_samples": 32, "skipped_iterations": 0}, 3)
    if rank == 0:
        damage(next((folder / "copies").glob("*/rank-0-at-0/0000004/state.pt")))
    seen |= {"damaged, with a peer's": again(3), "gone back before": again(2)}
    of_another = next((folder / "copies").iterdir()) / f"rank-9-at-{9 + rank}" / "0000007"
    shutil.copytree(next((folder / "copies").glob(f"*/rank-{rank}-at-{rank}/*")), of_another)
    copies.save(engine, progress, 3)
    copies.save(engine, progress, 3)
    seen |= {"of another number": of_another.exists()}
    seen |= {"later checkpoint": again(4), **without_room(engine, copies, progress)}
    return seen | without_a_part(engine, copies, progress)


def without_room(engine, copies, progress):
    """Copy while rank 1 has no room for its own part, and none for rank 0's; return what all ranks are told."""
    import errno

    import pytest
    import torch.distributed as dist

    from checkpoint import full_disk
    from pretrain.checkpoint.copies import peers

    def refuse(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    opened = Path.open

    def refuse_to_read(path, mode="r", *arguments, **named):
        if mode == "rb":
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, mode, *arguments, **named)

    with full_disk.files_of_at_most(10_000 if dist.get_rank() == 1 else -1):
        seen = {"no room": copies.save(engine, progress, 3)}
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(peers._Received, "_append", refuse)
        seen["no room for the peer's"] = copies.save(engine, progress, 3)
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(Path, "open", refuse_to_read)
        seen["own is not read"] = copies.save(engine, progress, 3)
    return seen | {"left": copies.load(engine, 3)}


def without_a_part(engine, copies, progress):
    """Load copies in which rank 0 lacks a tensor, with a checkpoint before them and without; return what is told."""
    import pytest
    import torch.distributed as dist

    from pretrain.checkpoint.copies import node_shares
    from pretrain.errors import CheckpointError

    whole_content = node_shares.content_of

    def partial_content(*arguments):
        content = whole_content(*arguments)
        content["tensors"].pop(min(content["tensors"]))
        return content

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 0:
            patch.setattr(node_shares, "content_of", partial_content)
        copies.save(engine, progress, None)
    told = len(copies.notices)
    seen = {"a part lost": [copies.load(engine, 3), [notice[-11:] for notice in copies.notices[told:]]]}
    with pytest.raises(CheckpointError, match=r"is missing\.\nThere is no checkpoint\. Remove "):
        copies.load(engine, None)
    return seen


def held(folder, rank):
    """Return the iterations whose copies a rank has of itself."""
    return sorted(each.name for each in (folder / "copies").glob(f"*/rank-{rank}-at-{rank}/*"))


def tiny_train(engine, iteration):
    from engine import tiny

    return tiny.train(engine, iteration, iteration + 1)


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


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
