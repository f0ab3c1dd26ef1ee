"""Light ranks, forked from one process, that agree over a tree; each writes what it has found to FOLDER/RANK."""

from __future__ import annotations

import json
import os
import signal
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from pretrain import collectives
from pretrain.collectives import Tree, first_problem, on_rank0, quiet_gloo, tree_of_world
from pretrain.errors import PretrainError

_TIMEOUT = timedelta(seconds=60)


def run(world_size, fan_out, folder, work):
    """Fork the ranks, call `work(rank, tree)` in each, and return the results by rank: None, or what was raised."""
    collectives.FAN_OUT = fan_out
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            _rank(rank, world_size, folder, work)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    found = [folder / str(rank) for rank in range(world_size)]
    return [json.loads(file.read_text()) if file.exists() else None for file in found]


def _rank(rank, world_size, folder, work):
    """Never returns: a child must not go on as the parent does."""
    signal.alarm(120)  # a rank that hangs ends all the same, without a result
    try:
        with quiet_gloo():
            dist.init_process_group(
                "gloo", store=dist.FileStore(str(folder / "store"), world_size), rank=rank, world_size=world_size
            )
        collectives.join_tree(1)
        found = work(rank, Tree.between_hosts("numbers", 1))
    except BaseException as error:  # noqa: BLE001  the parent compares it
        found = f"{type(error).__name__}: {error}"
        if os.environ.get("SHOW"):
            traceback.print_exc()
    written = folder / f"{rank}.part"
    written.write_text(json.dumps(found))
    written.rename(folder / str(rank))
    os._exit(0)


def agreements(rank, tree):
    """Return what a rank finds by each operation, by name."""
    numbers = torch.tensor([2.0**rank if rank < 40 else 1.0, rank], dtype=torch.float64)
    pending = tree.begin(numbers)
    last = torch.tensor(rank == 1, dtype=torch.int32)
    pending.wait()
    tree.reduce(last, dist.ReduceOp.MIN)
    return {
        "sums": numbers.tolist(),
        "least": last.item(),
        "gathered": tree.gathered(f"rank {rank}"),
        "first": tree.first_of({"of": rank}),
        "problem": first_problem(f"{rank} fails" if rank % 3 == 2 else None),
        "none": first_problem(None),
        "asked": on_rank0(dist.get_rank),
        "refused": _refused(),
        "of all": tree_of_world().gathered(rank),
        "members": max([0, *(group.size() for group in tree.groups)]),
    }


def _refused():
    def ask():
        msg = "no"
        raise PretrainError(msg)

    try:
        on_rank0(ask)
    except PretrainError as error:
        return str(error)


def ends(victim):
    """Return the work of ranks one of which ends while the others go on exchanging."""

    def work(rank, tree):
        for turn in range(1000):
            if rank == victim and turn == 3:
                os._exit(9)
            numbers = torch.ones(2, dtype=torch.float64)
            tree.begin(numbers).wait()

    return work
