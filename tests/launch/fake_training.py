"""Trainings that rank processes of the tests run: `fake_training:<function>`."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from rank_processes import pids_of_ranks, wait_for  # the folder is on the path of the ranks

from pretrain.errors import DataError

OTHERS = ("OMP_NUM_THREADS", "DS_ACCELERATOR")


def report(recipe, *, backend_name, run_dir, resume, world):
    """Write down what a rank was told."""
    told = {
        "layers": recipe.model.num_layers,
        "backend": backend_name,
        "resume": resume,
        "world": [world.rank, world.world_size, world.local_rank, world.local_world_size, world.node_rank],
        "environ": {name: os.environ.get(name) for name in [*world.environment(), *OTHERS]},
        "path": sys.path,
        "variables": {name: value for name, value in os.environ.items() if name.startswith("PRETRAIN_")},
        "run_dir": str(run_dir),
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / f"{world.rank}.json").write_text(json.dumps(told))


def rank_1_misses_data(recipe, *, run_dir, world, **_):
    _train_as_two(run_dir, world)
    raise DataError("corpus.bin is truncated.\nBuild it again.")


def all_miss_data(recipe, *, run_dir, world, **_):
    """Rank 0 first: as soon as one rank has failed, the others may be ended before they can say why."""
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    pids_of_ranks(run_dir, world.world_size)
    wait_for(lambda: world.rank == 0 or _has_failed(0, run_dir), "rank 0 to fail")
    raise DataError("corpus.bin is truncated.\nBuild it again.")


def rank_1_crashes(recipe, *, run_dir, world, **_):
    _train_as_two(run_dir, world)
    raise ZeroDivisionError("a bug in rank 1")


class _InterruptedError(RuntimeError):
    """While somebody asks what it says, the process is told to end."""

    def __str__(self):
        signal.raise_signal(signal.SIGINT)
        return "said"


def all_are_interrupted_while_they_say_why(recipe, **_):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise _InterruptedError


def _has_failed(rank, run_dir):
    """Look where the launcher of this node looks."""
    return Path(os.environ["PRETRAIN_FAILURE_FILE"]).with_name(f"{rank}.json").exists()


def rank_1_is_killed(recipe, *, run_dir, world, **_):
    _train_as_two(run_dir, world)
    os.kill(os.getpid(), signal.SIGKILL)


def rank_1_leaves_without_a_word(recipe, *, run_dir, world, **_):
    _train_as_two(run_dir, world)
    os._exit(7)


def _train_as_two(run_dir, world):
    """Return on rank 1 as soon as rank 0 trains: one that is still starting says nothing when it is ended."""
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    if world.rank == 0:
        time.sleep(600)
    wait_for((run_dir / "0.pid").exists, "rank 0 to train")


def rank_1_dies_in_a_collective(recipe, *, world, **_):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method="env://")
    dist.all_reduce(torch.ones(1))
    if world.rank == 1:
        raise ZeroDivisionError("a bug in rank 1")
    dist.all_reduce(torch.ones(1))


def sum_of_ranks(recipe, *, run_dir, world, **_):
    """What a real training starts with: a process group over env://."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method="env://")
    total = torch.tensor([world.rank])
    dist.all_reduce(total)
    dist.destroy_process_group()
    (Path(run_dir) / f"{world.rank}.sum").write_text(str(total.item()))


def until_told(recipe, *, run_dir, world, **_):
    """Train until a signal asks to save and leave; count how often it does."""
    signals = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    while not signals:
        time.sleep(0.02)
    time.sleep(0.3)  # saving; a second signal would be seen here
    (run_dir / f"{world.rank}.signals").write_text(json.dumps([signal.Signals(number).name for number in signals]))


def deaf(recipe, *, run_dir, world, **_):
    """Never leave, whatever is asked."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: (run_dir / f"{world.rank}.heard").touch())
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    while True:
        time.sleep(1)


def importing(recipe, *, run_dir, world, **_):
    """Do what takes time before a training looks at signals."""
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    time.sleep(60)


def until_rank_0_is_told(recipe, *, run_dir, world, **_):
    """Train until rank 0 is asked to save and leave; the others follow it, as by the vote of a real training."""
    if world.rank == 0:
        until_told(recipe, run_dir=run_dir, world=world)
    else:
        while not (run_dir / "0.signals").exists():
            time.sleep(0.02)
