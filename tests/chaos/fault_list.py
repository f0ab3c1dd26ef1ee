"""The faults, from frequent ones on a cluster to rare ones."""

from __future__ import annotations

import errno
import os
import signal

from chaos import disturbances
from chaos.fault import Ending, Fault
from chaos.planted import FAILURE, Kind
from chaos.tiny_training import BEFORE, SAVE_INTERVAL
from pretrain.exit_codes import ExitCode, of_signal

HANG_AFTER = 10
"""Seconds after which a stopped rank is reported."""

_KILLED, _USER_ERROR, _TERMINATED = -signal.SIGKILL, ExitCode.USER_ERROR, of_signal(signal.SIGTERM)
_WENT_ON = Ending(exit_code=0)


def faults_of(ranks: int) -> tuple[Fault, ...]:
    """Return all faults of a training of so many ranks."""
    last = ranks - 1
    return (*_of_processes(last), *_of_files(), *_of_ranks(last))


def _of_processes(last: int) -> tuple[Fault, ...]:
    """Return faults of processes that end, or do not."""
    return (
        Fault(name="kill -9 of a rank", disturb=disturbances.kill_last_rank, endings=(_restarted(_killed(last)),)),
        Fault(name="kill -9 of rank 0", disturb=disturbances.kill_first_rank, endings=(_restarted(_killed(0)),)),
        Fault(
            name="kill -9 of the launcher",
            disturb=disturbances.kill_launcher,
            endings=(Ending(exit_code=_KILLED), _WENT_ON),
        ),
        Fault(
            name="SIGSTOP of a rank",
            disturb=disturbances.stop_last_rank,
            endings=(_restarted(rf"rank {last}\b[^\n]*\bstopped"),),
            settings=(f"logging.hang_after_seconds={HANG_AFTER}",),
        ),
        Fault(
            name="kill -9 of a data worker",
            disturb=disturbances.kill_worker,
            endings=(_restarted(r"DataLoader worker[^\n]*killed by signal"),),
            settings=("data.num_workers=1",),
        ),
        Fault(
            name="SIGTERM twice at once, as at Slurm's time limit",
            disturb=disturbances.terminate_as_slurm,
            endings=(Ending(exit_code=ExitCode.SAVED, says=(r"stopped after iteration \d+: SIGTERM",)), _WENT_ON),
        ),
        Fault(
            name="SIGTERM twice, 3 s apart",
            disturb=disturbances.terminate_twice,
            endings=(Ending(exit_code=_TERMINATED), _WENT_ON),
        ),
        Fault(
            name="kill -9 of a node's launcher",
            disturb=disturbances.kill_launcher,
            endings=(_restarted(r"Node 1 [^\n]*no heartbeat[^\n]*its launcher was killed"),),
            nodes=2,
        ),
    )


def _of_files() -> tuple[Fault, ...]:
    """Return faults of checkpoints."""
    return (
        Fault(
            name="disk full while saving",
            planted=Kind.FULL_DISK,
            everywhere=True,
            endings=(Ending(exit_code=_USER_ERROR, says=(_no_room(), r"Free disk space")), _WENT_ON),
        ),
        Fault(
            name="newest checkpoint truncated",
            disturb=disturbances.truncate_newest,
            repair=disturbances.take_intact,
            endings=(_damaged(r"\d+ bytes instead of \d+"), _WENT_ON),
            damages=True,
        ),
        Fault(
            name="a byte of a checkpoint flipped",
            disturb=disturbances.flip_byte,
            repair=disturbances.take_intact,
            endings=(_damaged("its checksum has changed"), _WENT_ON),
            damages=True,
        ),
    )


def _of_ranks(last: int) -> tuple[Fault, ...]:
    """Return faults within a rank."""
    not_finite = (
        rf"not finite from iteration \d+ on, first on rank {last}\b[^\n]*latest checkpoint is iteration {BEFORE}\b"
    )
    return (
        Fault(
            name="NaN from a kernel",
            planted=Kind.NAN,
            on_last=True,
            endings=(_restarted(not_finite),),
        ),
        Fault(
            name="a rank whose clock has jumped fails",
            planted=Kind.CLOCK,
            on_last=True,
            endings=(_restarted(FAILURE, rf"rank {last} failed:\s+Traceback"),),
        ),
        Fault(
            name="a slow rank",
            planted=Kind.SLOW,
            on_last=True,
            endings=(Ending(exit_code=0, says=(rf"rank {last} computes \d+ % longer",)),),
        ),
    )


def _killed(rank: int) -> str:
    return rf"rank {rank} failed:\s+It was killed by SIGKILL"


def _restarted(*says: str) -> Ending:
    return Ending(exit_code=0, says=says, restarts=1)


def _damaged(how: str) -> Ending:
    """Return the end of a launcher that has restarted its ranks after a kill, and then met a damaged checkpoint."""
    intact = rf"newest intact checkpoint is iteration {BEFORE - SAVE_INTERVAL}: write"
    return Ending(exit_code=_USER_ERROR, says=(rf"checkpoints/[^\n]+? is damaged: {how}", intact), restarts=1)


def _no_room() -> str:
    return rf"checkpoints cannot be written:[^\n]*{os.strerror(errno.ENOSPC)}"
