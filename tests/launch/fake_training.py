"""Trainings that rank processes of the tests run: `fake_training:<function>`."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from rank_processes import alive, pids_of_ranks, wait_for  # the folder is on the path of the ranks

from pretrain.errors import DataError
from pretrain.exit_codes import End, ExitCode

OTHERS = ("OMP_NUM_THREADS", "DS_ACCELERATOR")


def report(recipe, *, backend_name, run_dir, resume, world):
    """Write the arguments and the environment of a rank to a file."""
    seen = {
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
    (run_dir / f"{world.rank}.json").write_text(json.dumps(seen))
    return End()


def rank_1_misses_data(recipe, *, run_dir, world, **_):
    _train_as_two(run_dir, world)
    raise DataError("corpus.bin is truncated.\nBuild it again.")


def all_miss_data(recipe, *, run_dir, world, **_):
    """Fail on rank 0 first: after the first failure the others may be ended before they report theirs."""
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    pids_of_ranks(run_dir, world.world_size)
    wait_for(lambda: world.rank == 0 or _has_failed(0, run_dir), "rank 0 to fail")
    raise DataError("corpus.bin is truncated.\nBuild it again.")


def rank_1_crashes(recipe, *, run_dir, world, **_):
    _train_as_two(run_dir, world)
    raise ZeroDivisionError("a bug in rank 1")


class _InterruptedError(RuntimeError):
    """Interrupt the process while the message is read."""

    def __str__(self):
        signal.raise_signal(signal.SIGINT)
        return "message"


def all_are_interrupted_while_reporting(recipe, **_):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise _InterruptedError


def _has_failed(rank, run_dir):
    """Say whether the failure file of the rank exists."""
    return Path(os.environ["PRETRAIN_FAILURE_FILE"]).with_name(f"{rank}.json").exists()


def rank_1_is_killed(recipe, *, run_dir, world, **_):
    _train_as_two(run_dir, world)
    os.kill(os.getpid(), signal.SIGKILL)


def rank_1_exits_without_output(recipe, *, run_dir, world, **_):
    _train_as_two(run_dir, world)
    os._exit(7)


def _train_as_two(run_dir, world):
    """Return on rank 1 as soon as rank 0 trains: a rank that is still starting reports nothing when it is ended."""
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    if world.rank == 0:
        time.sleep(600)
    wait_for((run_dir / "0.pid").exists, "rank 0 to train")


def dying_twice(recipe, *, run_dir, resume, world, **_):
    """Log an iteration; in the first two attempts the last rank is killed then, in the third all end."""
    attempt = _begin_attempt(run_dir, resume, world)
    if world.rank == 0:
        with (run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"iteration": attempt}) + "\n")
    wait_for(lambda: _lines(run_dir / "metrics.jsonl") >= attempt, "rank 0 to train")
    if attempt < 3:
        _die_as_last(world)
    return End()


def dying_always(recipe, *, run_dir, resume, world, **_):
    """Make no progress: the last rank is killed in every attempt."""
    _begin_attempt(run_dir, resume, world)
    _die_as_last(world)


def dying_once_then_endless(recipe, *, run_dir, resume, world, **_):
    """Train on in the second attempt, until a signal."""
    if _begin_attempt(run_dir, resume, world) == 1:
        _die_as_last(world)
    return until_signalled(recipe, run_dir=run_dir, world=world)


def dying_once(recipe, *, run_dir, resume, world, **_):
    """End well in the second attempt."""
    if _begin_attempt(run_dir, resume, world) == 1:
        _die_as_last(world)
    return End()


def waiting_in_the_first_attempt(recipe, *, run_dir, resume, world, **_):
    """Wait to be killed; end well in the second attempt."""
    attempt = _begin_attempt(run_dir, resume, world)
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    if attempt == 1:
        time.sleep(600)
    return End()


def _begin_attempt(run_dir, resume, world):
    """Note the attempt of this rank; return its number when all ranks have begun it."""
    with (run_dir / f"{world.rank}.attempts").open("a") as file:
        file.write(json.dumps([resume, world.world_size, world.master_port]) + "\n")
    attempt = _lines(run_dir / f"{world.rank}.attempts")
    for rank in range(world.world_size):
        wait_for(lambda rank=rank: _lines(run_dir / f"{rank}.attempts") >= attempt, "all ranks to begin")
    return attempt


def _lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _die_as_last(world):
    """Be killed as the last rank; as another one, wait for the end."""
    if world.rank == world.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def rank_1_dies_in_a_collective(recipe, *, world, **_):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method="env://")
    dist.all_reduce(torch.ones(1))
    if world.rank == 1:
        raise ZeroDivisionError("a bug in rank 1")
    dist.all_reduce(torch.ones(1))


def sum_of_ranks(recipe, *, run_dir, world, **_):
    """Sum the ranks over a process group of env://, as a real training makes it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method="env://")
    total = torch.tensor([world.rank])
    dist.all_reduce(total)
    dist.destroy_process_group()
    (Path(run_dir) / f"{world.rank}.sum").write_text(str(total.item()))
    return End()


