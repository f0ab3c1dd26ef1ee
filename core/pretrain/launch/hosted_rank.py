"""One rank that DeepSpeed's launcher starts: `python hosted_rank.py FOLDER`. Only the launcher calls it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError
from pretrain.launch.board import END, Board
from pretrain.launch.nodes.launchers import PDSH, SLURM
from pretrain.launch.processes.default_variables import default_variables
from pretrain.launch.processes.parent_exit import die_with
from pretrain.launch.processes.rank import train
from pretrain.launch.schedulers.detection import current_world
from pretrain.launch.world import LOCALHOST, free_port, node_worlds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.launch.world import World

_PERIOD = 1.0
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


def main() -> None:
    """Train, obey the launcher's orders, and leave the reason on the board if the training fails."""
    board = Board(Path(sys.argv[1]))
    try:
        task = board.task()
        world = _world(task.variables)
    except PretrainError as error:  # Without a board it can only be printed, by one rank of the host.
        first = all(os.environ.get(name, "0") == "0" for name in _LOCAL_RANKS)
        raise SystemExit(str(error) if first else 1) from None
    if task.launcher == PDSH:
        die_with(os.getppid())  # Not under mpirun and srun: their daemons may start ranks from a thread that ends.
    # srun has set the threads if it was asked for cores, and binds the rank to its own.
    usually = {} if task.launcher == SLURM else default_variables(world.local_world_size)
    os.environ.update({**usually, **task.variables, **os.environ})
    try:
        # Before the training looks at signals they end it; and whether the launcher heeds them is its own question.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        threading.Thread(target=_obey, args=(board, world.rank), daemon=True).start()
        if world.rank == 0:
            board.begin()
        train(task.job, world, board.failure_file(world.rank))
        if world.rank == 0:
            board.finish()
    except KeyboardInterrupt:  # just before the training, or just after it
        os._exit(128 + signal.SIGINT)


def _world(variables: Mapping[str, str]) -> World:
    """Return this rank's place; srun and mpirun say nothing that could be used where there is only one."""
    return current_world({**variables, **os.environ}) or node_worlds([1], 0, LOCALHOST, free_port())[0]


def _obey(board: Board, rank: int) -> None:
    """Watch the orders: a signal is for rank 0, which has the others follow; the end is for all."""
    passed_on = ""
    while (order := board.order()) != END:
        if rank == 0 and order != passed_on and order in signal.Signals.__members__:
            passed_on = order
            signal.pthread_kill(threading.main_thread().ident or 0, signal.Signals[order])
        time.sleep(_PERIOD)
    # The launcher knows why. With success, or DeepSpeed and mpirun would add words of their own.
    os._exit(0)


if __name__ == "__main__":
    main()