def sum_after_restart(recipe, *, run_dir, resume, world, **_):
    """Sum the ranks as the engines make their group; write with how many restarts, and whether the run goes on."""
    import torch
    import torch.distributed as dist

    from pretrain.engine import groups

    with groups.joined(SimpleNamespace(process_group="gloo"), world.rank, world.world_size, 1):
        total = torch.tensor([world.rank])
        dist.all_reduce(total)
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (Path(run_dir) / f"{world.rank}.sum").write_text(f"sum {total.item()}, restarts {count}, resume {resume}")


def until_signalled(recipe, *, run_dir, world, **_):
    """Train until a signal, and save; write all signals to a file."""
    signals = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    while not signals:
        time.sleep(0.02)
    time.sleep(0.3)  # saving; a second signal would be seen here
    (run_dir / f"{world.rank}.signals").write_text(json.dumps([signal.Signals(number).name for number in signals]))
    return End(ExitCode.SAVED, signal.Signals(signals[0]).name, by_signal=True)


def reporting(recipe, *, run_dir, world, **_):
    """Count the requests for a report until SIGTERM."""
    (run_dir / f"{world.rank}.deaf").touch()  # its rank is there, and does not handle SIGUSR1 yet
    wait_for((run_dir / "listen").exists, "the test")
    asked = []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: (asked.append(1), (run_dir / f"{world.rank}.{len(asked)}").touch()))
    return until_signalled(recipe, run_dir=run_dir, world=world)


def ignoring_signals(recipe, *, run_dir, world, **_):
    """Ignore signals, but note them in a file."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: (run_dir / f"{world.rank}.heard").touch())
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    while True:
        time.sleep(1)


def importing(recipe, *, run_dir, world, **_):
    """Sleep before the signal handlers of a training are set."""
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    time.sleep(60)


def until_rank_0_is_signalled(recipe, *, run_dir, world, **_):
    """Train until rank 0 gets a signal; the others stop with it, as by the vote of a real training."""
    if world.rank == 0:
        return until_signalled(recipe, run_dir=run_dir, world=world)
    wait_for((run_dir / "0.signals").exists, "rank 0 to stop")
    return End(ExitCode.SAVED, "SIGTERM", by_signal=True)


def until_rank_1_is_signalled(recipe, *, run_dir, world, **_):
    """Train until rank 1 gets a signal, which rank 0 hears of by the vote."""
    if world.rank == 1:
        return until_signalled(recipe, run_dir=run_dir, world=world)
    (run_dir / "0.pid").write_text(str(os.getpid()))
    wait_for((run_dir / "1.signals").exists, "rank 1 to stop")
    return End(ExitCode.SAVED, "SIGTERM", by_signal=True)


def signalled_once(recipe, *, run_dir, resume, world, **_):
    """Train until rank 0 gets a signal in the first attempt; end well in the second."""
    if _begin_attempt(run_dir, resume, world) == 1:
        return until_rank_0_is_signalled(recipe, run_dir=run_dir, world=world)
    return End()


def rank_1_leaves(recipe, *, run_dir, world, **_):
    """Leave on rank 1 as if all were done, without a word; rank 0 loses its connection."""
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    pids_of_ranks(run_dir, world.world_size)
    if world.rank == 1:
        os._exit(0)
    other = int((run_dir / "1.pid").read_text())
    wait_for(lambda: not alive(other), "rank 1 to leave")
    raise ConnectionError("Connection reset by peer")


def all_leave(recipe, **_):
    sys.exit(0)


def import_modules(recipe, backend):
    """Do at import what FAKE_IMPORTS says, in the process from which ranks are forked."""
    match os.environ.get("FAKE_IMPORTS"):
        case "starts_a_thread":
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        case "opens_a_device":
            os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
        case "fails":
            import missing_module  # noqa: F401


def described(recipe, *, run_dir, world, **_):
    """Write what a process may inherit."""
    import numpy as np

    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGCHLD")
    handlers = {name: signal.getsignal(getattr(signal, name)) for name in names}
    seen = {
        "name": Path("/proc/self/comm").read_text().strip(),
        "environment": dict(os.environ),
        "arguments": sys.argv[1:],
        "program": sys.argv[0],
        "path": sys.path,
        "signals": {name: getattr(handler, "__name__", str(handler)) for name, handler in handlers.items()},
        "blocked": [str(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "is_own_session": os.getsid(0) == os.getpid(),
        "parent": os.getppid(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "numpy": np.random.rand(),
    }
    (run_dir / f"{world.rank}.json").write_text(json.dumps(seen))
    return End()


def spawning(recipe, *, run_dir, world, **_):
    """Write the rank, and what a spawned process has put into a queue."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=queue.put, args=(1,))
    worker.start()
    (run_dir / f"{world.rank}.json").write_text(json.dumps([world.rank, queue.get(timeout=300)]))
    worker.join()
    return End()
